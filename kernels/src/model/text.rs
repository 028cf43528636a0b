//! What a model's files say about text, unread: the raw material for a tokenizer, which lives elsewhere.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use super::source::Tokens;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::files;
use crate::weights::Texts;
use crate::weights::gguf::Value;

/// Metadata of a GGUF file.
type Metadata = BTreeMap<String, Value>;

/// Text files that came with the weights.
#[derive(Clone, Debug, Default)]
pub struct TextFiles {
    /// Contents of `tokenizer.json`.
    pub tokenizer_json: Option<String>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<serde_json::Value>,
    /// Chat template (Jinja): of a file of its own, of the tokenizer's settings, or of the GGUF metadata.
    pub chat_template: Option<String>,
    /// Vocabulary of a GGUF file.
    pub gguf: Option<GgufTokenizer>,
}

/// Tokenizer data of a GGUF file (`tokenizer.ggml.*`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// Kind: `gpt2` (byte-level BPE with merges) or `llama` (SentencePiece with scores).
    pub model: String,
    /// Name of the splitting before BPE.
    pub pre: Option<String>,
    /// Text of each token id.
    pub tokens: Texts,
    /// Score of each token; empty if the file has none.
    pub scores: Vec<f32>,
    /// Type of each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty if the file has none.
    pub types: Vec<i32>,
    /// Merges, best first, two parts separated by a space; empty if the file has none.
    pub merges: Texts,
    /// Token that starts a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
    /// Token for what has none.
    pub unk: Option<u32>,
    /// Texts start with `bos`. Where the file does not say: true for `llama`, false otherwise.
    pub add_bos: bool,
    /// A space is put before texts. Where the file does not say: true for `llama`, false otherwise.
    pub add_space_prefix: bool,
}

/// Texts of tokens that end an answer, in the vocabularies that are known. GGUF files often name only one of several.
const END_TEXTS: [&str; 13] = [
    "</s>",
    "<eos>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
];

/// Type of control tokens in [`GgufTokenizer::types`].
const CONTROL: i32 = 3;

/// Text files of a folder.
pub(super) fn of_folder(path: &Path) -> Result<TextFiles, Error> {
    let tokenizer_config = files::json_if_any(&path.join("tokenizer_config.json"))?;
    let chat_template = match files::text_if_any(&path.join("chat_template.jinja"))? {
        Some(template) => Some(template),
        None => tokenizer_config.as_ref().and_then(|config| template(config.get("chat_template")?)),
    };
    let tokenizer_json = files::text_if_any(&path.join("tokenizer.json"))?;
    Ok(TextFiles { tokenizer_json, tokenizer_config, chat_template, gguf: None })
}

/// The chat template in a tokenizer's settings: a text, or several with names.
fn template(value: &Json) -> Option<String> {
    let named = |value: &Json| {
        (value.get("name")?.as_str()? == "default")
            .then(|| value.get("template")?.as_str().map(str::to_owned))?
    };
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Array(array) => array.iter().find_map(named),
        _ => None,
    }
}

/// Text metadata of a GGUF file.
pub(super) fn of_gguf(path: &Path, metadata: &Metadata) -> Result<TextFiles, Error> {
    let settings = Settings::gguf(path, "tokenizer", metadata);
    let chat_template = settings.text("chat_template")?;
    let gguf = match settings.text("ggml.model")? {
        Some(model) => Some(tokenizer(&settings, model)?),
        None => None,
    };
    Ok(TextFiles { chat_template, gguf, ..TextFiles::default() })
}

/// The vocabulary of a GGUF file.
fn tokenizer(settings: &Settings<'_>, model: String) -> Result<GgufTokenizer, Error> {
    let Some(tokens) = settings.texts("ggml.tokens")? else {
        return Err(settings.wrong("ggml.tokens", "is missing".to_owned()));
    };
    let scores = settings.numbers("ggml.scores")?;
    let types = settings.numbers("ggml.token_type")?;
    for (key, len) in [("ggml.scores", scores.len()), ("ggml.token_type", types.len())] {
        if len != 0 && len != tokens.len() {
            return Err(settings.wrong(key, format!("{len} values for {} tokens", tokens.len())));
        }
    }
    let sentencepiece = model == "llama";
    Ok(GgufTokenizer {
        pre: settings.text("ggml.pre")?,
        scores: scores.into_iter().map(|score| score as f32).collect(),
        types: types.into_iter().map(|kind| kind as i32).collect(),
        merges: settings.texts("ggml.merges")?.unwrap_or_default(),
        bos: settings.token("ggml.bos_token_id")?,
        eos: settings.token("ggml.eos_token_id")?,
        unk: settings.token("ggml.unknown_token_id")?,
        add_bos: settings.flag_or("ggml.add_bos_token", sentencepiece)?,
        add_space_prefix: settings.flag_or("ggml.add_space_prefix", sentencepiece)?,
        model,
        tokens,
    })
}

/// First and last tokens of a GGUF file: those it names, and control tokens with the text of one that ends an answer.
pub(super) fn tokens_of_gguf(
    path: &Path,
    metadata: &Metadata,
    tokenizer: Option<&GgufTokenizer>,
) -> Result<Tokens, Error> {
    let settings = Settings::gguf(path, "tokenizer.ggml", metadata);
    let mut eos = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        eos.extend(settings.token(key)?);
    }
    if let Some(tokenizer) = tokenizer {
        let ends = |(id, text): (usize, &str)| {
            let control = tokenizer.types.get(id).is_some_and(|&kind| kind == CONTROL);
            (control && END_TEXTS.contains(&text)).then_some(id as u32)
        };
        eos.extend(tokenizer.tokens.iter().enumerate().filter_map(ends));
    }
    eos.sort_unstable();
    eos.dedup();
    Ok(Tokens { bos: settings.token("bos_token_id")?, eos })
}
