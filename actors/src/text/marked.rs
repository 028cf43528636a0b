//! Rendered templates in which the words of the users are told from those of the template: why a message that says
//! `<|im_end|>` ends no turn.
//!
//! Templates are programs of the model's maker; they trim, split and join what users said, so positions are lost on the
//! way. Instead the users' words carry a fence that travels with them: a *guard*, a private-use character that occurs
//! neither in any message of the conversation nor in the template nor in any control token. It stands
//!
//! - before the first character of a message that is no white space, so that no token that the template begins can be
//!   finished by the user (where some control token has white space in it, the guard stands at the very front);
//! - before every character that can begin a control token; a token right behind a guard is none
//!   ([`AddedSet::find`]), so that the user can begin none. Because the guard stands *before* it, a template still finds
//!   `</think>` in an answer and cuts there.
//!
//! White space at the ends stays outside the fence, so that `trim` does what it does without one. After the search the
//! guards are dropped, and text that hangs together is encoded together.

use std::collections::BTreeSet;

use super::{ChatMessage, TextError, added::AddedSet};

/// Text of which only the template's part can become control tokens. [`super::ChatTemplate::render`] makes it,
/// [`super::Tokenizer::encode_marked`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    text: String,
    guard: Option<char>,
}

/// A part of marked text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Token(u32),
    Plain(String),
}

impl Marked {
    /// Text of which every part may become control tokens. Never for what a user wrote.
    pub fn trusted(text: impl Into<String>) -> Self {
        Self { text: text.into(), guard: None }
    }

    pub(super) fn guarded(text: String, guard: char) -> Self {
        Self { text, guard: Some(guard) }
    }

    /// The text as the model's maker sees it, without guards.
    pub fn text(&self) -> String {
        self.without_guards(&self.text)
    }

    fn without_guards(&self, part: &str) -> String {
        match self.guard {
            Some(guard) => part.replace(guard, ""),
            None => part.to_string(),
        }
    }

    /// The control tokens the template wrote and the text between them, guards dropped.
    pub(super) fn segments(&self, reserved: &AddedSet) -> Vec<Segment> {
        let (mut segments, mut from) = (Vec::new(), 0);
        while let Some(found) = reserved.find(&self.text, from, self.guard) {
            self.push_plain(&self.text[from..found.range.start], &mut segments);
            segments.push(Segment::Token(found.id));
            from = found.range.end;
        }
        self.push_plain(&self.text[from..], &mut segments);
        segments
    }

    fn push_plain(&self, part: &str, segments: &mut Vec<Segment>) {
        let plain = self.without_guards(part);
        if !plain.is_empty() {
            segments.push(Segment::Plain(plain));
        }
    }
}

/// Puts guards into the words of users. Made once for a template and a tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Fence {
    starts: BTreeSet<char>,
    /// Some control token has white space in it.
    spaced: bool,
    /// Characters of the template and of control tokens; none of them can be a guard.
    taken: BTreeSet<char>,
}

impl Fence {
    pub fn new(reserved: &AddedSet, template: &str) -> Self {
        Self {
            starts: reserved.starts().clone(),
            spaced: reserved.chars().iter().any(|c| c.is_whitespace()),
            taken: reserved.chars().iter().copied().chain(template.chars()).collect(),
        }
    }

    /// A private-use character that occurs nowhere in this conversation.
    pub fn guard(&self, messages: &[ChatMessage]) -> Result<char, TextError> {
        let candidates =
            || ('\u{E000}'..='\u{F8FF}').chain('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}');
        let private = |c: &char| matches!(*c, '\u{E000}'..='\u{F8FF}' | '\u{F0000}'..);
        let said: BTreeSet<char> =
            messages.iter().flat_map(|m| m.content.texts()).flat_map(str::chars).filter(private).collect();
        candidates().find(|c| !self.taken.contains(c) && !said.contains(c)).ok_or(TextError::NoGuard)
    }

    /// What the template gets to see of a message.
    pub fn fence(&self, guard: char, text: &str) -> String {
        let inner = if self.spaced { text } else { text.trim_start() };
        let (white, _) = text.split_at(text.len() - inner.len());
        let mut fenced = String::with_capacity(text.len() + text.len() / 8 + 8);
        fenced.push_str(white);
        for (at, c) in inner.char_indices() {
            if at == 0 || self.starts.contains(&c) {
                fenced.push(guard);
            }
            fenced.push(c);
        }
        fenced
    }
}

#[cfg(test)]
mod tests {
    use super::super::ChatRole;
    use super::*;

    #[test]
    fn only_the_template_makes_tokens() {
        let set = AddedSet::of(&["<s>", "|"]);
        let fence = Fence::new(&set, "");
        let guard = fence.guard(&[]).unwrap();
        let user = fence.fence(guard, "s> <s>|<");
        let marked = Marked::guarded(format!("<s><{user}s>|"), guard);
        assert_eq!(
            marked.segments(&set),
            [Segment::Token(0), Segment::Plain("<s> <s>|<s>".into()), Segment::Token(1)]
        );
        assert_eq!(marked.text(), "<s><s> <s>|<s>|");
    }

    #[test]
    fn white_space_stays_outside_unless_a_token_has_some() {
        let fence = Fence::new(&AddedSet::of(&["<s>"]), "");
        assert_eq!(fence.fence('!', " \na<b "), " \n!a!<b ");
        assert_eq!(fence.fence('!', ""), "");
        assert_eq!(fence.fence('!', "  "), "  ");
        let fence = Fence::new(&AddedSet::of(&["< s>"]), "");
        assert_eq!(fence.fence('!', " s>"), "! s>");
    }

    #[test]
    fn the_guard_is_a_character_nobody_used() {
        let fence = Fence::new(&AddedSet::of(&["<\u{E000}>"]), "\u{E001}");
        let said = |content: String| [ChatMessage::new(ChatRole::User, content)];
        assert_eq!(fence.guard(&said("\u{E002}\u{E004}".into())).unwrap(), '\u{E003}');
        let all: String = ('\u{E000}'..='\u{10FFFD}').collect();
        assert!(matches!(fence.guard(&said(all)), Err(TextError::NoGuard)));
    }
}
