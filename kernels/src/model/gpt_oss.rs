//! gpt-oss: layers with a sliding window and layers that see everything in turn, a sink for each head, experts with clamped
//! gates, and a bias on every product.

use std::sync::Arc;

use super::decoder::{AttentionKind, Decoder, FeedForwardKind, Layer};
use super::route::{Choice, Rule};
use super::source::{AttentionSettings, Naming, Source};
use super::{Facts, Model};
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::kv::Rings;
use crate::op::Activation;

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let config = match source.naming {
        Naming::Folder => config::GptOss::from_json(settings)?,
        Naming::Gguf => config::GptOss::from_gguf(settings)?,
    };
    let (shape, mixture) = (&config.shape, &config.mixture);
    let ends = source.ends(shape, Some(false))?;
    let activation = Activation::ClampedSwiglu { slope: config.slope, limit: config.limit };
    let mut layers = Vec::new();
    for (layer, &sliding) in config.sliding.iter().enumerate() {
        let settings = AttentionSettings {
            biases: true,
            output_bias: true,
            sinks: true,
            window: sliding.then_some(config.window),
            ..AttentionSettings::plain(shape)
        };
        let attention = AttentionKind::Heads(source.attention(layer, shape, settings)?);
        let choice = Choice { per_token: mixture.per_token, rule: Rule::SoftmaxOfChosen };
        let mixture = source.biased_mixture(layer, shape.hidden, mixture, (choice, activation))?;
        layers.push(Layer {
            attention_norm: source.before_attention(layer, shape)?,
            attention,
            feed_forward_norm: source.layer_norm(
                layer,
                ("post_attention_layernorm", "post_attention_norm"),
                shape.hidden,
                shape.eps,
            )?,
            feed_forward: FeedForwardKind::Mixture(Box::new(mixture)),
        });
    }
    let rope = source.rope(&config.rope, shape.head_dim, shape.context)?;
    let rings = Rings::of(&config.sliding, config.window as usize);
    let facts = Facts { rings, ..source.finish(("gpt_oss", config.work()), shape, &ends, |_| false)? };
    Ok(Decoder { facts, ends, rope, layers }.shared())
}
