//! The simulator's own model: a tiny checkpoint with random weights inside the program, so that every topology can be
//! simulated before anything is downloaded. What it says means nothing; how it is computed is real.

use anyhow::Context as _;
use millstream_actors::assemble::Resources;

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../kernels/tests/oracle/tiny-llama/", $name)).as_slice())
    };
}

/// A checkpoint as a folder holds it.
const FILES: [(&str, &[u8]); 4] = [
    file!("config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
];

/// Loads it. The loader maps files, so it lies in a folder for a moment; a mapping outlives its name.
pub(crate) fn load() -> anyhow::Result<Resources> {
    let folder = tempfile::Builder::new().prefix("millstream-tiny-").tempdir();
    let folder = folder.context("cannot make a folder for the model inside the program")?;
    for (name, bytes) in FILES {
        std::fs::write(folder.path().join(name), bytes)
            .context("cannot write the model inside the program")?;
    }
    Ok(Resources::load(folder.path())?)
}
