//! Server-sent events: the replies of one request as the chunks of the API, in its order: role, content, finish, usage,
//! `[DONE]`.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use millstream_actors::request::{Outcome, Reply, Usage};

use super::fault::Fault;
use super::openai::{self, Chunks};
use crate::desk::{Answer, Cut};

/// A comment is sent after this long without a chunk, so that nobody on the way takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A stream of events that is not written yet.
pub(crate) struct Events {
    chunks: Chunks,
    answer: Answer,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Unopened,
    Open,
    Closed,
}

impl Events {
    pub(crate) fn new(chunks: Chunks, answer: Answer) -> Self {
        Self { chunks, answer, state: State::Unopened }
    }

    /// The response; its body ends the request when it is dropped.
    pub(crate) fn respond(self) -> Response {
        let body = futures::stream::unfold(self, |mut events| async {
            let text = events.next().await?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), events))
        });
        let headers = [
            (header::CONTENT_TYPE.as_str(), "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL.as_str(), "no-cache"),
            ("x-accel-buffering", "no"),
        ];
        (headers, Body::from_stream(body)).into_response()
    }

    /// The next events, as text.
    async fn next(&mut self) -> Option<String> {
        match self.state {
            State::Closed => return None,
            State::Unopened => {
                self.state = State::Open;
                return Some(event(&self.chunks.role()));
            }
            State::Open => {}
        }
        loop {
            let Ok(reply) = tokio::time::timeout(KEEP_ALIVE, self.answer.next()).await else {
                return Some(": still here\n\n".to_owned());
            };
            if let Some(text) = self.write(reply) {
                return Some(text);
            }
        }
    }

    fn write(&mut self, reply: Result<Reply, Cut>) -> Option<String> {
        match reply {
            Ok(Reply::Text { text, .. }) => (!text.is_empty()).then(|| event(&self.chunks.content(&text))),
            Ok(Reply::Logits { .. }) => None,
            Ok(Reply::End { outcome, usage, .. }) => Some(self.end(&outcome, usage)),
            Err(cut) => Some(self.fail(&cut.into())),
        }
    }

    fn end(&mut self, outcome: &Outcome, usage: Usage) -> String {
        let Outcome::Finished(finish) = outcome else {
            let fault = Fault::of_outcome(outcome)
                .unwrap_or_else(|| Fault::server("the answer ended without a reason"));
            return self.fail(&fault);
        };
        self.state = State::Closed;
        let mut text = event(&self.chunks.finish(*finish));
        if self.chunks.include_usage {
            text.push_str(&event(&self.chunks.usage(usage)));
        }
        text + &event("[DONE]")
    }

    /// The status is long sent: what is left is an event that says so.
    fn fail(&mut self, fault: &Fault) -> String {
        self.state = State::Closed;
        event(&openai::error_body(fault).to_string()) + &event("[DONE]")
    }
}

fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}
