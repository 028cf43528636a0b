//! Reads `tokenizer.json` with `tokenizer_config.json` beside it. The file is taken apart here instead of being handed to
//! the `tokenizers` crate whole: control tokens and what it puts around texts must be ours to decide, and a broken file
//! must end in a sentence.

use std::collections::{BTreeMap, HashSet};

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value as Json;

use super::TextError;
use super::added::Reach;
use super::bpe::{Bpe, Merging, Steps};
use super::decoding::{Decoding, byte_token};
use super::tokenizer::{Coder, Frame, Tokenizer};
use super::vocab::{IDS_MAX, Kind, Parts, Token, Vocab};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedEntry>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
    model: ModelEntry,
}

#[derive(Deserialize)]
struct AddedEntry {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct ModelEntry {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(deserialize_with = "vocab_entries")]
    vocab: Vec<(String, u32)>,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// Written `"a b"` or `["a", "b"]`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Merge;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a merge, two tokens")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge(left.into(), right.into())),
                    _ => Err(E::custom(format!("the merge {text:?} is not two tokens with a space between"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let parts = (list.next_element()?, list.next_element()?, list.next_element::<IgnoredAny>()?);
                let (Some(left), Some(right), None) = parts else {
                    return Err(A::Error::custom("a merge is a list of two tokens"));
                };
                Ok(Merge(left, right))
            }
        }
        from.deserialize_any(Parts)
    }
}

/// Entries in the order of the file, so that none hides another. Lists (other kinds of models) are passed over.
fn vocab_entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, u32)>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, u32)>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("a vocabulary, ids by token")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = map.next_entry()? {
                entries.push(entry);
            }
            Ok(entries)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Vec::new())
        }
    }
    from.deserialize_any(Entries)
}

/// A tokenizer out of the text of `tokenizer.json` and the settings beside it.
pub(super) fn load(text: &str, config: Option<&Json>) -> Result<Tokenizer, TextError> {
    let file: File =
        serde_json::from_str(text).map_err(|source| TextError::Json { what: "tokenizer.json", source })?;
    check_kind(&file.model)?;
    let config = config.unwrap_or(&Json::Null);
    let decoding = Decoding::read(&file.decoder)?;
    let steps = steps(&file)?;
    let File { added_tokens, post_processor, mut model, .. } = file;
    let merges = std::mem::take(&mut model.merges);
    let vocab = vocab(&added_tokens, &model, config)?;
    let frame = frame(&post_processor, config, &vocab)?;
    let reserved: HashSet<&str> =
        vocab.tokens.iter().filter(|token| token.kind.reserved()).map(|token| token.text.as_ref()).collect();
    let known = model.vocab.iter().map(|(text, id)| (text.as_str(), *id));
    // The unknown token stays, so that the model can fall back to it; no merge makes it.
    let usable =
        known.filter(|(text, _)| !reserved.contains(text) || Some(*text) == model.unk_token.as_deref());
    let merging = Merging {
        vocab: usable.collect(),
        merges: merges.iter().map(|Merge(left, right)| (left.as_str(), right.as_str())).collect(),
        reserved,
        unk: model.unk_token.as_deref(),
        fuse_unk: model.fuse_unk,
        byte_fallback: model.byte_fallback,
        whole_words: model.ignore_merges,
    };
    let coder = Bpe::new(merging, vocab.added(|kind| kind == Kind::Literal), steps)?;
    Ok(Tokenizer::assemble(&vocab, &decoding, Coder::Bpe(Box::new(coder)), frame))
}

fn check_kind(model: &ModelEntry) -> Result<(), TextError> {
    let kind =
        model.kind.as_deref().unwrap_or(if model.merges.is_empty() { "without a name" } else { "BPE" });
    if kind != "BPE" {
        return Err(TextError::unknown("kind of model in tokenizer.json", kind, &["BPE"]));
    }
    for (name, affix) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if affix.as_deref().is_some_and(|affix| !affix.is_empty()) {
            return Err(TextError::broken(format!("`{name}` is for models of words, which are not served")));
        }
    }
    Ok(())
}

fn steps(file: &File) -> Result<Steps, TextError> {
    if mentions(&file.normalizer, "Precompiled") {
        return Err(TextError::unknown(
            "normalizer",
            "Precompiled",
            &["NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace"],
        ));
    }
    let later =
        mentions(&file.pre_tokenizer, "first").then(|| replaced(&file.pre_tokenizer, "first", "never"));
    Ok(Steps {
        normalizer: part("the normalizer of tokenizer.json", &file.normalizer)?,
        splitter: part("the pre-tokenizer of tokenizer.json", &file.pre_tokenizer)?,
        later: part("the pre-tokenizer of tokenizer.json", &later.unwrap_or(Json::Null))?,
    })
}

fn part<T: DeserializeOwned>(what: &'static str, json: &Json) -> Result<Option<T>, TextError> {
    if json.is_null() {
        return Ok(None);
    }
    serde_json::from_value(json.clone()).map(Some).map_err(|source| TextError::Json { what, source })
}

/// Whether a `type` or a `prepend_scheme` in there has this value.
fn mentions(json: &Json, value: &str) -> bool {
    match json {
        Json::Object(map) => map.iter().any(|(key, inner)| {
            (matches!(key.as_str(), "type" | "prepend_scheme") && inner == value) || mentions(inner, value)
        }),
        Json::Array(list) => list.iter().any(|inner| mentions(inner, value)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// The same with another `prepend_scheme`.
fn replaced(json: &Json, from: &str, to: &str) -> Json {
    match json {
        Json::Object(map) => Json::Object(
            map.iter()
                .map(|(key, inner)| match key.as_str() {
                    "prepend_scheme" if inner == from => (key.clone(), Json::from(to)),
                    _ => (key.clone(), replaced(inner, from, to)),
                })
                .collect(),
        ),
        Json::Array(list) => list.iter().map(|inner| replaced(inner, from, to)).collect(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => json.clone(),
    }
}

/// The table of tokens. Errors: two tokens with one id, two ids for one token, ids beyond all bounds.
fn vocab<'a>(added: &'a [AddedEntry], model: &'a ModelEntry, config: &Json) -> Result<Vocab<'a>, TextError> {
    let ids = model.vocab.iter().map(|(_, id)| *id).chain(added.iter().map(|entry| entry.id));
    let largest = ids.max().unwrap_or(0) as usize;
    if largest >= IDS_MAX {
        return Err(TextError::broken(format!("it has the token id {largest}, more than {IDS_MAX} tokens")));
    }
    let mut tokens = vec![Token::default(); largest + 1];
    for (text, id) in &model.vocab {
        let token = &mut tokens[*id as usize];
        if token.kind != Kind::Absent {
            return Err(clash(*id, &token.text, text));
        }
        let byte = model.byte_fallback && byte_token(text).is_some();
        *token = Token {
            text: text.into(),
            kind: if byte { Kind::Byte } else { Kind::Normal },
            reach: Reach::default(),
        };
    }
    let mut by_text = BTreeMap::new();
    for entry in added {
        let token = &mut tokens[entry.id as usize];
        let fresh = matches!(token.kind, Kind::Absent | Kind::Normal | Kind::Byte);
        if !fresh || (token.kind != Kind::Absent && token.text != entry.content) {
            return Err(clash(entry.id, &token.text, &entry.content));
        }
        token.text = entry.content.as_str().into();
        token.kind = if entry.special { Kind::Control } else { Kind::of_added(&entry.content) };
        token.reach = Reach { lstrip: entry.lstrip, rstrip: entry.rstrip, single_word: entry.single_word };
        if let Some(other) = by_text.insert(entry.content.as_str(), entry.id) {
            return Err(TextError::broken(format!(
                "the token {:?} has the ids {other} and {}",
                entry.content, entry.id
            )));
        }
    }
    for (text, id) in &model.vocab {
        if let Some(other) = by_text.get(text.as_str()).filter(|other| *other != id) {
            return Err(TextError::broken(format!("the token {text:?} has the ids {id} and {other}")));
        }
    }
    let parts = parts(&tokens, config)?;
    Vocab::new(tokens, parts)
}

fn clash(id: u32, one: &str, other: &str) -> TextError {
    TextError::broken(format!("the id {id} belongs to {one:?} and to {other:?}"))
}

fn parts(tokens: &[Token<'_>], config: &Json) -> Result<Parts, TextError> {
    let find = |name: &str| {
        let entry = config.get(name)?;
        let text = entry.as_str().or_else(|| entry.get("content")?.as_str())?;
        let same = |token: &Token<'_>| token.kind != Kind::Absent && token.text == text;
        Some((text.to_string(), tokens.iter().position(same).map(|id| id as u32)))
    };
    let must = |name: &str| match find(name) {
        Some((text, None)) => Err(TextError::broken(format!("its {name} {text:?} is not in the vocabulary"))),
        Some((_, id)) => Ok(id),
        None => Ok(None),
    };
    let may = |name: &str| find(name).and_then(|(_, id)| id);
    Ok(Parts {
        bos: must("bos_token")?,
        eos: must("eos_token")?,
        unk: may("unk_token"),
        pad: may("pad_token"),
    })
}

/// What stands around a plain prompt: the file's post-processor says it, else the settings do.
fn frame(post_processor: &Json, config: &Json, vocab: &Vocab<'_>) -> Result<Frame, TextError> {
    let mut frame = Frame::default();
    if read_post_processor(post_processor, vocab.tokens.len(), &mut frame)? {
        return Ok(frame);
    }
    let says = |name: &str| config.get(name).and_then(Json::as_bool).unwrap_or(false);
    frame.prefix.extend(vocab.parts.bos.filter(|_| says("add_bos_token")));
    frame.suffix.extend(vocab.parts.eos.filter(|_| says("add_eos_token")));
    Ok(frame)
}

/// Whether there was a template in it.
fn read_post_processor(json: &Json, ids: usize, frame: &mut Frame) -> Result<bool, TextError> {
    match json.get("type").and_then(Json::as_str) {
        None if json.is_null() => Ok(false),
        Some("ByteLevel") => Ok(false),
        Some("Sequence") => {
            let mut found = false;
            for part in json.get("processors").and_then(Json::as_array).into_iter().flatten() {
                found |= read_post_processor(part, ids, frame)?;
            }
            Ok(found)
        }
        Some("TemplateProcessing") => {
            let mut before = true;
            for piece in json.get("single").and_then(Json::as_array).into_iter().flatten() {
                let Some(name) = piece.pointer("/SpecialToken/id").and_then(Json::as_str) else {
                    before = false;
                    continue;
                };
                let list =
                    json.get("special_tokens").and_then(|tokens| tokens.get(name)?.get("ids")?.as_array());
                for id in list.into_iter().flatten() {
                    let id = id.as_u64().filter(|id| *id < ids as u64).ok_or_else(|| {
                        TextError::broken(format!(
                            "its post-processor puts the id {id} for {name:?}, which is no token"
                        ))
                    })?;
                    let side = if before { &mut frame.prefix } else { &mut frame.suffix };
                    side.push(id as u32);
                }
            }
            Ok(true)
        }
        other => {
            let known = ["ByteLevel", "Sequence", "TemplateProcessing"];
            Err(TextError::unknown("post-processor", other.unwrap_or("without a type"), &known))
        }
    }
}
