//! Encoding with merges, through the `tokenizers` crate. The model it is given does not know the control tokens: they
//! are neither in its vocabulary nor made by any of its merges, so no text can become one.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Vocab as BpeVocab};
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::TextError;
use super::added::AddedSet;

/// Merges and what they apply to.
#[derive(Debug, Default)]
pub(super) struct Merging<'a> {
    /// Tokens that text may become.
    pub vocab: Vec<(&'a str, u32)>,
    /// Best first.
    pub merges: Vec<(String, String)>,
    /// Tokens that text may not become; merges with them are left out.
    pub reserved: HashSet<&'a str>,
    pub unk: Option<&'a str>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    /// A word that is a token as it stands is not merged.
    pub whole_words: bool,
}

impl Merging<'_> {
    /// Checks the merges and builds the model. Errors: merges of tokens, or to tokens, that there are not.
    fn model(mut self) -> Result<BPE, TextError> {
        let bytes = || (0..=255u8).map(|byte| format!("<{byte:#04X}>"));
        let longest = self.vocab.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
        let mut vocab = BpeVocab::with_capacity(self.vocab.len());
        for (text, id) in &self.vocab {
            if let Some(other) = vocab.insert((*text).to_string(), *id) {
                return Err(TextError::broken(format!("the token {text:?} has the ids {other} and {id}")));
            }
        }
        if self.byte_fallback && bytes().all(|byte| vocab.contains_key(&byte)) {
            self.unk = None;
        }
        if let Some(unk) = self.unk.filter(|unk| !vocab.contains_key(*unk)) {
            return Err(TextError::broken(format!("its unknown token {unk:?} is not in the vocabulary")));
        }
        // Only what begins as a reserved token does can be one: most parts need not be looked up.
        let mut begins = [false; 256];
        #[expect(clippy::disallowed_methods, reason = "flags are set, in whatever order")]
        let reserved = self.reserved.iter().copied().chain(self.unk);
        reserved.filter_map(|text| text.bytes().next()).for_each(|byte| begins[usize::from(byte)] = true);
        let is_reserved = |part: &str| {
            let begins = part.bytes().next().is_none_or(|byte| begins[usize::from(byte)]);
            begins && (self.reserved.contains(part) || Some(part) == self.unk)
        };
        let mut joined = String::new();
        let mut merges = Vec::with_capacity(self.merges.len());
        for (rank, (left, right)) in self.merges.into_iter().enumerate() {
            joined.clear();
            joined.push_str(&left);
            joined.push_str(&right);
            if is_reserved(&left) || is_reserved(&right) || is_reserved(&joined) {
                continue;
            }
            // The builder looks for both parts itself.
            let lies = left.is_empty() || right.is_empty() || joined.len() > longest;
            if lies || !vocab.contains_key(&joined) {
                return Err(lie(rank, &left, &right, &joined));
            }
            merges.push((left, right));
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.whole_words);
        if let Some(unk) = self.unk {
            builder = builder.unk_token(unk.to_string());
        }
        builder.build().map_err(|error| TextError::broken(error.to_string()))
    }
}

fn lie(rank: usize, left: &str, right: &str, missing: &str) -> TextError {
    TextError::broken(format!("merge {rank} joins {left:?} and {right:?}, but there is no token {missing:?}"))
}

/// Encodes text by merges.
#[derive(Debug)]
pub(super) struct Bpe {
    model: BPE,
    literals: AddedSet,
    normalizer: Option<NormalizerWrapper>,
    /// Splits the text at the very start.
    first: Option<PreTokenizerWrapper>,
    /// Splits text behind other tokens, where that differs.
    later: Option<PreTokenizerWrapper>,
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
        let Steps { normalizer, splitter: first, later } = steps;
        Ok(Self { model: merging.model()?, literals, normalizer, first, later })
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
        let mut text = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut text).expect("normalizing fails only on patterns, which were compiled");
        }
        let mut words = PreTokenizedString::from(text);
        let splitter = if first { self.first.as_ref() } else { self.later.as_ref().or(self.first.as_ref()) };
        if let Some(splitter) = splitter {
            splitter.pre_tokenize(&mut words).expect("splitting fails only on patterns, which were compiled");
        }
        for (word, _, _) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            let tokens = self
                .model
                .tokenize(word)
                .expect("merging fails only without its unknown token, which is there");
            out.extend(tokens.iter().map(|token| token.id));
        }
    }
}
