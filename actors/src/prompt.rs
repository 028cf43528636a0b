//! From what a client wrote to token ids. The tokenizer's seat and the shell's `/tokenize` both ask here, so that what a
//! client counts is what it is charged.

use crate::request::{Prompt, Refusal};
use crate::text::{ChatTemplate, Tokenizer};

/// How a prompt is encoded where its kind leaves a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// A plain text gets the tokens that the family puts around texts.
    pub framed: bool,
    /// A chat ends with the turn of the assistant opened.
    pub opened: bool,
}

impl Encoding {
    /// What every request gets.
    pub const SERVED: Self = Self { framed: true, opened: true };
}

/// Token ids of a prompt, each in the vocabulary.
///
/// # Errors
/// The template refuses the chat, there is none, or an id is not in the vocabulary.
pub fn encode(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    prompt: &Prompt,
    how: Encoding,
) -> Result<Vec<u32>, Refusal> {
    let ids = match prompt {
        Prompt::Chat(messages) => {
            let template =
                template.ok_or_else(|| invalid("this model has no chat template: send plain text"))?;
            tokenizer.encode_marked(&template.render(messages, how.opened).map_err(invalid)?)
        }
        Prompt::Text(text) if how.framed => tokenizer.encode_prompt(text),
        Prompt::Text(text) => tokenizer.encode_plain(text),
        Prompt::Tokens(ids) => ids.clone(),
    };
    known(tokenizer, "prompt", ids.iter().copied())?;
    Ok(ids)
}

/// Refuses ids of the setting `field` that are beyond the vocabulary.
///
/// # Errors
/// The first of them, by name.
pub fn known(
    tokenizer: &Tokenizer,
    field: &'static str,
    mut ids: impl Iterator<Item = u32>,
) -> Result<(), Refusal> {
    let vocab = tokenizer.vocab();
    let Some(id) = ids.find(|id| *id as usize >= vocab) else { return Ok(()) };
    Err(Refusal::Field { field, why: format!("token {id} is not in the vocabulary of {vocab}") })
}

fn invalid(why: impl ToString) -> Refusal {
    Refusal::Invalid(why.to_string())
}
