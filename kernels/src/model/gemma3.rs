//! Gemma 3, text only: layers with a sliding window between layers that see everything, each kind with its own rotary
//! base; norms before and behind every part and on the heads of queries and keys; scaled embeddings that are also the
//! output matrix.

use std::sync::Arc;

use super::parts::{AttentionPart, Ends, FeedForward, Norm};
use super::pass::Pass;
use super::source::{AttentionSettings, Naming, Source};
use super::{Facts, Model, Row, Scratch};
use crate::backend::Backend;
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::kv::{KvMemory, Rings};
use crate::op::{Activation, RopeTable};

/// A loaded model of the family.
struct Gemma3 {
    facts: Facts,
    ends: Ends,
    /// Factor of the embeddings: the root of their width.
    embedding_scale: f32,
    /// For layers with a window.
    local: RopeTable,
    /// For layers without.
    global: RopeTable,
    layers: Vec<Layer>,
}

/// Weights of one layer.
struct Layer {
    before_attention: Norm,
    attention: AttentionPart,
    behind_attention: Norm,
    before_feed_forward: Norm,
    feed_forward: FeedForward,
    behind_feed_forward: Norm,
}

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    source.norms_add_one = true;
    let config = match source.naming {
        Naming::Folder => config::Gemma3::from_json(settings)?,
        Naming::Gguf => config::Gemma3::from_gguf(settings)?,
    };
    let shape = &config.shape;
    let ends = source.ends(shape, config.tied)?;
    let mut layers = Vec::new();
    for (layer, &sliding) in config.sliding.iter().enumerate() {
        layers.push(take_layer(&mut source, &config, layer, sliding)?);
    }
    let mut table = |rope| source.rope(rope, shape.head_dim, shape.context);
    let (local, global) = (table(&config.local)?, table(&config.global)?);
    let rings = Rings::of(&config.sliding, config.window as usize);
    let facts = Facts { rings, ..source.finish(("gemma3", config.work()), shape, &ends, |_| false)? };
    let embedding_scale = (shape.hidden as f32).sqrt();
    Ok(Arc::new(Gemma3 { facts, ends, embedding_scale, local, global, layers }))
}

/// Takes the weights of one layer.
fn take_layer(
    source: &mut Source,
    config: &config::Gemma3,
    layer: usize,
    sliding: bool,
) -> Result<Layer, Error> {
    let shape = &config.shape;
    let settings = AttentionSettings {
        norms: true,
        scale: config.scale,
        window: sliding.then_some(config.window),
        ..AttentionSettings::plain(shape)
    };
    let attention = source.attention(layer, shape, settings)?;
    let feed_forward = source.feed_forward(layer, shape, Activation::GeluTanh)?;
    let mut norm = |name| source.layer_norm(layer, name, shape.hidden, shape.eps);
    Ok(Layer {
        before_attention: norm(("input_layernorm", "attn_norm"))?,
        attention,
        behind_attention: norm(("post_attention_layernorm", "post_attention_norm"))?,
        before_feed_forward: norm(("pre_feedforward_layernorm", "ffn_norm"))?,
        feed_forward,
        behind_feed_forward: norm(("post_feedforward_layernorm", "post_ffw_norm"))?,
    })
}

impl Model for Gemma3 {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        let mut pass = Pass::begin(&self.facts, step, kv, scratch, backend)?;
        pass.embed(&self.ends, self.embedding_scale);
        for (index, layer) in self.layers.iter().enumerate() {
            let rope = if layer.attention.window.is_some() { &self.local } else { &self.global };
            pass.enter(&layer.before_attention);
            pass.attend(index, &layer.attention, rope);
            pass.leave(Some(&layer.behind_attention));
            pass.enter(&layer.before_feed_forward);
            pass.feed_forward(&layer.feed_forward);
            pass.leave(Some(&layer.behind_feed_forward));
        }
        pass.finish(&self.ends);
        Ok(())
    }
}
