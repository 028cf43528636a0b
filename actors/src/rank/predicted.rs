//! What stands for a rank in a simulation of capacity: a mock. It holds no model and computes nothing. A step takes as long
//! as is predicted, its tokens are made up, and bytes that leave it are hollow.
//!
//! It lies in the seat of its group, where it knows at once when something comes. So one run of it may stand for many steps
//! that come out alike ([`Scheduler::repeats`](crate::sched::Scheduler::repeats)), a **leap**: when nothing comes, all of
//! them are done at its end, and when something does, those are done that are over by then, the one under way is ended, and
//! the rest is forgotten. What is said of the group, and when, is the same as with single steps.
//!
//! Where steps are planned ahead, two are in flight, and so many a leap leaves: the one under way, and the one behind it. The
//! group plans the next one when the last of a leap begins.

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

/// A step that is behind the one that runs.
struct Behind {
    number: u64,
    rows: Vec<RowCost>,
    exports: Vec<Export>,
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
    /// Steps in flight at most.
    depth: usize,
    running: Option<Running>,
    behind: Option<Behind>,
    /// It has just begun: it may become a leap.
    fresh: bool,
    /// What each step took that was over last.
    took: Vec<Duration>,
    /// Steps of the next leap at most.
    leap: u32,
}

impl PredictedRank {
    /// Nothing runs. Steps are planned `ahead`, or not.
    pub fn new(prediction: Prediction, ahead: bool) -> Self {
        let (leap, depth) = (if prediction.leaps { LEAP } else { 1 }, 1 + usize::from(ahead));
        let (running, behind, fresh, took) = (None, None, false, Vec::new());
        Self { prediction, depth, running, behind, fresh, took, leap }
    }

    /// The most steps that what has just begun may stand for; `None` when nothing has.
    pub fn leap(&mut self) -> Option<u32> {
        std::mem::take(&mut self.fresh).then_some(self.leap)
    }

    /// Takes a step: it begins, or is behind the one that runs.
    pub fn take(&mut self, step: Step, now: Time) {
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
        let behind = Behind { number: step.number, rows, exports: step.exports };
        if self.running.is_none() {
            self.begin(behind, now);
        } else {
            let before = self.behind.replace(behind);
            assert!(before.is_none() && self.depth > 1, "there is a place for one step behind");
        }
    }

    fn begin(&mut self, Behind { number, rows, exports }: Behind, began: Time) {
        let ends = self.ends(&rows, began, 1);
        self.running = Some(Running { number, rows, exports, began, ends });
        self.fresh = true;
    }

    /// What has just begun is the first of so many steps that come out alike. What is behind it is the second.
    pub fn stretch(&mut self, times: u32) {
        let Some(Running { rows, began, .. }) = &self.running else { return };
        if times as usize > self.depth {
            let ends = self.ends(rows, *began, times);
            self.behind = None;
            self.running.iter_mut().for_each(|running| running.ends.clone_from(&ends));
        }
    }

    /// When each of so many steps ends.
    fn ends(&self, rows: &[RowCost], began: Time, times: u32) -> Vec<Time> {
        let (mut ends, mut end, mut done) = (Vec::with_capacity(times as usize), began, 0);
        while done < times {
            let (takes, alike) = self.takes(rows, done);
            for _ in 0..alike.min(times - done) {
                end = end + takes;
                ends.push(end);
            }
            done += alike;
        }
        ends
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

    /// When the next plan is made: when what runs is over, or where steps are planned ahead, when its last step begins.
    /// `None` when nothing runs.
    pub fn due(&self) -> Option<Time> {
        let ends = &self.running.as_ref()?.ends;
        ends.len().checked_sub(self.depth).or(Some(0)).and_then(|last| ends.get(last).copied())
    }

    /// Something comes to the group: what is over by now, if anything is; to be asked again until nothing is. What is not yet
    /// planned will not be.
    pub fn over(&mut self, now: Time) -> Option<StepDone> {
        let running = self.running.as_ref()?;
        let (steps, over) = (running.ends.len(), running.ends.partition_point(|&end| end <= now));
        let (leapt, rest) = (steps > 1, steps - over);
        if self.prediction.leaps && (leapt || over > 0) {
            self.leap = if rest < self.depth { (self.leap * 2).min(LEAP_MAX) } else { LEAP };
        }
        let done = (over > 0).then(|| self.land(over));
        if leapt {
            self.cut(over);
        } else if done.is_some() {
            let ended = self.running.take().map_or(now, |running| running.ends[0]);
            if let Some(behind) = self.behind.take() {
                self.begin(behind, ended);
            }
        }
        done
    }

    /// So many of the steps that run are over.
    fn land(&mut self, over: usize) -> StepDone {
        let running = self.running.as_mut().expect("only what runs is over");
        let ends = &running.ends[..over];
        let begins = std::iter::once(&running.began).chain(ends);
        self.took.extend(ends.iter().zip(begins).map(|(end, &begin)| end.saturating_since(begin)));
        let (group, rows, began) = (self.prediction.group, running.rows.as_slice(), running.began);
        self.prediction.watch.ran(&Ran { group, rows, began, ends });
        let bytes = self.prediction.bytes;
        StepDone {
            number: running.number,
            again: over as u32 - 1,
            goes_on: (running.ends.len() - over).min(self.depth) as u32,
            tokens: running.rows.iter().map(|row| row.chooses.then(|| made_up(row.sequence))).collect(),
            exported: running.exports.drain(..).map(|export| hollow(export, bytes)).collect(),
            ..StepDone::default()
        }
    }

    /// Of a leap of which so many steps are over, the one under way goes on, and the one behind it where two are in flight.
    fn cut(&mut self, over: usize) {
        let Some(Running { number, mut rows, began, ends, .. }) = self.running.take() else { return };
        let later = |rows: &mut Vec<RowCost>, on: u32| rows.iter_mut().for_each(|row| row.start += on);
        let began = over.checked_sub(1).map_or(began, |last| ends[last]);
        let rest = &ends[over..];
        later(&mut rows, over as u32);
        if rest.len() > 1 && self.depth > 1 {
            let mut rows = rows.clone();
            later(&mut rows, 1);
            self.behind = Some(Behind { number: number + over as u64 + 1, rows, exports: Vec::new() });
        }
        if let Some(&end) = rest.first() {
            let number = number + over as u64;
            self.running = Some(Running { number, rows, exports: Vec::new(), began, ends: vec![end] });
        }
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

    fn rank(ahead: bool) -> PredictedRank {
        let (predict, watch) = (Arc::new(Positions), Arc::new(Positions));
        PredictedRank::new(Prediction { predict, watch, group: 0, bytes: (100, 10), leaps: true }, ahead)
    }

    /// A step, as the first of so many that come out alike. Says when the next plan is made.
    fn begin(rank: &mut PredictedRank, step: Step, times: u32, now: Time) -> Time {
        rank.take(step, now);
        assert_eq!(rank.leap(), Some(rank.leap));
        rank.stretch(times);
        rank.due().expect("it runs")
    }

    fn step(number: u64, start: u32) -> Step {
        let row = StepRow {
            sequence: SequenceId { request: RequestId(5), attempt: 0 },
            tokens: vec![0],
            start,
            blocks: Vec::new(),
            images: Arc::from([]),
            state: None,
            sample: None,
            observe: Vec::new(),
            follows: None,
        };
        Step { number, imports: Vec::new(), rows: vec![row], exports: Vec::new() }
    }

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn a_leap_takes_what_its_steps_take() {
        let mut rank = rank(false);
        // Two steps in the middle of positions 0 to 31, and one in that of 32 to 63.
        assert_eq!(begin(&mut rank, step(7, 30), 3, at(100)), at(100 + 16 + 16 + 48));
        let done = rank.over(at(180)).expect("all are over");
        assert_eq!((done.number, done.again, done.goes_on, rank.due()), (7, 2, 0, None));
    }

    #[test]
    fn what_comes_sees_the_step_under_way_end() {
        let mut rank = rank(false);
        begin(&mut rank, step(7, 10), 5, at(100));
        let done = rank.over(at(132)).expect("two are over, the second just now");
        assert_eq!((done.number, done.again, done.goes_on), (7, 1, 1));
        assert_eq!(rank.due(), Some(at(148)), "the third goes on, and no fourth is begun");
        assert!(rank.over(at(147)).is_none());
        let done = rank.over(at(148)).expect("it is over");
        assert_eq!((done.number, done.again, done.goes_on), (9, 0, 0));
        begin(&mut rank, step(10, 10), 5, at(200));
        assert!(rank.over(at(201)).is_none());
        assert_eq!(rank.due(), Some(at(216)));
    }

    #[test]
    fn with_two_in_flight_a_leap_leaves_two() {
        let mut rank = rank(true);
        rank.take(step(7, 10), at(100));
        rank.take(step(8, 11), at(100));
        rank.stretch(5);
        assert_eq!(rank.due(), Some(at(164)), "the fifth begins: the sixth may be other than these");
        let done = rank.over(at(130)).expect("one is over");
        assert_eq!((done.number, done.again, done.goes_on), (7, 0, 2));
        assert!(rank.over(at(130)).is_none());
        let ends = [(132, 8), (148, 9)].map(|(micros, number)| {
            assert_eq!(rank.due(), Some(at(micros)));
            let done = rank.over(at(micros)).expect("it is over");
            (done.number, done.again, done.goes_on) == (number, 0, 0)
        });
        assert_eq!((ends, rank.due()), ([true; 2], None));
    }

    #[test]
    fn the_next_plan_is_made_when_the_last_step_of_a_leap_begins() {
        let mut rank = rank(true);
        rank.take(step(7, 10), at(100));
        rank.take(step(8, 11), at(100));
        rank.stretch(4);
        let done = rank.over(at(148)).expect("three are over");
        assert_eq!((done.number, done.again, done.goes_on), (7, 2, 1));
        rank.take(step(11, 14), at(148));
        let done = rank.over(at(164)).expect("the last is over");
        assert_eq!((done.number, done.again, done.goes_on, rank.due()), (10, 0, 0, Some(at(180))));
    }
}
