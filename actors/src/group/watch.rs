//! What a group's steps take: each is counted when it is sent and measured when it is done, and coefficients are fitted to
//! that while the next one runs. A group that knows nothing tries some steps first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::work::{RowShape, Work, WorkFacts};
use millstream_runtime::Time;

use super::trial::Trials;
use crate::cost::{Coefficients, Estimator, Known};
use crate::message::{Step, StepRow};
use crate::sched::Bounds;

/// Steps between two times that what was learnt is told.
const TELL: u64 = 64;

/// See the module.
pub(super) struct Watch {
    work: Option<Arc<WorkFacts>>,
    estimator: Estimator,
    known: Arc<Known>,
    trials: Option<Trials>,
    /// How often what was learnt was told.
    told: u64,
    /// What the steps in flight ask.
    sent: VecDeque<Work>,
    /// What the last step asked and took, until that is made use of.
    done: Option<(Work, Duration)>,
}

impl Watch {
    pub fn new(bounds: &Bounds, known: Arc<Known>) -> Self {
        let timing = bounds.timing.as_ref();
        let told = known.get();
        let prior = told.or(timing.map(|timing| timing.coefficients)).unwrap_or_default();
        let trials = timing.zip(known.trials).filter(|_| told.is_none());
        let trials =
            trials.map(|(timing, positions)| Trials::new(bounds, Arc::clone(&timing.work), positions));
        let work = timing.map(|timing| Arc::clone(&timing.work));
        let estimator = Estimator::new(prior);
        Self { work, estimator, known, trials, told: 0, sent: VecDeque::new(), done: None }
    }

    /// Enough was measured for predictions to be relied on.
    pub fn is_sure(&self) -> bool {
        self.estimator.seen() >= TELL
    }

    pub fn coefficients(&self) -> Coefficients {
        self.estimator.coefficients()
    }

    /// The middle of the relative errors of recent predictions.
    pub fn error(&self) -> f64 {
        self.estimator.error().unwrap_or(0.0)
    }

    /// A step that is only tried is in flight.
    pub fn is_trying(&self) -> bool {
        self.trials.as_ref().is_some_and(Trials::in_flight)
    }

    /// The next step to try, if one is left to try.
    pub fn try_next(&mut self, now: Time) -> Option<Step> {
        let step = self.trials.as_mut()?.next(now, &self.estimator.coefficients());
        if step.is_none() {
            self.trials = None;
            self.tell();
        }
        step
    }

    /// A step is done; says whether it was one that was only tried.
    pub fn tried(&mut self, now: Time) -> bool {
        let Some(trials) = self.trials.as_mut().filter(|trials| trials.in_flight()) else { return false };
        if let Some((work, time)) = trials.done(now) {
            self.estimator.observe(&work, time);
        }
        true
    }

    /// A step goes out.
    pub fn sent(&mut self, step: &Step) {
        if let Some(work) = &self.work {
            self.sent.push_back(step.rows.iter().map(|row| work.row(&shape(row))).sum());
        }
    }

    /// The first of them came back after so long.
    pub fn done(&mut self, time: Duration) {
        if let Some(sent) = self.sent.pop_front().filter(|sent| sent.tokens > 0.0) {
            self.done = Some((sent, time));
        }
    }

    /// Makes use of what the last step took; says what that was.
    pub fn learn(&mut self) -> Option<Duration> {
        let (work, time) = self.done.take()?;
        self.estimator.observe(&work, time);
        if self.estimator.seen().is_multiple_of(TELL) {
            self.tell();
        }
        Some(time)
    }

    fn tell(&mut self) {
        self.known.set(self.estimator.coefficients());
        self.told += 1;
    }

    /// What is known beyond this life of the group, and how often that has changed in it.
    pub fn known(&self) -> (Option<Coefficients>, u64) {
        (self.known.get(), self.told)
    }
}

impl Drop for Watch {
    /// Whatever ends a group: its next life, and the next run, begin with what it knew, if that is worth something.
    fn drop(&mut self) {
        if self.estimator.seen() >= TELL {
            self.known.set(self.estimator.coefficients());
        }
    }
}

/// A row as far as its work goes.
fn shape(row: &StepRow) -> RowShape {
    let last = row.tokens.len() as u32 - 1;
    let chooses = row.sample.is_some() && row.observe.last() != Some(&last);
    let state = row.state.as_ref();
    RowShape {
        start: row.start,
        tokens: row.tokens.len() as u32,
        logits: row.observe.len() as u32 + u32::from(chooses),
        valid_from: state.map_or(0, |state| state.valid_from),
        written: state.map_or(0, |state| state.written),
        decoder_from: state.and_then(|state| state.decoder_from),
    }
}
