//! Qwen 3 with experts: a softmax over all of them chooses a few for each token.

use std::sync::Arc;

use super::Model;
use super::decoder::{AttentionKind, Decoder, FeedForwardKind, Layer};
use super::route::{Choice, Rule};
use super::source::{AttentionSettings, Naming, Source};
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::op::Activation;

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let config = match source.naming {
        Naming::Folder => config::Qwen3Moe::from_json(settings)?,
        Naming::Gguf => config::Qwen3Moe::from_gguf(settings)?,
    };
    let shape = &config.shape;
    let ends = source.ends(shape, config.tied)?;
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let settings = AttentionSettings { norms: true, ..AttentionSettings::plain(shape) };
        let attention = AttentionKind::Heads(source.attention(layer, shape, settings)?);
        let feed_forward = if config.sparse[layer] {
            let rule = Rule::Softmax { normalised: config.normalised };
            let choice = Choice { per_token: config.mixture.per_token, rule };
            let mixture = source.mixture(layer, shape.hidden, &config.mixture, choice)?;
            FeedForwardKind::Mixture(Box::new(mixture))
        } else {
            FeedForwardKind::Dense(Box::new(source.feed_forward(layer, shape, Activation::Silu)?))
        };
        layers.push(Layer::new(&mut source, layer, shape, (attention, feed_forward))?);
    }
    let rope = source.rope(&config.rope, shape.head_dim, shape.context)?;
    let facts = source.finish(("qwen3_moe", config.work()), shape, &ends, |_| false)?;
    Ok(Decoder { facts, ends, rope, layers }.shared())
}
