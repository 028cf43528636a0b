//! Tokens that are found in a text as a whole, before anything else looks at it: control tokens in what a template
//! wrote, and a few kinds of ordinary text (runs of spaces, HTML tags) that some families never split.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One such token.
#[derive(Clone, Debug, Default)]
pub(super) struct AddedToken {
    pub id: u32,
    pub text: String,
    /// What the match takes along, or asks of its surroundings.
    pub reach: Reach,
}

/// How a match treats what stands beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// White space before it belongs to it.
    pub lstrip: bool,
    /// White space after it belongs to it.
    pub rstrip: bool,
    /// It counts only between characters that make no words.
    pub single_word: bool,
}

/// A set of them, as a tree over bytes: finding the longest at a place takes as many steps as it has bytes.
#[derive(Clone, Debug)]
pub(super) struct AddedSet {
    branches: Vec<Branch>,
    /// Only those that are not the default.
    reaches: BTreeMap<u32, Reach>,
    /// Characters that begin a token, and all characters of tokens.
    starts: BTreeSet<char>,
    chars: BTreeSet<char>,
}

#[derive(Clone, Debug, Default)]
struct Branch {
    id: Option<u32>,
    /// Sorted by byte.
    next: Vec<(u8, usize)>,
}

/// A token in a text. The range includes white space it takes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub range: Range<usize>,
    pub id: u32,
}

impl AddedSet {
    /// The set of these; empty texts are left out.
    pub fn new(tokens: Vec<AddedToken>) -> Self {
        let mut set = Self {
            branches: vec![Branch::default()],
            reaches: BTreeMap::new(),
            starts: BTreeSet::new(),
            chars: BTreeSet::new(),
        };
        for token in tokens {
            let Some(start) = token.text.chars().next() else { continue };
            set.starts.insert(start);
            set.chars.extend(token.text.chars());
            set.insert(&token.text, token.id);
            if token.reach != Reach::default() {
                set.reaches.insert(token.id, token.reach);
            }
        }
        set
    }

    fn insert(&mut self, text: &str, id: u32) {
        let mut at = 0;
        for byte in text.bytes() {
            at = match self.branches[at].next.binary_search_by_key(&byte, |next| next.0) {
                Ok(found) => self.branches[at].next[found].1,
                Err(place) => {
                    let new = self.branches.len();
                    self.branches.push(Branch::default());
                    self.branches[at].next.insert(place, (byte, new));
                    new
                }
            };
        }
        self.branches[at].id = Some(id);
    }

    /// The characters that can begin one of the tokens.
    pub fn starts(&self) -> &BTreeSet<char> {
        &self.starts
    }

    /// All characters the tokens are made of.
    pub fn chars(&self) -> &BTreeSet<char> {
        &self.chars
    }

    /// The leftmost, then longest token at or after `from`, which must be a character boundary. A token right behind
    /// `guard` is none.
    pub fn find(&self, text: &str, from: usize, guard: Option<char>) -> Option<Found> {
        let bytes = text.as_bytes();
        let root = &self.branches[0].next;
        for start in from..bytes.len() {
            if root.binary_search_by_key(&bytes[start], |next| next.0).is_err() {
                continue;
            }
            let Some((end, id)) = self.longest(bytes, start) else { continue };
            let reach = self.reaches.get(&id).copied().unwrap_or_default();
            let guarded = guard.is_some_and(|guard| text[..start].ends_with(guard));
            if guarded || (reach.single_word && !stands_alone(text, start, end)) {
                continue;
            }
            return Some(Found { range: reach.widen(text, start..end, from), id });
        }
        None
    }

    /// End and id of the longest token that begins at `start`.
    fn longest(&self, bytes: &[u8], start: usize) -> Option<(usize, u32)> {
        let (mut at, mut best) = (0, None);
        for (offset, byte) in bytes[start..].iter().enumerate() {
            let next = &self.branches[at].next;
            let Ok(found) = next.binary_search_by_key(byte, |next| next.0) else { break };
            at = next[found].1;
            if let Some(id) = self.branches[at].id {
                best = Some((start + offset + 1, id));
            }
        }
        best
    }
}

impl Reach {
    fn widen(self, text: &str, mut range: Range<usize>, from: usize) -> Range<usize> {
        if self.lstrip {
            range.start = from + text[from..range.start].trim_end().len();
        }
        if self.rstrip {
            range.end = text.len() - text[range.end..].trim_start().len();
        }
        range
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].ends_with(word) && !text[end..].starts_with(word)
}

#[cfg(test)]
impl AddedSet {
    /// Plain added tokens with the numbers of their places, for tests.
    pub fn of(texts: &[&str]) -> Self {
        let token = |(id, text): (usize, &&str)| AddedToken {
            id: id as u32,
            text: (*text).into(),
            ..Default::default()
        };
        Self::new(texts.iter().enumerate().map(token).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_the_leftmost_wins() {
        let set = AddedSet::of(&["<a>", "<a><b>", "é", ""]);
        assert_eq!(set.find("x<a><b>", 0, None), Some(Found { range: 1..7, id: 1 }));
        assert_eq!(set.find("x<a><c>", 0, None), Some(Found { range: 1..4, id: 0 }));
        assert_eq!(set.find("<a><b>", 1, None), None);
        assert_eq!(set.find("aé", 0, None), Some(Found { range: 1..3, id: 2 }));
        assert_eq!(set.starts().iter().collect::<String>(), "<é");
    }

    #[test]
    fn a_guard_forbids_the_place_behind_it() {
        let set = AddedSet::of(&["<a>"]);
        assert_eq!(set.find("!<a><a>", 0, Some('!')), Some(Found { range: 4..7, id: 0 }));
        assert_eq!(set.find("!<a>", 0, Some('!')), None);
    }

    #[test]
    fn a_reach_takes_white_space_along_and_minds_words() {
        let reach = Reach { lstrip: true, rstrip: true, single_word: false };
        let set = AddedSet::new(vec![AddedToken { id: 7, text: "<m>".into(), reach }]);
        assert_eq!(set.find("a  <m>\n b", 0, None), Some(Found { range: 1..8, id: 7 }));
        assert_eq!(set.find("a  <m>\n b", 2, None), Some(Found { range: 2..8, id: 7 }));
        let reach = Reach { single_word: true, ..Reach::default() };
        let set = AddedSet::new(vec![AddedToken { id: 7, text: "on".into(), reach }]);
        assert_eq!(set.find("once on", 0, None), Some(Found { range: 5..7, id: 7 }));
    }
}
