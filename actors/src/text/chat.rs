//! A conversation as the client sends it. Roles are a closed list, because templates paste them between the halves of
//! control tokens (`<|` role `|>`): free text there could make any token.

use std::str::FromStr;
use std::sync::Arc;

use super::TextError;
use crate::picture::Picture;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChatRole {
    /// Standing orders.
    System,
    /// Standing orders, by the newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// What a tool answered.
    Tool,
}

impl ChatRole {
    /// The name on the wire and in templates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl FromStr for ChatRole {
    type Err = TextError;

    fn from_str(name: &str) -> Result<Self, TextError> {
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool]
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| TextError::Role(name.to_string()))
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: ChatRole,
    /// What is said.
    pub content: Content,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Free text.
    Text(String),
    /// Text and images in their order; templates get a list of parts.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Free text.
    Text(String),
    /// An image.
    Image(Arc<Picture>),
}

impl Content {
    /// Parts put together: where there is no image, one text.
    pub fn of(parts: Vec<Part>) -> Self {
        let mut whole = String::new();
        for part in &parts {
            match part {
                Part::Text(text) => whole.push_str(text),
                Part::Image(_) => return Self::Parts(parts),
            }
        }
        Self::Text(whole)
    }

    /// Its images, in their order.
    pub fn images(&self) -> impl Iterator<Item = &Arc<Picture>> {
        let parts = match self {
            Self::Text(_) => &[][..],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(|part| match part {
            Part::Image(picture) => Some(picture),
            Part::Text(_) => None,
        })
    }

    /// All that is said in words, piece by piece.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (alone, parts) = match self {
            Self::Text(text) => (Some(text.as_str()), &[][..]),
            Self::Parts(parts) => (None, parts.as_slice()),
        };
        let spoken = parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image(_) => None,
        });
        alone.into_iter().chain(spoken)
    }
}

impl ChatMessage {
    /// A message of `role`, in words.
    pub fn new(role: ChatRole, content: impl Into<String>) -> Self {
        Self { role, content: Content::Text(content.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_a_closed_list() {
        assert_eq!("tool".parse::<ChatRole>().unwrap(), ChatRole::Tool);
        for wrong in ["", "User", "user\n", "<|im_start|>", "model"] {
            let error = wrong.parse::<ChatRole>().unwrap_err();
            assert!(error.to_string().contains("known are"), "{error}");
        }
    }
}
