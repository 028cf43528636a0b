//! Multiply-adds of a prompt in a model of DeepSeek-V4.1's kind, from the numbers of its `config.json`: products with
//! weights, attention over the window and over chosen entries, and the scores that choose them.

use serde_json::Value;

/// What computing tokens takes.
pub struct Work {
    pub layers: u64,
    pub window: u64,
    /// Products with weights of one token, all layers.
    weights: f64,
    /// Of one token and one entry that its attention sees.
    pair: f64,
    /// Entries that a choice leaves.
    chosen: u64,
    /// For each layer that sees chosen entries, tokens that make one.
    ratios: Vec<u64>,
    /// For each layer that chooses, the same, and the most entries that it looks at.
    choosers: Vec<(u64, u64)>,
    /// Of one token and one entry that is scored.
    score: f64,
}

impl Work {
    /// Panics when a number is missing: it is for settings that the program reads too.
    pub fn of(config: &Value) -> Self {
        let text = &config["text_config"];
        let number = |key: &str| text[key].as_u64().unwrap_or_else(|| panic!("the settings have no {key}"));
        let list = |key: &str| {
            text[key].as_array().into_iter().flatten().filter_map(Value::as_u64).collect::<Vec<_>>()
        };
        let (hidden, layers, heads, dim) = (
            number("hidden_size"),
            number("num_hidden_layers"),
            number("num_attention_heads"),
            number("head_dim"),
        );
        let (rank, narrow, width) =
            (number("q_lora_rank"), number("o_lora_rank"), number("moe_intermediate_size"));
        let attention = rank * hidden + heads * dim * rank + dim * hidden;
        let out = narrow * heads * dim + hidden * number("o_groups") * narrow;
        let experts = number("num_experts_per_tok") + number("n_shared_experts");
        let mixture = 3 * width * hidden * experts + number("n_routed_experts") * hidden;
        let streams = number("hc_mult");
        let mixing = 2 * streams * (2 + streams) * streams * hidden;
        let (index_heads, index_dim) = (number("index_n_heads"), number("index_head_dim"));
        let sources = list("kv_source_layer_ids").len() as u64 * (2 * dim * hidden + index_dim * dim);
        let index_sources = list("index_source_layer_ids");
        let choices = index_sources.len() as u64 * (index_heads * hidden + index_heads * index_dim * rank);
        let all = layers * (attention + out + mixture + mixing) + sources + choices;
        let ratios = list("compress_ratios");
        let candidates = number("candidate_topk_blocks") * number("candidate_block_size");
        let after = text["candidate_source_layer_id"].as_u64().unwrap_or(u64::MAX);
        let chooser =
            |&layer: &u64| (ratios[layer as usize], if layer > after { candidates } else { u64::MAX });
        Self {
            layers,
            window: number("sliding_window"),
            weights: all as f64,
            pair: (2 * heads * dim) as f64,
            chosen: number("index_topk"),
            choosers: index_sources.iter().map(chooser).collect(),
            ratios: ratios.iter().take(layers as usize).copied().filter(|&ratio| ratio > 0).collect(),
            score: (index_heads * index_dim) as f64,
        }
    }

    /// Of computing the tokens of a prompt from place `from` up to `to`.
    pub fn multiply_adds(&self, from: u64, to: u64) -> f64 {
        let seen = |most: u64, ratio: u64| entries(to, most, ratio) - entries(from, most, ratio);
        let chosen: f64 = self.ratios.iter().map(|&ratio| seen(self.chosen, ratio)).sum();
        let scored: f64 = self.choosers.iter().map(|&(ratio, most)| seen(most, ratio)).sum();
        let window = self.layers as f64 * seen(self.window, 1);
        (to - from) as f64 * self.weights + (window + chosen) * self.pair + scored * self.score
    }

    /// The first token that is computed where `found` are found and so many before their end are computed once more.
    pub fn begins(found: u64, replay: u64) -> u64 {
        found.saturating_sub(replay)
    }
}

/// Entries that the first `tokens` tokens see together, `most` each, where every `ratio` tokens make one.
fn entries(tokens: u64, most: u64, ratio: u64) -> f64 {
    let full = tokens.min(most.saturating_mul(ratio));
    (full as f64).powi(2) / (2 * ratio) as f64 + (tokens - full) as f64 * most as f64
}
