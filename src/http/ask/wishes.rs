//! Fields that chats and completions have in common: how tokens are chosen, when an answer ends, how it is sent.

use std::sync::Arc;

use millstream_actors::request::{Prompt, Sampling, Submit};

use super::super::fault::Fault;
use super::super::fields::{Field, Fields};
use super::is_false;
use crate::clock;

/// Answers to one prompt.
pub(super) const CHOICES_MAX: u32 = 16;
/// Likeliest tokens beside each token.
pub(super) const LIKELIEST_MAX: u32 = 20;
/// Stop strings in one request.
const STOPS_MAX: usize = 4;
/// Bytes of one stop string: what the detokenizer holds back at most.
const STOP_BYTES_MAX: usize = 1024;
/// Stop tokens in one request.
const STOP_TOKENS_MAX: usize = 64;
/// Tokens whose logits one request may shift.
const BIASES_MAX: usize = 1024;

/// What this file reads.
pub(super) const SERVED: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "n",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "priority",
];

/// What every request for `prompt` wishes; how long an answer may be, and what is said of its tokens, is left open.
pub(super) fn wishes(fields: &Fields<'_>, prompt: Arc<Prompt>) -> Result<Submit, Fault> {
    let stop_tokens = fields.get("stop_token_ids").map(|field| field.counts(STOP_TOKENS_MAX)).transpose()?;
    Ok(Submit {
        stops: stops(fields)?,
        stop_tokens: stop_tokens.unwrap_or_default(),
        tokens_min: fields.get("min_tokens").map_or(Ok(0), |field| field.count(0, u32::MAX))?,
        ignore_end: fields.get("ignore_eos").map_or(Ok(false), |field| field.flag())?,
        priority: fields.get("priority").map_or(Ok(0), |field| priority(&field))?,
        ..Submit::new(prompt, sampling(fields)?)
    })
}

/// Whether the answer is streamed, and whether the stream ends with the usage.
pub(super) fn streaming(fields: &Fields<'_>) -> Result<(bool, bool), Fault> {
    let stream = fields.get("stream").map_or(Ok(false), |field| field.flag())?;
    let Some(field) = fields.get("stream_options") else { return Ok((stream, false)) };
    let options = field.fields()?;
    options.only(&[&["include_usage", "include_obfuscation"]])?;
    if !stream {
        return Err(field.fault("is only allowed together with \"stream\": true"));
    }
    if let Some(field) = options.get("include_obfuscation").filter(|field| !is_false(field.value())) {
        return Err(field.fault("not supported by this server: it does not pad its chunks"));
    }
    Ok((stream, options.get("include_usage").map_or(Ok(false), |field| field.flag())?))
}

/// Answers to each prompt.
pub(super) fn choices(fields: &Fields<'_>) -> Result<u32, Fault> {
    fields.get("n").map_or(Ok(1), |field| field.count(1, CHOICES_MAX))
}

fn sampling(fields: &Fields<'_>) -> Result<Sampling, Fault> {
    let number = |name: &str, (low, high): (f64, f64), usual: f64| {
        let number = fields.get(name).map_or(Ok(usual), |field| field.number(low, high));
        number.map(|number| number as f32)
    };
    Ok(Sampling {
        temperature: number("temperature", (0.0, 2.0), 1.0)?,
        top_k: fields.get("top_k").map_or(Ok(0), |field| top_k(&field))?,
        top_p: number("top_p", (0.0, 1.0), 1.0)?,
        min_p: number("min_p", (0.0, 1.0), 0.0)?,
        repetition: number("repetition_penalty", (0.01, 100.0), 1.0)?,
        presence: number("presence_penalty", (-2.0, 2.0), 0.0)?,
        frequency: number("frequency_penalty", (-2.0, 2.0), 0.0)?,
        bias: fields.get("logit_bias").map_or(Ok(Vec::new()), |field| bias(&field))?,
        seed: fields.get("seed").map_or_else(|| Ok(clock::fresh_seed()), |field| field.bits())?,
    })
}

/// A whole number, the lowest first, as others have it.
fn priority(field: &Field<'_>) -> Result<i32, Fault> {
    let number = field.value().as_i64().and_then(|number| i32::try_from(number).ok());
    number.ok_or_else(|| {
        field.fault("expected a whole number of 32 bits; the lowest comes first").coded("invalid_type")
    })
}

/// All tokens are kept at 0, and at -1 as others write it.
fn top_k(field: &Field<'_>) -> Result<u32, Fault> {
    if field.value().as_i64() == Some(-1) { Ok(0) } else { field.count(0, u32::MAX) }
}

fn bias(field: &Field<'_>) -> Result<Vec<(u32, f32)>, Fault> {
    let mut biases = Vec::new();
    for (name, shift) in field.fields()?.each() {
        let id = name.parse().ok().filter(|id: &u32| id.to_string() == name);
        let id = id.ok_or_else(|| shift.fault("the name must be the id of a token, such as \"123\""))?;
        biases.push((id, shift.number(-100.0, 100.0)? as f32));
    }
    if biases.len() > BIASES_MAX {
        return Err(field.fault(format!("must name at most {BIASES_MAX} tokens")).coded("out_of_range"));
    }
    Ok(biases)
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
        return Err(field.fault(format!("at most {STOPS_MAX} stop strings are taken")).coded("out_of_range"));
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
