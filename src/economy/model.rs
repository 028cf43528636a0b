//! A model as far as plans of fleets go: what a prompt and a step of answers ask, how many bytes a token and a sequence take.

use millstream_kernels::work::{RowShape, Work, WorkFacts};
use millstream_kernels::{Facts, KvFormat, KvLayout};

use super::spec::{Counted, Kv, ModelSpec, Replay};

/// Tokens of a block: what is found is found in whole ones.
const BLOCK: usize = 64;

/// See the module.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it is, for people.
    pub name: String,
    /// What counts its work.
    counts: Counts,
    /// Bytes of keys and values of a token.
    pub kv_bytes: f64,
    /// Bytes that a sequence keeps beside.
    pub state_bytes: f64,
    /// Layers.
    pub(super) layers: f64,
    /// Numbers that a token is between them.
    pub(super) hidden: f64,
    /// Experts that a token is sent to in each layer; 0: there are none.
    pub(super) experts_per_token: f64,
    /// Tokens that are computed once more behind a hit, and the window of the state; none without a state.
    replay: Option<(u32, u32)>,
    /// Later layers read so many of the newest tokens of a prompt.
    keep: Option<u32>,
    /// Drafted tokens of a step, and those that are accepted.
    drafts: (u32, f64),
}

#[derive(Clone, Debug)]
enum Counts {
    /// From settings, and what bytes of weights and of experts are to the two that settings say.
    Settings(Box<WorkFacts>, (f64, f64)),
    /// By hand, and bytes of a weight and of a weight of experts.
    Hand(Counted, (f64, f64)),
}

/// A prompt of which a part is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt {
    /// Tokens that are computed, replayed ones among them.
    pub computed: f64,
    /// Tokens that are fetched.
    pub fetched: f64,
    /// What they ask.
    pub work: Work,
}

impl Model {
    /// From settings.
    pub fn of_facts(name: String, facts: &Facts, spec: &ModelSpec) -> Self {
        let format = match spec.kv {
            Kv::F32 => KvFormat::F32,
            Kv::F16 => KvFormat::F16,
            Kv::Q8 => KvFormat::Q8,
            Kv::Fp4 => KvFormat::Fp4,
        };
        let layout = KvLayout { format, ..facts.kv_layout(BLOCK) };
        let replay = facts.state_in(&layout).map(|state| match spec.replay {
            Replay::Exact => (state.exact_replay, state.window),
            Replay::Bounded => (state.window, state.window),
            Replay::Snapshot => (0, state.window),
        });
        let keep = facts.state_in(&layout).and_then(|state| state.decoder_keep);
        let scale = (spec.weight_bytes / 2.0, spec.expert_bytes / 2.0);
        Self {
            name,
            counts: Counts::Settings(Box::new(facts.work.clone().with_kv(format)), scale),
            kv_bytes: layout.bytes_per_block() as f64 / BLOCK as f64,
            state_bytes: layout.bytes_per_slot() as f64,
            layers: facts.layers as f64,
            hidden: facts.hidden as f64,
            experts_per_token: facts.experts.per_token as f64,
            replay,
            keep: keep.filter(|_| spec.decoder_truncation),
            drafts: (spec.drafts, spec.accepted),
        }
    }

    /// From figures.
    pub fn of_figures(figures: &Counted, spec: &ModelSpec) -> Self {
        Self {
            name: "figures by hand".to_owned(),
            counts: Counts::Hand(*figures, (spec.weight_bytes, spec.expert_bytes)),
            kv_bytes: figures.kv_bytes,
            state_bytes: figures.state_bytes,
            layers: f64::from(figures.layers),
            hidden: figures.hidden,
            experts_per_token: figures.experts_per_token,
            replay: None,
            keep: None,
            drafts: (spec.drafts, spec.accepted),
        }
    }

    /// What a row asks, bytes as this model has them.
    fn row(&self, shape: &RowShape) -> Work {
        match &self.counts {
            Counts::Settings(facts, (weights, experts)) => {
                let work = facts.row(shape);
                Work { weights: work.weights * weights, experts: work.experts * experts, ..work }
            }
            Counts::Hand(of, bytes) => by_hand(of, *bytes, shape),
        }
    }

    /// A prompt of so many tokens, of which so many are found at most.
    pub(super) fn prompt(&self, tokens: f64, found: f64) -> Prompt {
        let tokens = tokens.round().max(1.0) as u32;
        let block = BLOCK as f64;
        // The last token is always computed.
        let found = (((found / block).floor() * block) as u32).min(tokens - 1);
        let (again, window) = self.replay.unwrap_or_default();
        let found = if found > again { found } else { 0 };
        let start = found - again.min(found);
        let shape = RowShape {
            valid_from: if again > 0 { start } else { start.saturating_sub(window) },
            written: found,
            decoder_from: self.keep.map(|keep| tokens.saturating_sub(keep)).filter(|&from| from > 0),
            ..RowShape::plain(start, tokens - start, 1)
        };
        Prompt { computed: f64::from(tokens - start), fetched: f64::from(found), work: self.row(&shape) }
    }

    /// What a sequence of so many tokens asks of one step of its answer, drafts included.
    pub(super) fn answer(&self, position: f64) -> Work {
        let rows = 1 + self.drafts.0;
        self.row(&RowShape::plain(position.round() as u32, rows, rows))
    }

    /// Tokens that a step of decode adds to a sequence.
    pub(super) fn tokens_a_step(&self) -> f64 {
        1.0 + self.drafts.1
    }

    /// Rows of a sequence in a step of decode.
    pub(super) fn rows_a_step(&self) -> f64 {
        f64::from(1 + self.drafts.0)
    }

    /// Bytes of weights that all devices of a group hold together, and of those that each holds.
    pub(super) fn weights(&self) -> (f64, f64) {
        let work = self.row(&RowShape::plain(0, 1, 1));
        // An embedding table is as large as the output matrix; tables of hashes lie in host memory.
        let table = work.head * 2.0;
        match self.experts_per_token > 0.0 {
            true => (work.experts, work.weights + table),
            false => (work.weights + table, 0.0),
        }
    }

    /// Sentences for the assumptions.
    pub(super) fn says(&self) -> Vec<String> {
        let token = self.row(&RowShape::plain(0, 1, 0)).gemm;
        let (spread, copied) = self.weights();
        let mut says = vec![format!(
            "model: {}: {:.2} B products with weights a token of a prompt before attention, {} of weights over the \
             devices of a group and {} on each; {:.0} bytes of keys and values a token, {} a sequence beside",
            self.name,
            self.prompt_products().unwrap_or(token) / 1e9,
            super::text::bytes(spread),
            super::text::bytes(copied),
            self.kv_bytes,
            super::text::bytes(self.state_bytes)
        )];
        if let Some((again, window)) = self.replay {
            says.push(format!(
                "model: {again} tokens are computed once more behind a hit; its window is {window}"
            ));
        }
        if let Some(keep) = self.keep {
            says.push(format!("model: later layers read the last {keep} tokens of a prompt only"));
        }
        says
    }

    /// Products with weights of a token in the middle of a long prompt, where later layers leave it out.
    fn prompt_products(&self) -> Option<f64> {
        let keep = self.keep?;
        let shape = RowShape { decoder_from: Some(keep + 1), ..RowShape::plain(0, 1, 0) };
        Some(self.row(&shape).gemm)
    }
}

/// What a row asks by figures.
fn by_hand(of: &Counted, (weight, expert): (f64, f64), shape: &RowShape) -> Work {
    let (start, tokens) = (f64::from(shape.start), f64::from(shape.tokens));
    let seen = tokens * start + tokens * (tokens + 1.0) / 2.0;
    let logits = f64::from(shape.logits);
    Work {
        rows: 1.0,
        tokens,
        gemm: tokens * of.multiply_adds,
        pairs: seen * of.pair,
        head: logits * of.head,
        weights: (of.weights + if logits > 0.0 { of.head } else { 0.0 }) * weight,
        experts: of.experts * expert,
        untouched: (1.0 - of.chosen).powf(tokens),
        kv: (start + tokens) * of.kv_bytes,
        longest: (start + tokens) * of.kv_bytes,
        ..Work::default()
    }
}
