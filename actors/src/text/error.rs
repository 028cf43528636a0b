//! What can go wrong between text and tokens. Every variant names what was attempted; none of them is a panic, because
//! tokenizer files come from strangers.

/// An operating error of this module.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The files of the model hold neither a `tokenizer.json` nor the vocabulary of a GGUF file.
    #[error(
        "the model brings no tokenizer: it has neither a tokenizer.json nor the vocabulary of a GGUF file"
    )]
    Missing,
    /// A file is not the JSON it should be.
    #[error("reading {what}")]
    Json {
        /// The file, or the part of it.
        what: &'static str,
        /// Where and how it differs.
        source: serde_json::Error,
    },
    /// A name that this build does not know.
    #[error("the {what} `{name}` is not known; known are: {known}")]
    Unknown {
        /// What the name stands for.
        what: &'static str,
        /// The name.
        name: String,
        /// All names that would do.
        known: String,
    },
    /// The tokenizer contradicts itself.
    #[error("the tokenizer is broken: {0}")]
    Broken(String),
    /// The chat template could not be compiled or rendered.
    #[error("{attempt} the chat template: {reason}")]
    Template {
        /// `compiling` or `rendering`.
        attempt: &'static str,
        /// What the template machine says; for a refusal by the template itself, its own words.
        reason: String,
    },
    /// A role outside the closed list.
    #[error("the role `{0}` is not known; known are: system, developer, user, assistant, tool")]
    Role(String),
    /// The messages of a conversation leave no private-use character to fence them with.
    #[error(
        "the messages use up every private-use character of Unicode, so they cannot be told from the template"
    )]
    NoGuard,
    /// Stop strings that cannot be watched for.
    #[error("stop strings: {0}")]
    Stops(&'static str),
}

impl TextError {
    pub(super) fn broken(what: impl Into<String>) -> Self {
        Self::Broken(what.into())
    }

    pub(super) fn unknown(what: &'static str, name: &str, known: &[&str]) -> Self {
        Self::Unknown { what, name: name.to_string(), known: known.join(", ") }
    }
}
