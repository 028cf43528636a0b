//! Settings of the family `deepseek_v3`.

use super::rope::Rope;
use super::settings::Settings;
use super::{EXPERTS_MAX, HEAD_MAX, LAYERS_MAX, Mixture, Shape, WIDTH_MAX};
use crate::error::Error;

/// Settings of the family `deepseek_v3`. In its shape, `head_dim` is that of whole keys and there is one head of them:
/// the latent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeepSeek {
    pub shape: Shape,
    pub rope: Rope,
    /// Width of the latent that queries are made from; none: they are made from the residual stream.
    pub query_rank: Option<usize>,
    /// Width of the latent that keys and values are made from.
    pub rank: usize,
    /// Values of a key that turn; the first ones do not.
    pub turning: usize,
    /// Values of a value.
    pub value_dim: usize,
    /// Factor of the attention scores.
    pub scale: f32,
    /// The first layers are dense.
    pub dense_layers: usize,
    pub mixture: Mixture,
    /// Experts that compute every token; their widths add up to one wide one.
    pub shared: usize,
    /// Groups of consecutive experts, and how many of them a token may choose from.
    pub groups: (usize, usize),
    /// The weights of a token's experts sum to `weight_scale`.
    pub normalised: bool,
    pub weight_scale: f32,
    /// The output matrix is the embedding matrix; none: it is, if the files have no other.
    pub tied: Option<bool>,
}

impl DeepSeek {
    /// From `config.json`.
    pub fn from_json(settings: &Settings<'_>) -> Result<DeepSeek, Error> {
        for (key, known) in [
            ("attention_bias", "false"),
            ("hidden_act", "silu"),
            ("moe_layer_freq", "1"),
            ("scoring_func", "sigmoid"),
            ("topk_method", "noaux_tc"),
            ("rope_interleave", "true"),
        ] {
            settings.must(key, &[known])?;
        }
        let turning = settings.count("qk_rope_head_dim", HEAD_MAX)?;
        let key_dim = settings.count("qk_nope_head_dim", HEAD_MAX)? + turning;
        let shape = Shape { kv_heads: 1, head_dim: key_dim, ..Shape::from_json(settings)? };
        let rope = Rope::from_json(settings, "rope_theta", 10_000.0)?;
        let ranked = settings.has("q_lora_rank");
        let experts = (&["n_routed_experts"][..], "num_experts_per_tok", "moe_intermediate_size");
        let first = "first_k_dense_replace";
        let dense_layers = if settings.is_zero(first) { 0 } else { settings.count(first, LAYERS_MAX)? };
        DeepSeek {
            query_rank: ranked.then(|| settings.count("q_lora_rank", WIDTH_MAX)).transpose()?,
            rank: settings.count("kv_lora_rank", HEAD_MAX)?,
            value_dim: settings.count("v_head_dim", HEAD_MAX)?,
            scale: scale(key_dim, &rope),
            mixture: Mixture::from(settings, experts)?,
            shared: settings.count("n_shared_experts", EXPERTS_MAX)?,
            groups: (
                settings.count_or("n_group", 1, EXPERTS_MAX)?,
                settings.count_or("topk_group", 1, EXPERTS_MAX)?,
            ),
            normalised: settings.flag_or("norm_topk_prob", true)?,
            weight_scale: settings.float_or("routed_scaling_factor", 1.0)? as f32,
            tied: Some(settings.flag_or("tie_word_embeddings", false)?),
            shape,
            rope,
            turning,
            dense_layers,
        }
        .check(settings, "n_group")
    }

    /// From GGUF metadata; `settings` reads keys below `deepseek2.`. Files that hold the matrices of keys and values apart
    /// (the later ones) give the sizes of heads under other keys.
    pub fn from_gguf(settings: &Settings<'_>) -> Result<DeepSeek, Error> {
        settings.must("attention.causal", &["true"])?;
        let gating = "expert_gating_func";
        if settings.count_or(gating, 1, EXPERTS_MAX)? != 2 {
            return Err(settings.unsupported(gating, "1 (softmax)".to_owned(), "2 (sigmoid)"));
        }
        let bare = Shape::bare_from_gguf(settings)?;
        let turning = settings.count("rope.dimension_count", HEAD_MAX)?;
        let value_dim = settings.count_or("attention.value_length", bare.head_dim, HEAD_MAX)?;
        let key_dim = settings.count_or("attention.key_length_mla", bare.head_dim, HEAD_MAX)?;
        let value_dim = settings.count_or("attention.value_length_mla", value_dim, HEAD_MAX)?;
        let shape = Shape { kv_heads: 1, head_dim: key_dim, ..bare };
        let rope = Rope::from_gguf(settings)?;
        let ranked = settings.has("attention.q_lora_rank");
        let first = "leading_dense_block_count";
        let dense_layers = if settings.is_zero(first) { 0 } else { settings.count(first, LAYERS_MAX)? };
        let config = DeepSeek {
            query_rank: ranked.then(|| settings.count("attention.q_lora_rank", WIDTH_MAX)).transpose()?,
            rank: settings.count("attention.kv_lora_rank", HEAD_MAX)?,
            scale: scale(key_dim, &rope),
            mixture: Mixture::from_gguf(settings)?,
            shared: settings.count("expert_shared_count", EXPERTS_MAX)?,
            groups: (
                settings.count_or("expert_group_count", 1, EXPERTS_MAX)?,
                settings.count_or("expert_group_used_count", 1, EXPERTS_MAX)?,
            ),
            normalised: settings.flag_or("expert_weights_norm", false)?,
            weight_scale: settings.float_or("expert_weights_scale", 1.0)? as f32,
            tied: None,
            shape,
            rope,
            turning,
            value_dim,
            dense_layers,
        };
        settings.refuse_unasked()?;
        config.check(settings, "expert_group_count")
    }

    /// Refuses numbers that do not go together.
    fn check(self, settings: &Settings<'_>, groups_key: &str) -> Result<DeepSeek, Error> {
        let Mixture { count, per_token, .. } = self.mixture;
        let (groups, used) = self.groups;
        // A group's worth is that of its two best experts.
        let fits = used <= groups && count.is_multiple_of(groups) && count / groups * used >= per_token;
        if !fits || groups > 1 && count / groups < 2 {
            let problem = format!("{per_token} of {count} experts from {used} of {groups} groups");
            return Err(settings.wrong(groups_key, problem));
        }
        if self.turning >= self.shape.head_dim || !self.turning.is_multiple_of(2) {
            let problem = format!("{} of {} values cannot turn in pairs", self.turning, self.shape.head_dim);
            return Err(settings.wrong("rope", problem));
        }
        Ok(self)
    }
}

/// Factor of the scores of keys of `key_dim` values.
fn scale(key_dim: usize, rope: &Rope) -> f32 {
    ((key_dim as f64).powf(-0.5) * rope.score_factor()) as f32
}
