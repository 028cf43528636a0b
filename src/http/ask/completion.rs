//! The body of a completion request: prompts without a chat template, as text or as token ids.

use std::sync::Arc;

use millstream_actors::request::{Prompt, Submit};
use serde_json::Value;

use super::super::fault::Fault;
use super::super::fields::{Field, Fields};
use super::super::images::Images;
use super::super::keeping::{self, Wanted};
use super::wishes::{LIKELIEST_MAX, SERVED, choices, streaming, wishes};
use super::{Ask, Neutral, check_names, neutral};

/// Prompts in one request.
const PROMPTS_MAX: usize = 16;
/// Answers to all prompts of a request together.
const ANSWERS_MAX: usize = 64;
/// Tokens of an answer when the client names no number: the API's.
const TOKENS_DEFAULT: u32 = 16;

/// What completions have and chats have not.
const OWN: &[&str] = &["prompt", "logprobs", "echo", "best_of"];

/// Fields of the API that are known but not served.
const NEUTRAL: &[Neutral] = &[
    neutral("suffix", |v| v == "", "it does not fill in before a suffix"),
    neutral("user", Value::is_string, "it must be a string"),
];

/// Reads a completion request.
///
/// # Errors
/// The first field that is wrong, missing, unknown or not served.
pub(crate) fn completion(body: &Value, _images: Option<&Images>) -> Result<Ask, Fault> {
    let fields = Fields::of(body)?;
    check_names(&fields, &[SERVED, keeping::SERVED, OWN], NEUTRAL)?;
    let model = fields.need("model")?.text()?.to_owned();
    let (stream, include_usage) = streaming(&fields)?;
    let prompt = fields.need("prompt")?;
    let prompts: Vec<Arc<Prompt>> = prompts(&prompt)?.into_iter().map(Arc::new).collect();
    let first = prompts.first().ok_or_else(|| prompt.fault("must not be empty"))?;
    let echo = fields.get("echo").map_or(Ok(false), |field| field.flag())?;
    let tokens_max = Some(fields.get("max_tokens").map_or(Ok(TOKENS_DEFAULT), |f| f.count(1, u32::MAX))?);
    let wishes =
        Submit { tokens_max, logprobs: logprobs(&fields, echo)?, ..wishes(&fields, Arc::clone(first))? };
    let choices = choices(&fields)?;
    if let Some(field) = fields.get("best_of").filter(|field| field.value() != choices) {
        let why = "not supported by this server: it does not choose among answers, leave it out or make it n";
        return Err(field.fault(why).coded("unsupported_value"));
    }
    let wanted = Wanted::read(&fields)?;
    let ask = Ask { model, stream, include_usage, prompts, choices, echo, wanted, wishes };
    if ask.answers() > ANSWERS_MAX {
        let why =
            format!("{} prompts with {choices} answers each are more than {ANSWERS_MAX}", ask.prompts.len());
        return Err(Fault::field("n", why).coded("out_of_range"));
    }
    Ok(ask)
}

fn logprobs(fields: &Fields<'_>, echo: bool) -> Result<Option<u32>, Fault> {
    let Some(field) = fields.get("logprobs") else { return Ok(None) };
    if echo {
        let why = "not supported by this server together with echo: it has no log-probabilities of prompts";
        return Err(field.fault(why).coded("unsupported_value"));
    }
    field.count(0, LIKELIEST_MAX).map(Some)
}

/// One string, a list of strings, the ids of one prompt, or a list of such lists.
fn prompts(field: &Field<'_>) -> Result<Vec<Prompt>, Fault> {
    if let Some(text) = field.value().as_str() {
        return Ok(vec![Prompt::Text(text.to_owned())]);
    }
    if !field.value().is_array() {
        let why = "expected a string, a list of strings, a list of token ids, or a list of such lists";
        return Err(field.fault(why).coded("invalid_type"));
    }
    let list = field.list()?;
    if list.first().is_some_and(|first| first.value().is_number()) {
        return Ok(vec![ids(field)?]);
    }
    if list.len() > PROMPTS_MAX {
        return Err(field.fault(format!("must hold at most {PROMPTS_MAX} prompts")).coded("out_of_range"));
    }
    list.iter().map(prompt).collect()
}

fn prompt(field: &Field<'_>) -> Result<Prompt, Fault> {
    match field.value() {
        Value::Array(_) => ids(field),
        _ => field.text().map(|text| Prompt::Text(text.to_owned())),
    }
}

fn ids(field: &Field<'_>) -> Result<Prompt, Fault> {
    let ids = field.counts(usize::MAX)?;
    if ids.is_empty() { Err(field.fault("must not be empty")) } else { Ok(Prompt::Tokens(ids)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Ask, Fault> {
        let mut whole = json!({"model": "m"});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        completion(&whole, None)
    }

    #[test]
    fn prompts_come_in_four_shapes() {
        let prompts = |prompt: Value| -> Vec<Prompt> {
            let ask = read(json!({"prompt": prompt})).unwrap();
            ask.submits().map(|submit| (*submit.prompt).clone()).collect()
        };
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(prompts(json!("a")), [text("a")]);
        assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(prompts(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts(json!([[1, 2], [3]])), [Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fault = |body: Value| read(body).unwrap_err();
        let path = |body: Value| fault(body).param.unwrap();
        assert_eq!(path(json!({})), "prompt");
        assert_eq!(path(json!({"prompt": []})), "prompt");
        assert_eq!(path(json!({"prompt": 3})), "prompt");
        assert_eq!(path(json!({"prompt": [1, "a"]})), "prompt[1]");
        assert_eq!(path(json!({"prompt": ["a", 1]})), "prompt[1]");
        assert_eq!(path(json!({"prompt": [[1, -1]]})), "prompt[0][1]");
        assert_eq!(path(json!({"prompt": [[1], []]})), "prompt[1]");
        assert_eq!(path(json!({"prompt": vec!["a"; 17]})), "prompt");
        assert_eq!(path(json!({"prompt": vec!["a"; 16], "n": 5})), "n");
        assert_eq!(path(json!({"prompt": "a", "logprobs": 21})), "logprobs");
        assert_eq!(path(json!({"prompt": "a", "priority": 0.5})), "priority");
        assert_eq!(path(json!({"prompt": "a", "priority": 1u64 << 31})), "priority");
        assert_eq!(path(json!({"prompt": "a", "logprobs": 1, "echo": true})), "logprobs");
        assert_eq!(path(json!({"prompt": "a", "suffix": "b"})), "suffix");
        assert_eq!(path(json!({"prompt": "a", "best_of": 2})), "best_of");
        assert_eq!(path(json!({"prompt": "a", "messages": []})), "messages");
        assert!(read(json!({"prompt": "a", "best_of": 2, "n": 2, "suffix": null})).is_ok());
    }

    #[test]
    fn an_answer_is_short_unless_it_is_said() {
        let ask = read(json!({"prompt": "a", "logprobs": 0})).unwrap();
        let submit = ask.submits().next().unwrap();
        assert_eq!((submit.tokens_max, submit.logprobs), (Some(16), Some(0)));
    }
}
