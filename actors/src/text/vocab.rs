//! The table of tokens that both kinds of files end in, and the decision which of them a user's text may become.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::TextError;
use super::added::{AddedSet, AddedToken, Reach};
use super::decoding::{Decoder, Decoding, Pieces};

/// Ids a vocabulary may have; the largest known ones have a quarter of a million.
pub(super) const IDS_MAX: usize = 1 << 22;
/// Bytes all tokens may have together.
const BYTES_MAX: usize = 1 << 30;

/// Tokens that end a turn or a text, whatever the files say about them.
const ENDS: &[&str] = &[
    "<end_of_turn>",
    "<turn|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
];

/// HTML tags that some families keep whole.
const TAGS: &[&str] = &[
    "a",
    "b",
    "bbox",
    "blockquote",
    "body",
    "br",
    "caption",
    "code",
    "div",
    "em",
    "footer",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
];

/// What a token is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// No token has this id.
    #[default]
    Absent,
    /// Made by encoding, out of any text.
    Normal,
    /// Stands for one byte.
    Byte,
    /// Found as a whole, in any text: white space and HTML tags.
    Literal,
    /// Found as a whole, only in what a template wrote; visible in answers (`<think>`).
    Markup,
    /// Found as a whole, only in what a template wrote; invisible.
    Control,
    /// Visible in answers, never made.
    Unused,
}

impl Kind {
    /// The kind of a token that is matched as a whole and is no control token by itself. Only what reads as ordinary text
    /// is taken from users: many files call the markers of their turns "user-defined".
    pub fn of_added(text: &str) -> Self {
        let tag = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
        let tag = tag.map(|tag| tag.strip_prefix('/').unwrap_or(tag));
        let blank = text.chars().all(|c| c == '▁' || c.is_whitespace());
        if blank || tag.is_some_and(|tag| TAGS.contains(&tag)) { Self::Literal } else { Self::Markup }
    }

    /// Whether only a template can make it.
    pub fn reserved(self) -> bool {
        matches!(self, Self::Markup | Self::Control)
    }
}

/// One token as a file describes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Token<'a> {
    pub text: Cow<'a, str>,
    pub kind: Kind,
    pub reach: Reach,
}

/// Tokens with a part to play, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
}

impl Parts {
    fn ids(&self) -> impl Iterator<Item = u32> {
        [self.bos, self.eos, self.unk, self.pad].into_iter().flatten()
    }

    /// The tokens that are control tokens whatever else the files say (some pad with an ordinary one).
    fn frame(&self, id: u32) -> bool {
        self.bos == Some(id) || self.eos == Some(id)
    }
}

/// All tokens, by id.
#[derive(Debug)]
pub(super) struct Vocab<'a> {
    pub tokens: Vec<Token<'a>>,
    pub parts: Parts,
    /// Tokens that end a turn or a text, the end token of the files first.
    pub ends: Vec<u32>,
}

/// What is kept of a vocabulary.
#[derive(Debug)]
pub(super) struct Tables {
    /// Bytes each token adds to an answer.
    pub pieces: Pieces,
    pub kinds: Vec<Kind>,
    /// Tokens only a template can make.
    pub reserved: AddedSet,
    /// How tokens that add nothing to a text are written, by id.
    pub names: BTreeMap<u32, String>,
}

impl<'a> Vocab<'a> {
    /// Checks the ids of `parts` and makes those tokens, and the known ends of turns, control tokens.
    pub fn new(mut tokens: Vec<Token<'a>>, parts: Parts) -> Result<Self, TextError> {
        if tokens.is_empty() || tokens.len() > IDS_MAX {
            return Err(TextError::broken(format!("it has {} token ids", tokens.len())));
        }
        let bytes: usize = tokens.iter().map(|token| token.text.len()).sum();
        if bytes > BYTES_MAX {
            return Err(TextError::broken(format!("its tokens have {bytes} bytes")));
        }
        for id in parts.ids() {
            let count = tokens.len();
            let token = tokens.get_mut(id as usize);
            let token = token.filter(|token| token.kind != Kind::Absent).ok_or_else(|| {
                TextError::broken(format!("the special token {id} is not in the vocabulary of {count} ids"))
            })?;
            if parts.frame(id) {
                token.kind = Kind::Control;
            }
        }
        let mut ends: Vec<u32> = parts.eos.into_iter().collect();
        for (id, token) in tokens.iter_mut().enumerate() {
            if token.kind != Kind::Absent
                && token.text.starts_with('<')
                && ENDS.contains(&token.text.as_ref())
            {
                token.kind = Kind::Control;
                ends.extend(Some(id as u32).filter(|id| Some(*id) != parts.eos));
            }
        }
        Ok(Self { tokens, parts, ends })
    }

    /// The tokens of this kind that are matched as a whole.
    pub fn added(&self, wanted: impl Fn(Kind) -> bool) -> AddedSet {
        let tokens = self.tokens.iter().enumerate().filter(|(_, token)| wanted(token.kind));
        let tokens = tokens.map(|(id, token)| AddedToken {
            id: id as u32,
            text: token.text.to_string(),
            reach: token.reach,
        });
        AddedSet::new(tokens.collect())
    }

    /// What is needed when texts come.
    pub fn tables(&self, decoding: &Decoding) -> Tables {
        let decoder = Decoder::new(decoding.clone());
        let mut pieces = Pieces::default();
        for token in &self.tokens {
            pieces.push(|out| match token.kind {
                Kind::Absent | Kind::Control => {}
                Kind::Markup => out.extend_from_slice(token.text.as_bytes()),
                Kind::Normal | Kind::Byte | Kind::Literal | Kind::Unused => decoder.append(&token.text, out),
            });
        }
        Tables {
            pieces,
            kinds: self.tokens.iter().map(|token| token.kind).collect(),
            reserved: self.added(Kind::reserved),
            names: (0u32..)
                .zip(&self.tokens)
                .filter(|(_, token)| token.kind == Kind::Control)
                .map(|(id, token)| (id, token.text.to_string()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blanks_and_tags_are_taken_from_users() {
        for text in ["\n\n", "▁▁", "  ", "<table>", "</h1>"] {
            assert_eq!(Kind::of_added(text), Kind::Literal, "{text}");
        }
        for text in
            ["<think>", "</think>", "<|im_end|>", "[INST]", "<start_of_image>", "<unused0>", "table", "<//b>"]
        {
            assert_eq!(Kind::of_added(text), Kind::Markup, "{text}");
        }
    }

    #[test]
    fn special_ids_must_exist() {
        let tokens =
            || vec![Token { text: "a".into(), kind: Kind::Normal, ..Token::default() }, Token::default()];
        for bos in [1, 2] {
            let error = Vocab::new(tokens(), Parts { bos: Some(bos), ..Parts::default() }).unwrap_err();
            assert!(error.to_string().contains(&bos.to_string()), "{error}");
        }
        assert!(Vocab::new(Vec::new(), Parts::default()).is_err());
    }
}
