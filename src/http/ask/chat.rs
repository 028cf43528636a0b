//! The body of a chat request.

use std::sync::Arc;

use millstream_actors::request::{ChatMessage, ChatRole, Content, Part, Prompt, Submit};
use serde_json::Value;

use super::super::fault::Fault;
use super::super::fields::{Field, Fields};
use super::super::images::{Images, Sheet};
use super::super::keeping::{self, Wanted};
use super::wishes::{LIKELIEST_MAX, SERVED, choices, streaming, wishes};
use super::{Ask, Neutral, check_names, is_empty, is_false, neutral, never};

/// Messages in one request.
const MESSAGES_MAX: usize = 10_000;

/// What chats have and completions have not.
const OWN: &[&str] = &["messages", "max_completion_tokens", "logprobs", "top_logprobs"];

/// Fields of the API that are known but not served.
const NEUTRAL: &[Neutral] = &[
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
    neutral("moderation", never, "it does not judge what is said"),
    neutral("reasoning_effort", |v| v == "none", "it has no separate reasoning, only \"none\" is taken"),
    neutral("verbosity", |v| v == "medium", "it has no verbosity, only \"medium\" is taken"),
    neutral("service_tier", |v| v == "auto" || v == "default", "it has one tier, \"auto\" or \"default\""),
    neutral("store", is_false, "it stores no answers"),
    neutral("metadata", Value::is_object, "it must be an object (and is not kept)"),
    neutral("user", Value::is_string, "it must be a string"),
    neutral("safety_identifier", Value::is_string, "it must be a string"),
    neutral("prompt_cache_key", Value::is_string, "it must be a string"),
    neutral("prompt_cache_options", is_implicit, "it chooses itself what to cache, {\"mode\": \"implicit\"}"),
    neutral("best_of", |v| v == 1, "it does not choose among answers: ask for them with n"),
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

fn is_no_tool(value: &Value) -> bool {
    value == "none" || value == "auto"
}
fn is_text_format(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.len() == 1) && value["type"] == "text"
}
fn is_text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|one| one == "text"))
}
fn is_implicit(value: &Value) -> bool {
    is_empty(value) || (value.as_object().is_some_and(|map| map.len() == 1) && value["mode"] == "implicit")
}

/// Reads a chat request. It may have images where the model has eyes; those may have to be fetched.
///
/// # Errors
/// The first field that is wrong, missing, unknown or not served.
pub(crate) fn chat(body: &Value, images: Option<&Images>) -> Result<Ask, Fault> {
    let fields = Fields::of(body)?;
    check_names(&fields, &[SERVED, keeping::SERVED, OWN], NEUTRAL)?;
    let model = fields.need("model")?.text()?.to_owned();
    let (stream, include_usage) = streaming(&fields)?;
    let prompt = Arc::new(Prompt::Chat(messages(&fields.need("messages")?, images)?));
    let (tokens_max, logprobs) = (tokens_max(&fields)?, logprobs(&fields)?);
    let wishes = Submit { tokens_max, logprobs, ..wishes(&fields, Arc::clone(&prompt))? };
    let choices = choices(&fields)?;
    let wanted = Wanted::read(&fields)?;
    Ok(Ask { model, stream, include_usage, prompts: vec![prompt], choices, echo: false, wanted, wishes })
}

fn tokens_max(fields: &Fields<'_>) -> Result<Option<u32>, Fault> {
    let read = |name: &str| fields.get(name).map(|field| field.count(1, u32::MAX)).transpose();
    match (read("max_completion_tokens")?, read("max_tokens")?) {
        (Some(new), Some(old)) if new != old => {
            Err(Fault::field("max_tokens", "differs from max_completion_tokens; send one of the two"))
        }
        (new, old) => Ok(new.or(old)),
    }
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, Fault> {
    let wanted = fields.get("logprobs").map_or(Ok(false), |field| field.flag())?;
    let Some(field) = fields.get("top_logprobs") else { return Ok(wanted.then_some(0)) };
    match (field.count(0, LIKELIEST_MAX)?, wanted) {
        (count, true) => Ok(Some(count)),
        (0, false) => Ok(None),
        (_, false) => Err(field.fault("is only allowed together with \"logprobs\": true")),
    }
}

/// The conversation.
pub(crate) fn messages(field: &Field<'_>, images: Option<&Images>) -> Result<Vec<ChatMessage>, Fault> {
    let (list, sheet) = (field.list()?, Sheet::new(images));
    match list.len() {
        0 => Err(field.fault("must hold at least one message")),
        n if n > MESSAGES_MAX => Err(field.fault(format!("must hold at most {MESSAGES_MAX} messages"))),
        _ => list.iter().map(|one| message(one, &sheet)).collect(),
    }
}

fn message(field: &Field<'_>, sheet: &Sheet<'_>) -> Result<ChatMessage, Fault> {
    let fields = field.fields()?;
    check_names(&fields, &[&["role", "content"]], MESSAGE_NEUTRAL)?;
    let role = role(&fields.need("role")?)?;
    Ok(ChatMessage { role, content: content(&fields.need("content")?, sheet)? })
}

fn role(field: &Field<'_>) -> Result<ChatRole, Fault> {
    let known = "system, developer, user or assistant";
    match field.text()? {
        "tool" | "function" => Err(field.fault("not supported by this server: it does not call tools")),
        name => name.parse().map_err(|_| field.fault(format!("must be {known}"))),
    }
}

/// A string, or parts: those of text are put together as they are where there is no image among them.
fn content(field: &Field<'_>, sheet: &Sheet<'_>) -> Result<Content, Fault> {
    if let Some(text) = field.value().as_str() {
        return Ok(Content::Text(text.to_owned()));
    }
    if !field.value().is_array() {
        return Err(field.fault("expected a string or a list of parts").coded("invalid_type"));
    }
    let parts: Result<Vec<Part>, Fault> = field.list()?.iter().map(|one| part(one, sheet)).collect();
    parts.map(Content::of)
}

fn part(field: &Field<'_>, sheet: &Sheet<'_>) -> Result<Part, Fault> {
    let fields = field.fields()?;
    let kind = fields.need("type")?;
    match kind.text()? {
        "text" => {
            fields.only(&[&["type", "text"]])?;
            Ok(Part::Text(fields.need("text")?.text()?.to_owned()))
        }
        "image_url" => sheet.part(field, &fields).map(Part::Image),
        known @ ("input_audio" | "file" | "refusal") => {
            Err(kind.fault(format!("not supported by this server: it reads text and images, no `{known}`")))
        }
        _ => Err(kind.fault("must be \"text\" or \"image_url\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_actors::request::Sampling;
    use serde_json::json;

    fn with(extra: Value) -> Value {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    }

    fn read(extra: Value) -> Ask {
        chat(&with(extra), None).unwrap()
    }

    fn fault(extra: Value) -> Fault {
        chat(&with(extra), None).unwrap_err()
    }

    fn submit(ask: &Ask) -> Submit {
        ask.submits().next().unwrap()
    }

    #[test]
    fn harmless_values_pass() {
        read(json!({
            "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": false,
            "top_logprobs": null, "tools": [], "tool_choice": "none", "parallel_tool_calls": true, "user": "u",
            "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "response_format": {"type": "text"},
            "modalities": ["text"], "audio": null, "stop": null, "seed": null, "max_tokens": null,
            "prompt_cache_options": {"mode": "implicit"}, "best_of": 1
        }));
    }

    #[test]
    fn priorities_are_whole_numbers() {
        assert_eq!(submit(&read(json!({}))).priority, 0);
        assert_eq!(submit(&read(json!({"priority": -3}))).priority, -3);
        assert_eq!(fault(json!({"priority": "high"})).param.as_deref(), Some("priority"));
    }

    #[test]
    fn wishes_are_refused_by_name() {
        for (name, value) in [
            ("tools", json!([{"type": "function"}])),
            ("response_format", json!({"type": "json_object"})),
            ("audio", json!({})),
            ("store", json!(true)),
            ("best_of", json!(3)),
            ("moderation", json!({"model": "m"})),
        ] {
            let fault = fault(json!({name: value}));
            assert_eq!(fault.param.as_deref(), Some(name));
            assert!(fault.message.contains("not supported"), "{}", fault.message);
        }
    }

    #[test]
    fn wrong_fields_are_named_by_path() {
        let path = |extra: Value| fault(extra).param.unwrap();
        for (name, wrong) in [
            ("temperature", json!("hot")),
            ("temperature", json!(3)),
            ("top_p", json!(1.1)),
            ("top_k", json!(-2)),
            ("min_p", json!(-0.1)),
            ("repetition_penalty", json!(0)),
            ("presence_penalty", json!(2.5)),
            ("frequency_penalty", json!("x")),
            ("logit_bias", json!([1])),
            ("stop_token_ids", json!(7)),
            ("ignore_eos", json!(1)),
            ("min_tokens", json!(-1)),
            ("n", json!(17)),
            ("n", json!(0)),
            ("seed", json!(0.5)),
            ("max_tokens", json!(0)),
            ("stop", json!(7)),
            ("stop", json!(["a", "b", "c", "d", "e"])),
            ("logprobs", json!(3)),
            ("top_logprobs", json!(3)),
        ] {
            assert_eq!(path(json!({name: wrong})), name, "{wrong}");
        }
        assert!(fault(json!({"n": 17})).message.contains("from 1 to 16"));
        assert_eq!(path(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs");
        assert_eq!(path(json!({"logit_bias": {"12": 101}})), "logit_bias.12");
        assert_eq!(path(json!({"logit_bias": {"the": 1}})), "logit_bias.the");
        assert_eq!(path(json!({"logit_bias": {"07": 1}})), "logit_bias.07");
        assert_eq!(path(json!({"stop_token_ids": [1, -1]})), "stop_token_ids[1]");
        assert_eq!(path(json!({"max_tokens": 5, "max_completion_tokens": 6})), "max_tokens");
        assert_eq!(path(json!({"stop": ["a", ""]})), "stop[1]");
        assert_eq!(path(json!({"stream_options": {"include_usage": true}})), "stream_options");
    }

    #[test]
    fn wrong_messages_are_named_by_path() {
        let path = |extra: Value| fault(extra).param.unwrap();
        assert_eq!(path(json!({"messages": []})), "messages");
        assert_eq!(path(json!({"messages": [{"role": "user"}]})), "messages[0].content");
        let second = |message: Value| path(json!({"messages": [{"role": "user", "content": ""}, message]}));
        assert_eq!(second(json!({"role": "user", "content": 5})), "messages[1].content");
        assert_eq!(second(json!({"role": "model", "content": ""})), "messages[1].role");
        assert_eq!(second(json!({"role": "user", "content": "", "nmae": 1})), "messages[1].nmae");
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
        assert_eq!(second(json!({"role": "user", "content": image})), "messages[1].content[1].type");
    }

    #[test]
    fn parts_are_put_together() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let ask = read(json!({"messages": [{"role": "user", "content": parts}]}));
        assert_eq!(*submit(&ask).prompt, Prompt::Chat(vec![ChatMessage::new(ChatRole::User, "ab")]));
    }

    #[test]
    fn what_is_wished_is_asked_and_defaults_are_the_apis() {
        let plain = submit(&read(json!({"seed": 7})));
        assert_eq!(plain.sampling, Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY });
        assert_eq!((plain.tokens_max, plain.logprobs, plain.ignore_end), (None, None, false));
        let ask = read(json!({
            "n": 3, "temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,
            "presence_penalty": -1, "frequency_penalty": 0.5, "logit_bias": {"12": -100, "3": 1.5}, "seed": -1,
            "logprobs": true, "top_logprobs": 4, "stop": "x", "stop_token_ids": [4], "ignore_eos": true,
            "min_tokens": 2, "max_completion_tokens": 9
        }));
        assert_eq!((ask.choices, ask.answers()), (3, 3));
        let wished = submit(&ask);
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.05,
            repetition: 1.1,
            presence: -1.0,
            frequency: 0.5,
            bias: vec![(12, -100.0), (3, 1.5)],
            seed: u64::MAX,
        };
        assert_eq!(wished.sampling, sampling);
        assert_eq!((wished.logprobs, wished.tokens_max, wished.tokens_min), (Some(4), Some(9), 2));
        assert_eq!((wished.stops, wished.stop_tokens), (vec!["x".to_owned()], vec![4]));
        assert!(wished.ignore_end);
    }
}
