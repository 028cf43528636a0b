//! Tensors by what they are, whatever a format calls them: one place that knows the names of both.

use super::Facts;
use super::parts::{AttentionPart, Ends, FeedForward, Norm};
use crate::config::Shape;
use crate::error::Error;
use crate::matrix::Matrix;
use crate::op::{Activation, Pairing};
use crate::weights::Weights;

/// Name of a tensor of a layer: in a folder, in a GGUF file.
pub(super) type Name = (&'static str, &'static str);

/// Which names the tensors have.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Naming {
    /// Folder of safetensors, named as in Hugging Face transformers.
    Folder,
    /// GGUF file.
    Gguf,
}

/// Tokens that a model's files name.
pub(super) struct Tokens {
    pub bos: Option<u32>,
    /// Ascending.
    pub eos: Vec<u32>,
}

/// Weights on their way into a family.
pub(super) struct Source {
    pub weights: Weights,
    pub naming: Naming,
    pub tokens: Tokens,
    /// The norms of the family multiply by one plus what a folder stores; GGUF files store the sum.
    pub norms_add_one: bool,
}

/// Settings of [`Source::attention`] that are not in the shape.
pub(super) struct AttentionSettings {
    /// Queries and keys have norms.
    pub norms: bool,
    pub scale: f32,
    pub window: Option<u32>,
    pub pairing: Pairing,
}

impl Source {
    /// Embedding, last norm and output matrix. The vocabulary is the number of rows.
    pub fn ends(&mut self, shape: &Shape, tied: Option<bool>) -> Result<Ends, Error> {
        let (embedding, norm, output) = match self.naming {
            Naming::Folder => ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"),
            Naming::Gguf => ("token_embd.weight", "output_norm.weight", "output.weight"),
        };
        let rows = self.weights.shape(embedding).and_then(|shape| shape.first().copied());
        let vocab = shape.vocab.or(rows).unwrap_or_default();
        let embedding = self.weights.matrix(embedding, vocab, shape.hidden)?;
        let norm = self.norm(norm, shape.hidden, shape.eps)?;
        let tied = tied.unwrap_or(!self.weights.has(output));
        let output = if tied { None } else { Some(self.weights.matrix(output, vocab, shape.hidden)?) };
        Ok(Ends { embedding, norm, output })
    }

    /// Attention of a layer.
    pub fn attention(
        &mut self,
        layer: usize,
        shape: &Shape,
        settings: AttentionSettings,
    ) -> Result<AttentionPart, Error> {
        let AttentionSettings { norms, scale, window, pairing } = settings;
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let hidden = shape.hidden;
        let query = self.matrix(layer, ("self_attn.q_proj", "attn_q"), [queries, hidden])?;
        let key = self.matrix(layer, ("self_attn.k_proj", "attn_k"), [keys, hidden])?;
        let value = self.matrix(layer, ("self_attn.v_proj", "attn_v"), [keys, hidden])?;
        let output = self.matrix(layer, ("self_attn.o_proj", "attn_output"), [hidden, queries])?;
        let norms = if norms {
            let eps = shape.eps;
            let query = self.layer_norm(layer, ("self_attn.q_norm", "attn_q_norm"), shape.head_dim, eps)?;
            let key = self.layer_norm(layer, ("self_attn.k_norm", "attn_k_norm"), shape.head_dim, eps)?;
            Some((query, key))
        } else {
            None
        };
        Ok(AttentionPart { query, key, value, output, norms, heads: shape.heads, scale, window, pairing })
    }

    /// Gated feed-forward part of a layer.
    pub fn feed_forward(
        &mut self,
        layer: usize,
        shape: &Shape,
        activation: Activation,
    ) -> Result<FeedForward, Error> {
        let (hidden, intermediate) = (shape.hidden, shape.intermediate);
        Ok(FeedForward {
            gate: self.matrix(layer, ("mlp.gate_proj", "ffn_gate"), [intermediate, hidden])?,
            up: self.matrix(layer, ("mlp.up_proj", "ffn_up"), [intermediate, hidden])?,
            down: self.matrix(layer, ("mlp.down_proj", "ffn_down"), [hidden, intermediate])?,
            activation,
        })
    }

    /// A norm of a layer.
    pub fn layer_norm(&mut self, layer: usize, name: Name, len: usize, eps: f32) -> Result<Norm, Error> {
        let name = self.name(layer, name);
        self.norm(&name, len, eps)
    }

    /// What is known of the model once all weights are taken; refuses those that are left, except `unused` ones.
    pub fn finish(
        self,
        family: &'static str,
        shape: &Shape,
        ends: &Ends,
        unused: impl Fn(&str) -> bool,
    ) -> Result<Facts, Error> {
        let (parameters, bytes) = self.weights.taken();
        let tied = ends.output.is_none();
        self.weights.finish(|name| unused(name) || tied && name == "lm_head.weight")?;
        Ok(Facts {
            family,
            vocab: ends.embedding.rows,
            context: shape.context,
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            parameters,
            bytes,
            eos: self.tokens.eos,
            bos: self.tokens.bos,
        })
    }

    fn matrix(&mut self, layer: usize, name: Name, [rows, cols]: [usize; 2]) -> Result<Matrix, Error> {
        let name = self.name(layer, name);
        self.weights.matrix(&name, rows, cols)
    }

    fn norm(&mut self, name: &str, len: usize, eps: f32) -> Result<Norm, Error> {
        let mut weight = self.weights.vector(name, len)?;
        if self.norms_add_one && self.naming == Naming::Folder {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(Norm { weight, eps })
    }

    fn name(&self, layer: usize, (folder, gguf): Name) -> String {
        match self.naming {
            Naming::Folder => format!("model.layers.{layer}.{folder}.weight"),
            Naming::Gguf => format!("blk.{layer}.{gguf}.weight"),
        }
    }
}
