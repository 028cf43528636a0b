//! Classes of tokens: those that read the same but for case, accents and spacing are one to the hashes. Which class a token
//! has is stored nowhere, it follows from the texts of all tokens before it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Stands for a text of one space while texts lose the spaces at their ends.
const KEPT_SPACE: char = '\u{e000}';

/// Class of each token id of a `tokenizer.json`, up to the largest, and how many classes there are.
///
/// # Errors
/// What is wrong with the file, for people.
pub(super) fn of(tokenizer: &str) -> Result<(Vec<u32>, usize), String> {
    let file: File<'_> = serde_json::from_str(tokenizer).map_err(|error| error.to_string())?;
    if !is_byte_level(&file.decoder) {
        return Err("the decoder is no ByteLevel".to_owned());
    }
    let tokens = file.tokens()?;
    let mut known = HashMap::new();
    let mut class = |key: String| {
        let next = known.len() as u32;
        match known.entry(key) {
            Entry::Occupied(found) => *found.get(),
            Entry::Vacant(free) => *free.insert(next),
        }
    };
    let classes = tokens.iter().map(|token| class(key(token))).collect();
    Ok((classes, known.len()))
}

/// The part of `tokenizer.json` that says what tokens there are.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: Model<'a>,
    #[serde(default, borrow)]
    added_tokens: Vec<Added<'a>>,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    vocab: Vocab<'a>,
}

#[derive(Deserialize)]
struct Added<'a> {
    id: u32,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

/// Pairs of a token's stored form and its id, in the order of the file.
struct Vocab<'a>(Vec<(Cow<'a, str>, u32)>);

/// A text that is borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Vocab<'a>, D::Error> {
        from.deserialize_map(Pairs).map(Vocab)
    }
}

/// Reads the pairs of an object.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Vec<(Cow<'de, str>, u32)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens and their ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((Text(token), id)) = map.next_entry()? {
            pairs.push((token, id));
        }
        Ok(pairs)
    }
}

/// Bound of ids, as of everything a file says.
const IDS_MAX: u32 = 1 << 24;

impl<'a> File<'a> {
    /// The stored form of each id; empty where there is none.
    fn tokens(self) -> Result<Vec<Cow<'a, str>>, String> {
        let added = self.added_tokens.into_iter().map(|Added { id, content }| (content, id));
        let mut tokens = Vec::new();
        for (token, id) in self.model.vocab.0.into_iter().chain(added) {
            if id >= IDS_MAX {
                return Err(format!("token {token:?} has the id {id}"));
            }
            let at = id as usize;
            if tokens.len() <= at {
                tokens.resize(at + 1, Cow::Borrowed(""));
            }
            tokens[at] = token;
        }
        Ok(tokens)
    }
}

/// True if texts are made of bytes that stand as characters in the vocabulary.
fn is_byte_level(decoder: &Value) -> bool {
    let is = |decoder: &Value| decoder["type"] == "ByteLevel";
    match decoder["decoders"].as_array() {
        Some(steps) => steps.len() == 1 && is(&steps[0]),
        None => is(decoder),
    }
}

/// What tokens of one class share: the normal form of the text, the text if nothing is left of it, or the stored form if
/// it is no text.
fn key(token: &str) -> String {
    let bytes: Option<Vec<u8>> = token.chars().map(byte).collect();
    let bytes = bytes.unwrap_or_else(|| token.as_bytes().to_vec());
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains(char::REPLACEMENT_CHARACTER) => {
            let normal = normal(&text);
            if normal.is_empty() { text } else { normal }
        }
        _ => token.to_owned(),
    }
}

/// The byte that a character of a byte-level vocabulary stands for: its own code where that can be seen, and for the 68
/// bytes that cannot, those from 256 on in their order.
fn byte(character: char) -> Option<u8> {
    let shown = |code: u32| matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character) {
        code if shown(code) => Some(code as u8),
        code @ 0x100..0x121 => Some((code - 0x100) as u8),
        code @ 0x121..0x143 => Some((code - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// A text without case, accents and most spacing.
fn normal(text: &str) -> String {
    // Ideographs have neither case nor accents, nor another spelling.
    let simple = |c: char| c.is_ascii() || ('\u{4e00}'..='\u{9fa5}').contains(&c);
    let spelled = if text.chars().all(simple) {
        text.to_ascii_lowercase()
    } else {
        text.nfkc().nfd().filter(|&c| !is_combining_mark(c)).flat_map(char::to_lowercase).collect()
    };
    let mut spaced = String::with_capacity(spelled.len());
    for c in spelled.chars() {
        match c {
            ' ' | '\t' | '\r' | '\n' if spaced.ends_with(' ') => {}
            '\t' | '\r' | '\n' => spaced.push(' '),
            _ => spaced.push(c),
        }
    }
    if spaced == " " { spaced } else { spaced.trim().replace(KEPT_SPACE, " ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lose_case_accents_and_spacing() {
        let cases = [
            ("Hello", "hello"),
            ("  Été \t\n\r", "ete"),
            ("a \n b", "a b"),
            ("\n\t ", " "),
            ("\u{3000}", " "),
            ("ﬁ①Ａ", "fi1a"),
            ("İΣ", "iσ"),
            ("\u{301}", ""),
            ("\u{b}", ""),
            ("a\u{e000}b", "a b"),
        ];
        for (text, want) in cases {
            assert_eq!(normal(text), want, "{text:?}");
        }
    }

    #[test]
    fn characters_stand_for_all_bytes() {
        let mut bytes: Vec<u8> = (0..=0x143).filter_map(char::from_u32).filter_map(byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte('Ġ'), byte('Ċ'), byte('｜')), (Some(b' '), Some(b'\n'), None));
    }

    #[test]
    fn a_piece_of_a_character_is_a_class_of_its_own() {
        // 0xc3 alone; "é" and "E"; a mark of which nothing is left; an unused id.
        let tokenizer = r#"{"model": {"vocab": {"Ã": 0, "Ã©": 1, "E": 2, "\u00cc\u0123": 3, "e": 5}},
            "added_tokens": [{"id": 6, "content": "<e>"}, {"id": 7, "content": "<E>"}],
            "decoder": {"type": "ByteLevel"}}"#;
        assert_eq!(of(tokenizer), Ok((vec![0, 1, 1, 2, 3, 1, 4, 4], 5)));
        let other = tokenizer.replace("ByteLevel", "Metaspace");
        assert_eq!(of(&other), Err("the decoder is no ByteLevel".to_owned()));
        let far = tokenizer.replace("7", "4000000000");
        assert_eq!(of(&far), Err("token \"<E>\" has the id 4000000000".to_owned()));
    }
}
