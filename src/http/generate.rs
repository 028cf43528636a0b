//! Requests that are answered by the model: asks the desk for every answer of a response, and writes them as one body or
//! as one stream.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use millstream_actors::request::{Finish, Outcome, Reply, Usage};
use serde_json::Value;

use super::ask::{self, Ask};
use super::body::Kept;
use super::choice::{Choice, Part};
use super::fault::Fault;
use super::openai::{Chunks, Heading, Shape};
use super::sse::Events;
use super::{Http, Images};
use crate::clock;
use crate::desk::{Answer, Answers, Closed};

/// A refusal that comes within this time still gets its status; after it, the stream begins and says so in an event.
const STATUS_WAIT: Duration = Duration::from_millis(250);
/// The same for a request with images, which are decoded inside: a broken one is a status too.
const STATUS_WAIT_IMAGES: Duration = Duration::from_secs(10);

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(http): State<Http>, request: Request) -> Result<Response, Fault> {
    http.generate(request, Shape::Chat, ask::chat).await
}

/// `POST /v1/completions`.
pub(super) async fn completion(State(http): State<Http>, request: Request) -> Result<Response, Fault> {
    http.generate(request, Shape::Completion, ask::completion).await
}

impl Http {
    async fn generate(
        &self,
        request: Request,
        shape: Shape,
        read: fn(&Value, Option<&Images>) -> Result<Ask, Fault>,
    ) -> Result<Response, Fault> {
        if self.mill.desk().is_closed() {
            return Err(Closed::Draining.into());
        }
        let (parts, body) = request.into_parts();
        let held = self.bodies.read(&parts.headers, body).await?;
        let mut ask = self.read(held, read).await?;
        self.facts.serves(&ask.model)?;
        ask.keep(self.keepings.choose(&parts.headers, &ask.wanted)?);
        let _kept = self.bodies.keep(ask.image_bytes())?;
        let echoes = self.text.echoes(&ask)?;
        let answers = self.ask(&ask)?;
        let first = answers.first().ok_or_else(|| Fault::server("nothing was asked"))?;
        let heading = self.heading(shape, &ask, first);
        let id = HeaderValue::from_str(&heading.id)
            .map_err(|_| Fault::server("the request's id is not a header"))?;
        let replies = Replies { answers: Answers::new(answers), echoes, cost: Cost::new(ask.choices), _kept };
        let answered = match ask.stream {
            true => {
                let wait = if ask.image_bytes() > 0 { STATUS_WAIT_IMAGES } else { STATUS_WAIT };
                replies.stream(Chunks { heading, include_usage: ask.include_usage }, wait).await
            }
            false => replies.whole(&heading).await,
        };
        let mut response = answered.map_err(|fault| fault.about(shape.prompt()))?;
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
        Ok(response)
    }

    /// All answers are taken, or none is.
    fn ask(&self, ask: &Ask) -> Result<Vec<Answer>, Fault> {
        let desk = self.mill.desk();
        if ask.answers() > desk.places() {
            let why = format!(
                "this server has {} places, and {} answers are asked for",
                desk.places(),
                ask.answers()
            );
            return Err(Fault::field("n", why));
        }
        let mut answers = Vec::new();
        for submit in ask.submits() {
            answers.extend(desk.ask_choices(&submit, ask.choices)?);
        }
        Ok(answers)
    }

    fn heading(&self, shape: Shape, ask: &Ask, first: &Answer) -> Heading {
        Heading {
            shape,
            id: shape.id(self.facts.started, first.request()),
            created: clock::unix_seconds(),
            model: self.facts.model.clone(),
            system_fingerprint: format!("fp_{}", self.facts.plan),
            logprobs: ask.logprobs().is_some(),
            tokenizer: self.text.tokenizer(),
        }
    }
}

/// The answers of one response before any of it is written.
struct Replies {
    answers: Answers,
    /// What stands before each answer, by its place.
    echoes: Vec<String>,
    cost: Cost,
    /// Of the request's images.
    _kept: Kept,
}

impl Replies {
    async fn stream(mut self, chunks: Chunks, wait: Duration) -> Result<Response, Fault> {
        self.refused(wait).await?;
        Ok(Events::new(chunks, self.answers, self.echoes, self.cost, self._kept).respond())
    }

    /// Waits a moment for the first reply, so that a refusal becomes a status.
    async fn refused(&mut self, wait: Duration) -> Result<(), Fault> {
        let fault = self.answers.peek(wait).await.into_iter().find_map(|reply| match reply {
            Ok(Reply::End { outcome, .. }) => Fault::of_outcome(outcome),
            Err(cut) => Some((*cut).into()),
            Ok(_) => None,
        });
        fault.map_or(Ok(()), Err)
    }

    /// Everything as one body.
    async fn whole(mut self, heading: &Heading) -> Result<Response, Fault> {
        let mut open: Vec<(Choice, Part)> = Vec::new();
        open.extend(
            self.echoes.into_iter().map(|text| (Choice::default(), Part { text, ..Part::default() })),
        );
        let mut finishes: Vec<Option<Finish>> = vec![None; open.len()];
        while let Some((place, reply)) = self.answers.next().await {
            let (choice, part) = &mut open[place];
            match reply? {
                Reply::Text { text, tokens, logprobs, .. } => {
                    part.extend(choice.take(text, tokens, logprobs))
                }
                Reply::Logits { .. } => {}
                Reply::End { outcome: Outcome::Finished(finish), usage, .. } => {
                    part.extend(choice.finish(finish));
                    self.cost.add(place, usage);
                    finishes[place] = Some(finish);
                }
                Reply::End { outcome, .. } => return Err(Fault::unfinished(&outcome)),
            }
        }
        let parts = open.into_iter().zip(finishes);
        let parts = parts.filter_map(|((_, part), finish)| Some((part, finish?)));
        let body = heading.whole(&parts.collect::<Vec<_>>(), self.cost.usage);
        Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
    }
}

/// What a response has cost: each prompt once, and all tokens of all answers.
pub(super) struct Cost {
    /// Answers to each prompt.
    choices: u32,
    pub(super) usage: Usage,
}

impl Cost {
    fn new(choices: u32) -> Self {
        Self { choices, usage: Usage::default() }
    }

    /// The answer at this place has ended.
    pub(super) fn add(&mut self, place: usize, usage: Usage) {
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.replayed_tokens += usage.replayed_tokens;
        if place.is_multiple_of(self.choices as usize) {
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.cached_tokens += usage.cached_tokens;
        }
    }
}
