//! Server-sent events: the replies of all answers of a response as the chunks of the API, in its order: roles, content as
//! it comes, the finish of each answer, usage, `[DONE]`.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use millstream_actors::request::{Outcome, Reply, Usage};

use super::body::Kept;
use super::choice::{Choice, Part};
use super::fault::Fault;
use super::generate::Cost;
use super::openai::{self, Chunks};
use crate::desk::{Answers, Cut};

/// A comment is sent after this long without a chunk, so that nobody on the way takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A stream of events that is not written yet.
pub(crate) struct Events {
    chunks: Chunks,
    answers: Answers,
    choices: Vec<Choice>,
    /// What stands before each answer.
    echoes: Vec<String>,
    cost: Cost,
    state: State,
    /// Of the request's images.
    _kept: Kept,
}

#[derive(PartialEq)]
enum State {
    Unopened,
    Open,
    Closed,
}

impl Events {
    pub(crate) fn new(
        chunks: Chunks,
        answers: Answers,
        echoes: Vec<String>,
        cost: Cost,
        _kept: Kept,
    ) -> Self {
        let choices = echoes.iter().map(|_| Choice::default()).collect();
        Self { chunks, answers, choices, echoes, cost, state: State::Unopened, _kept }
    }

    /// The response; its body ends the requests when it is dropped.
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
        if self.state == State::Unopened {
            self.state = State::Open;
            if let Some(text) = self.open() {
                return Some(text);
            }
        }
        while self.state == State::Open {
            let Ok(reply) = tokio::time::timeout(KEEP_ALIVE, self.answers.next()).await else {
                return Some(": still here\n\n".to_owned());
            };
            let written = match reply {
                Some((place, reply)) => self.write(place, reply),
                None => Some(self.close()),
            };
            if written.is_some() {
                return written;
            }
        }
        None
    }

    /// Who speaks, or what is repeated of the prompt.
    fn open(&mut self) -> Option<String> {
        let mut text = String::new();
        for (index, echo) in std::mem::take(&mut self.echoes).into_iter().enumerate() {
            let part = Part { text: echo, ..Part::default() };
            let echo = (!part.is_empty()).then(|| self.chunks.content(index, &part));
            text.extend(self.chunks.role(index).into_iter().chain(echo).map(|data| event(&data)));
        }
        (!text.is_empty()).then_some(text)
    }

    fn write(&mut self, place: usize, reply: Result<Reply, Cut>) -> Option<String> {
        match reply {
            Ok(Reply::Text { text, tokens, logprobs, .. }) => {
                let part = self.choices[place].take(text, tokens, logprobs);
                (!part.is_empty()).then(|| event(&self.chunks.content(place, &part)))
            }
            Ok(Reply::Logits { .. }) => None,
            Ok(Reply::End { outcome, usage, .. }) => Some(self.end(place, &outcome, usage)),
            Err(cut) => Some(self.fail(&cut.into())),
        }
    }

    fn end(&mut self, place: usize, outcome: &Outcome, usage: Usage) -> String {
        let Outcome::Finished(finish) = *outcome else { return self.fail(&Fault::unfinished(outcome)) };
        self.cost.add(place, usage);
        let part = self.choices[place].finish(finish);
        let rest = (!part.is_empty()).then(|| event(&self.chunks.content(place, &part)));
        rest.unwrap_or_default() + &event(&self.chunks.finish(place, finish))
    }

    /// All answers are complete.
    fn close(&mut self) -> String {
        self.state = State::Closed;
        let usage = self.chunks.include_usage.then(|| event(&self.chunks.usage(self.cost.usage)));
        usage.unwrap_or_default() + &event("[DONE]")
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
