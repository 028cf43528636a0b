//! Qwen 2 and 2.5: the layout of Llama, with biases on queries, keys and values.

use std::sync::Arc;

use super::Model;
use super::decoder::{Decoder, Layer};
use super::source::{AttentionSettings, Naming, Source};
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let config = match source.naming {
        Naming::Folder => config::Qwen2::from_json(settings)?,
        Naming::Gguf => config::Qwen2::from_gguf(settings)?,
    };
    let shape = &config.shape;
    let ends = source.ends(shape, config.tied)?;
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let settings = AttentionSettings { biases: true, ..AttentionSettings::plain(shape) };
        layers.push(Layer::dense(&mut source, layer, shape, settings)?);
    }
    let rope = source.rope(&config.rope, shape.head_dim, shape.context)?;
    let facts = source.finish(("qwen2", config.work()), shape, &ends, |_| false)?;
    Ok(Decoder { facts, ends, rope, layers }.shared())
}
