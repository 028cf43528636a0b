//! Settings of the family `gpt_oss`.

use super::rope::Rope;
use super::settings::Settings;
use super::{CONTEXT_MAX, LAYERS_MAX, Mixture, Shape, every, sliding_from_types};
use crate::error::Error;

/// Bound of the two sides of a gate, where the settings do not say.
const LIMIT: f64 = 7.0;
/// Factor in the sigmoid of a gate, where the settings do not say.
const SLOPE: f64 = 1.702;

/// Settings of the family `gpt_oss`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GptOss {
    pub shape: Shape,
    pub rope: Rope,
    /// Positions a token sees in the layers with a window, itself included.
    pub window: u32,
    /// Which layers have a window.
    pub sliding: Vec<bool>,
    pub mixture: Mixture,
    /// Bound of the two sides of a gate.
    pub limit: f32,
    /// Factor in the sigmoid of a gate.
    pub slope: f32,
}

impl GptOss {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<GptOss, Error> {
        settings.must("attention_bias", &["true"])?;
        settings.must("hidden_act", &["silu"])?;
        settings.must("tie_word_embeddings", &["false"])?;
        let shape = Shape::from_json(settings)?;
        let rope = Rope::from_json(settings, "rope_theta", 150_000.0)?;
        let window = settings.count("sliding_window", CONTEXT_MAX)? as u32;
        let sliding = sliding_from_types(settings, shape.layers)?.unwrap_or_else(|| every(2, shape.layers));
        let count = ["num_local_experts", "num_experts"];
        let per_token =
            if settings.has("num_experts_per_tok") { "num_experts_per_tok" } else { "experts_per_token" };
        let mixture = Mixture::from(settings, (&count, per_token, "intermediate_size"))?;
        let limit = settings.float_or("swiglu_limit", LIMIT)? as f32;
        let slope = settings.float_or("swiglu_alpha", SLOPE)? as f32;
        Ok(GptOss { shape, rope, window, sliding, mixture, limit, slope })
    }

    /// From GGUF metadata; `settings` reads keys below `gpt-oss.`.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<GptOss, Error> {
        // Softmax of those chosen.
        settings.must("expert_gating_func", &["3"])?;
        let shape = Shape::from_gguf(settings)?;
        // GGUF files do not say that the family's ramp is not cut to whole pairs.
        let rope = Rope::from_gguf(settings)?.untruncated();
        let window = settings.count("attention.sliding_window", CONTEXT_MAX)? as u32;
        let pattern = settings.count_or("attention.sliding_window_pattern", 2, LAYERS_MAX)?;
        let sliding = every(pattern, shape.layers);
        let mixture = Mixture::from_gguf(settings)?;
        settings.refuse_unasked()?;
        Ok(GptOss { shape, rope, window, sliding, mixture, limit: LIMIT as f32, slope: SLOPE as f32 })
    }
}
