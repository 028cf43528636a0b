//! Shapes and numbers of each family, as one type per family whatever the file that gave them: `config.json` in the
//! style of released checkpoints or as transformers 5 writes it, or GGUF metadata.

pub(crate) mod rope;
pub(crate) mod settings;

use rope::{Rope, Scaling};
use settings::Settings;

use crate::error::Error;

/// Bounds of what is believed; far above any model, far below what would exhaust memory.
const LAYERS_MAX: usize = 1 << 12;
/// Bound of widths and of the vocabulary.
const WIDTH_MAX: usize = 1 << 24;
/// Bound of positions.
const CONTEXT_MAX: usize = 1 << 24;
/// Bound of the size of a head.
const HEAD_MAX: usize = 1 << 12;

/// What all families of decoders have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub intermediate: usize,
    /// Heads of queries; a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Values per head; even.
    pub head_dim: usize,
    /// None: as many as the embedding matrix has rows.
    pub vocab: Option<usize>,
    /// Positions the model was made for.
    pub context: u32,
    /// Added to the mean square in norms.
    pub eps: f32,
}

/// Settings of the family `llama`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Llama {
    pub shape: Shape,
    pub rope: Rope,
    /// The output matrix is the embedding matrix; none: it is, if the files have no other.
    pub tied: Option<bool>,
}

/// Settings of the family `gemma3` (text).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gemma3 {
    pub shape: Shape,
    /// Of the layers that see a window.
    pub local: Rope,
    /// Of the layers that see everything.
    pub global: Rope,
    /// Positions a token sees in the layers with a window, itself included.
    pub window: u32,
    /// Which layers have a window.
    pub sliding: Vec<bool>,
    /// Factor of the attention scores.
    pub scale: f32,
    /// As for [`Llama`].
    pub tied: Option<bool>,
}

impl Llama {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<Llama, Error> {
        for off in ["attention_bias", "mlp_bias"] {
            settings.must(off, &["false"])?;
        }
        settings.must("hidden_act", &["silu"])?;
        for absent in [
            "quantization_config",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "logits_scaling",
            "residual_multiplier",
            "embedding_multiplier",
            "attention_multiplier",
            "num_local_experts",
            "no_rope_layers",
        ] {
            settings.must(absent, &[])?;
        }
        settings.must("partial_rotary_factor", &["1"])?;
        let shape = Shape::from_json(settings)?;
        let rope = Rope::from_json(settings, "rope_theta", 10_000.0)?;
        Ok(Llama { shape, rope, tied: Some(settings.flag_or("tie_word_embeddings", false)?) })
    }

    /// From GGUF metadata; `settings` reads keys below `llama.`.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Llama, Error> {
        settings.must("expert_count", &["0"])?;
        settings.must("expert_used_count", &["0"])?;
        settings.must("attention.causal", &["true"])?;
        let shape = Shape::from_gguf(settings)?;
        let rope = Rope::from_gguf(settings)?;
        settings.refuse_unasked()?;
        Ok(Llama { shape, rope, tied: None })
    }
}

impl Gemma3 {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<Gemma3, Error> {
        settings.must("attention_bias", &["false"])?;
        settings.must("use_bidirectional_attention", &["false"])?;
        let activation = ["gelu_pytorch_tanh"];
        settings.must("hidden_activation", &activation)?;
        if !settings.has("hidden_activation") {
            settings.must("hidden_act", &activation)?;
        }
        for absent in ["quantization_config", "attn_logit_softcapping", "final_logit_softcapping"] {
            settings.must(absent, &[])?;
        }
        let shape = Shape::from_json(settings)?;
        let local = Rope::of_layers(settings, "sliding_attention", ("rope_local_base_freq", 10_000.0))?;
        let global = Rope::of_layers(settings, "full_attention", ("rope_theta", 1_000_000.0))?;
        let window = settings.count("sliding_window", CONTEXT_MAX)? as u32;
        let sliding = sliding_from_json(settings, shape.layers)?;
        let scale = settings.float("query_pre_attn_scalar")?.powf(-0.5) as f32;
        let tied = Some(settings.flag_or("tie_word_embeddings", true)?);
        Ok(Gemma3 { shape, local, global, window, sliding, scale, tied })
    }

    /// From GGUF metadata; `settings` reads keys below `gemma3.`.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Gemma3, Error> {
        for absent in ["attn_logit_softcapping", "final_logit_softcapping"] {
            settings.must(absent, &["0"])?;
        }
        settings.must("attention.causal", &["true"])?;
        let shape = Shape::from_gguf(settings)?;
        let global = Rope::from_gguf(settings)?;
        let local_base = settings.float_or("rope.freq_base_swa", 10_000.0)?;
        let local = Rope { base: local_base, scaling: Scaling::None };
        let window = settings.count("attention.sliding_window", CONTEXT_MAX)? as u32;
        let pattern = settings.count_or("attention.sliding_window_pattern", 6, LAYERS_MAX)?;
        let sliding = every(pattern, shape.layers);
        // GGUF does not store the query scale. It is that of the head size, except in the model of 62 layers (27B),
        // where it is the width per head.
        let scalar = if shape.layers == 62 { shape.hidden / shape.heads } else { shape.head_dim };
        let scale = (scalar as f64).powf(-0.5) as f32;
        settings.refuse_unasked()?;
        Ok(Gemma3 { shape, local, global, window, sliding, scale, tied: None })
    }
}

impl Shape {
    /// From `config.json`.
    fn from_json(settings: &Settings<'_>) -> Result<Shape, Error> {
        let heads = settings.count("num_attention_heads", WIDTH_MAX)?;
        let hidden = settings.count("hidden_size", WIDTH_MAX)?;
        let shape = Shape {
            layers: settings.count("num_hidden_layers", LAYERS_MAX)?,
            hidden,
            intermediate: settings.count("intermediate_size", WIDTH_MAX)?,
            heads,
            kv_heads: settings.count_or("num_key_value_heads", heads, WIDTH_MAX)?,
            head_dim: settings.count_or("head_dim", hidden / heads, HEAD_MAX)?,
            vocab: Some(settings.count("vocab_size", WIDTH_MAX)?),
            context: settings.count("max_position_embeddings", CONTEXT_MAX)? as u32,
            eps: settings.float_or("rms_norm_eps", 1e-6)? as f32,
        };
        shape.check(settings, "num_attention_heads")
    }

    /// From GGUF metadata.
    fn from_gguf(settings: &Settings<'_>) -> Result<Shape, Error> {
        let heads = settings.count("attention.head_count", WIDTH_MAX)?;
        let hidden = settings.count("embedding_length", WIDTH_MAX)?;
        let head_dim = settings.count_or("attention.key_length", hidden / heads, HEAD_MAX)?;
        let only = head_dim.to_string();
        settings.must("attention.value_length", &[&only])?;
        settings.must("rope.dimension_count", &[&only])?;
        let vocab =
            settings.has("vocab_size").then(|| settings.count("vocab_size", WIDTH_MAX)).transpose()?;
        let shape = Shape {
            layers: settings.count("block_count", LAYERS_MAX)?,
            hidden,
            intermediate: settings.count("feed_forward_length", WIDTH_MAX)?,
            heads,
            kv_heads: settings.count_or("attention.head_count_kv", heads, WIDTH_MAX)?,
            head_dim,
            vocab,
            context: settings.count("context_length", CONTEXT_MAX)? as u32,
            eps: settings.float("attention.layer_norm_rms_epsilon")? as f32,
        };
        shape.check(settings, "attention.head_count")
    }

    /// Refuses numbers that do not go together.
    fn check(self, settings: &Settings<'_>, key: &str) -> Result<Shape, Error> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(settings.wrong(key, format!("{} heads cannot share {}", self.heads, self.kv_heads)));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(
                settings.wrong(key, format!("a head of {} values cannot turn in pairs", self.head_dim))
            );
        }
        Ok(self)
    }
}

/// Which layers of Gemma 3 have a window: a list of kinds, or every so manieth has none.
fn sliding_from_json(settings: &Settings<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let Some(kinds) = settings.texts("layer_types")? else {
        let key =
            ["sliding_window_pattern", "_sliding_window_pattern"].into_iter().find(|key| settings.has(key));
        let pattern = key.map_or(Ok(6), |key| settings.count(key, LAYERS_MAX))?;
        return Ok(every(pattern, layers));
    };
    if kinds.len() != layers {
        return Err(settings.wrong("layer_types", format!("{} kinds for {layers} layers", kinds.len())));
    }
    let kind = |kind: &String| match kind.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            Err(settings.unsupported("layer_types", other.to_owned(), "sliding_attention, full_attention"))
        }
    };
    kinds.iter().map(kind).collect()
}

/// A window in all layers but every `pattern`th.
fn every(pattern: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|layer| !layer.is_multiple_of(pattern)).collect()
}
