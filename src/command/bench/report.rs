//! What `bench` says: each speed beside the shares of what the machine can read and compute, as a table or as JSON.

use millstream_kernels::{Activations, Facts, KvFormat, KvLayout};
use serde_json::{Value, json};

use super::rig::Case;
use crate::limits::Limits;
use crate::place::KvBytes;

/// All that was measured.
pub(super) struct Report {
    pub(super) model: String,
    pub(super) facts: Facts,
    pub(super) layout: KvLayout,
    /// Which kernels ran.
    pub(super) backend: &'static str,
    pub(super) threads: usize,
    pub(super) activations: Activations,
    /// Seconds to load the model.
    pub(super) load_s: f64,
    /// Memory that the process took while loading.
    pub(super) loaded_bytes: u64,
    pub(super) limits: Limits,
    /// Most memory of the process while something ran.
    pub(super) peak_bytes: u64,
    pub(super) rows: Vec<Row>,
}

/// One case, and the seconds of each run.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) runs: Vec<f64>,
    /// Memory that keys, values and states of all sequences took.
    pub(super) kv_bytes: u64,
}

/// What a run reads and computes at least.
struct Cost {
    /// Bytes: weights (of experts, those that some token chose) once a step; for each sequence keys and values of all
    /// positions before it, or of a window where they lie in a ring.
    bytes: f64,
    /// Two for each weight that a token is multiplied with; attention is left out. A truncated prompt counts as a whole one.
    operations: f64,
}

impl Row {
    /// Tokens per second of the best run.
    fn speed(&self) -> f64 {
        self.case.tokens() as f64 / self.best()
    }

    fn best(&self) -> f64 {
        self.runs.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Cost {
    fn of(case: &Case, facts: &Facts, layout: &KvLayout) -> Self {
        let table = (facts.vocab * facts.hidden) as f64;
        let experts = facts.experts;
        let share = experts.per_token as f64 / experts.count.max(1) as f64;
        let tables = if facts.tied { table } else { 2.0 * table };
        let inside = facts.parameters as f64 - tables - experts.parameters as f64 * (1.0 - share);
        let looked_up = if facts.tied { 0 } else { facts.embedding_bytes };
        let dense = (facts.bytes - looked_up - experts.bytes) as f64;
        // Tokens choose their experts on their own: of those of a layer, some are read by nobody.
        let read = |tokens: f64| dense + experts.bytes as f64 * (1.0 - (1.0 - share).powf(tokens));
        // Keys and values that a sequence reads in a step after so many positions.
        let position = layout.bytes_per_block() as f64 / layout.block_size as f64;
        let ringed = layout.of_rings().bytes_per_block() as f64 / layout.block_size as f64;
        let behind =
            |positions: f64| position * positions + ringed * positions.min(layout.rings.window as f64);
        match *case {
            Case::Prefill { tokens, chunk, .. } => {
                let (all, steps) = (tokens as f64, tokens.div_ceil(chunk) as f64);
                let before: f64 = (0..tokens).step_by(chunk).map(|start| behind(start as f64)).sum();
                Self { bytes: read(chunk as f64) * steps + before, operations: 2.0 * (inside * all + table) }
            }
            Case::Decode { batch, depth, steps } => {
                let (batch, steps) = (batch as f64, steps as f64);
                let before = behind(depth as f64 + steps / 2.0) * batch;
                let operations = 2.0 * (inside + table) * batch * steps;
                Self { bytes: (read(batch) + before) * steps, operations }
            }
        }
    }
}

impl Report {
    /// Products run on 8-bit integers: the weights are quantised, and activations are rounded for them.
    fn integers(&self) -> bool {
        let quantised = self.facts.bytes * 10 < self.facts.parameters * 19;
        quantised && self.activations == Activations::Int8
    }

    /// The limit of arithmetic that applies, and its name.
    fn arithmetic(&self) -> (f64, &'static str) {
        if self.integers() { (self.limits.integer, "int8") } else { (self.limits.arithmetic, "f32") }
    }

    /// Of the longest prompt: bytes a token that its keys and values take, and those that their numbers need.
    fn kv(&self) -> Option<(usize, f64, f64)> {
        let prompts = self.rows.iter().filter(|row| matches!(row.case, Case::Prefill { .. }));
        let row = prompts.max_by_key(|row| row.kv_bytes)?;
        let KvLayout { layers, kv_heads, key_dim, value_dim, paired, .. } = self.layout;
        let numbers = ((key_dim + value_dim) * kv_heads) as f64 * (layers as f64 - paired as f64 / 2.0);
        let bits = match self.layout.format {
            KvFormat::F32 => 32.0,
            KvFormat::F16 => 16.0,
            // A scale for 32.
            KvFormat::Q8 => 9.0,
            // A scale of eight bits for 32 values of a key, for 16 of a value.
            KvFormat::Fp4 => 4.375,
        };
        let states = self.layout.bytes_per_slot() as u64;
        let tokens = row.case.tokens();
        let there = row.kv_bytes.saturating_sub(states) as f64 / tokens as f64;
        Some((tokens, there, numbers * bits / 8.0))
    }

    /// Shares of the time that a truncated prompt takes of a whole one, with the chunks of both.
    fn truncated(&self) -> Vec<(usize, f64)> {
        let whole = |tokens, chunk| {
            let same = Case::Prefill { tokens, chunk, keep: None };
            self.rows.iter().find(|row| row.case == same).map(Row::best)
        };
        let share = |row: &Row| match row.case {
            Case::Prefill { tokens, chunk, keep: Some(_) } => {
                whole(tokens, chunk).map(|whole| (chunk, row.best() / whole))
            }
            Case::Prefill { .. } | Case::Decode { .. } => None,
        };
        self.rows.iter().filter_map(share).collect()
    }

    /// Shares of reading and of arithmetic.
    fn shares(&self, row: &Row) -> (f64, f64) {
        let Cost { bytes, operations } = Cost::of(&row.case, &self.facts, &self.layout);
        let seconds = row.best();
        (bytes / seconds / self.limits.read, operations / seconds / self.arithmetic().0)
    }

    /// The table, for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let Facts { family, parameters, bytes, .. } = self.facts;
        let Limits { read, arithmetic, integer } = self.limits;
        let [read, arithmetic, integer] = [read, arithmetic, integer].map(|limit| limit / 1e9);
        let (_, name) = self.arithmetic();
        let mut lines = vec![
            format!("{}: {family}, {:.0} M weights in {}", self.model, parameters as f64 / 1e6, mega(bytes)),
            format!("{}, {} threads, products in {name}", self.backend, self.threads),
            format!(
                "limits here and now: read {read:.1} GB/s, f32 {arithmetic:.1} GFLOP/s, int8 {integer:.1} GOP/s"
            ),
            format!("loaded in {:.2} s, {} of memory", self.load_s, mega(self.loaded_bytes)),
            KvBytes::of(&self.facts, &self.layout).line(self.facts.context),
            String::new(),
            format!("{:<44}{:>12}{:>12}{:>12}", "", "tokens/s", "of read", format!("of {name}")),
        ];
        for row in &self.rows {
            let (read, arithmetic) = self.shares(row);
            let case = row.case.to_string();
            let (read, arithmetic) = (percent(read), percent(arithmetic));
            lines.push(format!("{case:<44}{:>12.1}{read:>12}{arithmetic:>12}", row.speed()));
        }
        lines.push(String::new());
        for (chunk, share) in self.truncated() {
            lines.push(format!("truncated, chunks of {chunk}: {} of the time", percent(share)));
        }
        if let Some((tokens, there, needed)) = self.kv() {
            let of = format!("keys and values of {tokens} tokens");
            lines.push(format!("{of}: {there:.0} bytes a token in memory, {needed:.0} by their numbers"));
        }
        lines.push(format!("peak memory {}", mega(self.peak_bytes)));
        lines
    }

    /// The same, for machines; bytes, seconds and shares of 1.
    pub(super) fn json(&self) -> Value {
        let row = |row: &Row| {
            let (read, arithmetic) = self.shares(row);
            let (kind, tokens, chunk, batch, depth, truncated) = match row.case {
                Case::Prefill { tokens, chunk, keep } => ("prefill", tokens, chunk, 1, 0, keep.is_some()),
                Case::Decode { batch, depth, steps } => ("decode", steps, 1, batch, depth, false),
            };
            json!({
                "kind": kind, "tokens": tokens, "chunk": chunk, "batch": batch, "depth": depth,
                "tokens_per_second": row.speed(),
                "share_of_read": read, "share_of_arithmetic": arithmetic,
                "truncated": truncated,
                "runs_s": row.runs,
            })
        };
        let kv = self.kv();
        json!({
            "model": self.model,
            "family": self.facts.family,
            "parameters": self.facts.parameters,
            "weight_bytes": self.facts.bytes,
            "backend": self.backend,
            "threads": self.threads,
            "arithmetic": self.arithmetic().1,
            "load_s": self.load_s,
            "loaded_bytes": self.loaded_bytes,
            "peak_bytes": self.peak_bytes,
            "kv": KvBytes::of(&self.facts, &self.layout).json(),
            "kv_bytes_per_token": kv.map(|(_, there, _)| there),
            "kv_bytes_per_token_needed": kv.map(|(.., needed)| needed),
            "limits": {
                "read_bytes_per_second": self.limits.read,
                "f32_operations_per_second": self.limits.arithmetic,
                "int8_operations_per_second": self.limits.integer,
            },
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn mega(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use millstream_kernels::work::WorkFacts;
    use millstream_kernels::{ExpertFacts, Rings};

    use super::*;

    fn facts(tied: bool) -> Facts {
        Facts {
            family: "llama",
            vocab: 100,
            context: 64,
            layers: 2,
            kv_heads: 1,
            key_dim: 4,
            value_dim: 8,
            hidden: 10,
            parameters: if tied { 5_000 } else { 6_000 },
            bytes: if tied { 2_500 } else { 3_000 },
            embedding_bytes: 500,
            tied,
            experts: ExpertFacts::default(),
            eos: Vec::new(),
            bos: None,
            state: None,
            image_token: None,
            compressed: None,
            rings: Rings::NONE,
            work: WorkFacts::default(),
        }
    }

    #[test]
    fn embeddings_are_looked_up_and_not_multiplied() {
        for tied in [true, false] {
            let facts = facts(tied);
            let layout = facts.kv_layout(8);
            let position = layout.bytes_per_block() as f64 / 8.0;
            let decode = Cost::of(&Case::Decode { batch: 3, depth: 7, steps: 2 }, &facts, &layout);
            // 4,000 weights inside and 1,000 of the output; keys and values of 8 positions.
            assert_eq!(decode.operations, 2.0 * 5_000.0 * 6.0, "tied {tied}");
            assert_eq!(decode.bytes, 2.0 * (2_500.0 + 3.0 * 8.0 * position), "tied {tied}");
            let prefill = Cost::of(&Case::Prefill { tokens: 8, chunk: 4, keep: None }, &facts, &layout);
            assert_eq!(prefill.operations, 2.0 * (8.0 * 4_000.0 + 1_000.0), "tied {tied}");
            assert_eq!(prefill.bytes, 2.0 * 2_500.0 + 4.0 * position, "tied {tied}");
        }
    }

    #[test]
    fn a_token_computes_and_reads_its_own_experts_only() {
        let experts = ExpertFacts { parameters: 2_000, bytes: 1_000, count: 4, per_token: 1 };
        let facts = Facts { experts, ..facts(true) };
        let layout = facts.kv_layout(8);
        let decode = |batch| Cost::of(&Case::Decode { batch, depth: 0, steps: 1 }, &facts, &layout);
        assert_eq!(decode(1).operations, 2.0 * (5_000.0 - 1_500.0));
        let keys = |batch: f64| layout.bytes_per_block() as f64 / 8.0 * 0.5 * batch;
        assert_eq!(decode(1).bytes - keys(1.0), 1_500.0 + 250.0);
        assert_eq!(decode(2).bytes - keys(2.0), 1_500.0 + 1_000.0 * (1.0 - 0.75 * 0.75));
    }

    #[test]
    fn no_more_than_a_window_is_read_of_a_ring() {
        let facts = facts(true);
        let (whole, rings) = (facts.kv_layout(8), Rings { layers: 1, window: 16 });
        let bytes = |layout: &KvLayout, depth| {
            Cost::of(&Case::Decode { batch: 1, depth, steps: 2 }, &facts, layout).bytes
        };
        let position = whole.bytes_per_block() as f64 / 8.0;
        let ringed = whole.with_rings(rings);
        assert_eq!(bytes(&ringed, 7), bytes(&whole, 7), "all of it is in the window");
        let unseen = position / 2.0 * (99.0 + 1.0 - 16.0);
        assert_eq!(bytes(&ringed, 99), bytes(&whole, 99) - 2.0 * unseen);
    }
}
