//! The tokenizer as the roles see it, whatever file it came from.

use std::collections::BTreeMap;
use std::fmt;

use millstream_kernels::TextFiles;

use super::added::AddedSet;
use super::bpe::Bpe;
use super::decoding::{Decoding, Pieces};
use super::marked::{Marked, Segment};
use super::spm::Spm;
use super::vocab::{Kind, Tables, Vocab};
use super::{TextError, gguf, json};

/// Text to token ids and back. Never changes; share it behind an `Arc`.
pub struct Tokenizer {
    pieces: Pieces,
    kinds: Vec<Kind>,
    reserved: AddedSet,
    /// How control tokens are written, by id.
    names: BTreeMap<u32, String>,
    ends: Vec<u32>,
    bos: Option<u32>,
    coder: Coder,
    frame: Frame,
    /// Spaces dropped from the start of a whole decoded text.
    strip: usize,
    specials: Vec<(&'static str, String)>,
}

/// How plain text is encoded.
#[derive(Debug)]
pub(super) enum Coder {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
}

impl Coder {
    fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        match self {
            Self::Bpe(bpe) => bpe.encode(text, first, out),
            Self::Spm(spm) => spm.encode(text, first, out),
        }
    }
}

/// What the family puts around a text.
#[derive(Debug, Default)]
pub(super) struct Frame {
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    /// Chats start with `bos` even if their template does not write it.
    pub bos_in_chats: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.coder {
            Coder::Bpe(_) => "merges",
            Coder::Spm(_) => "scores",
        };
        out.debug_struct("Tokenizer")
            .field("kind", &kind)
            .field("vocab", &self.vocab())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Takes `tokenizer.json` if there is one, else the vocabulary of the GGUF file. Errors: there is neither, or it is
    /// broken, or of a kind that is not known.
    pub fn load(files: &TextFiles) -> Result<Self, TextError> {
        match (&files.tokenizer_json, &files.gguf) {
            (Some(text), _) => json::load(text, files.tokenizer_config.as_ref()),
            (None, Some(file)) => gguf::load(file),
            (None, None) => Err(TextError::Missing),
        }
    }

    pub(super) fn assemble(vocab: &Vocab<'_>, decoding: &Decoding, coder: Coder, frame: Frame) -> Self {
        let Tables { pieces, kinds, reserved, names } = vocab.tables(decoding);
        let ends = vocab.ends.clone();
        let parts = &vocab.parts;
        let named = [
            ("bos_token", parts.bos),
            ("eos_token", parts.eos),
            ("unk_token", parts.unk),
            ("pad_token", parts.pad),
        ];
        let text = |id: u32| vocab.tokens[id as usize].text.to_string();
        let specials = named.into_iter().filter_map(|(name, id)| Some((name, text(id?)))).collect();
        Self {
            pieces,
            kinds,
            reserved,
            names,
            ends,
            bos: parts.bos,
            coder,
            frame,
            strip: decoding.strip(),
            specials,
        }
    }

    /// Digest of what every id stands for.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = blake3::Hasher::new();
        for id in 0..self.vocab() as u32 {
            let bytes = self.spelling(id);
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
            digest.update(&[u8::from(self.is_control(id))]);
        }
        *digest.finalize().as_bytes()
    }

    /// Ids of a text as it stands, without begin and end tokens. No control token can come out, whatever the text says.
    /// (The unknown token can, in families that cannot spell every text.)
    pub fn encode_plain(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.coder.encode(text, true, &mut ids);
        ids
    }

    /// Ids of a plain prompt: as [`Self::encode_plain`], with the begin token before it (and the end token behind it)
    /// where the family has them.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = self.frame.prefix.clone();
        self.coder.encode(text, true, &mut ids);
        ids.extend_from_slice(&self.frame.suffix);
        ids
    }

    /// Ids of a rendered template; control tokens come from the template's own text only. A template writes the begin
    /// token itself. For GGUF files whose metadata ask for one, it is put there where the template did not.
    pub fn encode_marked(&self, text: &Marked) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut first = true;
        for segment in text.segments(&self.reserved) {
            match segment {
                Segment::Token(id) => ids.push(id),
                Segment::Plain(text) => self.coder.encode(&text, first || self.restarts(), &mut ids),
            }
            first = false;
        }
        match self.bos {
            Some(bos) if self.frame.bos_in_chats && ids.first() != Some(&bos) => ids.insert(0, bos),
            _ => {}
        }
        ids
    }

    /// Whether text behind a control token is encoded as at the start.
    fn restarts(&self) -> bool {
        matches!(self.coder, Coder::Spm(_))
    }

    /// One more than the largest id.
    pub fn vocab(&self) -> usize {
        self.kinds.len()
    }

    /// The token that begins a text, if the family has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether the token adds nothing to a text: a marker, or no token at all.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), None | Some(Kind::Control | Kind::Absent))
    }

    /// Tokens that end a turn or a text, the one the files name first.
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// What the token adds to the text; nothing for control tokens and ids beyond the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// How the token is shown to people who look at tokens: what it adds to a text, and for control tokens their names.
    pub fn spelling(&self, id: u32) -> &[u8] {
        self.names.get(&id).map_or_else(|| self.bytes(id), |name| name.as_bytes())
    }

    /// The text of a whole sequence with its control tokens written out; what [`Self::decode`] is to [`Self::bytes`].
    pub fn spell(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.spelling(*id)).copied().collect();
        self.joined(&bytes)
    }

    /// The text of a whole sequence. Where the family puts a space before texts, it is taken away again; an answer that
    /// continues a prompt is not such a text, use [`Self::bytes`] with a [`super::TextStream`] there.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes(*id)).copied().collect();
        self.joined(&bytes)
    }

    fn joined(&self, bytes: &[u8]) -> String {
        let spaces = bytes.iter().take(self.strip).take_while(|byte| **byte == b' ').count();
        String::from_utf8_lossy(&bytes[spaces..]).into_owned()
    }

    /// Id of the control token with this text.
    pub(super) fn control(&self, text: &str) -> Option<u32> {
        let found = self.reserved.find(text, 0, None)?;
        (found.range == (0..text.len())).then_some(found.id)
    }

    /// Tokens only a template can make.
    pub(super) fn reserved(&self) -> &AddedSet {
        &self.reserved
    }

    /// Texts of the special tokens by the names templates know.
    pub(super) fn specials(&self) -> Vec<(&'static str, String)> {
        self.specials.clone()
    }
}

#[cfg(test)]
impl Tokenizer {
    /// The same, splitting by the crate alone.
    pub(super) fn by_crate(mut self) -> Self {
        if let Coder::Bpe(bpe) = &mut self.coder {
            bpe.leave_to_crate();
        }
        self
    }
}
