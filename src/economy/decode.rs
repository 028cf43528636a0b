//! How many groups of one size give answers at the pace that is wanted.

use super::group::{Group, times};
use super::prefill::GROUPS_MAX;
use super::spec::Goal;
use super::wait::least;

/// Sequences that a group takes at most.
const BATCH_MAX: u64 = 1 << 20;
/// So many standard deviations more sequences have room than run in the mean: 99 in 100 moments of a Poisson number, which it
/// is where requests come by themselves (M/G/∞).
pub(super) const DEVIATIONS: f64 = 2.326;

/// Groups that give answers, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decode {
    pub groups: u64,
    /// Sequences that a group has at most.
    pub batch: u64,
    /// Milliseconds from token to token, in a full group.
    pub between_ms: f64,
    /// What it reads and computes in a full step beside weights, over all of it.
    pub running: f64,
}

/// What answers ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers<'a> {
    /// Tokens of a prompt, and of an answer.
    pub lengths: (f64, f64),
    /// Requests a second of the busiest hour.
    pub rate: f64,
    pub goal: &'a Goal,
}

impl Answers<'_> {
    /// Sequences that have room where answers take so many seconds: those that run, and some more.
    pub(super) fn slots(&self, seconds: f64) -> f64 {
        let running = self.rate * seconds;
        running + DEVIATIONS * running.sqrt()
    }
}

impl Group<'_> {
    /// The fewest groups; the least that is possible between tokens, in milliseconds, where none are.
    pub(super) fn decode(&self, of: &Answers<'_>) -> Result<Decode, f64> {
        let model = self.of.model;
        let (prompt, answer) = of.lengths;
        let row = model.answer(prompt + answer / 2.0);
        let step = |batch: u64| {
            let batch = batch as f64;
            self.seconds(&times(&row, batch), batch * model.rows_a_step())
        };
        let between_ms = |batch: u64| 1e3 * step(batch) / model.tokens_a_step();
        let room = self.room(prompt + answer).min(BATCH_MAX as f64) as u64;
        let beyond = |batch: u64| batch > room || between_ms(batch) > of.goal.between_tokens_ms;
        let batch = least(BATCH_MAX + 1, beyond).map_or(BATCH_MAX, |first| first - 1);
        if batch == 0 {
            return Err(if room == 0 { f64::INFINITY } else { between_ms(1) });
        }
        let slots = of.slots(answer / model.tokens_a_step() * step(batch));
        let groups = (slots / batch as f64).ceil().max(1.0).min(GROUPS_MAX as f64) as u64;
        let running = (slots / (groups * batch) as f64).min(1.0);
        Ok(Decode { groups, batch, between_ms: between_ms(batch), running })
    }
}
