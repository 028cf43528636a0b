//! Replies as those who asked read them: one request's, or those of several that make up one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as Cx, Poll};
use std::time::Duration;

use millstream_actors::request::{Reply, RequestId};
use tokio::sync::mpsc;

use super::{Cut, Desk};

/// One request's replies. Dropping it before the end tells the graph that nobody waits.
pub struct Answer {
    request: RequestId,
    replies: mpsc::Receiver<Reply>,
    desk: Arc<Desk>,
    slow: Arc<AtomicBool>,
    /// What [`Answer::peek`] has seen.
    early: Option<Result<Reply, Cut>>,
    /// The graph has said its last word.
    ended: bool,
}

impl Answer {
    pub(super) fn new(
        desk: Arc<Desk>,
        request: RequestId,
        replies: mpsc::Receiver<Reply>,
        slow: Arc<AtomicBool>,
    ) -> Self {
        Self { request, replies, desk, slow, early: None, ended: false }
    }

    /// Its number.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The next reply. After [`Reply::End`] do not ask again. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Cut`] when the stream ends without a last word.
    pub async fn next(&mut self) -> Result<Reply, Cut> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits at most `wait` for the next reply and shows it; [`Answer::next`] still gives it.
    pub async fn peek(&mut self, wait: Duration) -> Option<&Result<Reply, Cut>> {
        if self.early.is_none() {
            self.early = tokio::time::timeout(wait, self.next()).await.ok();
        }
        self.early.as_ref()
    }

    fn poll_next(&mut self, cx: &mut Cx<'_>) -> Poll<Result<Reply, Cut>> {
        if let Some(early) = self.early.take() {
            return Poll::Ready(early);
        }
        self.replies.poll_recv(cx).map(|reply| match reply {
            Some(reply) => {
                self.ended = matches!(reply, Reply::End { .. });
                Ok(reply)
            }
            None => Err(if self.slow.load(Ordering::Acquire) { Cut::Slow } else { Cut::Gone }),
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.ended && !self.desk.gone.load(Ordering::Acquire) {
            self.desk.abandon(self.request);
        }
    }
}

/// Several answers, read as their replies come. Dropping it drops all that have not ended.
pub struct Answers {
    /// `None` once the last word was read.
    open: Vec<Option<Answer>>,
    /// Where the next look begins, so that no answer waits behind a faster one.
    turn: usize,
}

impl Answers {
    /// All of these.
    pub fn new(answers: Vec<Answer>) -> Self {
        Self { open: answers.into_iter().map(Some).collect(), turn: 0 }
    }

    /// Waits at most `wait` for the first reply, and gives it and those of the others that are there, each with its
    /// answer's place; [`Answers::next`] still gives them.
    pub async fn peek(&mut self, mut wait: Duration) -> Vec<&Result<Reply, Cut>> {
        let mut seen = Vec::new();
        for answer in self.open.iter_mut().flatten() {
            seen.extend(answer.peek(wait).await);
            wait = Duration::ZERO;
        }
        seen
    }

    /// The next reply of any of them, with its place; `None` when all have ended. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<(usize, Result<Reply, Cut>)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Cx<'_>) -> Poll<Option<(usize, Result<Reply, Cut>)>> {
        let count = self.open.len();
        for step in 0..count {
            let place = (self.turn + step) % count;
            let Some(answer) = &mut self.open[place] else { continue };
            if let Poll::Ready(reply) = answer.poll_next(cx) {
                if matches!(reply, Ok(Reply::End { .. }) | Err(_)) {
                    self.open[place] = None;
                }
                self.turn = place + 1;
                return Poll::Ready(Some((place, reply)));
            }
        }
        if self.open.iter().all(Option::is_none) { Poll::Ready(None) } else { Poll::Pending }
    }
}
