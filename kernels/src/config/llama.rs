//! Settings of the family `llama`.

use super::Shape;
use super::rope::Rope;
use super::settings::Settings;
use crate::error::Error;

/// Settings of the family `llama`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Llama {
    pub shape: Shape,
    pub rope: Rope,
    /// The output matrix is the embedding matrix; none: it is, if the files have no other.
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
