//! Everything that goes wrong with an HTTP request, in the one shape that clients of the OpenAI API know:
//! `{"error": {"message", "type", "param", "code"}}`. Outcomes of requests become faults here and nowhere else.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millstream_actors::request::{Outcome, Refusal};

use super::{images, openai};
use crate::desk::{Closed, Cut};

/// The code of a prompt that does not fit.
const TOO_LONG: &str = "context_length_exceeded";

/// A refusal or an error, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) kind: &'static str,
    /// The field that is wrong, as a path.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// When it is worth coming back.
    pub(crate) retry_after: Option<Duration>,
}

impl Fault {
    /// The request is wrong; `param` is the path of the field.
    pub(crate) fn field(param: &str, message: impl Into<String>) -> Self {
        let message = format!("{param}: {}", message.into());
        Self { param: Some(param.to_owned()), ..Self::invalid(message) }
    }

    /// The request is wrong as a whole.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Something of ours went wrong.
    pub(crate) fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A bound is reached.
    pub(crate) fn overload(message: impl Into<String>, retry_after: Duration) -> Self {
        let fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after: Some(retry_after), code: Some("overloaded"), ..fault }
    }

    /// Any status with its kind.
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, retry_after: None }
    }

    /// The same with a code that programs can read.
    pub(crate) fn coded(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// What an outcome means to the client; `None` when the answer is complete.
    pub(crate) fn of_outcome(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Finished(_) => None,
            Outcome::Cancelled => Some(Self::server("the request was cancelled").coded("cancelled")),
            Outcome::Expired => {
                let fault =
                    Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "the request's time is over");
                Some(fault.coded("deadline_exceeded"))
            }
            Outcome::Refused(refusal) => Some(Self::of_refusal(refusal)),
            Outcome::Failed(cause) => {
                Some(Self::server(format!("the answer failed: {cause}")).coded("failed"))
            }
        }
    }

    /// What an outcome means to a client that waits for an answer.
    pub(crate) fn unfinished(outcome: &Outcome) -> Self {
        Self::of_outcome(outcome).unwrap_or_else(|| Self::server("the answer ended without a reason"))
    }

    /// The same, with the field that holds the prompt where it is the prompt that is too long.
    pub(crate) fn about(self, prompt: &str) -> Self {
        let long = self.code == Some(TOO_LONG);
        Self { param: if long { Some(prompt.to_owned()) } else { self.param }, ..self }
    }

    fn of_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Overload { retry_after } => {
                Self::overload("all places are taken; try again after the time in Retry-After", *retry_after)
            }
            Refusal::Late { needs, left, retry_after } => {
                let message = format!(
                    "the prompt would be computed in {:.1} s by what waits before it, and the request has {:.1} s left",
                    needs.as_secs_f64(),
                    left.as_secs_f64()
                );
                Self::overload(message, *retry_after).coded("deadline_unreachable")
            }
            Refusal::TooLong { tokens, limit } => {
                let message = format!(
                    "the prompt and the answer asked for come to at least {tokens} tokens, but only {limit} fit; shorten the \
                     prompt or lower max_tokens"
                );
                Self::invalid(message).coded(TOO_LONG)
            }
            Refusal::Invalid(why) => Self::invalid(why.clone()),
            Refusal::Image { place, why } => Self::field(place, why.as_str()).coded(images::INVALID),
            Refusal::Field { field, why } => Self::field(field, why.as_str()),
        }
    }
}

impl From<Closed> for Fault {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Busy => Self::overload("all places are taken; try again shortly", Duration::from_secs(1)),
            Closed::Draining => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let fault =
                    Self::new(status, "server_error", "the server is shutting down").coded("draining");
                Self { retry_after: Some(Duration::from_secs(5)), ..fault }
            }
        }
    }
}

impl From<Cut> for Fault {
    fn from(cut: Cut) -> Self {
        Self::server(cut.to_string()).coded(match cut {
            Cut::Slow => "client_too_slow",
            Cut::Gone => "interrupted",
        })
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(openai::error_body(&self))).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
        }
        response
    }
}
