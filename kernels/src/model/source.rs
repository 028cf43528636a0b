//! Tensors by what they are, whatever a format calls them: one place that knows the names of both.

mod experts;
mod latent;

use super::parts::{AttentionPart, Ends, FeedForward, Linear, Norm};
use super::{ExpertFacts, Facts};
use crate::config::Shape;
use crate::config::rope::Rope;
use crate::error::Error;
use crate::kv::Rings;
use crate::matrix::Matrix;
use crate::op::{Activation, Pairing, RopeTable};
use crate::weights::Weights;
use crate::work::WorkFacts;

/// Tensor of a GGUF file that divides the frequencies: how it stores Llama 3 scaling.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Name of a tensor of a layer: in a folder, in a GGUF file. What comes before and behind it is the same for all.
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
#[derive(Default)]
pub(super) struct Tokens {
    pub bos: Option<u32>,
    /// Ascending.
    pub eos: Vec<u32>,
}

/// Tokens that are asked for when all weights are taken: they may be read meanwhile.
pub(super) type Later = Box<dyn FnOnce() -> Result<Tokens, Error>>;

/// Weights on their way into a family.
pub(super) struct Source {
    pub weights: Weights,
    pub naming: Naming,
    /// What the names of the text model's layers begin with in a folder.
    pub root: &'static str,
    pub tokens: Later,
    /// The norms of the family multiply by one plus what a folder stores; GGUF files store the sum.
    pub norms_add_one: bool,
    /// Experts taken so far.
    pub experts: ExpertFacts,
}

/// Settings of [`Source::attention`] that are not in the shape.
pub(super) struct AttentionSettings {
    /// Queries and keys have norms.
    pub norms: bool,
    /// Queries, keys and values have biases.
    pub biases: bool,
    /// The output has a bias.
    pub output_bias: bool,
    /// Heads have sinks.
    pub sinks: bool,
    pub scale: f32,
    pub window: Option<u32>,
    pub pairing: Pairing,
}

impl AttentionSettings {
    /// Nothing but heads that turn by halves.
    pub fn plain(shape: &Shape) -> AttentionSettings {
        AttentionSettings {
            norms: false,
            biases: false,
            output_bias: false,
            sinks: false,
            scale: (shape.head_dim as f64).powf(-0.5) as f32,
            window: None,
            pairing: Pairing::Half,
        }
    }
}

impl Source {
    /// Embedding, last norm and output matrix. The vocabulary is the number of rows.
    pub fn ends(&mut self, shape: &Shape, tied: Option<bool>) -> Result<Ends, Error> {
        let (embedding, norm) =
            (format!("{}.embed_tokens.weight", self.root), format!("{}.norm.weight", self.root));
        let (embedding, norm, output) = match self.naming {
            Naming::Folder => (embedding.as_str(), norm.as_str(), "lm_head.weight"),
            Naming::Gguf => ("token_embd.weight", "output_norm.weight", "output.weight"),
        };
        let rows = self.weights.shape(embedding).and_then(|shape| shape.first().copied());
        let vocab = shape.vocab.or(rows).unwrap_or_default();
        let tied = tied.unwrap_or(!self.weights.has(output));
        // A table that nothing is multiplied with stays in its file: few of its rows are ever read.
        let table = self.weights.stored(embedding, vocab, shape.hidden)?;
        let embedding = if tied { self.weights.packed(&table)? } else { table };
        let norm = self.norm(norm, shape.hidden, shape.eps)?;
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
        let AttentionSettings { norms, biases, output_bias, sinks, scale, window, pairing } = settings;
        let (queries, keys) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let hidden = shape.hidden;
        let query = self.linear(layer, ("self_attn.q_proj", "attn_q"), [queries, hidden], biases)?;
        let key = self.linear(layer, ("self_attn.k_proj", "attn_k"), [keys, hidden], biases)?;
        let value = self.linear(layer, ("self_attn.v_proj", "attn_v"), [keys, hidden], biases)?;
        let output = ("self_attn.o_proj", "attn_output");
        let output = self.linear(layer, output, [hidden, queries], output_bias)?;
        let norms = if norms {
            let eps = shape.eps;
            let query = self.layer_norm(layer, ("self_attn.q_norm", "attn_q_norm"), shape.head_dim, eps)?;
            let key = self.layer_norm(layer, ("self_attn.k_norm", "attn_k_norm"), shape.head_dim, eps)?;
            Some((query, key))
        } else {
            None
        };
        let sinks = if sinks {
            let name = self.tensor(layer, ("self_attn.sinks", "attn_sinks.weight"));
            Some(self.weights.vector(&name, shape.heads)?)
        } else {
            None
        };
        let heads = shape.heads;
        Ok(AttentionPart { query, key, value, output, norms, heads, scale, window, sinks, pairing })
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

    /// Angles for `dim` values of a head that turn, as the settings and the file's own factors say.
    pub fn rope(&mut self, rope: &Rope, dim: usize, context: u32) -> Result<RopeTable, Error> {
        let mut frequencies = rope.frequencies(dim);
        if self.weights.has(ROPE_FACTORS) {
            let factors = self.weights.vector(ROPE_FACTORS, frequencies.len())?;
            frequencies.iter_mut().zip(factors).for_each(|(frequency, factor)| *frequency /= factor);
        }
        Ok(RopeTable::new(&frequencies, rope.stretch(), context as usize))
    }

    /// The norm before attention.
    pub fn before_attention(&mut self, layer: usize, shape: &Shape) -> Result<Norm, Error> {
        self.layer_norm(layer, ("input_layernorm", "attn_norm"), shape.hidden, shape.eps)
    }

    /// The norm before the feed-forward part.
    pub fn before_feed_forward(&mut self, layer: usize, shape: &Shape) -> Result<Norm, Error> {
        self.layer_norm(layer, ("post_attention_layernorm", "ffn_norm"), shape.hidden, shape.eps)
    }

    /// A norm of a layer.
    pub fn layer_norm(&mut self, layer: usize, name: Name, len: usize, eps: f32) -> Result<Norm, Error> {
        let name = self.weight(layer, name);
        self.norm(&name, len, eps)
    }

    /// What is known of the model once all weights are taken; refuses those that are left, except `unused` ones.
    pub fn finish(
        self,
        (family, mut work): (&'static str, WorkFacts),
        shape: &Shape,
        ends: &Ends,
        unused: impl Fn(&str) -> bool,
    ) -> Result<Facts, Error> {
        let (parameters, bytes) = self.weights.taken();
        let tied = ends.output.is_none();
        // A table that is not multiplied with is none of the weights that a step reads.
        let table =
            if tied { (0, 0) } else { (ends.embedding.rows * ends.embedding.cols, ends.embedding.size()) };
        let multiplied = (parameters - table.0 as u64, bytes - table.1 as u64);
        work.found(ends.embedding.rows * ends.embedding.cols, multiplied, &self.experts);
        let Tokens { bos, eos } = (self.tokens)()?;
        self.weights.finish(|name| unused(name) || tied && name == "lm_head.weight")?;
        Ok(Facts {
            family,
            vocab: ends.embedding.rows,
            context: shape.context,
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            key_dim: shape.head_dim,
            value_dim: shape.head_dim,
            hidden: shape.hidden,
            parameters,
            bytes,
            embedding_bytes: ends.embedding.size() as u64,
            tied,
            experts: self.experts,
            eos,
            bos,
            state: None,
            rings: Rings::NONE,
            image_token: None,
            compressed: None,
            work,
        })
    }

    fn matrix(&mut self, layer: usize, name: Name, [rows, cols]: [usize; 2]) -> Result<Matrix, Error> {
        let name = self.weight(layer, name);
        self.weights.matrix(&name, rows, cols)
    }

    /// A matrix and what is added to its products, if it is `biased`.
    fn linear(
        &mut self,
        layer: usize,
        name: Name,
        [rows, cols]: [usize; 2],
        biased: bool,
    ) -> Result<Linear, Error> {
        let weight = self.matrix(layer, name, [rows, cols])?;
        let bias = self.tensor(layer, (&format!("{}.bias", name.0), &format!("{}.bias", name.1)));
        let bias = biased.then(|| self.weights.vector(&bias, rows)).transpose()?;
        Ok(Linear { weight, bias })
    }

    fn norm(&mut self, name: &str, len: usize, eps: f32) -> Result<Norm, Error> {
        let mut weight = self.weights.vector(name, len)?;
        if self.norms_add_one && self.naming == Naming::Folder {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(Norm { weight, eps })
    }

    /// Whole name of a weight of a layer.
    fn weight(&self, layer: usize, (folder, gguf): Name) -> String {
        self.tensor(layer, (&format!("{folder}.weight"), &format!("{gguf}.weight")))
    }

    /// Whole name of a tensor of a layer.
    fn tensor(&self, layer: usize, (folder, gguf): (&str, &str)) -> String {
        match self.naming {
            Naming::Folder => format!("{}.layers.{layer}.{folder}", self.root),
            Naming::Gguf => format!("blk.{layer}.{gguf}"),
        }
    }
}
