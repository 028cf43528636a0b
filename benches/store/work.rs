//! Multiply-adds of a prompt in a model of DeepSeek-V4.1's kind, from the numbers of its `config.json`: products with
//! weights, attention over the window and over chosen entries, and the scores that choose them.

use serde_json::Value;

/// What computing tokens takes.
pub struct Work {
    pub layers: u64,
    pub window: u64,
    /// Products with weights of one token in one layer.
    weights: f64,
    /// Of one token and one entry that its attention sees.
    pair: f64,
    /// Entries that a choice leaves.
    chosen: u64,
    /// For each layer, tokens that make an entry; 0 where it sees its window alone.
    ratios: Vec<u64>,
    /// For each layer, the most entries that it looks at to choose; 0 where it does not choose.
    looks: Vec<u64>,
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
        let look = |layer: u64| match (index_sources.contains(&layer), layer > after) {
            (false, _) => 0,
            (true, true) => candidates,
            (true, false) => u64::MAX,
        };
        Self {
            layers,
            window: number("sliding_window"),
            weights: all as f64 / layers as f64,
            pair: (2 * heads * dim) as f64,
            chosen: number("index_topk"),
            looks: (0..layers).map(look).collect(),
            ratios,
            score: (index_heads * index_dim) as f64,
        }
    }

    /// Of a prompt of which so many tokens are found, and so many before their end computed once more. Of a replay that
    /// is exact, each layer sees a window less than the one before it.
    pub fn multiply_adds(&self, tokens: u64, found: u64, replay: u64) -> f64 {
        let exact = found >= replay && replay == self.layers * self.window;
        // The last token is always computed.
        let from = found.saturating_sub(replay).min(tokens - 1);
        let of = |layer| self.of_layer(layer, from + if exact { layer * self.window } else { 0 }, tokens);
        (0..self.layers).map(of).sum()
    }

    /// Of computing the tokens from place `from` up to `to` in one layer.
    fn of_layer(&self, layer: u64, from: u64, to: u64) -> f64 {
        let from = from.min(to - 1);
        let seen = |most: u64, ratio: u64| entries(to, most, ratio) - entries(from, most, ratio);
        let mut all = (to - from) as f64 * self.weights + seen(self.window, 1) * self.pair;
        let (ratio, looks) = (self.ratios[layer as usize], self.looks[layer as usize]);
        if ratio > 0 {
            all += seen(self.chosen, ratio) * self.pair;
            all += if looks > 0 { seen(looks, ratio) * self.score } else { 0.0 };
        }
        all
    }
}

/// Entries that the first `tokens` tokens see together, `most` each, where every `ratio` tokens make one.
fn entries(tokens: u64, most: u64, ratio: u64) -> f64 {
    let full = tokens.min(most.saturating_mul(ratio));
    (full as f64).powi(2) / (2 * ratio) as f64 + (tokens - full) as f64 * most as f64
}
