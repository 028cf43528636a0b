//! Settings of the family `deepseek_v41`: which layers compress keys, which choose among them, and what they share.

use super::rope::{Rope, Scaling};
use super::settings::Settings;
use super::{CONTEXT_MAX, EXPERTS_MAX, HEAD_MAX, LAYERS_MAX, Mixture, Shape, WIDTH_MAX};
use crate::error::Error;

/// Bound of residual streams.
const STREAMS_MAX: usize = 16;
/// Bound of rounds that make mixes doubly stochastic.
const ROUNDS_MAX: usize = 1_000;

/// Settings of the family `deepseek_v41`. In its shape there is one head of keys, which are the values too, and
/// `intermediate` is the width of an expert.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeepSeekV41 {
    pub shape: Shape,
    /// Values of a head that turn, the last ones.
    pub turning: usize,
    /// Width of the latent that queries are made from.
    pub query_rank: usize,
    /// Groups of heads whose results go through a narrow product of their own, and its width.
    pub groups: (usize, usize),
    /// Positions that a window holds.
    pub window: usize,
    /// Tokens of a compressed entry, for each layer; 0: the layer sees its window only.
    pub ratios: Vec<usize>,
    /// Layers that make compressed entries, for themselves and those behind, ascending.
    pub sources: Vec<usize>,
    /// Layers that choose entries, for themselves and those behind, ascending.
    pub choosers: Vec<usize>,
    /// Heads of the queries that choose, and values of one.
    pub index_heads: (usize, usize),
    /// Entries that are chosen.
    pub chosen: usize,
    pub candidates: Option<Candidates>,
    /// Turning in layers that see their window only, and in those that see entries.
    pub ropes: (Rope, Rope),
    pub mixture: Mixture,
    /// Experts that compute every token; their widths add up to one wide one.
    pub shared: usize,
    /// Factor of the experts' weights, which sum to one.
    pub weight_scale: f32,
    /// Bound of both sides of a gate.
    pub limit: f32,
    /// Residual streams.
    pub streams: usize,
    /// Added where mixes are divided, and rounds of that.
    pub mix: (f32, usize),
    pub drafter: Option<Drafter>,
    /// Token that stands for a piece of an image.
    pub image_token: Option<u32>,
}

/// A chooser that also chooses where those behind it look.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidates {
    /// Its layer.
    pub layer: usize,
    /// Consecutive entries that are kept together.
    pub size: usize,
    /// How many of them are kept.
    pub kept: usize,
}

/// Layers that guess further tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drafter {
    pub layers: usize,
    /// Layers of the model whose input the guesses rest on.
    pub targets: Vec<usize>,
    /// Tokens that are guessed at once.
    pub block: usize,
    /// Token that stands where a guess is wanted.
    pub noise: u32,
    /// Width of what a guess knows of the one before.
    pub rank: usize,
    pub mixture: Mixture,
}

impl DeepSeekV41 {
    /// From `config.json`.
    pub fn from_json(all: &Settings<'_>) -> Result<DeepSeekV41, Error> {
        let section = all.section("text_config")?;
        let text = section.as_ref().unwrap_or(all);
        for (key, known) in [
            ("attention_bias", "false"),
            ("hidden_act", "silu"),
            ("scoring_func", "sqrtsoftplus"),
            ("topk_method", "noaux_tc"),
            ("norm_topk_prob", "true"),
            ("tie_word_embeddings", "false"),
            ("num_key_value_heads", "1"),
        ] {
            text.must(key, &[known])?;
        }
        let shape = shape(text)?;
        let experts = (&["n_routed_experts"][..], "num_experts_per_tok", "moe_intermediate_size");
        let plain = Rope { base: text.float_or("rope_theta", 10_000.0)?, scaling: Scaling::None };
        DeepSeekV41 {
            turning: text.count("qk_rope_head_dim", HEAD_MAX)?,
            query_rank: text.count("q_lora_rank", WIDTH_MAX)?,
            groups: (text.count("o_groups", WIDTH_MAX)?, text.count("o_lora_rank", WIDTH_MAX)?),
            window: text.count("sliding_window", CONTEXT_MAX)?,
            ratios: whole(text, "compress_ratios")?,
            sources: whole(text, "kv_source_layer_ids")?,
            choosers: whole(text, "index_source_layer_ids")?,
            index_heads: (text.count("index_n_heads", WIDTH_MAX)?, text.count("index_head_dim", HEAD_MAX)?),
            chosen: text.count("index_topk", CONTEXT_MAX)?,
            candidates: candidates(text)?,
            ropes: (plain, Rope::from_json(text, "compress_rope_theta", 10_000.0)?),
            mixture: Mixture::from(text, experts)?,
            shared: text.count("n_shared_experts", EXPERTS_MAX)?,
            weight_scale: text.float_or("routed_scaling_factor", 1.0)? as f32,
            limit: text.float("swiglu_limit")? as f32,
            streams: text.count("hc_mult", STREAMS_MAX)?,
            mix: (text.float("hc_eps")? as f32, text.count("hc_sinkhorn_iters", ROUNDS_MAX)?),
            drafter: Drafter::from_json(text)?,
            image_token: all.token("image_token_id")?,
            shape,
        }
        .check(text)
    }

    /// The first layer whose entries are single tokens, if there is one: what lies before it makes no use of them.
    pub fn first_decoder(&self) -> Option<usize> {
        self.ratios[..self.shape.layers].iter().position(|&ratio| ratio == 1)
    }

    /// The last of `layers` that is not behind `layer`.
    pub fn last_of(layers: &[usize], layer: usize) -> Option<usize> {
        layers.iter().copied().rfind(|&of| of <= layer)
    }

    /// Refuses numbers that do not go together.
    fn check(self, text: &Settings<'_>) -> Result<DeepSeekV41, Error> {
        let Shape { layers, heads, head_dim, .. } = self.shape;
        let all = layers + self.drafter.as_ref().map_or(0, |drafter| drafter.layers);
        let drafts = self.ratios.get(layers..all);
        if drafts.is_none_or(|drafts| drafts.iter().any(|&ratio| ratio != 0)) || self.ratios.len() > all {
            let problem = format!("{:?} for {layers} layers and {} that draft", self.ratios, all - layers);
            return Err(text.wrong("compress_ratios", problem));
        }
        if let Some(ratio) = self.ratios.iter().find(|&&ratio| ratio > 2) {
            return Err(text.unsupported("compress_ratios", ratio.to_string(), "0, 1, 2"));
        }
        for (key, ids) in [("kv_source_layer_ids", &self.sources), ("index_source_layer_ids", &self.choosers)]
        {
            let compressed = |&layer: &usize| layer < layers && self.ratios[layer] > 0;
            if !ids.is_sorted_by(|a, b| a < b) || !ids.iter().all(compressed) {
                return Err(text.wrong(key, format!("{ids:?} are not ascending layers that compress")));
            }
        }
        self.check_sharing(text)?;
        let (_, index_dim) = self.index_heads;
        let odd = !self.turning.is_multiple_of(2);
        if odd || self.turning > head_dim || self.turning > index_dim && !self.choosers.is_empty() {
            let problem =
                format!("{} of {head_dim} or {index_dim} values cannot turn in pairs", self.turning);
            return Err(text.wrong("qk_rope_head_dim", problem));
        }
        if !heads.is_multiple_of(self.groups.0) {
            return Err(text.wrong("o_groups", format!("{heads} heads in {} groups", self.groups.0)));
        }
        Ok(self)
    }

    /// Refuses layers that use each other's keys or choices in an order that cannot be.
    fn check_sharing(&self, text: &Settings<'_>) -> Result<(), Error> {
        let ratios = &self.ratios[..self.shape.layers];
        let source = |layer: usize| DeepSeekV41::last_of(&self.sources, layer);
        for (layer, &ratio) in ratios.iter().enumerate().filter(|(_, ratio)| **ratio > 0) {
            let from = source(layer).filter(|&from| ratios[from] == ratio);
            let chooser = DeepSeekV41::last_of(&self.choosers, layer);
            let chooses_there = chooser.is_some_and(|chooser| source(chooser) == from);
            if from.is_none() || !chooses_there {
                let problem =
                    format!("layer {layer} finds no source and choice of entries of {ratio} tokens");
                return Err(text.wrong("kv_source_layer_ids", problem));
            }
        }
        // Blocks hold the entries of pairs first.
        if !self.sources.is_sorted_by_key(|&source| std::cmp::Reverse(ratios[source])) {
            let problem = "a source of pairs behind one of single tokens".to_owned();
            return Err(text.unsupported("compress_ratios", problem, "pairs first"));
        }
        if let Some(candidates) = &self.candidates {
            let layer = candidates.layer;
            let behind = self.choosers.iter().filter(|&&chooser| chooser > layer);
            let mut others = behind.filter(|&&chooser| source(chooser) != source(layer));
            if !self.choosers.contains(&layer) || others.next().is_some() {
                let problem = format!("layer {layer} does not choose for all choosers behind it");
                return Err(text.wrong("candidate_source_layer_id", problem));
            }
        }
        Ok(())
    }
}

/// What all decoders have.
fn shape(text: &Settings<'_>) -> Result<Shape, Error> {
    Shape {
        layers: text.count("num_hidden_layers", LAYERS_MAX)?,
        hidden: text.count("hidden_size", WIDTH_MAX)?,
        intermediate: text.count("moe_intermediate_size", WIDTH_MAX)?,
        heads: text.count("num_attention_heads", WIDTH_MAX)?,
        kv_heads: 1,
        head_dim: text.count("head_dim", HEAD_MAX)?,
        vocab: Some(text.count("vocab_size", WIDTH_MAX)?),
        context: text.count("max_position_embeddings", CONTEXT_MAX)? as u32,
        eps: text.float("rms_norm_eps")? as f32,
    }
    .check(text, "head_dim")
}

/// The chooser whose layer is named, if one is.
fn candidates(text: &Settings<'_>) -> Result<Option<Candidates>, Error> {
    let key = "candidate_source_layer_id";
    let Some(layer) = text.number(key)?.filter(|&layer| layer >= 0.0) else { return Ok(None) };
    let (size, kept) = (
        text.count_or("candidate_block_size", 8, CONTEXT_MAX)?,
        text.count("candidate_topk_blocks", CONTEXT_MAX)?,
    );
    Ok(Some(Candidates { layer: layer as usize, size, kept }))
}

impl Drafter {
    /// The drafting layers, if the settings have any.
    fn from_json(text: &Settings<'_>) -> Result<Option<Drafter>, Error> {
        let key = "num_nextn_predict_layers";
        if !text.has(key) || text.is_zero(key) {
            return Ok(None);
        }
        let experts =
            (&["dspark_n_routed_experts"][..], "dspark_num_experts_per_tok", "moe_intermediate_size");
        let targets = whole(text, "dspark_target_layer_ids")?;
        let layers = text.count("num_hidden_layers", LAYERS_MAX)?;
        if targets.is_empty() || targets.iter().any(|&target| target >= layers) {
            return Err(text.wrong("dspark_target_layer_ids", format!("{targets:?} of {layers} layers")));
        }
        let noise = text.token("dspark_noise_token_id")?;
        Ok(Some(Drafter {
            layers: text.count(key, LAYERS_MAX)?,
            targets,
            block: text.count("dspark_block_size", CONTEXT_MAX)?,
            noise: noise.ok_or_else(|| text.wrong("dspark_noise_token_id", "is missing".to_owned()))?,
            rank: text.count("dspark_markov_rank", WIDTH_MAX)?,
            mixture: Mixture::from(text, experts)?,
        }))
    }
}

/// A list of whole numbers; empty if there is none.
fn whole(settings: &Settings<'_>, key: &str) -> Result<Vec<usize>, Error> {
    let numbers = settings.numbers(key)?;
    match numbers.iter().find(|number| number.fract() != 0.0 || !(0.0..1e9).contains(*number)) {
        Some(number) => Err(settings.wrong(key, format!("{number} is no whole number"))),
        None => Ok(numbers.into_iter().map(|number| number as usize).collect()),
    }
}
