//! Encoding with merges. Texts are split by [`super::splitter`] where it can, else by the `tokenizers` crate, and words
//! merged by [`super::merge`], which does not know the control tokens: they are neither in its vocabulary nor made by any
//! of its merges, so no text can become one.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::fast::FixedState;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper,
};
use unicode_normalization::{IsNormalized, is_nfc_quick};

use super::TextError;
use super::added::AddedSet;
use super::memo::Memo;
use super::merge::{Letters, Merge, Merges, Pairs};
use super::splitter::Splitter;
use super::words::Words;

/// Merges and what they apply to, as a file says them.
#[derive(Debug, Default)]
pub(super) struct Merging<'a> {
    /// Tokens that text may become.
    pub vocab: Vec<(&'a str, u32)>,
    /// Best first.
    pub merges: Vec<(&'a str, &'a str)>,
    /// Tokens that text may not become; merges with them are left out.
    pub reserved: HashSet<&'a str>,
    pub unk: Option<&'a str>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    /// A word that is a token as it stands is not merged.
    pub whole_words: bool,
}

impl<'a> Merging<'a> {
    /// Checks the merges. Errors: merges of tokens, or to tokens, that there are not.
    fn model(self) -> Result<Merges, TextError> {
        let mut words = Words::with_capacity(self.vocab.len());
        for (text, id) in &self.vocab {
            words.insert(text, *id).map_err(|other| {
                TextError::broken(format!("the token {text:?} has the ids {other} and {id}"))
            })?;
        }
        let bytes = self
            .byte_fallback
            .then(|| Box::new(std::array::from_fn(|byte| words.get(&format!("<{byte:#04X}>")))));
        let unk_text = self.unk.filter(|_| bytes.as_ref().is_none_or(|bytes| bytes.contains(&None)));
        let unk = unk_text.map(|unk| {
            words.get(unk).ok_or_else(|| {
                TextError::broken(format!("its unknown token {unk:?} is not in the vocabulary"))
            })
        });
        let (unk, pairs) = (unk.transpose()?, self.pairs(&words, unk_text)?);
        let Merging { fuse_unk, whole_words, .. } = self;
        Ok(Merges { words, pairs, unk, fuse_unk, bytes, whole_words })
    }

    /// What each pair of tokens becomes.
    fn pairs(&self, words: &Words, unk: Option<&'a str>) -> Result<Pairs, TextError> {
        // Only what begins as a reserved token does can be one: most parts need not be looked up.
        let mut begins = [false; 256];
        #[expect(clippy::disallowed_methods, reason = "flags are set, in whatever order")]
        let reserved = self.reserved.iter().copied().chain(unk);
        reserved.filter_map(|text| text.bytes().next()).for_each(|byte| begins[usize::from(byte)] = true);
        let is_reserved = |part: &str| {
            let begins = part.bytes().next().is_none_or(|byte| begins[usize::from(byte)]);
            begins && (self.reserved.contains(part) || Some(part) == unk)
        };
        let mut joined = String::new();
        let mut pairs = Pairs::with_capacity_and_hasher(self.merges.len(), FixedState::default());
        for (rank, &(left, right)) in (0_u32..).zip(&self.merges) {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            if is_reserved(left) || is_reserved(right) || is_reserved(&joined) {
                continue;
            }
            let known = |text: &str| words.get(text).ok_or_else(|| lie(rank, (left, right), text));
            let (pair, id) = ((known(left)?, known(right)?), known(&joined)?);
            if left.is_empty() || right.is_empty() {
                return Err(lie(rank, (left, right), ""));
            }
            pairs.insert(pair, Merge { rank, id });
        }
        Ok(pairs)
    }
}

fn lie(rank: u32, (left, right): (&str, &str), missing: &str) -> TextError {
    TextError::broken(format!("merge {rank} joins {left:?} and {right:?}, but there is no token {missing:?}"))
}

/// Encodes text by merges.
#[derive(Debug)]
pub(super) struct Bpe {
    merges: Merges,
    literals: AddedSet,
    normalizer: Option<NormalizerWrapper>,
    /// Normalizing puts characters into composed form, or does nothing.
    composes: bool,
    /// Splits the text at the very start.
    first: Split,
    /// Splits text behind other tokens, where that differs.
    later: Option<Split>,
}

/// How texts become words, by the crate.
#[derive(Debug, Default)]
struct Split {
    splitter: Option<PreTokenizerWrapper>,
    /// The same of our own, if it is of a kind that we split.
    ours: Option<(Splitter, Letters)>,
}

impl Split {
    fn new(splitter: Option<PreTokenizerWrapper>, words: &Words) -> Self {
        let ours = splitter.as_ref().and_then(Splitter::new);
        let ours = ours.map(|splitter| (splitter, Letters::new(words)));
        Self { splitter, ours }
    }
}

/// The steps before the merges.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub normalizer: Option<NormalizerWrapper>,
    pub splitter: Option<PreTokenizerWrapper>,
    /// The splitter for text behind other tokens, where it differs.
    pub later: Option<PreTokenizerWrapper>,
}

impl Bpe {
    /// Errors: see [`Merging`].
    pub fn new(merging: Merging<'_>, literals: AddedSet, steps: Steps) -> Result<Self, TextError> {
        let Steps { normalizer, splitter, later } = steps;
        let merges = merging.model()?;
        let first = Split::new(splitter, &merges.words);
        let later = later.map(|later| Split::new(Some(later), &merges.words));
        let composes = normalizer.as_ref().is_none_or(composes);
        Ok(Self { merges, literals, normalizer, composes, first, later })
    }

    /// Appends the ids of `text`; `first` if nothing stands before it.
    pub fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        let mut from = 0;
        while let Some(found) = self.literals.find(text, from, None) {
            self.encode_gap(&text[from..found.range.start], first && from == 0, out);
            out.push(found.id);
            from = found.range.end;
        }
        self.encode_gap(&text[from..], first && from == 0, out);
    }

    fn encode_gap(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let text = self.normal(text);
        let split = if first { &self.first } else { self.later.as_ref().unwrap_or(&self.first) };
        let ours = split.ours.as_ref().is_some_and(|ours| self.encode_words(&text, ours, out));
        if !ours {
            self.encode_by_crate(&text, split, out);
        }
    }

    fn normal<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some(normalizer) = &self.normalizer else { return Cow::Borrowed(text) };
        if self.composes && is_nfc_quick(text.chars()) == IsNormalized::Yes {
            return Cow::Borrowed(text);
        }
        let mut text = NormalizedString::from(text);
        normalizer.normalize(&mut text).expect("normalizing fails only on patterns, which were compiled");
        Cow::Owned(text.get().to_owned())
    }

    /// Says whether it could; if not, nothing is appended.
    fn encode_words(
        &self,
        text: &str,
        (splitter, letters): &(Splitter, Letters),
        out: &mut Vec<u32>,
    ) -> bool {
        let mut memo = Memo::new(text.len());
        splitter.words(text, &mut |word| {
            memo.recall(word, out, |out| self.merges.encode_bytes(word, letters, out));
        })
    }

    fn encode_by_crate(&self, text: &str, split: &Split, out: &mut Vec<u32>) {
        let mut words = PreTokenizedString::from(text);
        if let Some(splitter) = &split.splitter {
            splitter.pre_tokenize(&mut words).expect("splitting fails only on patterns, which were compiled");
        }
        for (word, _, _) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            self.merges.encode(word, out);
        }
    }
}

/// Whether normalizing leaves composed text as it is.
fn composes(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::NFC(_) => true,
        NormalizerWrapper::Sequence(list) => list.as_ref().iter().all(composes),
        _ => false,
    }
}

#[cfg(test)]
impl Bpe {
    /// Nothing is split or known to be composed but by the crate.
    pub fn leave_to_crate(&mut self) {
        self.composes = false;
        self.first.ours = None;
        self.later.iter_mut().for_each(|later| later.ours = None);
    }
}
