//! SentencePiece with scores, as GGUF files carry it (kind `llama`): no list of merges, only a score for each token. Of
//! all pairs of neighbours whose union is a token, the one with the best score is joined, the leftmost among equals,
//! until no pair is left. A heap keeps the order, so a text of n characters takes n log n steps whatever it says.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::added::AddedSet;
use super::words::Words;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Encodes text by scores.
#[derive(Debug)]
pub(super) struct Spm {
    /// Ids of tokens that text may become, by text with `▁` for spaces.
    pub tokens: Words,
    /// By id.
    pub scores: Vec<f32>,
    /// Ids of the tokens for single bytes, by byte.
    pub bytes: Option<Box<[u32; 256]>>,
    /// What stands for a character without tokens; one of the two is there.
    pub unk: Option<u32>,
    /// Tokens found as a whole, with `▁` for spaces.
    pub literals: AddedSet,
    /// A space is put before a text.
    pub space_prefix: bool,
}

/// Part of the text, linked to its neighbours. Length 0: joined to the one before.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u32,
    len: u32,
    before: u32,
    after: u32,
}

/// Two neighbours that could be joined.
#[derive(Clone, Copy, Debug)]
struct Pair {
    score: f32,
    left: u32,
    /// Bytes of both; tells a pair from one that was overtaken.
    len: u32,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Appends the ids of `text`, which is shorter than 4 GiB; `first` if nothing or a control token stands before it.
    pub fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefix = if self.space_prefix && first { "▁" } else { "" };
        let text = [prefix, &text.replace(' ', "▁")].concat();
        let mut from = 0;
        while let Some(found) = self.literals.find(&text, from, None) {
            self.encode_gap(&text[from..found.range.start], out);
            out.push(found.id);
            from = found.range.end;
        }
        self.encode_gap(&text[from..], out);
    }

    fn encode_gap(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols = characters(text);
        self.join(text, &mut symbols);
        let mut after_unk = false;
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let part = symbol.text(text);
            let known = self.tokens.get(part);
            match (known, &self.bytes) {
                (Some(id), _) => out.push(id),
                (None, Some(bytes)) => out.extend(part.bytes().map(|byte| bytes[usize::from(byte)])),
                // Characters without tokens that follow each other share one unknown token.
                (None, None) if !after_unk => out.extend(self.unk),
                (None, None) => {}
            }
            after_unk = known.is_none();
        }
    }

    fn join(&self, text: &str, symbols: &mut [Symbol]) {
        let lefts = 0..(symbols.len() as u32).saturating_sub(1);
        let mut pairs: BinaryHeap<Pair> = lefts.filter_map(|left| self.pair(text, symbols, left)).collect();
        while let Some(Pair { left, len, .. }) = pairs.pop() {
            let current = symbols[left as usize];
            if current.len == 0 || current.after == NONE {
                continue;
            }
            let right = symbols[current.after as usize];
            if current.len + right.len != len {
                continue;
            }
            symbols[current.after as usize].len = 0;
            symbols[left as usize].len = len;
            symbols[left as usize].after = right.after;
            if right.after != NONE {
                symbols[right.after as usize].before = left;
            }
            pairs.extend(self.pair(text, symbols, left));
            if current.before != NONE {
                pairs.extend(self.pair(text, symbols, current.before));
            }
        }
    }

    /// The symbol at `left` with its right neighbour, if their union is a token.
    fn pair(&self, text: &str, symbols: &[Symbol], left: u32) -> Option<Pair> {
        let one = symbols[left as usize];
        if one.after == NONE {
            return None;
        }
        let len = one.len + symbols[one.after as usize].len;
        let id = self.tokens.get(Symbol { len, ..one }.text(text))?;
        Some(Pair { score: self.scores[id as usize], left, len })
    }
}

impl Symbol {
    fn text(self, text: &str) -> &str {
        &text[self.start as usize..(self.start + self.len) as usize]
    }
}

/// One symbol for each character.
fn characters(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (start, c) in text.char_indices() {
        let at = symbols.len() as u32;
        symbols.push(Symbol {
            start: start as u32,
            len: c.len_utf8() as u32,
            before: at.checked_sub(1).unwrap_or(NONE),
            after: at + 1,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.after = NONE;
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spm(tokens: &[(&str, f32)]) -> Spm {
        let mut words = Words::default();
        (0..).zip(tokens).for_each(|(id, (text, _))| words.insert(text, id).expect("another text"));
        Spm {
            tokens: words,
            scores: tokens.iter().map(|(_, score)| *score).collect(),
            bytes: None,
            unk: Some(99),
            literals: AddedSet::new(Vec::new()),
            space_prefix: false,
        }
    }

    fn ids(spm: &Spm, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        spm.encode(text, true, &mut out);
        out
    }

    #[test]
    fn the_best_score_is_joined_first() {
        let spm = spm(&[("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -2.0), ("bc", -1.0), ("abc", -3.0)]);
        assert_eq!(ids(&spm, "abc"), [5]);
        assert_eq!(ids(&spm, "abb"), [3, 1]);
        assert_eq!(ids(&spm, "aabcb"), [0, 5, 1]);
    }

    #[test]
    fn among_equals_the_leftmost_wins() {
        let spm = spm(&[("a", 0.0), ("aa", -1.0)]);
        assert_eq!(ids(&spm, "aaa"), [1, 0]);
        assert_eq!(ids(&spm, "aaaa"), [1, 1]);
    }

    #[test]
    fn unknown_characters_become_bytes_or_one_unknown_token() {
        let mut spm = spm(&[("a", 0.0)]);
        assert_eq!(ids(&spm, "aéüa"), [0, 99, 0]);
        spm.bytes = Some(Box::new(std::array::from_fn(|byte| 1000 + byte as u32)));
        assert_eq!(ids(&spm, "é"), [1000 + 0xC3, 1000 + 0xA9]);
    }

    #[test]
    fn the_space_prefix_stands_at_the_start() {
        let mut spm = spm(&[("▁a", 0.0), ("a", 0.0), ("▁", 0.0)]);
        spm.space_prefix = true;
        assert_eq!(ids(&spm, "a a"), [0, 0]);
        assert_eq!(ids(&spm, ""), Vec::<u32>::new());
        let mut out = Vec::new();
        spm.encode("a", false, &mut out);
        assert_eq!(out, [1]);
    }
}
