//! Weights of this family under the names that released checkpoints have.

use super::super::parts::{Ends, FeedForward, Linear, Mixture, Norm};
use super::super::route::{Choice, Lifted, Rule};
use super::super::source::Source;
use super::engram::{Engram, EngramRows};
use super::parts::{AttentionPart, Block, ChooserPart, DraftPart, Lookup, Mix, SourcePart};
use crate::config::{self, DeepSeekV41, Drafter};
use crate::error::Error;
use crate::experts::Expert;
use crate::matrix::Matrix;
use crate::op::Activation;
use crate::select::Stage;

/// Takes the weights of a model out of its files.
pub(super) struct Taker<'a> {
    pub source: &'a mut Source,
    pub config: &'a DeepSeekV41,
    pub engram: Option<&'a Engram>,
}

impl Taker<'_> {
    /// What stands before and behind the layers.
    pub fn ends(&mut self) -> Result<Ends, Error> {
        let (vocab, hidden) = (self.vocab(), self.config.shape.hidden);
        let embedding = self.source.weights.stored("embed.weight", vocab, hidden)?;
        let norm = self.norm("norm.weight", hidden)?;
        Ok(Ends { embedding, norm, output: Some(self.matrix("head.weight", vocab, hidden)?) })
    }

    /// A layer of the model.
    pub fn layer(&mut self, layer: usize) -> Result<Block, Error> {
        let mixture = self.config.mixture.clone();
        let mut block = self.block(&format!("layers.{layer}."), &mixture)?;
        self.source.count(&block.mixture.experts, &block.mixture.choice);
        let config = self.config;
        let attention = &mut block.attention;
        if config.ratios[layer] > 0 {
            let from = DeepSeekV41::last_of(&config.sources, layer);
            attention.reads = config.sources.iter().position(|&source| Some(source) == from);
        }
        if let Some(index) = config.sources.iter().position(|&source| source == layer) {
            attention.source = Some(self.source_part(layer, index)?);
        }
        if config.choosers.contains(&layer) {
            attention.chooser = Some(self.chooser(layer)?);
        }
        block.lookup = self.lookup(layer)?;
        let targets = config.drafter.as_ref().map_or(&[][..], |drafter| &drafter.targets);
        block.feature = targets.iter().position(|&target| target == layer);
        Ok(block)
    }

    /// The drafter.
    pub fn drafts(&mut self, drafter: &Drafter) -> Result<DraftPart, Error> {
        let hidden = self.config.shape.hidden;
        let (vocab, rank) = (self.vocab(), drafter.rank);
        let block = |layer: usize| self.block(&format!("mtp.{layer}."), &drafter.mixture);
        let blocks = (0..drafter.layers).map(block).collect::<Result<_, _>>()?;
        let last = format!("mtp.{}.", drafter.layers - 1);
        let head =
            self.source.weights.stored(&format!("{last}confidence_head.proj.weight"), 1, hidden + rank)?;
        Ok(DraftPart {
            blocks,
            entry: self.matrix("mtp.0.main_proj.weight", hidden, drafter.targets.len() * hidden)?,
            entry_norm: self.norm("mtp.0.main_norm.weight", hidden)?,
            norm: self.norm(&format!("{last}norm.weight"), hidden)?,
            markov: (
                self.source.weights.stored(&format!("{last}markov_head.embed.weight"), vocab, rank)?,
                self.matrix(&format!("{last}markov_head.head.weight"), vocab, rank)?,
            ),
            confidence: head.to_f32(),
            block: drafter.block,
            noise: drafter.noise,
        })
    }

    /// What all layers have.
    fn block(&mut self, prefix: &str, mixture: &config::Mixture) -> Result<Block, Error> {
        let hidden = self.config.shape.hidden;
        Ok(Block {
            attention_norm: self.norm(&format!("{prefix}attn_norm.weight"), hidden)?,
            attention_mix: self.mix(&format!("{prefix}hc_attn"))?,
            attention: self.attention(&format!("{prefix}attn."))?,
            feed_forward_norm: self.norm(&format!("{prefix}ffn_norm.weight"), hidden)?,
            feed_forward_mix: self.mix(&format!("{prefix}hc_ffn"))?,
            mixture: self.mixture(&format!("{prefix}ffn."), mixture)?,
            lookup: None,
            feature: None,
        })
    }

    fn mix(&mut self, prefix: &str) -> Result<Mix, Error> {
        let streams = self.config.streams;
        let outputs = streams * (2 + streams);
        let cols = streams * self.config.shape.hidden;
        let weight = self.source.weights.stored(&format!("{prefix}_fn"), outputs, cols)?;
        let scale = self.source.weights.vector(&format!("{prefix}_scale"), 3)?;
        let base = self.source.weights.vector(&format!("{prefix}_base"), outputs)?;
        Ok(Mix { weight, scale: [scale[0], scale[1], scale[2]], base })
    }

    fn attention(&mut self, prefix: &str) -> Result<AttentionPart, Error> {
        let config = self.config;
        let (hidden, dim, heads) = (config.shape.hidden, config.shape.head_dim, config.shape.heads);
        let (rank, (groups, narrow)) = (config.query_rank, config.groups);
        let name = |name: &str| format!("{prefix}{name}.weight");
        let all = self.source.weights.stored(&name("wo_a"), groups * narrow, heads / groups * dim)?;
        let group = |group: usize| self.source.weights.packed(&all.part(group * narrow, narrow));
        let groups = (0..groups).map(group).collect::<Result<Vec<Matrix>, Error>>()?;
        Ok(AttentionPart {
            query_down: self.matrix(&name("wq_a"), rank, hidden)?,
            query_norm: self.norm(&name("q_norm"), rank)?,
            query_up: self.matrix(&name("wq_b"), heads * dim, rank)?,
            key: self.matrix(&name("wkv"), dim, hidden)?,
            key_norm: self.norm(&name("kv_norm"), dim)?,
            output: self.matrix(&name("wo_b"), hidden, groups.len() * narrow)?,
            groups,
            sinks: self.source.weights.vector(&format!("{prefix}attn_sink"), heads)?,
            reads: None,
            source: None,
            chooser: None,
        })
    }

    fn source_part(&mut self, layer: usize, index: usize) -> Result<SourcePart, Error> {
        let (hidden, dim) = (self.config.shape.hidden, self.config.shape.head_dim);
        let index_dim = self.config.index_heads.1;
        let name = |name: &str| format!("layers.{layer}.attn.{name}.weight");
        let gate = self.config.ratios[layer] == 2;
        Ok(SourcePart {
            layer: index,
            value: self.matrix(&name("compressor.wkv"), dim, hidden)?,
            gate: gate.then(|| self.matrix(&name("compressor.wgate"), dim, hidden)).transpose()?,
            norm: self.norm(&name("compressor.norm"), dim)?,
            key: self.matrix(&name("indexer.wk"), index_dim, dim)?,
            key_norm: self.norm(&name("indexer.k_norm"), index_dim)?,
        })
    }

    fn chooser(&mut self, layer: usize) -> Result<ChooserPart, Error> {
        let (heads, dim) = self.config.index_heads;
        let name = |name: &str| format!("layers.{layer}.attn.indexer.{name}.weight");
        let staged = self.config.candidates.as_ref().filter(|candidates| layer >= candidates.layer);
        let stage = staged.map(|candidates| Stage {
            size: candidates.size,
            kept: candidates.kept,
            chooses: layer == candidates.layer,
        });
        Ok(ChooserPart {
            query: self.matrix(&name("wq_b"), heads * dim, self.config.query_rank)?,
            weights: self.matrix(&name("weights_proj"), heads, self.config.shape.hidden)?,
            stage,
        })
    }

    fn lookup(&mut self, layer: usize) -> Result<Option<Lookup>, Error> {
        let Some((engram, table)) = self.engram.and_then(|e| Some((e, e.table_of(layer)?))) else {
            return Ok(None);
        };
        let (streams, hidden) = (self.config.streams, self.config.shape.hidden);
        let name = |name: &str| format!("layers.{layer}.engram.{name}");
        let shape = &engram.shape;
        let (weights, count) = (&mut self.source.weights, shape.rows[table]);
        let rows = EngramRows::take(weights, &name("embed.weight"), count, shape.width)?;
        let cols = shape.rows_per_token() * shape.width;
        let mut norms = |which: &str| {
            let norms = self.source.weights.stored(&name(which), streams, hidden)?;
            Ok::<_, Error>(norms.to_f32())
        };
        let norms = (norms("q_weight")?, norms("k_weight")?);
        let key_value = self.matrix(&name("wkv.weight"), (streams + 1) * hidden, cols)?;
        Ok(Some(Lookup { layer, rows, key_value, norms }))
    }

    fn mixture(&mut self, prefix: &str, routed: &config::Mixture) -> Result<Mixture, Error> {
        let config = self.config;
        let (hidden, width) = (config.shape.hidden, routed.intermediate);
        let activation = Activation::ClampedSilu { limit: config.limit };
        let weight = self.matrix(&format!("{prefix}gate.weight"), routed.count, hidden)?;
        let lifted = Lifted {
            bias: self.source.weights.vector(&format!("{prefix}gate.bias"), routed.count)?,
            bias_marked: self.source.weights.vector(&format!("{prefix}gate.bias_vl"), routed.count)?,
            scale: config.weight_scale,
        };
        let mut three = |part: &str, width: usize| {
            let name = |name: &str| format!("{prefix}{part}.{name}.weight");
            Ok::<_, Error>((
                self.matrix(&name("w1"), width, hidden)?,
                self.matrix(&name("w3"), width, hidden)?,
                self.matrix(&name("w2"), hidden, width)?,
            ))
        };
        let (gate, up, down) = three("shared_experts", config.shared * width)?;
        let shared = FeedForward { gate, up, down, activation };
        let mut expert = |index: usize| {
            let (gate, up, down) = three(&format!("experts.{index}"), width)?;
            Ok::<_, Error>(Expert { gate, up, down, bias: None })
        };
        let experts = (0..routed.count).map(&mut expert).collect::<Result<_, _>>()?;
        Ok(Mixture {
            router: Linear { weight, bias: None },
            choice: Choice { per_token: routed.per_token, rule: Rule::Lifted(lifted) },
            experts,
            activation,
            shared: Some(shared),
        })
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        self.source.weights.matrix(name, rows, cols)
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Norm, Error> {
        Ok(Norm { weight: self.source.weights.vector(name, len)?, eps: self.config.shape.eps })
    }

    fn vocab(&self) -> usize {
        self.config.shape.vocab.unwrap_or_default()
    }
}
