//! Wire types of the API, nothing else: what the server writes. What it reads is in `ask.rs`, which needs paths of
//! fields that derived readers do not give.

use millstream_actors::request::{Finish, RequestId, Usage};
use serde::Serialize;
use serde_json::{Value, json};

use super::fault::Fault;

/// What all chunks and bodies of one answer share.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The name served.
    pub(crate) model: String,
    /// The plan that answers.
    pub(crate) system_fingerprint: String,
}

impl Heading {
    /// The id of a request on the wire. `start` is when the server started, so that two lives never share an id.
    pub(crate) fn id(start: u64, request: RequestId) -> String {
        format!("chatcmpl-{start:x}-{:x}", request.0)
    }
}

/// One event of a stream.
#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

/// Writes the chunks of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    pub(crate) heading: Heading,
    /// The client asked for a last chunk with the usage; all others then carry `"usage": null`.
    pub(crate) include_usage: bool,
}

impl Chunks {
    pub(crate) fn role(&self) -> String {
        self.delta(&json!({"role": "assistant", "content": "", "refusal": null}), None)
    }

    pub(crate) fn content(&self, text: &str) -> String {
        self.delta(&json!({"content": text}), None)
    }

    pub(crate) fn finish(&self, finish: Finish) -> String {
        self.delta(&json!({}), Some(finish))
    }

    pub(crate) fn usage(&self, usage: Usage) -> String {
        self.write(json!([]), Some(usage_body(usage)))
    }

    fn delta(&self, delta: &Value, finish: Option<Finish>) -> String {
        let reason = finish.map(finish_reason);
        let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]);
        self.write(choices, self.include_usage.then_some(Value::Null))
    }

    fn write(&self, choices: Value, usage: Option<Value>) -> String {
        let Heading { id, created, model, system_fingerprint } = &self.heading;
        let object = "chat.completion.chunk";
        let chunk = Chunk { id, object, created: *created, model, system_fingerprint, choices, usage };
        serde_json::to_string(&chunk).expect("strings and numbers always become JSON")
    }
}

/// A whole answer.
pub(crate) fn completion(heading: &Heading, text: &str, finish: Finish, usage: Usage) -> Value {
    json!({
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": heading.system_fingerprint,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": null, "annotations": []},
            "logprobs": null,
            "finish_reason": finish_reason(finish),
        }],
        "usage": usage_body(usage),
    })
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
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
