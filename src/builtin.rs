//! The model inside the program: a small DeepSeek-V4.1 that was trained for a few things which can be marked right or wrong
//! (`examples/builtin/` has the trainer). With it a fresh build answers without a download.

use anyhow::Context as _;
use tempfile::TempDir;

/// What a topology file says that names no model of its own.
pub const NAME: &str = "builtin";

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../examples/builtin/model/", $name)).as_slice())
    };
}

/// A checkpoint as a folder holds it, and the cases to mark it by ([`crate::eval`]).
const FILES: [(&str, &[u8]); 6] = [
    file!("config.json"),
    file!("generation_config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
    file!("eval.jsonl"),
];

/// A folder with the model, for loaders, which map files. It may go when the model is loaded: a mapping outlives its name.
///
/// # Errors
/// The folder cannot be made or written.
pub fn folder() -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("millstream-model-").tempdir();
    let folder = folder.context("cannot make a folder for the model inside the program")?;
    for (name, bytes) in FILES {
        std::fs::write(folder.path().join(name), bytes)
            .context("cannot write the model inside the program")?;
    }
    Ok(folder)
}
