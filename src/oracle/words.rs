//! Holds the tokenizer and the chat template against their vectors.

use millstream_actors::assemble::Resources;
use millstream_actors::text::{ChatMessage, Marked, Tokenizer};

/// What the tokenizer must do.
#[derive(Debug, Default)]
pub struct Words {
    /// Texts with their ids.
    pub samples: Vec<Sample>,
    /// A conversation and what the template makes of it.
    pub chat: Option<Chat>,
}

/// A text and its ids, without begin and end tokens.
#[derive(Debug)]
pub struct Sample {
    /// The text.
    pub text: String,
    /// Its ids.
    pub ids: Vec<u32>,
    /// The text that the ids give back.
    pub decoded: String,
}

/// A conversation.
#[derive(Debug)]
pub struct Chat {
    /// Roles and contents.
    pub messages: Vec<(String, String)>,
    /// As the template writes it, the assistant's turn opened.
    pub rendered: String,
    /// Its ids.
    pub ids: Vec<u32>,
}

/// One sentence for everything that is wrong.
pub(super) fn compare(words: &Words, resources: &Resources) -> Vec<String> {
    let tokenizer = &resources.tokenizer;
    let mut wrong: Vec<String> =
        words.samples.iter().flat_map(|sample| compare_sample(sample, tokenizer)).collect();
    if let Some(chat) = &words.chat {
        wrong.extend(compare_chat(chat, resources).err());
    }
    wrong
}

fn compare_sample(sample: &Sample, tokenizer: &Tokenizer) -> Vec<String> {
    let mut wrong = Vec::new();
    // The library that made the vectors takes control tokens in a text for what they look like; so does a template.
    let mut ids = tokenizer.encode_marked(&Marked::trusted(sample.text.as_str()));
    if ids.first() == tokenizer.bos().as_ref() && ids.first() != sample.ids.first() {
        ids.remove(0);
    }
    if ids != sample.ids {
        wrong.push(format!("{:?} becomes {ids:?} instead of {:?}", shown(&sample.text), sample.ids));
    }
    let bytes: Vec<u8> = sample.ids.iter().flat_map(|id| tokenizer.bytes(*id)).copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let control = sample.ids.iter().any(|id| tokenizer.is_control(*id));
    if text != sample.decoded && !control {
        wrong.push(format!("{:?} comes back as {:?}", shown(&sample.decoded), shown(&text)));
    }
    wrong
}

fn compare_chat(chat: &Chat, resources: &Resources) -> Result<(), String> {
    let template = resources.template.as_ref().ok_or("there is no chat template")?;
    let message = |(role, content): &(String, String)| {
        let role = role.parse().map_err(|_| format!("{role} is no role"))?;
        Ok(ChatMessage::new(role, content.as_str()))
    };
    let messages = chat.messages.iter().map(message).collect::<Result<Vec<_>, String>>()?;
    let marked =
        template.render(&messages, true).map_err(|error| format!("the chat cannot be rendered: {error}"))?;
    let ids = resources.tokenizer.encode_marked(&marked);
    if ids == chat.ids {
        Ok(())
    } else {
        Err(format!("the chat {:?} becomes {ids:?} instead of {:?}", shown(&chat.rendered), chat.ids))
    }
}

fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(48).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
