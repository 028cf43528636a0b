//! From the body of a chat request to a [`Submit`]. Every field of the current Chat Completions API is known by name:
//! served, harmless at the value sent, or refused with a sentence. Silence about a wish would be a wrong answer.

use millstream_actors::request::{ChatMessage, ChatRole, Observe, Prompt, RequestId, Sampling, Submit};
use serde_json::Value;

use super::fault::Fault;
use super::fields::{Field, Fields};
use crate::clock;

/// Stop strings in one request.
const STOPS_MAX: usize = 16;
/// Bytes of one stop string: what the detokenizer holds back at most.
const STOP_BYTES_MAX: usize = 1024;
/// Messages in one request.
const MESSAGES_MAX: usize = 10_000;

/// Fields that are served.
const SERVED: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
];

/// A field that is accepted only where it changes nothing.
struct Neutral {
    name: &'static str,
    harmless: fn(&Value) -> bool,
    /// Completes "not supported by this server: ...".
    only: &'static str,
}

const fn neutral(name: &'static str, harmless: fn(&Value) -> bool, only: &'static str) -> Neutral {
    Neutral { name, harmless, only }
}

/// Fields of the API that are known but not served.
const NEUTRAL: &[Neutral] = &[
    neutral("n", |v| v.as_f64() == Some(1.0), "it gives one answer a request (n = 1)"),
    neutral("presence_penalty", is_zero, "it has no penalties, only 0 is taken"),
    neutral("frequency_penalty", is_zero, "it has no penalties, only 0 is taken"),
    neutral("logit_bias", is_empty, "it does not shift logits, only {} is taken"),
    neutral("logprobs", is_false, "it does not return log-probabilities"),
    neutral("top_logprobs", is_zero, "it does not return log-probabilities"),
    neutral("tools", is_empty, "it does not call tools"),
    neutral("tool_choice", is_no_tool, "it does not call tools"),
    neutral("parallel_tool_calls", Value::is_boolean, "it must be true or false"),
    neutral("functions", is_empty, "it does not call functions"),
    neutral("function_call", is_no_tool, "it does not call functions"),
    neutral("response_format", is_text_format, "it writes text only, {\"type\": \"text\"}"),
    neutral("modalities", is_text_only, "it writes text only, [\"text\"]"),
    neutral("audio", never, "it has no audio"),
    neutral("prediction", never, "it takes no predicted output"),
    neutral("web_search_options", never, "it does not search the web"),
    neutral("reasoning_effort", |v| v == "none", "it has no separate reasoning, only \"none\" is taken"),
    neutral("verbosity", |v| v == "medium", "it has no verbosity, only \"medium\" is taken"),
    neutral("service_tier", |v| v == "auto" || v == "default", "it has one tier, \"auto\" or \"default\""),
    neutral("store", is_false, "it stores no answers"),
    neutral("metadata", Value::is_object, "it must be an object (and is not kept)"),
    neutral("user", Value::is_string, "it must be a string"),
    neutral("safety_identifier", Value::is_string, "it must be a string"),
    neutral("prompt_cache_key", Value::is_string, "it must be a string"),
    neutral(
        "prompt_cache_retention",
        |v| v == "in_memory",
        "prompts are cached in memory only, \"in_memory\"",
    ),
];

/// Fields of a message that are accepted only where they say nothing (`null` or empty).
const MESSAGE_NEUTRAL: &[Neutral] = &[
    neutral("name", never, "speakers have no names, put it into the content"),
    neutral("refusal", never, "refusals are not rendered"),
    neutral("audio", never, "it has no audio"),
    neutral("tool_calls", is_empty, "it does not call tools"),
    neutral("tool_call_id", never, "it does not call tools"),
    neutral("function_call", never, "it does not call functions"),
    neutral("annotations", is_empty, "annotations are not rendered"),
];

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}
fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}
fn is_no_tool(value: &Value) -> bool {
    value == "none" || value == "auto"
}
fn is_text_format(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.len() == 1) && value["type"] == "text"
}
fn is_text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|one| one == "text"))
}
fn never(_: &Value) -> bool {
    false
}

/// A chat request, read and checked.
#[derive(Debug)]
pub(crate) struct ChatAsk {
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    messages: Vec<ChatMessage>,
    sampling: Sampling,
    stops: Vec<String>,
    tokens_max: Option<u32>,
}

impl ChatAsk {
    /// Reads a body.
    ///
    /// # Errors
    /// The first field that is wrong, missing, unknown or not served.
    pub(crate) fn read(body: &Value) -> Result<Self, Fault> {
        let fields = Fields::of(body)?;
        let neutral: Vec<&str> = NEUTRAL.iter().map(|field| field.name).collect();
        fields.only(&[SERVED, &neutral])?;
        refuse_wishes(&fields, NEUTRAL)?;
        let stream = fields.get("stream").map_or(Ok(false), |field| field.flag())?;
        Ok(Self {
            model: fields.need("model")?.text()?.to_owned(),
            include_usage: include_usage(&fields, stream)?,
            stream,
            messages: messages(&fields.need("messages")?)?,
            sampling: sampling(&fields)?,
            stops: stops(&fields)?,
            tokens_max: tokens_max(&fields)?,
        })
    }

    /// What the gateway is asked.
    pub(crate) fn submit(self) -> Submit {
        Submit {
            request: RequestId(0),
            prompt: Prompt::Chat(self.messages),
            sampling: self.sampling,
            tokens_max: self.tokens_max,
            stops: self.stops,
            ignore_end: false,
            patience: None,
            observe: Observe::Nothing,
        }
    }
}

fn refuse_wishes(fields: &Fields<'_>, table: &[Neutral]) -> Result<(), Fault> {
    for known in table {
        if let Some(field) = fields.get(known.name).filter(|field| !(known.harmless)(field.value())) {
            let message = format!("not supported by this server: {}", known.only);
            return Err(field.fault(message).coded("unsupported_value"));
        }
    }
    Ok(())
}

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, Fault> {
    let Some(field) = fields.get("stream_options") else { return Ok(false) };
    let options = field.fields()?;
    options.only(&[&["include_usage", "include_obfuscation"]])?;
    if !stream {
        return Err(field.fault("is only allowed together with \"stream\": true"));
    }
    if let Some(field) = options.get("include_obfuscation").filter(|field| !is_false(field.value())) {
        return Err(field.fault("not supported by this server: it does not pad its chunks"));
    }
    options.get("include_usage").map_or(Ok(false), |field| field.flag())
}

fn sampling(fields: &Fields<'_>) -> Result<Sampling, Fault> {
    let number = |name: &str, high: f64| fields.get(name).map_or(Ok(1.0), |field| field.number(0.0, high));
    Ok(Sampling {
        temperature: number("temperature", 2.0)? as f32,
        top_p: number("top_p", 1.0)? as f32,
        top_k: fields.get("top_k").map_or(Ok(0), |field| field.count(0))?,
        seed: fields.get("seed").map_or_else(|| Ok(clock::fresh_seed()), |field| field.bits())?,
    })
}

fn tokens_max(fields: &Fields<'_>) -> Result<Option<u32>, Fault> {
    let read = |name: &str| fields.get(name).map(|field| field.count(1)).transpose();
    match (read("max_completion_tokens")?, read("max_tokens")?) {
        (Some(new), Some(old)) if new != old => {
            Err(Fault::field("max_tokens", "differs from max_completion_tokens; send one of the two"))
        }
        (new, old) => Ok(new.or(old)),
    }
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Fault> {
    let Some(field) = fields.get("stop") else { return Ok(Vec::new()) };
    let list = if field.value().is_string() { vec![field] } else { stop_list(&field)? };
    list.iter().map(stop).collect()
}

fn stop_list<'a>(field: &Field<'a>) -> Result<Vec<Field<'a>>, Fault> {
    if !field.value().is_array() {
        return Err(field.fault("expected a string or a list of strings").coded("invalid_type"));
    }
    let list = field.list()?;
    if list.len() > STOPS_MAX {
        return Err(field.fault(format!("at most {STOPS_MAX} stop strings are taken")));
    }
    Ok(list)
}

fn stop(field: &Field<'_>) -> Result<String, Fault> {
    match field.text()? {
        "" => Err(field.fault("a stop string must not be empty")),
        text if text.len() > STOP_BYTES_MAX => {
            Err(field.fault(format!("a stop string has at most {STOP_BYTES_MAX} bytes")))
        }
        text => Ok(text.to_owned()),
    }
}

fn messages(field: &Field<'_>) -> Result<Vec<ChatMessage>, Fault> {
    let list = field.list()?;
    match list.len() {
        0 => Err(field.fault("must hold at least one message")),
        n if n > MESSAGES_MAX => Err(field.fault(format!("must hold at most {MESSAGES_MAX} messages"))),
        _ => list.iter().map(message).collect(),
    }
}

fn message(field: &Field<'_>) -> Result<ChatMessage, Fault> {
    let fields = field.fields()?;
    let neutral: Vec<&str> = MESSAGE_NEUTRAL.iter().map(|field| field.name).collect();
    fields.only(&[&["role", "content"], &neutral])?;
    let role = role(&fields.need("role")?)?;
    refuse_wishes(&fields, MESSAGE_NEUTRAL)?;
    Ok(ChatMessage { role, content: content(&fields.need("content")?)? })
}

fn role(field: &Field<'_>) -> Result<ChatRole, Fault> {
    let known = "system, developer, user or assistant";
    match field.text()? {
        "tool" | "function" => Err(field.fault("not supported by this server: it does not call tools")),
        name => name.parse().map_err(|_| field.fault(format!("must be {known}"))),
    }
}

/// A string, or parts of text that are put together as they are.
fn content(field: &Field<'_>) -> Result<String, Fault> {
    if let Some(text) = field.value().as_str() {
        return Ok(text.to_owned());
    }
    if !field.value().is_array() {
        return Err(field.fault("expected a string or a list of parts").coded("invalid_type"));
    }
    field.list()?.iter().map(part).collect()
}

fn part<'a>(field: &Field<'a>) -> Result<&'a str, Fault> {
    let fields = field.fields()?;
    let kind = fields.need("type")?;
    match kind.text()? {
        "text" => {
            fields.only(&[&["type", "text"]])?;
            fields.need("text")?.text()
        }
        known @ ("image_url" | "input_audio" | "file" | "refusal") => {
            Err(kind.fault(format!("not supported by this server: it reads text only, no `{known}`")))
        }
        _ => Err(kind.fault("must be \"text\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(extra: Value) -> Value {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    }

    fn fault(extra: Value) -> Fault {
        ChatAsk::read(&with(extra)).unwrap_err()
    }

    #[test]
    fn harmless_values_pass() {
        let harmless = json!({
            "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": false,
            "top_logprobs": null, "tools": [], "tool_choice": "none", "parallel_tool_calls": true, "user": "u",
            "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "response_format": {"type": "text"},
            "modalities": ["text"], "audio": null, "stop": null, "seed": null, "max_tokens": null
        });
        ChatAsk::read(&with(harmless)).unwrap();
    }

    #[test]
    fn wishes_are_refused_by_name() {
        for (name, value) in [
            ("n", json!(2)),
            ("presence_penalty", json!(0.5)),
            ("logit_bias", json!({"1": 2})),
            ("logprobs", json!(true)),
            ("tools", json!([{"type": "function"}])),
            ("response_format", json!({"type": "json_object"})),
            ("audio", json!({})),
            ("store", json!(true)),
        ] {
            let fault = fault(json!({name: value}));
            assert_eq!(fault.param.as_deref(), Some(name));
            assert!(fault.message.contains("not supported"), "{}", fault.message);
        }
    }

    #[test]
    fn wrong_fields_are_named_by_path() {
        let path = |extra: Value| fault(extra).param.unwrap();
        assert_eq!(path(json!({"temperature": "hot"})), "temperature");
        assert_eq!(path(json!({"temperature": 3})), "temperature");
        assert_eq!(path(json!({"max_tokens": 0})), "max_tokens");
        assert_eq!(path(json!({"max_tokens": 5, "max_completion_tokens": 6})), "max_tokens");
        assert_eq!(path(json!({"stop": ["a", ""]})), "stop[1]");
        assert_eq!(path(json!({"stop": 7})), "stop");
        assert_eq!(path(json!({"messages": []})), "messages");
        assert_eq!(path(json!({"messages": [{"role": "user"}]})), "messages[0].content");
        let second = |message: Value| path(json!({"messages": [{"role": "user", "content": ""}, message]}));
        assert_eq!(second(json!({"role": "user", "content": 5})), "messages[1].content");
        assert_eq!(second(json!({"role": "model", "content": ""})), "messages[1].role");
        assert_eq!(second(json!({"role": "user", "content": "", "nmae": 1})), "messages[1].nmae");
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
        assert_eq!(second(json!({"role": "user", "content": image})), "messages[1].content[1].type");
        assert_eq!(path(json!({"stream_options": {"include_usage": true}})), "stream_options");
    }

    #[test]
    fn parts_are_put_together() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let ask = ChatAsk::read(&with(json!({"messages": [{"role": "user", "content": parts}]}))).unwrap();
        assert_eq!(ask.messages, [ChatMessage::new(ChatRole::User, "ab")]);
    }

    #[test]
    fn sampling_defaults_are_the_apis() {
        let ask = ChatAsk::read(&with(json!({"seed": 7}))).unwrap();
        assert_eq!(ask.sampling, Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: 7 });
        assert_eq!(ask.tokens_max, None);
    }
}
