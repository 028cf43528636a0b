//! Where requests from outside meet the graph: the desk numbers them, hands them in, and leads every reply to the stream
//! that waits for it. HTTP, `chat` and `oracle` all ask here.
//!
//! Three promises. The pump that reads the graph's replies never waits for a client: a stream that is full is cut off.
//! A client that goes away is told to the graph until the graph has heard it. Every stream ends, with an `End` or with a
//! [`Cut`], even when the graph forgets it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use millstream_actors::assemble::Doors;
use millstream_actors::request::{Reply, RequestId, Submit};
use millstream_actors::sample::choice_seed;
use millstream_runtime::{Inlet, Outlet};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::clock;
use crate::meters::Meters;

mod answer;

pub use answer::{Answer, Answers};

/// Between two tries to tell the graph that a client is gone.
const ABANDON_RETRY: Duration = Duration::from_millis(2);

/// Bounds of a desk.
#[derive(Clone, Copy, Debug)]
pub struct DeskBounds {
    /// Streams at once; more are turned away.
    pub streams_max: usize,
    /// Replies that one stream holds for a slow client before it is cut off.
    pub replies_max: usize,
    /// A stream older than this is forgotten, whatever the graph says: longer than any deadline.
    pub age_max: Duration,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// All places are taken.
    Busy,
    /// No new requests: the desk is closing.
    Draining,
}

/// Why a stream ended without a last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its client reads too slowly.
    Slow,
    /// The part of the graph that held it is gone.
    Gone,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cut::Slow => "the answer was cut off: it was read too slowly",
            Cut::Gone => "the answer was cut off: the gateway stopped",
        })
    }
}

/// A stream as the pump sees it. Written by the pump alone once it is made.
struct Stream {
    replies: mpsc::Sender<Reply>,
    asked: Instant,
    /// When its last tokens came.
    last: Option<Instant>,
    /// Set before a cut for slowness, so that the client's side can say why.
    slow: Arc<AtomicBool>,
}

/// What became of a reply.
#[derive(PartialEq)]
enum Given {
    /// It waits for the client, or the client is gone and needs nothing.
    Done,
    /// There was no room: the stream is cut.
    TooSlow,
}

impl Stream {
    fn give(&mut self, reply: Reply) -> Given {
        match self.replies.try_send(reply) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Given::Done,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.slow.store(true, Ordering::Release);
                // A sender to nobody takes the place of the real one, whose end the client's side notices.
                self.replies = mpsc::channel(1).0;
                Given::TooSlow
            }
        }
    }
}

/// The desk. Shared by all who ask.
pub struct Desk {
    submit: Inlet<Submit>,
    abandon: Inlet<RequestId>,
    /// Every request that has not had its last word. Streams whose client went away stay until the graph ends them.
    streams: DashMap<RequestId, Stream>,
    /// Requests to abandon that the graph had no room to hear yet; at most as many as there are streams.
    unheard: Mutex<Vec<RequestId>>,
    unheard_bell: Notify,
    /// Rung whenever a stream leaves.
    left: Notify,
    next: AtomicU64,
    draining: AtomicBool,
    /// Set when no more replies will come.
    gone: AtomicBool,
    bounds: DeskBounds,
    meters: Meters,
}

impl Desk {
    /// Takes over the doors of a running graph and starts the pump.
    pub fn open(doors: Doors, bounds: DeskBounds, meters: Meters) -> Arc<Self> {
        let desk = Arc::new(Self {
            submit: doors.submit,
            abandon: doors.abandon,
            streams: DashMap::new(),
            unheard: Mutex::default(),
            unheard_bell: Notify::new(),
            left: Notify::new(),
            next: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            bounds,
            meters,
        });
        tokio::spawn(pump(Arc::clone(&desk), doors.replies));
        tokio::spawn(tell_abandoned(Arc::clone(&desk)));
        desk
    }

    /// Hands in a request for several answers to one prompt, each with a seed of its own that follows from the request's.
    /// All are taken, or none is.
    ///
    /// # Errors
    /// [`Closed`] when they cannot be taken now.
    pub fn ask_choices(self: &Arc<Self>, submit: &Submit, choices: u32) -> Result<Vec<Answer>, Closed> {
        let mut answers: Vec<Answer> = Vec::new();
        for choice in 0..choices {
            let mut submit = submit.clone();
            submit.sampling.seed = choice_seed(submit.sampling.seed, choice);
            // The first gives the family its number, which is chosen when it is handed in.
            submit.family = answers.first().map(Answer::request);
            answers.push(self.hand_in(submit, choices > 1)?);
        }
        Ok(answers)
    }

    /// Hands in a request; its number is chosen here.
    ///
    /// # Errors
    /// [`Closed`] when it cannot be taken now.
    pub fn ask(self: &Arc<Self>, submit: Submit) -> Result<Answer, Closed> {
        self.hand_in(submit, false)
    }

    fn hand_in(self: &Arc<Self>, mut submit: Submit, founds: bool) -> Result<Answer, Closed> {
        if self.draining.load(Ordering::Acquire) || self.gone.load(Ordering::Acquire) {
            return Err(Closed::Draining);
        }
        if self.streams.len() >= self.bounds.streams_max {
            self.meters.turned_away();
            return Err(Closed::Busy);
        }
        let request = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        submit.request = request;
        if founds && submit.family.is_none() {
            submit.family = Some(request);
        }
        let (sender, replies) = mpsc::channel(self.bounds.replies_max);
        let slow = Arc::new(AtomicBool::new(false));
        let stream = Stream { replies: sender, asked: clock::now(), last: None, slow: Arc::clone(&slow) };
        self.streams.insert(request, stream);
        if self.submit.offer(submit).is_err() {
            self.forget(request);
            self.meters.turned_away();
            return Err(Closed::Busy);
        }
        if self.gone.load(Ordering::Acquire) {
            self.forget(request);
        }
        Ok(Answer::new(Arc::clone(self), request, replies, slow))
    }

    /// Takes no new requests from now on.
    pub fn close(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Streams that the desk takes at once.
    pub fn places(&self) -> usize {
        self.bounds.streams_max
    }

    /// Whether new requests are turned away.
    pub fn is_closed(&self) -> bool {
        self.draining.load(Ordering::Acquire) || self.gone.load(Ordering::Acquire)
    }

    /// Requests that have not had their last word.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// What has been served.
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Waits until no stream is open.
    pub async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.streams.is_empty() {
                return;
            }
            left.await;
        }
    }

    /// Cuts off every stream that is older than the bound.
    pub fn sweep(&self) {
        let now = clock::now();
        let old = |stream: &Stream| now.duration_since(stream.asked) > self.bounds.age_max;
        self.cut(old, "out of time");
    }

    /// Cuts off every open stream: the gateway that knew them is gone.
    pub fn cut_all(&self) {
        self.cut(|_| true, "the gateway stopped");
    }

    fn cut(&self, which: impl Fn(&Stream) -> bool, why: &str) {
        let before = self.streams.len();
        self.streams.retain(|_, stream| !which(stream));
        let cut = before.saturating_sub(self.streams.len());
        if cut > 0 {
            tracing::warn!(cut, why, "streams were cut off");
            self.left.notify_waiters();
        }
    }

    fn forget(&self, request: RequestId) {
        self.streams.remove(&request);
        self.left.notify_waiters();
    }

    /// One reply from the graph to the stream that waits for it.
    fn lead(&self, reply: Reply) {
        let request = reply.request();
        if let Reply::End { outcome, usage, .. } = &reply {
            self.meters.ended(outcome, *usage);
            tracing::debug!(request = request.0, ?outcome, ?usage, "ended");
            if let Some((_, mut stream)) = self.streams.remove(&request) {
                stream.give(reply);
            }
            self.left.notify_waiters();
            return;
        }
        let Some(mut stream) = self.streams.get_mut(&request) else { return };
        if let Reply::Text { tokens, .. } = &reply {
            self.time(&mut stream, tokens.len());
        }
        if stream.give(reply) == Given::TooSlow {
            drop(stream);
            tracing::info!(request = request.0, "cut off: read too slowly");
            self.abandon(request);
        }
    }

    fn time(&self, stream: &mut Stream, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let now = clock::now();
        let since = now.duration_since(stream.last.unwrap_or(stream.asked));
        self.meters.tokens(stream.last.is_none(), since, tokens);
        stream.last = Some(now);
    }

    /// Tells the graph that nobody waits for this request.
    fn abandon(&self, request: RequestId) {
        if self.abandon.offer(request).is_err() {
            self.unheard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            self.unheard_bell.notify_one();
        }
    }
}

/// Reads the graph's replies until it stops.
async fn pump(desk: Arc<Desk>, replies: Outlet<Reply>) {
    while let Some(reply) = replies.recv().await {
        desk.lead(reply);
    }
    desk.gone.store(true, Ordering::Release);
    desk.cut_all();
    desk.unheard_bell.notify_one();
}

/// Repeats what the graph had no room to hear.
async fn tell_abandoned(desk: Arc<Desk>) {
    while !desk.gone.load(Ordering::Acquire) {
        let next = desk.unheard.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match next {
            None => desk.unheard_bell.notified().await,
            Some(request) => {
                desk.abandon(request);
                tokio::time::sleep(ABANDON_RETRY).await;
            }
        }
    }
}
