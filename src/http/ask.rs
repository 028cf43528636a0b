//! From the body of a request to what the desk is asked. Every field of the API is known by name: served, harmless at
//! the value sent, or refused with a sentence, as is a field that nobody knows. Silence about a wish would be a wrong
//! answer.
//!
//! `chat` and `completion` read the two kinds of bodies, `wishes` what they have in common.

use std::sync::Arc;

use millstream_actors::request::{Keeping, Prompt, Submit};
use serde_json::Value;

use super::fault::Fault;
use super::fields::Fields;
use super::images;
use super::keeping::Wanted;

mod chat;
mod completion;
mod wishes;

pub(crate) use chat::{chat, messages};
pub(crate) use completion::completion;

/// A request, read and checked.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// What is to be answered, one after the other.
    prompts: Vec<Arc<Prompt>>,
    /// Answers to each of them.
    pub(crate) choices: u32,
    /// Say the prompt before the answer.
    pub(crate) echo: bool,
    /// What is to become of its blocks.
    pub(crate) wanted: Wanted,
    /// What all have in common.
    wishes: Submit,
}

impl Ask {
    /// Whose blocks these are, as was found of what is wanted.
    pub(crate) fn keep(&mut self, keeping: Keeping) {
        self.wishes.keeping = keeping;
    }

    /// What the desk is asked, one request a prompt.
    pub(crate) fn submits(&self) -> impl Iterator<Item = Submit> {
        self.prompts.iter().map(|prompt| Submit { prompt: Arc::clone(prompt), ..self.wishes.clone() })
    }

    /// Answers to all prompts together.
    pub(crate) fn answers(&self) -> usize {
        self.prompts.len() * self.choices as usize
    }

    /// Bytes of all that is to be looked at.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.prompts.iter().map(|prompt| images::bytes(prompt)).sum()
    }

    /// The client wants to know how likely the tokens were.
    pub(crate) fn logprobs(&self) -> Option<u32> {
        self.wishes.logprobs
    }
}

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

/// Refuses fields that nobody knows, and wishes that are not served.
fn check_names(fields: &Fields<'_>, served: &[&[&str]], table: &[Neutral]) -> Result<(), Fault> {
    let neutral: Vec<&str> = table.iter().map(|field| field.name).collect();
    fields.only(&[served, &[&neutral]].concat())?;
    for known in table {
        if let Some(field) = fields.get(known.name).filter(|field| !(known.harmless)(field.value())) {
            let message = format!("not supported by this server: {}", known.only);
            return Err(field.fault(message).coded("unsupported_value"));
        }
    }
    Ok(())
}

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}
fn never(_: &Value) -> bool {
    false
}
