//! Wire types of the API, nothing else: what the server writes. What it reads is in `ask`, which needs paths of fields
//! that derived readers do not give.

use std::sync::Arc;

use millstream_actors::request::{Finish, RequestId, Usage};
use millstream_actors::text::Tokenizer;
use serde::Serialize;
use serde_json::{Value, json};

use super::choice::Part;
use super::fault::Fault;
use super::logprobs;

/// Which of the two APIs a response is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

impl Shape {
    /// The field that holds the prompt.
    pub(crate) fn prompt(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completion => "prompt",
        }
    }

    /// The id of a request on the wire. `start` is when the server started, so that two lives never share an id.
    pub(crate) fn id(self, start: u64, request: RequestId) -> String {
        let kind = match self {
            Self::Chat => "chatcmpl",
            Self::Completion => "cmpl",
        };
        format!("{kind}-{start:x}-{:x}", request.0)
    }
}

/// What all chunks and bodies of one response share.
#[derive(Clone)]
pub(crate) struct Heading {
    pub(crate) shape: Shape,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The name served.
    pub(crate) model: String,
    /// The plan that answers.
    pub(crate) system_fingerprint: String,
    /// Something is said of tokens.
    pub(crate) logprobs: bool,
    /// Spells them.
    pub(crate) tokenizer: Arc<Tokenizer>,
}

/// A whole response, or one event of a stream.
#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

impl Heading {
    /// A whole response.
    pub(crate) fn whole(&self, answers: &[(Part, Finish)], usage: Usage) -> String {
        let choice = |(index, (part, finish)): (usize, &(Part, Finish))| {
            let (logprobs, reason) = (self.said(part), finish_reason(*finish));
            match self.shape {
                Shape::Chat => json!({
                    "index": index,
                    "message": {"role": "assistant", "content": part.text, "refusal": null, "annotations": []},
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Shape::Completion => {
                    json!({"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": reason})
                }
            }
        };
        let object = match self.shape {
            Shape::Chat => "chat.completion",
            Shape::Completion => "text_completion",
        };
        self.write(object, answers.iter().enumerate().map(choice).collect(), Some(usage_body(usage)))
    }

    fn said(&self, part: &Part) -> Value {
        match (self.logprobs, self.shape) {
            (false, _) => Value::Null,
            (true, Shape::Chat) => logprobs::chat(&part.said, &self.tokenizer),
            (true, Shape::Completion) => logprobs::completion(&part.said, &self.tokenizer),
        }
    }

    fn write(&self, object: &'static str, choices: Value, usage: Option<Value>) -> String {
        let Self { id, created, model, system_fingerprint, .. } = self;
        let body = Body { id, object, created: *created, model, system_fingerprint, choices, usage };
        serde_json::to_string(&body).expect("strings and numbers always become JSON")
    }
}

/// Writes the chunks of one stream.
#[derive(Clone)]
pub(crate) struct Chunks {
    pub(crate) heading: Heading,
    /// The client asked for a last chunk with the usage; all others then carry `"usage": null`.
    pub(crate) include_usage: bool,
}

impl Chunks {
    /// What stands before an answer: who speaks, in chats.
    pub(crate) fn role(&self, index: usize) -> Option<String> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.heading.shape == Shape::Chat)
            .then(|| self.delta(json!({"index": index, "delta": delta}), Value::Null, None))
    }

    pub(crate) fn content(&self, index: usize, part: &Part) -> String {
        let choice = match self.heading.shape {
            Shape::Chat => json!({"index": index, "delta": {"content": part.text}}),
            Shape::Completion => json!({"index": index, "text": part.text}),
        };
        self.delta(choice, self.heading.said(part), None)
    }

    pub(crate) fn finish(&self, index: usize, finish: Finish) -> String {
        let choice = match self.heading.shape {
            Shape::Chat => json!({"index": index, "delta": {}}),
            Shape::Completion => json!({"index": index, "text": ""}),
        };
        self.delta(choice, Value::Null, Some(finish))
    }

    pub(crate) fn usage(&self, usage: Usage) -> String {
        self.heading.write(self.object(), json!([]), Some(usage_body(usage)))
    }

    fn delta(&self, mut choice: Value, logprobs: Value, finish: Option<Finish>) -> String {
        choice["logprobs"] = logprobs;
        choice["finish_reason"] = finish.map(finish_reason).into();
        self.heading.write(self.object(), json!([choice]), self.include_usage.then_some(Value::Null))
    }

    fn object(&self) -> &'static str {
        match self.heading.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Completion => "text_completion",
        }
    }
}

/// One model of the list.
pub(crate) fn model_body(name: &str, created: u64) -> Value {
    json!({"id": name, "object": "model", "created": created, "owned_by": "millstream"})
}

/// The list of models.
pub(crate) fn models_body(name: &str, created: u64) -> Value {
    json!({"object": "list", "data": [model_body(name, created)]})
}

/// A fault.
pub(crate) fn error_body(fault: &Fault) -> Value {
    json!({"error": {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.code}})
}

fn usage_body(usage: Usage) -> Value {
    let nothing = 0;
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "replayed_tokens": usage.replayed_tokens,
            "audio_tokens": nothing,
        },
        "completion_tokens_details": {
            "reasoning_tokens": nothing,
            "audio_tokens": nothing,
            "accepted_prediction_tokens": nothing,
            "rejected_prediction_tokens": nothing,
        },
    })
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
