//! How long a step takes, predicted from what it asks: a linear function whose coefficients are fitted to the steps that a
//! group has made. All of them are costs, so none is negative.

use std::time::Duration;

use millstream_kernels::work::Work;
use serde::{Deserialize, Serialize};

mod estimator;
mod fit;
mod known;

pub use estimator::Estimator;
pub use known::Known;

/// What a step is priced by, in this order.
pub(crate) const FEATURES: usize = 11;

/// Tokens up to which products with weights are bound by reading these.
const FEW: f64 = 8.0;

/// Seconds that each kind of work takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coefficients {
    /// A step, whatever it holds.
    pub step: f64,
    /// A row.
    pub row: f64,
    /// A token.
    pub token: f64,
    /// 10⁹ multiply-adds with weights, of the first few tokens of a step.
    pub gemm_few: f64,
    /// Of the others.
    pub gemm: f64,
    /// 10⁹ multiply-adds of attention.
    pub pairs: f64,
    /// 10⁹ multiply-adds of choosing entries.
    pub scores: f64,
    /// 10⁹ multiply-adds with the output matrix.
    pub head: f64,
    /// 10⁹ bytes of weights.
    pub weights: f64,
    /// 10⁹ bytes of keys and values, of all rows.
    pub kv: f64,
    /// The same of the row that reads most.
    pub longest: f64,
}

impl Default for Coefficients {
    /// A processor of a few cores, until steps were measured.
    fn default() -> Self {
        Self {
            step: 3e-4,
            row: 2e-5,
            token: 2e-6,
            gemm_few: 0.02,
            gemm: 0.02,
            pairs: 0.05,
            scores: 0.02,
            head: 0.02,
            weights: 0.1,
            kv: 0.1,
            longest: 0.0,
        }
    }
}

impl Coefficients {
    /// How long a step takes that asks this.
    pub fn time(&self, work: &Work) -> Duration {
        Duration::from_secs_f64(self.seconds(work).clamp(0.0, 1e6))
    }

    /// The same in seconds.
    pub fn seconds(&self, work: &Work) -> f64 {
        dot(&self.list(), &features(work))
    }

    /// Seconds of a row that is computed in so many steps: each further one reads the weights once more, and on average half
    /// of the keys.
    pub fn in_chunks(&self, row: &Work, steps: usize) -> f64 {
        self.of(&in_chunks(row, steps))
    }

    /// Seconds of what asks this.
    pub(crate) fn of(&self, features: &[f64; FEATURES]) -> f64 {
        dot(&self.list(), features)
    }

    /// All of them times a factor: of a machine that is so much slower.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self::of_list(self.list().map(|coefficient| coefficient * factor))
    }

    pub(crate) fn list(&self) -> [f64; FEATURES] {
        let Self { step, row, token, gemm_few, gemm, pairs, scores, head, weights, kv, longest } = *self;
        [step, row, token, gemm_few, gemm, pairs, scores, head, weights, kv, longest]
    }

    pub(crate) fn of_list(list: [f64; FEATURES]) -> Self {
        let [step, row, token, gemm_few, gemm, pairs, scores, head, weights, kv, longest] = list;
        Self { step, row, token, gemm_few, gemm, pairs, scores, head, weights, kv, longest }
    }

    /// Whether they can be what was fitted once: numbers, none negative, not all zero.
    pub fn is_sound(&self) -> bool {
        let list = self.list();
        list.iter().all(|coefficient| (0.0..1e6).contains(coefficient)) && list.iter().any(|&c| c > 0.0)
    }
}

/// What a row asks that is computed in so many steps, as [`Coefficients::in_chunks`] has it.
pub(crate) fn in_chunks(row: &Work, steps: usize) -> [f64; FEATURES] {
    let again = Work { gemm: 0.0, pairs: 0.0, scores: 0.0, head: 0.0, lookups: 0.0, tokens: 0.0, ..*row };
    let again = features(&Work { kv: row.kv / 2.0, longest: row.longest / 2.0, ..again });
    let (once, more) = (features(row), steps.saturating_sub(1) as f64);
    std::array::from_fn(|feature| once[feature] + more * again[feature])
}

/// What the coefficients are multiplied with.
pub(crate) fn features(work: &Work) -> [f64; FEATURES] {
    let few = if work.tokens > FEW { FEW / work.tokens } else { 1.0 };
    [
        1.0,
        work.rows,
        work.tokens,
        work.gemm * few / 1e9,
        work.gemm * (1.0 - few) / 1e9,
        work.pairs / 1e9,
        work.scores / 1e9,
        work.head / 1e9,
        work.weights_read() / 1e9,
        work.kv / 1e9,
        work.longest / 1e9,
    ]
}

pub(crate) fn dot(a: &[f64; FEATURES], b: &[f64; FEATURES]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
