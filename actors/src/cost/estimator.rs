//! Coefficients that follow a group: each measured step is kept beside others of its kind, and every few steps all that
//! are kept are fitted anew. What a group does seldom is not forgotten because of what it does all the time; a machine
//! that became slower is noticed within a few steps.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use millstream_kernels::work::Work;

use super::fit::{Sample, fit, median};
use super::{Coefficients, dot, features};

/// Steps kept of one kind.
const KEPT: usize = 6;
/// Kinds of steps; of more the one that was longest not seen is forgotten.
const KINDS: usize = 48;
/// Steps between two fits, once there were some.
const EVERY: u64 = 16;
/// The newest steps, by which the error is judged.
const RECENT: usize = 24;
/// Those of them by which the pace is judged: a machine that is shared changes its speed several times in a minute.
const PACED: usize = 9;
/// Steps after which one counts half as much.
const HALF_LIFE: f64 = 4_000.0;
/// A pace within this of the fitted one is noise.
const TOLERATED: f64 = 1.03;

/// A measured step.
#[derive(Clone, Copy, Debug)]
struct Measured {
    work: Work,
    seconds: f64,
    /// How many there were before.
    number: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Estimator {
    /// What was fitted last.
    fitted: Coefficients,
    /// How much slower the machine is than it was when that was measured.
    pace: f64,
    kinds: BTreeMap<(u8, u8, u8), VecDeque<Measured>>,
    recent: VecDeque<Measured>,
    /// What was predicted of the recent ones before they ran, over what they took.
    ratios: VecDeque<f64>,
    seen: u64,
}

impl Estimator {
    /// Begins with coefficients of an earlier run, or of another machine.
    pub fn new(prior: Coefficients) -> Self {
        let (kinds, recent, ratios) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Self { fitted: prior, pace: 1.0, kinds, recent, ratios, seen: 0 }
    }

    /// What a step takes, by all that was measured.
    pub fn coefficients(&self) -> Coefficients {
        let scaled = if self.pace == 1.0 { self.fitted } else { self.fitted.scaled(self.pace) };
        if scaled.is_sound() { scaled } else { self.fitted }
    }

    /// Steps measured so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The middle of the relative errors of recent predictions; none before there was a step.
    pub fn error(&self) -> Option<f64> {
        let mut errors: Vec<f64> = self.ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        (!errors.is_empty()).then(|| median(&mut errors))
    }

    /// A step that asked `work` took `time`.
    pub fn observe(&mut self, work: &Work, time: Duration) {
        let seconds = time.as_secs_f64();
        if work.tokens == 0.0 || seconds <= 0.0 {
            return;
        }
        let measured = Measured { work: *work, seconds, number: self.seen };
        let ratio = self.coefficients().seconds(work) / seconds;
        push(&mut self.ratios, ratio, RECENT);
        push(&mut self.recent, measured, RECENT);
        push(self.kinds.entry(kind(work)).or_default(), measured, KEPT);
        self.seen += 1;
        if self.kinds.len() > KINDS {
            self.forget();
        }
        if self.seen.is_multiple_of(EVERY) || self.seen < EVERY && self.seen.is_power_of_two() {
            self.fit();
        }
        self.pace = self.measured_pace();
    }

    /// Steps that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kinds.values().map(VecDeque::len).sum()
    }

    /// Lets go of the kind that was longest not seen.
    fn forget(&mut self) {
        let newest = |kept: &VecDeque<Measured>| kept.back().map_or(0, |measured| measured.number);
        let oldest = self.kinds.iter().min_by_key(|(_, kept)| newest(kept)).map(|(&kind, _)| kind);
        if let Some(kind) = oldest {
            self.kinds.remove(&kind);
        }
    }

    fn fit(&mut self) {
        let age = |number: u64| (self.seen - number) as f64 / HALF_LIFE;
        let sample = |measured: &Measured| Sample {
            features: features(&measured.work),
            seconds: measured.seconds,
            weight: 0.5_f64.powf(age(measured.number)).max(1e-3),
        };
        let samples: Vec<Sample> = self.kinds.values().flatten().map(sample).collect();
        let fitted = fit(&samples, &self.fitted);
        if fitted.is_sound() {
            self.fitted = fitted;
        }
    }

    /// How much slower recent steps were than the fit says, if that is more than noise.
    fn measured_pace(&self) -> f64 {
        let list = self.fitted.list();
        let ratio = |measured: &Measured| measured.seconds / dot(&list, &features(&measured.work)).max(1e-9);
        let mut ratios: Vec<f64> = self.recent.iter().rev().take(PACED).map(ratio).collect();
        match median(&mut ratios) {
            _ if ratios.len() < PACED => 1.0,
            pace if !(1.0 / TOLERATED..=TOLERATED).contains(&pace) => pace,
            _ => 1.0,
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Steps of one kind have about as many rows, tokens and keys.
fn kind(work: &Work) -> (u8, u8, u8) {
    let size = |number: f64| (number.max(1.0).log2() as u8).min(63);
    (size(work.rows), size(work.tokens), size(work.kv / 4096.0) / 2)
}
