//! Routes: turns a request into a [`Submit`](millstream_actors::request::Submit), and replies into a response.
//!
//! | route | what |
//! |---|---|
//! | `POST /v1/chat/completions` | a chat, streamed or whole |
//! | `GET /v1/models` | the one model served |
//! | `GET /health` | forward progress, unit by unit |
//! | `GET /metrics` | Prometheus text |
//!
//! `ask` reads the body, `openai` writes the answer, `sse` streams it, `fault` is everything that goes wrong, `body`
//! and `listen` keep the bounds.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use millstream_actors::request::{Outcome, Reply};
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;

use crate::clock;
use crate::desk::{Answer, Closed};
use crate::mill::Mill;

mod ask;
mod body;
mod fault;
mod fields;
mod health;
pub(crate) mod listen;
mod metrics;
mod openai;
mod patient;
mod sse;

use ask::ChatAsk;
pub(crate) use body::Bodies;
use fault::Fault;
use openai::{Chunks, Heading};
use sse::Events;

/// A refusal that comes within this time still gets its status; after it, the stream begins and says so in an event.
const STATUS_WAIT: Duration = Duration::from_millis(250);

/// What the server says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The name served.
    pub(crate) model: String,
    /// The plan's id.
    pub(crate) plan: String,
    /// When it started, in seconds since 1970.
    pub(crate) started: u64,
}

/// What every route is given.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) mill: Arc<Mill>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) bodies: Arc<Bodies>,
    /// A turn, or a wait for a step, longer than this is not well.
    pub(crate) busy_max: Duration,
}

/// All routes.
pub(crate) fn router(http: Http) -> Router {
    Router::new()
        .route("/", get(hint))
        .route("/health", get(health::show))
        .route("/metrics", get(metrics::show))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(CatchPanicLayer::custom(caught))
        .with_state(http)
}

async fn hint(State(http): State<Http>) -> String {
    format!(
        "Millstream serves {} here.\n\nPOST /v1/chat/completions\nGET  /v1/models\nGET  /health\nGET  /metrics\n",
        http.facts.model
    )
}

async fn models(State(http): State<Http>) -> Json<Value> {
    Json(openai::models_body(&http.facts.model, http.facts.started))
}

async fn model(
    State(http): State<Http>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Fault> {
    let Path(name) = name.map_err(|error| Fault::invalid(error.body_text()))?;
    http.facts.serves(&name)?;
    Ok(Json(openai::model_body(&http.facts.model, http.facts.started)))
}

async fn wrong_method(request: Request) -> Fault {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).coded("method_not_allowed")
}

async fn unknown_path(request: Request) -> Fault {
    let message = format!("there is no {}", request.uri().path());
    Fault::new(StatusCode::NOT_FOUND, "invalid_request_error", message).coded("unknown_url")
}

/// A panic in a route is a bug of ours; the client gets a 500 and the server goes on.
fn caught(panic: Box<dyn Any + Send>) -> Response {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("without a text"), "a route panicked");
    Fault::server("the server has made a mistake").into_response()
}

/// `POST /v1/chat/completions`.
async fn chat(State(http): State<Http>, request: Request) -> Result<Response, Fault> {
    if http.mill.desk().is_closed() {
        return Err(Closed::Draining.into());
    }
    let (parts, body) = request.into_parts();
    let held = http.bodies.read(&parts.headers, body).await?;
    let ask = ChatAsk::read(&fields::parse(&held.bytes)?)?;
    drop(held);
    http.facts.serves(&ask.model)?;
    let (stream, include_usage) = (ask.stream, ask.include_usage);
    let mut answer = http.mill.desk().ask(ask.submit())?;
    let heading = http.facts.heading(&answer);
    refused(&mut answer).await?;
    let id =
        HeaderValue::from_str(&heading.id).map_err(|_| Fault::server("the request's id is not a header"))?;
    let mut response = if stream {
        Events::new(Chunks { heading, include_usage }, answer).respond()
    } else {
        whole(&heading, answer).await?
    };
    response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    Ok(response)
}

/// Waits a moment for the first reply, so that a refusal becomes a status.
async fn refused(answer: &mut Answer) -> Result<(), Fault> {
    let fault = match answer.peek(STATUS_WAIT).await {
        Some(Ok(Reply::End { outcome, .. })) => Fault::of_outcome(outcome),
        Some(Err(cut)) => Some((*cut).into()),
        Some(Ok(_)) | None => None,
    };
    fault.map_or(Ok(()), Err)
}

/// The answer as one body.
async fn whole(heading: &Heading, answer: Answer) -> Result<Response, Fault> {
    let whole = answer.whole().await?;
    match &whole.end {
        Outcome::Finished(finish) => {
            Ok(Json(openai::completion(heading, &whole.text, *finish, whole.usage)).into_response())
        }
        outcome => Err(Fault::of_outcome(outcome).unwrap_or_else(|| Fault::server("no reason was given"))),
    }
}

impl Facts {
    /// Whether a client's name means the model served: its exact name, or "default".
    fn serves(&self, name: &str) -> Result<(), Fault> {
        if name == self.model || name == "default" {
            return Ok(());
        }
        let shown: String = name.chars().take(128).collect();
        let message = format!("the model `{shown}` is not served here; `{}` is", self.model);
        let fault =
            Fault::new(StatusCode::NOT_FOUND, "invalid_request_error", message).coded("model_not_found");
        Err(Fault { param: Some("model".to_owned()), ..fault })
    }

    fn heading(&self, answer: &Answer) -> Heading {
        Heading {
            id: Heading::id(self.started, answer.request()),
            created: clock::unix_seconds(),
            model: self.model.clone(),
            system_fingerprint: format!("fp_{}", self.plan),
        }
    }
}
