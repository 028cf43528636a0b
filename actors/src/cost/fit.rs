//! The fit: least squares of relative errors in which no coefficient is negative, and steps that fit badly (the machine was
//! doing something else) count for little.

use super::{Coefficients, FEATURES, dot};

/// A step that was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub features: [f64; FEATURES],
    pub seconds: f64,
    /// How much it counts.
    pub weight: f64,
}

/// Rounds in which the weights of samples follow from how well they fit.
const ROUNDS: usize = 6;
/// Sweeps over the coefficients in each round.
const SWEEPS: usize = 60;
/// Relative errors below this are no reason to count less.
const ERROR_MIN: f64 = 0.03;
/// How much of the sum of squares a coefficient keeps to what it was: only matters where nothing tells it.
const PRIOR: f64 = 1e-6;

/// Coefficients that fit the samples; where they do not say, `prior` as it would be on a machine of their speed.
pub(super) fn fit(samples: &[Sample], prior: &Coefficients) -> Coefficients {
    let slower = |sample: &Sample| sample.seconds / dot(&prior.list(), &sample.features).max(1e-12);
    let mut slower: Vec<f64> = samples.iter().map(slower).collect();
    let prior = prior.scaled(median(&mut slower)).list();
    let mut list = prior;
    let mut errors = vec![0.0; samples.len()];
    let mut bound = f64::INFINITY;
    for _ in 0..ROUNDS {
        let normal = Normal::of(samples, &errors, bound);
        normal.solve(&prior, &mut list);
        for (error, sample) in errors.iter_mut().zip(samples) {
            *error = (dot(&list, &sample.features) / sample.seconds - 1.0).abs();
        }
        bound = 2.0 * median(&mut errors.clone()).max(ERROR_MIN);
    }
    Coefficients::of_list(list)
}

/// The middle of some numbers; 0 of none.
pub(super) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// The normal equations of relative errors, columns scaled to ones on the diagonal.
struct Normal {
    matrix: [[f64; FEATURES]; FEATURES],
    right: [f64; FEATURES],
    scale: [f64; FEATURES],
}

impl Normal {
    /// Samples whose error is beyond `bound` count in proportion less.
    fn of(samples: &[Sample], errors: &[f64], bound: f64) -> Normal {
        let (mut matrix, mut right) = ([[0.0; FEATURES]; FEATURES], [0.0; FEATURES]);
        for (sample, error) in samples.iter().zip(errors) {
            let weight = sample.weight * (bound / error.max(1e-12)).min(1.0).powi(2);
            let row = sample.features.map(|feature| feature / sample.seconds);
            for i in 0..FEATURES {
                right[i] += weight * row[i];
                for j in 0..FEATURES {
                    matrix[i][j] += weight * row[i] * row[j];
                }
            }
        }
        let scale: [f64; FEATURES] = std::array::from_fn(|i| matrix[i][i].sqrt());
        for i in 0..FEATURES {
            for j in 0..FEATURES {
                let by = scale[i] * scale[j];
                matrix[i][j] = if by > 0.0 { matrix[i][j] / by } else { 0.0 };
            }
            right[i] = if scale[i] > 0.0 { right[i] / scale[i] } else { 0.0 };
        }
        Normal { matrix, right, scale }
    }

    /// Goes down one coefficient after the other, none below zero; those that no sample tells stay as they are.
    fn solve(&self, prior: &[f64; FEATURES], list: &mut [f64; FEATURES]) {
        let mut at: [f64; FEATURES] = std::array::from_fn(|i| list[i] * self.scale[i]);
        for _ in 0..SWEEPS {
            for i in 0..FEATURES {
                if self.scale[i] == 0.0 {
                    continue;
                }
                let others: f64 = (0..FEATURES).filter(|&j| j != i).map(|j| self.matrix[i][j] * at[j]).sum();
                let pulled = PRIOR * prior[i] * self.scale[i];
                at[i] = ((self.right[i] - others + pulled) / (1.0 + PRIOR)).max(0.0);
            }
        }
        for i in 0..FEATURES {
            if self.scale[i] > 0.0 {
                list[i] = at[i] / self.scale[i];
            }
        }
    }
}
