//! Byte pair encoding (Sennrich et al. 2016, arXiv:1508.07909): a word is its characters, and of all neighbours that a
//! merge joins, those of the best merge are joined first, the leftmost among equals, until no merge fits. What it gives is
//! what the `tokenizers` crate gives; a test holds the two against each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::decoding::byte_alphabet;
use super::words::Words;

/// Parts up to which the best pair is looked for among all: a heap costs more.
const SHORT: usize = 48;
/// No part, and the rank of a pair that no merge joins.
const NONE: u32 = u32::MAX;

/// A pair of tokens, the left one first.
pub(super) type Pair = (u32, u32);

/// What a pair becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    /// 0 is joined first.
    pub rank: u32,
    /// The token of both.
    pub id: u32,
}

/// What pairs become.
pub(super) type Pairs = HashMap<Pair, Merge, FixedState>;

/// A vocabulary and its merges.
#[derive(Debug, Default)]
pub(super) struct Merges {
    /// Tokens that text may become.
    pub words: Words,
    /// By what they join.
    pub pairs: Pairs,
    /// What stands for a character that has no token.
    pub unk: Option<u32>,
    /// Characters without tokens that follow each other share one.
    pub fuse_unk: bool,
    /// Tokens of single bytes, for characters that have none of their own; of those whose bytes all have one.
    pub bytes: Option<Box<[Option<u32>; 256]>>,
    /// A word that is a token as it stands is not merged.
    pub whole_words: bool,
}

/// The letters that stand for bytes.
#[derive(Debug)]
pub(super) struct Letters {
    chars: [char; 256],
    /// The tokens of the letters. Many vocabularies lack those of bytes that are hardly ever written.
    ids: [Option<u32>; 256],
}

impl Letters {
    pub fn new(words: &Words) -> Self {
        let chars = byte_alphabet();
        Self { chars, ids: chars.map(|letter| words.get(letter.encode_utf8(&mut [0; 4]))) }
    }

    /// A word as vocabularies write it.
    fn spell(&self, word: &str) -> String {
        word.bytes().map(|byte| self.chars[usize::from(byte)]).collect()
    }
}

impl Merges {
    /// Appends the tokens of a word.
    pub fn encode(&self, word: &str, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(id) = self.words.get(word)
        {
            return out.push(id);
        }
        let start = out.len();
        self.characters(word, out);
        self.join(start, out);
    }

    /// Appends the tokens of a word of which every byte is a letter.
    pub fn encode_bytes(&self, word: &str, letters: &Letters, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(id) = self.words.get(&letters.spell(word))
        {
            return out.push(id);
        }
        let start = out.len();
        out.extend(word.bytes().map_while(|byte| letters.ids[usize::from(byte)]));
        if out.len() - start < word.len() {
            out.truncate(start);
            self.characters(&letters.spell(word), out);
        }
        self.join(start, out);
    }

    /// Joins the parts that begin at `start`.
    fn join(&self, start: usize, out: &mut Vec<u32>) {
        if out.len() - start <= SHORT {
            let kept = self.join_few(&mut out[start..]);
            out.truncate(start + kept);
        } else {
            let parts = out.split_off(start);
            self.join_many(&parts, out);
        }
    }

    /// Appends the tokens of the characters of a word.
    fn characters(&self, word: &str, out: &mut Vec<u32>) {
        // An unknown token that is still open for what follows.
        let mut open = false;
        let mut buffer = [0; 4];
        for character in word.chars() {
            let text = character.encode_utf8(&mut buffer);
            if let Some(id) = self.words.get(text) {
                out.push(id);
                open = false;
            } else if let Some(ids) = self.bytes_of(text) {
                ids.for_each(|id| out.push(id));
                open = false;
            } else if let Some(unk) = self.unk {
                if !(open && self.fuse_unk) {
                    out.push(unk);
                }
                open = true;
            }
        }
    }

    /// The tokens of the bytes of a character, if all have one.
    fn bytes_of<'a>(&'a self, text: &'a str) -> Option<impl Iterator<Item = u32> + 'a> {
        let bytes = self.bytes.as_deref()?;
        let ids = || text.bytes().map(|byte| bytes[usize::from(byte)]);
        ids().all(|id| id.is_some()).then(|| ids().flatten())
    }

    fn rank(&self, pair: Pair) -> u32 {
        self.pairs.get(&pair).map_or(NONE, |merge| merge.rank)
    }

    /// Joins parts in place, and says how many are left.
    fn join_few(&self, parts: &mut [u32]) -> usize {
        let mut ranks = [NONE; SHORT];
        let mut len = parts.len();
        for at in 1..len {
            ranks[at - 1] = self.rank((parts[at - 1], parts[at]));
        }
        loop {
            let pairs = &ranks[..len.saturating_sub(1)];
            let Some((at, &rank)) = pairs.iter().enumerate().min_by_key(|&(_, rank)| rank) else { break };
            if rank == NONE {
                break;
            }
            parts[at] = self.pairs[&(parts[at], parts[at + 1])].id;
            parts.copy_within(at + 2..len, at + 1);
            ranks.copy_within(at + 1..len - 1, at);
            len -= 1;
            if at > 0 {
                ranks[at - 1] = self.rank((parts[at - 1], parts[at]));
            }
            if at + 1 < len {
                ranks[at] = self.rank((parts[at], parts[at + 1]));
            }
        }
        len
    }

    /// Joins parts and appends what is left: n log n steps for n parts, whatever they are.
    fn join_many(&self, parts: &[u32], out: &mut Vec<u32>) {
        let mut chain = Chain::new(parts);
        let mut heap = BinaryHeap::new();
        let push = |heap: &mut BinaryHeap<_>, chain: &Chain, left: u32| {
            if let Some(pair) = chain.pair(left)
                && let Some(merge) = self.pairs.get(&pair)
            {
                heap.push(Reverse((merge.rank, left, pair, merge.id)));
            }
        };
        (0..parts.len() as u32).for_each(|left| push(&mut heap, &chain, left));
        while let Some(Reverse((_, left, pair, id))) = heap.pop() {
            // One that was overtaken stands for other parts by now.
            if chain.pair(left) == Some(pair) {
                let before = chain.join(left, id);
                push(&mut heap, &chain, left);
                push(&mut heap, &chain, before);
            }
        }
        out.extend(chain.left());
    }
}

/// Parts of a word, each linked to its neighbours.
struct Chain {
    /// Id, place of the part before, place of the part behind. What was joined to the one before has the id `NONE`.
    parts: Vec<(u32, u32, u32)>,
}

impl Chain {
    fn new(ids: &[u32]) -> Self {
        let count = ids.len() as u32;
        let link = |(at, &id): (u32, &u32)| {
            (id, at.checked_sub(1).unwrap_or(NONE), if at + 1 < count { at + 1 } else { NONE })
        };
        Self { parts: (0..).zip(ids).map(link).collect() }
    }

    /// The part at `left` with the one behind it, if both are there.
    fn pair(&self, left: u32) -> Option<Pair> {
        let &(id, _, behind) = self.parts.get(left as usize)?;
        let &(other, _, _) = self.parts.get(behind as usize)?;
        (id != NONE).then_some((id, other))
    }

    /// Joins the part at `left` and the one behind it, and says where the part before is.
    fn join(&mut self, left: u32, id: u32) -> u32 {
        let (_, before, gone) = self.parts[left as usize];
        let (_, _, behind) = self.parts[gone as usize];
        self.parts[gone as usize].0 = NONE;
        self.parts[left as usize] = (id, before, behind);
        if let Some(behind) = self.parts.get_mut(behind as usize) {
            behind.1 = left;
        }
        before
    }

    fn left(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().map(|part| part.0).filter(|&id| id != NONE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::bpe::BPE;

    use super::*;

    /// A vocabulary over few letters, whose merges join any two tokens known before, and the crate's model of the same.
    fn models(joins: &[(usize, usize)], (fuse_unk, whole_words): (bool, bool)) -> (Merges, BPE) {
        let mut texts: Vec<String> = ["?", "a", "b", "c", "é"].map(str::to_owned).to_vec();
        let mut list = Vec::new();
        for &(left, right) in joins {
            let (left, right) = (1 + left % (texts.len() - 1), 1 + right % (texts.len() - 1));
            let text = [texts[left].as_str(), &texts[right]].concat();
            if text.chars().count() < 12 && !texts.contains(&text) {
                list.push((left as u32, right as u32, texts.len() as u32));
                texts.push(text);
            }
        }
        let mut ours = Merges { unk: Some(0), fuse_unk, whole_words, ..Merges::default() };
        (0..).zip(&texts).for_each(|(id, text)| ours.words.insert(text, id).expect("another text"));
        ours.pairs = (0..).zip(&list).map(|(rank, &(l, r, id))| ((l, r), Merge { rank, id })).collect();
        let vocab = texts.iter().zip(0..).map(|(text, id)| (text.clone(), id));
        let names = list.iter().map(|&(l, r, _)| (texts[l as usize].clone(), texts[r as usize].clone()));
        let theirs = BPE::builder()
            .vocab_and_merges(vocab.collect::<tokenizers::models::bpe::Vocab>(), names.collect())
            .unk_token("?".to_owned())
            .fuse_unk(fuse_unk)
            .ignore_merges(whole_words);
        (ours, theirs.build().expect("a model"))
    }

    proptest! {
        /// Words shorter and longer than those for which a heap is made.
        #[test]
        fn words_become_what_the_crate_makes_of_them(
            joins in prop::collection::vec((0..40_usize, 0..40_usize), 0..40),
            words in prop::collection::vec("[abcéx]{0,130}", 1..8),
            how in (any::<bool>(), any::<bool>()),
        ) {
            let (ours, theirs) = models(&joins, how);
            for word in &words {
                let mut out = vec![77];
                ours.encode(word, &mut out);
                let expected: Vec<u32> = theirs.tokenize(word).expect("it has an unknown token").iter().map(|t| t.id).collect();
                prop_assert_eq!(&out[1..], &expected[..], "{}", word);
            }
        }
    }

    #[test]
    fn a_character_without_a_token_is_its_bytes_or_unknown() {
        let (mut merges, _) = models(&[], (true, false));
        merges.bytes =
            Some(Box::new(std::array::from_fn(|byte| (byte >= 0x80).then_some(1000 + byte as u32))));
        let mut out = Vec::new();
        merges.encode("aüxxb", &mut out);
        assert_eq!(out, [1, 1000 + 0xC3, 1000 + 0xBC, 0, 2]);
        merges.unk = None;
        merges.encode("x", &mut out);
        assert_eq!(out.len(), 5, "nothing stands for it");
    }

    /// Letters that have no token too, and words that are tokens themselves.
    #[test]
    fn words_in_bytes_become_what_they_become_when_written_in_letters() {
        for whole_words in [false, true] {
            let (mut merges, _) = models(&[(0, 1), (4, 2), (0, 0)], (true, whole_words));
            (100..)
                .zip(["Ġ", "Ġa", "Ã", "Ċ"])
                .for_each(|(id, text)| merges.words.insert(text, id).expect("new"));
            let letters = Letters::new(&merges.words);
            for word in [" a", "abc", "aé", "x", "a\nx b", "éé", "", "\0"] {
                let (mut out, mut expected) = (vec![77], vec![77]);
                merges.encode_bytes(word, &letters, &mut out);
                merges.encode(&letters.spell(word), &mut expected);
                assert_eq!(out, expected, "{word:?}");
            }
        }
    }
}
