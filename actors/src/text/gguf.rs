//! Reads the vocabulary of a GGUF file: kind `gpt2` (byte-level, merges) and kind `llama` (SentencePiece, scores).

use std::borrow::Cow;
use std::collections::HashSet;

use millstream_kernels::GgufTokenizer;

use super::TextError;
use super::added::{AddedSet, AddedToken, Reach};
use super::bpe::{Bpe, Merging, Steps};
use super::decoding::{Decoding, byte_token};
use super::split::{self, Splitting};
use super::spm::Spm;
use super::tokenizer::{Coder, Frame, Tokenizer};
use super::vocab::{Kind, Parts, Token, Vocab};
use super::words::Words;

/// A tokenizer out of the metadata of a GGUF file.
pub(super) fn load(file: &GgufTokenizer) -> Result<Tokenizer, TextError> {
    let vocab = vocab(file)?;
    let (coder, decoding) = match file.model.as_str() {
        "gpt2" => (Coder::Bpe(Box::new(merges(file, &vocab)?)), Decoding::ByteLevel),
        "llama" => (
            Coder::Spm(Box::new(scores(file, &vocab)?)),
            Decoding::spaces(usize::from(file.add_space_prefix)),
        ),
        other => {
            return Err(TextError::unknown(
                "kind of tokenizer (tokenizer.ggml.model)",
                other,
                &["gpt2", "llama"],
            ));
        }
    };
    let prefix: Vec<u32> = file.bos.filter(|_| file.add_bos).into_iter().collect();
    let frame = Frame { bos_in_chats: !prefix.is_empty(), prefix, suffix: Vec::new() };
    Ok(Tokenizer::assemble(&vocab, &decoding, coder, frame))
}

fn vocab(file: &GgufTokenizer) -> Result<Vocab<'_>, TextError> {
    let count = file.tokens.len();
    if !file.types.is_empty() && file.types.len() != count {
        return Err(TextError::broken(format!(
            "it has {count} tokens, but {} token types",
            file.types.len()
        )));
    }
    let mut tokens = Vec::with_capacity(count);
    for (id, text) in file.tokens.iter().enumerate() {
        let kind = match file.types.get(id).copied().unwrap_or(1) {
            1 => Kind::Normal,
            2 | 3 => Kind::Control,
            4 => Kind::of_added(text),
            5 => Kind::Unused,
            6 => Kind::Byte,
            other => {
                return Err(TextError::broken(format!("token {id} ({text:?}) has the unknown type {other}")));
            }
        };
        tokens.push(Token { text: Cow::Borrowed(text), kind, reach: Reach::default() });
    }
    Vocab::new(tokens, Parts { bos: file.bos, eos: file.eos, unk: file.unk, pad: None })
}

fn merges(file: &GgufTokenizer, vocab: &Vocab<'_>) -> Result<Bpe, TextError> {
    let Splitting { normalizer, splitter, whole_words } = split::named(file.pre.as_deref())?;
    let mut merges = Vec::with_capacity(file.merges.len());
    for (rank, merge) in file.merges.iter().enumerate() {
        let parts = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
        let Some((left, right)) = parts else {
            return Err(TextError::broken(format!(
                "merge {rank} ({merge:?}) is not two tokens with a space between"
            )));
        };
        merges.push((left, right));
    }
    let texts = |wanted: fn(Kind) -> bool| {
        let tokens = vocab.tokens.iter().enumerate().filter(move |(_, token)| wanted(token.kind));
        tokens.map(|(id, token)| (token.text.as_ref(), id as u32))
    };
    let merging = Merging {
        vocab: texts(|kind| matches!(kind, Kind::Normal | Kind::Byte)).collect(),
        merges,
        reserved: texts(Kind::reserved).map(|(text, _)| text).collect::<HashSet<_>>(),
        whole_words,
        ..Merging::default()
    };
    let steps = Steps { normalizer, splitter: Some(splitter), later: None };
    Bpe::new(merging, vocab.added(|kind| kind == Kind::Literal), steps)
}

fn scores(file: &GgufTokenizer, vocab: &Vocab<'_>) -> Result<Spm, TextError> {
    let count = file.tokens.len();
    if file.scores.len() != count || file.types.is_empty() {
        let (scores, types) = (file.scores.len(), file.types.len());
        return Err(TextError::broken(format!(
            "{count} tokens need as many scores and types; it has {scores} and {types}"
        )));
    }
    let mut tokens = Words::with_capacity(count);
    let mut literals = Vec::new();
    let mut bytes = [None; 256];
    for (id, token) in vocab.tokens.iter().enumerate() {
        let (text, score) = (token.text.as_ref(), file.scores[id]);
        let spaced = || match text.contains(' ') {
            true => Cow::Owned(text.replace(' ', "▁")),
            false => Cow::Borrowed(text),
        };
        match token.kind {
            Kind::Normal if score.is_nan() => {
                return Err(TextError::broken(format!("the score of token {id} ({text:?}) is not a number")));
            }
            Kind::Normal => {
                tokens.insert(&spaced(), id as u32).map_err(|other| {
                    TextError::broken(format!("the token {text:?} has the ids {other} and {id}"))
                })?;
            }
            Kind::Literal => {
                literals.push(AddedToken { id: id as u32, text: spaced().into_owned(), reach: token.reach })
            }
            Kind::Byte => {
                let byte = byte_token(text).ok_or_else(|| {
                    TextError::broken(format!(
                        "token {id} ({text:?}) stands for a byte, but is not written <0xAB>"
                    ))
                })?;
                bytes[usize::from(byte)] = Some(id as u32);
            }
            Kind::Absent | Kind::Markup | Kind::Control | Kind::Unused => {}
        }
    }
    let whole: Option<Vec<u32>> = bytes.into_iter().collect();
    let bytes = whole.and_then(|ids| <Box<[u32; 256]>>::try_from(ids).ok());
    if bytes.is_none() && vocab.parts.unk.is_none() {
        return Err(TextError::broken("it has neither a token for every byte nor an unknown token"));
    }
    let literals = AddedSet::new(literals);
    let scores = file.scores.clone();
    Ok(Spm { tokens, scores, bytes, unk: vocab.parts.unk, literals, space_prefix: file.add_space_prefix })
}
