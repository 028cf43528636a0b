//! What stands for a rank in a simulation of capacity: a mock. It holds no model and computes nothing. A step takes as long
//! as is predicted, its tokens are made up, and bytes that leave it are hollow.
//!
//! It lies in the seat of its group, where it knows at once when something comes. So one run of it may stand for many steps
//! that come out alike ([`Scheduler::repeats`](crate::sched::Scheduler::repeats)), a **leap**: when nothing comes, all of
//! them are done at its end, and when something does, those are done that are over by then, the one under way is ended, and
//! the rest is forgotten. What is said of the group, and when, is the same as with single steps.

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::Time;

use crate::cost::Coefficients;
use crate::message::{Chosen, Export, Exported, Place, SequenceId, Step, StepDone};
use crate::store::Payload;

/// Steps of the first leap after something came, and of the longest: they double from leap to leap.
const LEAP: u32 = 128;
const LEAP_MAX: u32 = 4_096;
/// What a single token costs is asked for the middle of so many positions, and not for each of them.
const GRAIN: u32 = 32;
/// Made-up tokens begin here, beyond every vocabulary: they have no text, and end no answer.
const MADE_UP: u32 = 1 << 31;

/// One sequence's share of a step, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCost {
    /// Whose.
    pub sequence: SequenceId,
    /// Position of its first token.
    pub start: u32,
    /// Its tokens.
    pub tokens: u32,
    /// Its last token chooses the next one.
    pub chooses: bool,
    /// Windows of the state know positions from here on; 0 where the model keeps none.
    pub valid_from: u32,
    /// The blocks hold everything below this position: tokens before it are a replay.
    pub written: u32,
    /// Where the layers begin that need only the newest tokens of a prompt.
    pub decoder_from: Option<u32>,
}

/// Says how long steps take.
pub trait Predict: Send + Sync {
    /// How long a step of these rows takes; not zero where there is one.
    fn step(&self, rows: &[RowCost]) -> Duration;

    /// What schedulers cut prompts by: steps of this predictor, or near them.
    fn coefficients(&self) -> Coefficients {
        Coefficients::default()
    }
}

/// Steps of a group that were run, one behind the other, each with every row one token on.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// Number of the group, in the order of the plan.
    pub group: usize,
    /// The rows of the first.
    pub rows: &'a [RowCost],
    /// When the first began.
    pub began: Time,
    /// When each ended.
    pub ends: &'a [Time],
}

/// Who is told what groups of the simulator run. Nothing of the simulation depends on it.
pub trait Watch: Send + Sync {
    /// Steps are over; those of one group come in order.
    fn ran(&self, ran: &Ran<'_>);
}

/// What a mock is made of.
#[derive(Clone)]
pub struct Prediction {
    /// How long steps take.
    pub predict: Arc<dyn Predict>,
    /// Who is told of them.
    pub watch: Arc<dyn Watch>,
    /// Number of the group, in the order of the plan.
    pub group: usize,
    /// Bytes of a block and of a state slot.
    pub bytes: (usize, usize),
    /// Steps that come out alike are run as one.
    pub leaps: bool,
}

/// What runs now.
struct Running {
    number: u64,
    rows: Vec<RowCost>,
    exports: Vec<Export>,
    began: Time,
    /// Of each step; not empty.
    ends: Vec<Time>,
}

/// See the module.
pub struct PredictedRank {
    prediction: Prediction,
    running: Option<Running>,
    /// What each step took that was over last.
    took: Vec<Duration>,
    /// Steps of the next leap at most.
    leap: u32,
}

impl PredictedRank {
    /// Nothing runs.
    pub fn new(prediction: Prediction) -> Self {
        let leap = if prediction.leaps { LEAP } else { 1 };
        Self { prediction, running: None, took: Vec::new(), leap }
    }

    /// The most steps that the next run may stand for.
    pub fn leap(&self) -> u32 {
        self.leap
    }

    /// Begins a step, and as many that come out alike that there are `times` in all. Says when the last of them ends.
    pub fn begin(&mut self, step: Step, times: u32, now: Time) -> Time {
        let row = |row: &crate::message::StepRow| RowCost {
            sequence: row.sequence,
            start: row.start,
            tokens: row.tokens.len() as u32,
            chooses: row.sample.is_some(),
            valid_from: row.state.as_ref().map_or(0, |state| state.valid_from),
            written: row.state.as_ref().map_or(0, |state| state.written),
            decoder_from: row.state.as_ref().and_then(|state| state.decoder_from),
        };
        let rows: Vec<RowCost> = step.rows.iter().map(row).collect();
        let (mut ends, mut end, mut done) = (Vec::with_capacity(times as usize), now, 0);
        while done < times {
            let (takes, alike) = self.takes(&rows, done);
            for _ in 0..alike.min(times - done) {
                end = end + takes;
                ends.push(end);
            }
            done += alike;
        }
        self.running = Some(Running { number: step.number, rows, exports: step.exports, began: now, ends });
        end
    }

    /// How long a step takes whose rows are so many tokens on, and how many steps from there on take as long.
    fn takes(&self, rows: &[RowCost], on: u32) -> (Duration, u32) {
        let mut alike = u32::MAX;
        let grown = |row: &RowCost| {
            let start = row.start + on;
            if row.tokens > 1 {
                return *row;
            }
            alike = alike.min(GRAIN - start % GRAIN);
            RowCost { start: start - start % GRAIN + GRAIN / 2, ..*row }
        };
        let grown: Vec<RowCost> = rows.iter().map(grown).collect();
        let least = Duration::from_nanos(1);
        let takes = if grown.is_empty() { least } else { self.prediction.predict.step(&grown).max(least) };
        (takes, alike)
    }

    /// What each step took that was over since this was last asked.
    pub fn take_times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.took)
    }

    /// When what runs is over; `None` when nothing does.
    pub fn due(&self) -> Option<Time> {
        self.running.as_ref().and_then(|running| running.ends.last().copied())
    }

    /// Something comes to the group: what is over by now, if anything is. What is not yet begun will not be.
    pub fn over(&mut self, now: Time) -> Option<StepDone> {
        let running = self.running.as_mut()?;
        let over = running.ends.partition_point(|&end| end <= now);
        let all = over == running.ends.len();
        if self.prediction.leaps {
            self.leap = if all { (self.leap * 2).min(LEAP_MAX) } else { LEAP };
        }
        if over == 0 {
            running.ends.truncate(1);
            return None;
        }
        let ends = &running.ends[..over];
        let Running { number, rows, began, .. } = &*running;
        let begins = std::iter::once(began).chain(ends);
        self.took.extend(ends.iter().zip(begins).map(|(end, &begin)| end.saturating_since(begin)));
        self.prediction.watch.ran(&Ran { group: self.prediction.group, rows, began: *began, ends });
        let mut done = StepDone {
            number: *number,
            again: over as u32 - 1,
            goes_on: !all,
            tokens: rows.iter().map(|row| row.chooses.then(|| made_up(row.sequence))).collect(),
            ..StepDone::default()
        };
        if all {
            let bytes = self.prediction.bytes;
            let exports = self.running.take().map(|running| running.exports).unwrap_or_default();
            done.exported = exports.into_iter().map(|export| hollow(export, bytes)).collect();
        } else {
            running.number += over as u64;
            running.began = running.ends[over - 1];
            running.ends = vec![running.ends[over]];
            running.rows.iter_mut().for_each(|row| row.start += over as u32);
        }
        Some(done)
    }
}

/// The token of a sequence: the same for all of it, so that answers to different requests are different.
fn made_up(sequence: SequenceId) -> Chosen {
    Chosen { id: MADE_UP | sequence.request.0 as u32, logprobs: None }
}

fn hollow(export: Export, (block, slot): (usize, usize)) -> Exported {
    let bytes = |place: &Place| {
        Payload::hollow(match place {
            Place::Block(_) => block,
            Place::Slot(_) => slot,
        })
    };
    Exported { data: export.places.iter().map(bytes).collect(), reader: export.reader }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::StepRow;
    use crate::request::RequestId;

    /// A step takes as many microseconds as its rows have positions before them.
    struct Positions;

    impl Predict for Positions {
        fn step(&self, rows: &[RowCost]) -> Duration {
            Duration::from_micros(rows.iter().map(|row| u64::from(row.start)).sum())
        }
    }

    impl Watch for Positions {
        fn ran(&self, _: &Ran<'_>) {}
    }

    fn rank() -> PredictedRank {
        let (predict, watch) = (Arc::new(Positions), Arc::new(Positions));
        PredictedRank::new(Prediction { predict, watch, group: 0, bytes: (100, 10), leaps: true })
    }

    fn step(start: u32) -> Step {
        let row = StepRow {
            sequence: SequenceId { request: RequestId(5), attempt: 0 },
            tokens: vec![0],
            start,
            blocks: Vec::new(),
            images: Arc::from([]),
            state: None,
            sample: None,
            observe: Vec::new(),
        };
        Step { number: 7, imports: Vec::new(), rows: vec![row], exports: Vec::new() }
    }

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn a_leap_takes_what_its_steps_take() {
        let mut rank = rank();
        // Two steps in the middle of positions 0 to 31, and one in that of 32 to 63.
        assert_eq!(rank.begin(step(30), 3, at(100)), at(100 + 16 + 16 + 48));
        let done = rank.over(at(180)).expect("all are over");
        assert_eq!((done.number, done.again, done.goes_on, rank.due()), (7, 2, false, None));
    }

    #[test]
    fn what_comes_sees_the_step_under_way_end() {
        let mut rank = rank();
        rank.begin(step(10), 5, at(100));
        let done = rank.over(at(132)).expect("two are over, the second just now");
        assert_eq!((done.number, done.again, done.goes_on), (7, 1, true));
        assert_eq!(rank.due(), Some(at(148)), "the third goes on, and no fourth is begun");
        assert!(rank.over(at(147)).is_none());
        let done = rank.over(at(148)).expect("it is over");
        assert_eq!((done.number, done.again, done.goes_on), (9, 0, false));
        rank.begin(step(10), 5, at(200));
        assert!(rank.over(at(201)).is_none());
        assert_eq!(rank.due(), Some(at(216)));
    }
}
