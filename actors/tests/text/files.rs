//! Where the tests take tokenizers from: stored small ones, and real models where they lie on this machine.

use std::path::{Path, PathBuf};

use millstream_actors::text::{ChatMessage, Tokenizer};
use millstream_kernels::TextFiles;
use serde_json::Value;

/// Folder of the stored vectors.
pub const ORACLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle");

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON file of the stored vectors.
pub fn vectors(family: &str, file: &str) -> Value {
    serde_json::from_str(&text(&Path::new(ORACLE).join(family).join(file))).unwrap()
}

/// The text files of a stored family.
pub fn stored(family: &str) -> TextFiles {
    let folder = Path::new(ORACLE).join(family);
    TextFiles {
        tokenizer_json: Some(text(&folder.join("tokenizer.json"))),
        tokenizer_config: Some(vectors(family, "tokenizer_config.json")),
        chat_template: None,
        gguf: None,
    }
}

/// The tokenizer of a stored family.
pub fn tokenizer(family: &str) -> Tokenizer {
    Tokenizer::load(&stored(family)).unwrap()
}

/// The text files of a real model; `None` where it is not on this machine (which is a failure in CI).
pub fn real(file: &str) -> Option<TextFiles> {
    let standard = concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache/models");
    let folder = std::env::var_os("MILLSTREAM_MODELS").map_or_else(|| PathBuf::from(standard), PathBuf::from);
    let path = folder.join(file);
    if !path.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is missing", path.display());
        println!("skipped: {} is not there", path.display());
        return None;
    }
    match millstream_kernels::load(&path) {
        Ok(loaded) => Some(loaded.text),
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Token ids in a JSON list.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The messages of a stored chat.
pub fn messages(value: &Value) -> Vec<ChatMessage> {
    let field = |message: &Value, name: &str| message[name].as_str().unwrap().to_string();
    let list = value.as_array().unwrap().iter();
    list.map(|m| ChatMessage::new(field(m, "role").parse().unwrap(), field(m, "content"))).collect()
}
