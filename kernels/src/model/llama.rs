//! Llama and the many models that share its layout: grouped-query attention, rotary positions (plain, linear or
//! Llama 3 scaling), gated SiLU feed-forward, two norms a layer.

use std::sync::Arc;

use super::parts::{AttentionPart, Ends, FeedForward, Norm};
use super::pass::Pass;
use super::source::{AttentionSettings, Naming, Source};
use super::{Facts, Model, Row, Scratch};
use crate::backend::Backend;
use crate::config;
use crate::config::settings::Settings;
use crate::error::Error;
use crate::kv::KvMemory;
use crate::op::{Activation, Pairing, RopeTable};

/// A loaded model of the family.
struct Llama {
    facts: Facts,
    ends: Ends,
    rope: RopeTable,
    layers: Vec<Layer>,
}

/// Weights of one layer.
struct Layer {
    attention_norm: Norm,
    attention: AttentionPart,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

/// Takes the model out of its files.
///
/// # Errors
/// Any of [`Error`] about settings and tensors.
pub(super) fn load(mut source: Source, settings: &Settings<'_>) -> Result<Arc<dyn Model>, Error> {
    let config::Llama { shape, rope, tied } = match source.naming {
        Naming::Folder => config::Llama::from_json(settings)?,
        Naming::Gguf => config::Llama::from_gguf(settings)?,
    };
    let ends = source.ends(&shape, tied)?;
    // GGUF files have the rows of queries and keys reordered, so that pairs are adjacent.
    let pairing = match source.naming {
        Naming::Folder => Pairing::Half,
        Naming::Gguf => Pairing::Adjacent,
    };
    let scale = (shape.head_dim as f64).powf(-0.5) as f32;
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let settings = AttentionSettings { norms: false, scale, window: None, pairing };
        let (hidden, eps) = (shape.hidden, shape.eps);
        layers.push(Layer {
            attention_norm: source.layer_norm(layer, ("input_layernorm", "attn_norm"), hidden, eps)?,
            attention: source.attention(layer, &shape, settings)?,
            feed_forward_norm: source.layer_norm(
                layer,
                ("post_attention_layernorm", "ffn_norm"),
                hidden,
                eps,
            )?,
            feed_forward: source.feed_forward(layer, &shape, Activation::Silu)?,
        });
    }
    let mut frequencies = rope.frequencies(shape.head_dim);
    if source.weights.has(ROPE_FACTORS) {
        let factors = source.weights.vector(ROPE_FACTORS, frequencies.len())?;
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }
    let rope = RopeTable::new(&frequencies, 1.0, shape.context as usize);
    // Early checkpoints also store the frequencies of plain rotary positions.
    let unused = |name: &str| name.ends_with(".rotary_emb.inv_freq");
    let facts = source.finish("llama", &shape, &ends, unused)?;
    Ok(Arc::new(Llama { facts, ends, rope, layers }))
}

/// Tensor of a GGUF file that divides the frequencies: how it stores Llama 3 scaling.
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl Model for Llama {
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
        pass.embed(&self.ends, 1.0);
        for (index, layer) in self.layers.iter().enumerate() {
            pass.enter(&layer.attention_norm);
            pass.attend(index, &layer.attention, &self.rope);
            pass.leave(None);
            pass.enter(&layer.feed_forward_norm);
            pass.feed_forward(&layer.feed_forward);
            pass.leave(None);
        }
        pass.finish(&self.ends);
        Ok(())
    }
}
