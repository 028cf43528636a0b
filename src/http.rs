//! Routes: turns a request into a [`Submit`](millstream_actors::request::Submit), and replies into a response.
//!
//! | route | what |
//! |---|---|
//! | `POST /v1/chat/completions` | answers to a chat, streamed or whole |
//! | `POST /v1/completions` | the same for a prompt as it stands |
//! | `POST /tokenize`, `/detokenize` | text to token ids and back |
//! | `GET /v1/models` | the one model served |
//! | `GET /health` | forward progress, unit by unit |
//! | `GET /metrics` | Prometheus text |
//!
//! `ask` reads the body, `images` what it has to be looked at, `generate` asks the desk, `openai` writes the answer, `sse` streams it, `fault` is everything
//! that goes wrong, `keeping` says whose blocks are, `body` and `listen` keep the bounds, `names` keeps pages of other origins out.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use millstream_actors::request::Submit;
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;

use crate::mill::Mill;

mod ask;
mod body;
mod choice;
mod fault;
mod fields;
mod generate;
mod health;
mod images;
mod keeping;
pub(crate) mod listen;
mod logprobs;
mod metrics;
mod names;
mod openai;
mod patient;
mod sse;
mod text;

pub(crate) use body::Bodies;
use body::Held;
use fault::Fault;
pub(crate) use images::Images;
pub(crate) use keeping::Keepings;
pub(crate) use names::Names;
pub(crate) use text::Text;

/// The request that a chat body with one answer asks.
///
/// # Errors
/// What a client would be told.
pub(crate) fn one_chat(body: &Value, images: Option<&Images>) -> Result<Submit, String> {
    let ask = ask::chat(body, images).map_err(|fault| fault.message)?;
    ask.submits().next().ok_or_else(|| "nothing is asked".to_owned())
}

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
    pub(crate) names: Arc<Names>,
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) text: Arc<Text>,
    pub(crate) keepings: Arc<Keepings>,
    /// Where the model has eyes.
    pub(crate) images: Option<Arc<Images>>,
    /// A turn, or a wait for a step, longer than this is not well.
    pub(crate) busy_max: Duration,
}

impl Http {
    /// Reads a body, elsewhere where it may have images.
    async fn read<T: Send + 'static>(
        &self,
        held: Held,
        read: impl FnOnce(&Value, Option<&Images>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        match self.images.as_ref().filter(|_| Images::mentioned(&held.bytes)) {
            None => read(&fields::parse(&held.bytes)?, self.images.as_deref()),
            Some(images) => {
                images.apart(move |images| read(&fields::parse(&held.bytes)?, Some(images))).await
            }
        }
    }
}

/// All routes.
pub(crate) fn router(http: Http) -> Router {
    Router::new()
        .route("/", get(hint))
        .route("/health", get(health::show))
        .route("/metrics", get(metrics::show))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completion))
        .route("/v1/embeddings", post(embeddings))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(middleware::from_fn_with_state(http.clone(), names::guard))
        .layer(CatchPanicLayer::custom(caught))
        .with_state(http)
}

async fn hint(State(http): State<Http>) -> String {
    format!(
        "Millstream serves {} here.\n\nPOST /v1/chat/completions\nPOST /v1/completions\nPOST /tokenize\nPOST /detokenize\nGET  /v1/models\nGET  /health\nGET  /metrics\n",
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

/// `POST /v1/embeddings`. Not a 501: clients take that for a fault that may pass, and ask again.
async fn embeddings() -> Fault {
    let message = "the model served here generates text; it has no embeddings";
    Fault::new(StatusCode::NOT_FOUND, "invalid_request_error", message).coded("unsupported_endpoint")
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
}
