//! DeepSeek-V3 and R1: attention over a latent, first layers dense, then experts chosen within groups beside one that
//! computes every token. In GGUF files the family is called `deepseek2`.

use std::sync::Arc;

use super::decoder::{AttentionKind, Decoder, FeedForwardKind, Layer};
use super::parts::Mixture;
use super::route::{Choice, Grouped, Rule};
use super::source::{Naming, Source};
use super::{Facts, Model};
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
        Naming::Folder => config::DeepSeek::from_json(settings)?,
        Naming::Gguf => config::DeepSeek::from_gguf(settings)?,
    };
    let shape = &config.shape;
    let ends = source.ends(shape, config.tied)?;
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let attention = AttentionKind::Latent(source.latent(layer, &config)?);
        let feed_forward = if layer < config.dense_layers {
            FeedForwardKind::Dense(Box::new(source.feed_forward(layer, shape, Activation::Silu)?))
        } else {
            FeedForwardKind::Mixture(Box::new(mixture(&mut source, &config, layer)?))
        };
        layers.push(Layer::new(&mut source, layer, shape, (attention, feed_forward))?);
    }
    let rope = source.rope(&config.rope, config.turning, shape.context)?;
    // Released checkpoints bring layers that guess further tokens, behind those of the model; and some store the
    // frequencies of rotary positions.
    let unused = |name: &str| {
        let behind = |rest: &str| rest.split('.').next()?.parse().ok();
        let layer: Option<usize> = name.strip_prefix("model.layers.").and_then(behind);
        layer.is_some_and(|layer| layer >= shape.layers) || name.ends_with(".rotary_emb.inv_freq")
    };
    let facts = source.finish(("deepseek_v3", config.work()), shape, &ends, unused)?;
    // What is kept of a token is its latent, as the value and behind the part of the key that turns.
    let facts = Facts { key_dim: config.turning + config.rank, value_dim: config.rank, ..facts };
    Ok(Decoder { facts, ends, rope, layers }.shared())
}

/// Experts of a layer.
fn mixture(source: &mut Source, config: &config::DeepSeek, layer: usize) -> Result<Mixture, Error> {
    let (hidden, routed) = (config.shape.hidden, &config.mixture);
    let bias = source.selection_bias(layer, routed.count)?;
    let (groups, groups_used) = config.groups;
    let (normalised, scale) = (config.normalised, config.weight_scale);
    let grouped = Grouped { bias, groups, groups_used, normalised, scale };
    let choice = Choice { per_token: routed.per_token, rule: Rule::Grouped(grouped) };
    let mixture = source.mixture(layer, hidden, routed, choice)?;
    let shared = source.shared_expert(layer, hidden, config.shared * routed.intermediate)?;
    Ok(Mixture { shared: Some(shared), ..mixture })
}
