//! Settings of the families `qwen2`, `qwen3`, `qwen3_moe` and `qwen3_vl`, which are steps of one road: biases, then norms,
//! then experts or eyes.

use super::rope::Rope;
use super::settings::Settings;
use super::{LAYERS_MAX, Mixture, Shape, sliding_from_types};
use crate::error::Error;

/// Settings of the family `qwen2`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Qwen2 {
    pub shape: Shape,
    pub rope: Rope,
    /// The output matrix is the embedding matrix; none: it is, if the files have no other.
    pub tied: Option<bool>,
}

/// Settings of the family `qwen3`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Qwen3 {
    pub shape: Shape,
    pub rope: Rope,
    /// As for [`Qwen2`].
    pub tied: Option<bool>,
}

/// Settings of the family `qwen3_moe`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Qwen3Moe {
    pub shape: Shape,
    pub rope: Rope,
    /// As for [`Qwen2`].
    pub tied: Option<bool>,
    pub mixture: Mixture,
    /// The weights of a token's experts sum to one.
    pub normalised: bool,
    /// Which layers have experts; the others are dense.
    pub sparse: Vec<bool>,
}

/// Settings of the text model of the family `qwen3_vl`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Qwen3Vl {
    pub text: Qwen3,
    /// Of each pair of a head, by which position it turns: time, row or column.
    pub axes: Vec<u8>,
}

impl Qwen2 {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<Qwen2, Error> {
        let (shape, rope, tied) = common_from_json(settings)?;
        Ok(Qwen2 { shape, rope, tied })
    }

    /// From GGUF metadata; `settings` reads keys below `qwen2.`.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Qwen2, Error> {
        let (shape, rope) = common_from_gguf(settings)?;
        settings.refuse_unasked()?;
        Ok(Qwen2 { shape, rope, tied: None })
    }
}

impl Qwen3 {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<Qwen3, Error> {
        settings.must("attention_bias", &["false"])?;
        let (shape, rope, tied) = common_from_json(settings)?;
        Ok(Qwen3 { shape, rope, tied })
    }

    /// From GGUF metadata; `settings` reads keys below `qwen3.`.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Qwen3, Error> {
        let (shape, rope) = common_from_gguf(settings)?;
        settings.refuse_unasked()?;
        Ok(Qwen3 { shape, rope, tied: None })
    }
}

impl Qwen3Vl {
    /// From the part `text_config`; `tied` as the settings around it say, where this part does not.
    pub fn from_json(settings: &Settings<'_>, tied: Option<bool>) -> Result<Qwen3Vl, Error> {
        let mut text = Qwen3::from_json(settings)?;
        if let Some(tied) = tied {
            text.tied = Some(tied);
        }
        let Some(rope) = settings.section("rope_parameters")?.or(settings.section("rope_scaling")?) else {
            return Err(settings.wrong("rope_scaling", "is missing".to_owned()));
        };
        rope.must("mrope_interleaved", &["true"])?;
        let pairs = text.shape.head_dim / 2;
        let &[time, rows, columns] = rope.numbers("mrope_section")?.as_slice() else {
            return Err(rope.wrong("mrope_section", "is no list of three numbers".to_owned()));
        };
        let fits =
            |count: f64, first: usize| count >= 0.0 && 3.0 * (count - 1.0) + (first as f64) < pairs as f64;
        if time + rows + columns != pairs as f64 || !fits(rows, 1) || !fits(columns, 2) {
            let problem = format!("{time} + {rows} + {columns} pairs of {pairs} cannot alternate");
            return Err(rope.wrong("mrope_section", problem));
        }
        let axis = |pair: usize| match pair % 3 {
            1 if pair < 3 * rows as usize => 1,
            2 if pair < 3 * columns as usize => 2,
            _ => 0,
        };
        Ok(Qwen3Vl { axes: (0..pairs).map(axis).collect(), text })
    }
}

impl Qwen3Moe {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<Qwen3Moe, Error> {
        settings.must("attention_bias", &["false"])?;
        let (shape, rope, tied) = common_from_json(settings)?;
        let count = ["num_experts", "num_local_experts"];
        let mixture = Mixture::from(settings, (&count, "num_experts_per_tok", "moe_intermediate_size"))?;
        let normalised = settings.flag_or("norm_topk_prob", false)?;
        let step = settings.count_or("decoder_sparse_step", 1, LAYERS_MAX)?;
        let dense = settings.numbers("mlp_only_layers")?;
        let sparse = |layer: usize| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as f64));
        let sparse = (0..shape.layers).map(sparse).collect();
        Ok(Qwen3Moe { shape, rope, tied, mixture, normalised, sparse })
    }

    /// From GGUF metadata; `settings` reads keys below `qwen3moe.`. Such files have experts in all layers.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<Qwen3Moe, Error> {
        settings.must("expert_gating_func", &["1"])?;
        settings.must("expert_weights_scale", &["1"])?;
        let (shape, rope) = common_from_gguf(settings)?;
        let mixture = Mixture::from_gguf(settings)?;
        let normalised = settings.flag_or("expert_weights_norm", true)?;
        settings.refuse_unasked()?;
        let sparse = vec![true; shape.layers];
        Ok(Qwen3Moe { shape, rope, tied: None, mixture, normalised, sparse })
    }
}

/// What `config.json` says alike in all of them: shape, positions, whether the output matrix is tied.
fn common_from_json(settings: &Settings<'_>) -> Result<(Shape, Rope, Option<bool>), Error> {
    settings.must("hidden_act", &["silu"])?;
    settings.must("use_sliding_window", &["false"])?;
    settings.must("dual_chunk_attention_config", &[])?;
    let shape = Shape::from_json(settings)?;
    if sliding_from_types(settings, shape.layers)?.is_some_and(|sliding| sliding.contains(&true)) {
        return Err(settings.unsupported("layer_types", "sliding_attention".to_owned(), "full_attention"));
    }
    let rope = Rope::from_json(settings, "rope_theta", 10_000.0)?;
    let shape = Shape { context: rope.reach(shape.context), ..shape };
    Ok((shape, rope, Some(settings.flag_or("tie_word_embeddings", false)?)))
}

/// What GGUF metadata says alike in all of them.
fn common_from_gguf(settings: &Settings<'_>) -> Result<(Shape, Rope), Error> {
    let (shape, rope) = (Shape::from_gguf(settings)?, Rope::from_gguf(settings)?);
    Ok((Shape { context: rope.reach(shape.context), ..shape }, rope))
}
