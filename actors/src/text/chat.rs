//! A conversation as the client sends it. Roles are a closed list, because templates paste them between the halves of
//! control tokens (`<|` role `|>`): free text there could make any token.

use std::str::FromStr;

use super::TextError;

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
    /// What is said; free text.
    pub content: String,
}

impl ChatMessage {
    /// A message of `role`.
    pub fn new(role: ChatRole, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
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
