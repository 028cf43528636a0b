//! Llama and the many models that share its layout: grouped-query attention, rotary positions (plain or scaled for longer
//! texts), gated SiLU feed-forward, two norms a layer.

use std::sync::Arc;

use super::Model;
use super::decoder::{Decoder, Layer};
use super::source::{AttentionSettings, Naming, Source};
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::op::Pairing;

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let config = match source.naming {
        Naming::Folder => config::Llama::from_json(settings)?,
        Naming::Gguf => config::Llama::from_gguf(settings)?,
    };
    let shape = &config.shape;
    let ends = source.ends(shape, config.tied)?;
    // GGUF files have the rows of queries and keys reordered, so that pairs are adjacent.
    let pairing = match source.naming {
        Naming::Folder => Pairing::Half,
        Naming::Gguf => Pairing::Adjacent,
    };
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let settings = AttentionSettings { pairing, ..AttentionSettings::plain(shape) };
        layers.push(Layer::dense(&mut source, layer, shape, settings)?);
    }
    let rope = source.rope(&config.rope, shape.head_dim, shape.context)?;
    // Early checkpoints also store the frequencies of plain rotary positions.
    let unused = |name: &str| name.ends_with(".rotary_emb.inv_freq");
    let facts = source.finish(("llama", config.work()), shape, &ends, unused)?;
    Ok(Decoder { facts, ends, rope, layers }.shared())
}
