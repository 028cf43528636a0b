//! Settings of the family `gemma3`.

use super::rope::{Rope, Scaling};
use super::settings::Settings;
use super::{CONTEXT_MAX, LAYERS_MAX, Shape, every, sliding_from_types};
use crate::error::Error;

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
    /// The output matrix is the embedding matrix; none: it is, if the files have no other.
    pub tied: Option<bool>,
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
        for absent in ["attn_logit_softcapping", "final_logit_softcapping"] {
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

/// Which layers have a window: a list of kinds, or every so manieth has none.
fn sliding_from_json(settings: &Settings<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    if let Some(sliding) = sliding_from_types(settings, layers)? {
        return Ok(sliding);
    }
    let key = ["sliding_window_pattern", "_sliding_window_pattern"].into_iter().find(|key| settings.has(key));
    let pattern = key.map_or(Ok(6), |key| settings.count(key, LAYERS_MAX))?;
    Ok(every(pattern, layers))
}
