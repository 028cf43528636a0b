//! Shapes and numbers of each family, as one type per family whatever the file that gave them: `config.json` in the
//! style of released checkpoints or as transformers 5 writes it, or GGUF metadata.

mod deepseek;
mod deepseek_v41;
mod gemma3;
mod gpt_oss;
mod llama;
pub(crate) mod quantization;
mod qwen;
pub(crate) mod rope;
pub(crate) mod settings;
mod vision;

pub(crate) use deepseek::DeepSeek;
pub(crate) use deepseek_v41::{DeepSeekV41, Drafter};
pub(crate) use gemma3::Gemma3;
pub(crate) use gpt_oss::GptOss;
pub(crate) use llama::Llama;
pub(crate) use qwen::{Qwen2, Qwen3, Qwen3Moe, Qwen3Vl};
pub(crate) use vision::{DeepSeekEyes, QwenEyes, QwenImages, TowerShape};

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
/// Bound of experts of a layer.
const EXPERTS_MAX: usize = 1 << 14;

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

    /// From GGUF metadata, of a family whose keys and values are of one size and turn as a whole.
    fn from_gguf(settings: &Settings<'_>) -> Result<Shape, Error> {
        let shape = Shape::bare_from_gguf(settings)?;
        let only = shape.head_dim.to_string();
        settings.must("attention.value_length", &[&only])?;
        settings.must("rope.dimension_count", &[&only])?;
        settings.must("attention.causal", &["true"])?;
        Ok(shape)
    }

    /// From GGUF metadata; what else it says of heads is not looked at.
    fn bare_from_gguf(settings: &Settings<'_>) -> Result<Shape, Error> {
        let heads = settings.count("attention.head_count", WIDTH_MAX)?;
        let hidden = settings.count("embedding_length", WIDTH_MAX)?;
        let head_dim = settings.count_or("attention.key_length", hidden / heads, HEAD_MAX)?;
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

/// Experts of the layers that have some.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mixture {
    /// Experts of a layer.
    pub count: usize,
    /// How many compute a token; at most `count`.
    pub per_token: usize,
    /// Width of one.
    pub intermediate: usize,
}

impl Mixture {
    /// From settings under these keys: count (of which the first that is there is taken), per token, width.
    fn from(
        settings: &Settings<'_>,
        (count, per_token, width): (&[&str], &str, &str),
    ) -> Result<Mixture, Error> {
        let count = count.iter().find(|key| settings.has(key)).unwrap_or(&count[0]);
        let mixture = Mixture {
            count: settings.count(count, EXPERTS_MAX)?,
            per_token: settings.count(per_token, EXPERTS_MAX)?,
            intermediate: settings.count(width, WIDTH_MAX)?,
        };
        if mixture.per_token > mixture.count {
            let problem = format!("{} of {} experts", mixture.per_token, mixture.count);
            return Err(settings.wrong(per_token, problem));
        }
        Ok(mixture)
    }

    /// From GGUF metadata.
    fn from_gguf(settings: &Settings<'_>) -> Result<Mixture, Error> {
        Mixture::from(settings, (&["expert_count"], "expert_used_count", "expert_feed_forward_length"))
    }
}

/// Which layers have a window, from a list of kinds, if there is one.
fn sliding_from_types(settings: &Settings<'_>, layers: usize) -> Result<Option<Vec<bool>>, Error> {
    let Some(kinds) = settings.texts("layer_types")? else { return Ok(None) };
    if kinds.len() != layers {
        return Err(settings.wrong("layer_types", format!("{} kinds for {layers} layers", kinds.len())));
    }
    let kind = |kind| match kind {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            Err(settings.unsupported("layer_types", other.to_owned(), "sliding_attention, full_attention"))
        }
    };
    kinds.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

/// A window in all layers but every `pattern`th.
fn every(pattern: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|layer| !layer.is_multiple_of(pattern)).collect()
}
