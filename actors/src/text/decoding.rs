//! What each token adds to the text, worked out once when the tokenizer is loaded.

use serde_json::Value as Json;

use super::TextError;

/// The characters that stand for bytes in byte-level vocabularies: printable ones stand for themselves, the others are
/// moved up from U+0100.
pub(super) fn byte_alphabet() -> [char; 256] {
    let mut moved = 0x100;
    std::array::from_fn(|byte| {
        let itself = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if itself { byte as u32 } else { moved };
        moved += u32::from(!itself);
        char::from_u32(code).expect("all codes are below the surrogates")
    })
}

/// How the text of an ordinary token becomes bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// Characters stand for bytes.
    ByteLevel,
    /// Characters stand for themselves, after these replacements (one after the other); `<0xAB>` may be a byte.
    Pieces { replace: Vec<(String, String)>, byte_fallback: bool, strip: usize },
}

impl Decoding {
    /// SentencePiece: `▁` is a space.
    pub fn spaces(strip: usize) -> Self {
        let replace = vec![("▁".to_string(), " ".to_string())];
        Self::Pieces { replace, byte_fallback: true, strip }
    }

    /// Spaces that are dropped from the start of a whole text.
    pub fn strip(&self) -> usize {
        match self {
            Self::ByteLevel => 0,
            Self::Pieces { strip, .. } => *strip,
        }
    }

    /// The `decoder` of a `tokenizer.json`.
    pub fn read(decoder: &Json) -> Result<Self, TextError> {
        let mut found = Self::Pieces { replace: Vec::new(), byte_fallback: false, strip: 0 };
        found.add(decoder)?;
        Ok(found)
    }

    fn add(&mut self, decoder: &Json) -> Result<(), TextError> {
        if decoder.is_null() {
            return Ok(());
        }
        let text = |path: &str| decoder.pointer(path).and_then(Json::as_str).unwrap_or_default();
        let kind = text("/type");
        if kind == "ByteLevel" {
            *self = Self::ByteLevel;
        }
        let Self::Pieces { replace, byte_fallback, strip } = self else { return Ok(()) };
        match kind {
            "Sequence" => {
                for part in decoder.get("decoders").and_then(Json::as_array).into_iter().flatten() {
                    self.add(part)?;
                }
            }
            "Replace" if !text("/pattern/String").is_empty() => {
                replace.push((text("/pattern/String").into(), text("/content").into()));
            }
            "ByteFallback" => *byte_fallback = true,
            "Fuse" => {}
            "Strip" if text("/content") == " " => {
                *strip = decoder.get("start").and_then(Json::as_u64).unwrap_or(0) as usize;
            }
            "Metaspace" => {
                let replacement = text("/replacement");
                replace.push((if replacement.is_empty() { "▁" } else { replacement }.into(), " ".into()));
                let never = text("/prepend_scheme") == "never"
                    || decoder.get("add_prefix_space") == Some(&Json::Bool(false));
                *strip = usize::from(!never);
            }
            other => {
                let known = [
                    "ByteLevel",
                    "Sequence",
                    "Replace (of a string)",
                    "ByteFallback",
                    "Fuse",
                    "Strip (of spaces)",
                    "Metaspace",
                ];
                return Err(TextError::unknown("decoder", other, &known));
            }
        }
        Ok(())
    }
}

/// Turns token texts into bytes.
pub(super) struct Decoder {
    decoding: Decoding,
    /// The byte a character stands for, by code point; all of them are below U+0144.
    bytes: [Option<u8>; 0x144],
}

impl Decoder {
    pub fn new(decoding: Decoding) -> Self {
        let mut bytes = [None; 0x144];
        for (byte, c) in byte_alphabet().into_iter().enumerate() {
            bytes[c as usize] = Some(byte as u8);
        }
        Self { decoding, bytes }
    }

    /// Appends what the token `text` adds.
    pub fn append(&self, text: &str, out: &mut Vec<u8>) {
        match &self.decoding {
            Decoding::ByteLevel => {
                let before = out.len();
                let byte = |c: char| self.bytes.get(c as usize).copied().flatten();
                for c in text.chars() {
                    let Some(byte) = byte(c) else {
                        out.truncate(before);
                        out.extend_from_slice(text.as_bytes());
                        return;
                    };
                    out.push(byte);
                }
            }
            Decoding::Pieces { replace, byte_fallback, .. } => match byte_token(text) {
                Some(byte) if *byte_fallback => out.push(byte),
                _ => append_replaced(text, replace, out),
            },
        }
    }
}

fn append_replaced(text: &str, replace: &[(String, String)], out: &mut Vec<u8>) {
    let Some(((from, to), more)) = replace.split_first() else {
        out.extend_from_slice(text.as_bytes());
        return;
    };
    if more.is_empty() {
        append_once(text.as_bytes(), from.as_bytes(), to.as_bytes(), out);
    } else {
        append_replaced(&text.replace(from.as_str(), to), more, out);
    }
}

/// `text` with every `from`, which is not empty, replaced. Tokens are short: a plain search is the fastest.
fn append_once(mut text: &[u8], from: &[u8], to: &[u8], out: &mut Vec<u8>) {
    while let Some((&byte, rest)) = text.split_first() {
        match text.strip_prefix(from) {
            Some(rest) => {
                out.extend_from_slice(to);
                text = rest;
            }
            None => {
                out.push(byte);
                text = rest;
            }
        }
    }
}

/// The byte that `<0xAB>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Byte strings by token id, in one allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Pieces {
    /// Adds the string of the next id; `fill` appends it.
    pub fn push(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        fill(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    /// The string of `id`; empty where there is none.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes(decoding: Decoding, text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        Decoder::new(decoding).append(text, &mut out);
        out
    }

    #[test]
    fn the_alphabet_is_the_known_one() {
        let alphabet = byte_alphabet();
        assert_eq!((alphabet[b' ' as usize], alphabet[b'\n' as usize], alphabet[0xAD]), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!(bytes(Decoding::ByteLevel, "Ġhé"), b" h\xe9");
        assert_eq!(bytes(Decoding::ByteLevel, "é▁"), "é▁".as_bytes());
    }

    #[test]
    fn pieces_replace_and_fall_back_to_bytes() {
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let decoding = Decoding::read(&decoder).unwrap();
        assert_eq!(decoding, Decoding::spaces(1));
        assert_eq!(bytes(decoding.clone(), "▁a▁"), b" a ");
        assert_eq!(bytes(decoding.clone(), "<0xFF>"), [0xFF]);
        assert_eq!(bytes(decoding, "<0x+F>"), b"<0x+F>");
    }

    #[test]
    fn unknown_decoders_are_refused_by_name() {
        let error = Decoding::read(&json!({"type": "WordPiece"})).unwrap_err().to_string();
        assert!(error.contains("WordPiece") && error.contains("ByteLevel"), "{error}");
    }
}
