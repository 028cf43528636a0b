//! How much of its prompts a step computes: so many tokens, and where the group has a time budget, no more than is
//! predicted to fit into it beside the rows of single tokens. The largest chunk that fits is found by bisection, since
//! what a chunk asks has a closed form.
//!
//! Two bounds keep both sides going: rows of single tokens wait for no longer than the budget and the smallest chunk; and
//! the first prompt of a step gets that smallest chunk (a block) however long the others take.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::work::{RowShape, Work, WorkFacts};

use super::Scheduler;
use crate::cost::Coefficients;
use crate::sequence::{Phase, Sequence};

/// A chunk gives up no more than one part in so many to end with a block.
const SHARE_MAX: usize = 32;

/// What a group knows of the time that its steps take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// What rows ask.
    pub work: Arc<WorkFacts>,
    /// What that takes, until steps were measured.
    pub coefficients: Coefficients,
    /// The time budget of a step; `None`: prompts are cut by tokens alone.
    pub step_time: Option<Duration>,
}

/// What is left of a step while it is filled.
pub(super) struct Budget {
    /// Prompt tokens that may still be added.
    tokens: usize,
    /// Seconds that it may take.
    seconds: Option<f64>,
    /// What its rows ask so far, and the rows of single tokens that are to come.
    work: Work,
    /// Whose those are, by arrival.
    singles: BTreeSet<u64>,
    /// A prompt has its share already.
    advanced: bool,
}

impl Scheduler {
    /// No sequence can begin any more.
    pub(super) fn is_spent(&self, budget: &Budget) -> bool {
        let late = budget.advanced
            && self
                .bounds
                .timing
                .as_ref()
                .zip(budget.seconds)
                .is_some_and(|(timing, seconds)| timing.coefficients.seconds(&budget.work) >= seconds);
        budget.tokens == 0 || late
    }

    /// The whole budget of a step, less what the running rows of single tokens ask.
    pub(super) fn budget(&self) -> Budget {
        let seconds = self.bounds.timing.as_ref().and_then(|timing| timing.step_time);
        let mut budget = Budget {
            tokens: self.bounds.chunk_tokens,
            seconds: seconds.map(|time| time.as_secs_f64()),
            work: Work::default(),
            singles: BTreeSet::new(),
            advanced: false,
        };
        let running = self.sequences.iter().filter(|(_, sequence)| sequence.phase == Phase::Running);
        for (&arrival, sequence) in running.filter(|(_, sequence)| sequence.pending() == 1) {
            self.expect(arrival, sequence, &mut budget);
        }
        budget
    }

    /// Tokens of a sequence with several pending that the step has room for. An image is not cut where the chunk can end
    /// before it; one that is longer than a chunk is.
    pub(super) fn share(&self, sequence: &Sequence, budget: &Budget) -> usize {
        let size = self.bounds.block_size as usize;
        let least = if budget.advanced { 1 } else { size - sequence.computed % size };
        let count = self.largest(sequence, budget);
        let end = sequence.computed + count;
        let cut = sequence
            .request
            .images
            .iter()
            .find(|image| (image.first as usize + 1..image.end()).contains(&end));
        let before = cut.map_or(0, |image| (image.first as usize).saturating_sub(sequence.computed));
        if before >= least { before } else { count }
    }

    /// The same without a look at images.
    fn largest(&self, sequence: &Sequence, budget: &Budget) -> usize {
        let most = sequence.pending().min(budget.tokens);
        let (Some(seconds), Some(timing)) = (budget.seconds, &self.bounds.timing) else { return most };
        let fits = |count: usize| {
            timing.coefficients.seconds(&(budget.work + self.work_of(sequence, count))) <= seconds
        };
        if most == 0 || fits(most) {
            return most;
        }
        let size = self.bounds.block_size as usize;
        let mut fitting = (0, most);
        while fitting.1 - fitting.0 > 1 {
            let middle = usize::midpoint(fitting.0, fitting.1);
            fitting = if fits(middle) { (middle, fitting.1) } else { (fitting.0, middle) };
        }
        // A chunk that ends with a block leaves none half full; of a short one that would waste too much of the budget.
        let beyond = (sequence.next() + fitting.0) % size;
        let count = match fitting.0 {
            count if count < size => 0,
            count if beyond * SHARE_MAX > count => count,
            count => count - beyond,
        };
        let least = if budget.advanced { 0 } else { size - sequence.next() % size };
        count.max(least.min(most))
    }

    /// A row of a single token takes part whatever the budget says.
    fn expect(&self, arrival: u64, sequence: &Sequence, budget: &mut Budget) {
        if budget.seconds.is_some() && budget.singles.insert(arrival) {
            budget.work += self.work_of(sequence, 1);
        }
    }

    /// Takes the share of a sequence from the budget. A prompt that got less than it could use was the last.
    pub(super) fn spend(&self, arrival: u64, count: usize, budget: &mut Budget) {
        let sequence = &self.sequences[&arrival];
        if sequence.pending() == 1 {
            return self.expect(arrival, sequence, budget);
        }
        let wanted = sequence.pending().min(budget.tokens);
        budget.tokens = if count < wanted { 0 } else { budget.tokens - count };
        budget.advanced = true;
        if budget.seconds.is_some() {
            budget.work += self.work_of(sequence, count);
        }
    }

    /// What the next `count` tokens of a sequence ask.
    fn work_of(&self, sequence: &Sequence, count: usize) -> Work {
        let Some(timing) = &self.bounds.timing else { return Work::default() };
        let state = sequence.state.as_ref();
        let keep = self.bounds.state.and_then(|state| state.keep);
        timing.work.row(&RowShape {
            start: sequence.next() as u32,
            tokens: count as u32,
            logits: u32::from(count == sequence.pending()),
            valid_from: state.map_or(0, |state| state.valid_from as u32),
            written: state.map_or(0, |state| state.written as u32),
            decoder_from: state.and_then(|_| sequence.decoder_from(keep)),
        })
    }

    /// From now on steps are predicted with these.
    pub fn predict_with(&mut self, coefficients: Coefficients) {
        if let Some(timing) = &mut self.bounds.timing {
            timing.coefficients = coefficients;
        }
    }
}
