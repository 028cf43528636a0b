//! The simulator's own model: a tiny checkpoint with random weights inside the program, so that every topology can be
//! simulated before anything is downloaded. What it says means nothing; how it is computed is real.

use millstream_actors::assemble::Resources;

use crate::builtin::written;

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

/// Loads it.
pub(crate) fn load() -> anyhow::Result<Resources> {
    Ok(Resources::load(written(&FILES)?.path())?)
}
