//! The layout that most families share: in each layer a norm and attention, a norm and a feed-forward part, both added to
//! the residual stream. What a family has besides is in its parts.

use std::sync::Arc;

use super::parts::{AttentionPart, Ends, FeedForward, LatentPart, Mixture, Norm};
use super::pass::Pass;
use super::source::{AttentionSettings, Source};
use super::{Facts, Model, Row, Scratch};
use crate::backend::Backend;
use crate::config::Shape;
use crate::error::Error;
use crate::kv::KvMemory;
use crate::op::{Activation, RopeTable};

/// A loaded model of this layout.
pub(super) struct Decoder {
    pub facts: Facts,
    pub ends: Ends,
    pub rope: RopeTable,
    pub layers: Vec<Layer>,
}

/// Weights of one layer.
pub(super) struct Layer {
    pub attention_norm: Norm,
    pub attention: AttentionKind,
    pub feed_forward_norm: Norm,
    pub feed_forward: FeedForwardKind,
}

/// How tokens look at those before them.
pub(super) enum AttentionKind {
    Heads(AttentionPart),
    Latent(LatentPart),
}

/// What is computed of each token by itself.
pub(super) enum FeedForwardKind {
    Dense(Box<FeedForward>),
    Mixture(Box<Mixture>),
}

impl Layer {
    /// A layer of these parts, and the two norms before them under their usual names.
    ///
    /// # Errors
    /// As for [`Source::layer_norm`].
    pub fn new(
        source: &mut Source,
        layer: usize,
        shape: &Shape,
        (attention, feed_forward): (AttentionKind, FeedForwardKind),
    ) -> Result<Layer, Error> {
        Ok(Layer {
            attention_norm: source.before_attention(layer, shape)?,
            attention,
            feed_forward_norm: source.before_feed_forward(layer, shape)?,
            feed_forward,
        })
    }

    /// A layer as Llama has it: heads with these settings, and a gated SiLU feed-forward part.
    ///
    /// # Errors
    /// Any of [`Error`] about tensors.
    pub fn dense(
        source: &mut Source,
        layer: usize,
        shape: &Shape,
        settings: AttentionSettings,
    ) -> Result<Layer, Error> {
        let attention = AttentionKind::Heads(source.attention(layer, shape, settings)?);
        let feed_forward = source.feed_forward(layer, shape, Activation::Silu)?;
        Layer::new(source, layer, shape, (attention, FeedForwardKind::Dense(Box::new(feed_forward))))
    }
}

impl Decoder {
    /// The model, ready to run.
    pub fn shared(self) -> Arc<dyn Model> {
        Arc::new(self)
    }

    /// Takes a step through all layers.
    pub fn run(&self, mut pass: Pass<'_>) {
        pass.embed(&self.ends, 1.0);
        for (index, layer) in self.layers.iter().enumerate() {
            pass.enter(&layer.attention_norm);
            match &layer.attention {
                AttentionKind::Heads(part) => pass.attend(part, &self.rope),
                AttentionKind::Latent(part) => pass.attend_latent(index, part, &self.rope),
            }
            pass.leave(None);
            pass.enter(&layer.feed_forward_norm);
            match &layer.feed_forward {
                FeedForwardKind::Dense(part) => pass.feed_forward(part),
                FeedForwardKind::Mixture(part) => pass.mixture(part),
            }
            pass.leave(None);
            pass.deepen(index);
        }
        pass.finish(&self.ends);
    }
}

impl Model for Decoder {
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
        self.run(Pass::begin(&self.facts, step, kv, scratch, backend)?);
        Ok(())
    }
}
