//! The asynchronous loop: with [`Bounds::ahead`](super::Bounds::ahead) a step is planned while another one runs, so that the
//! rank begins it without waiting for its group. At most two steps are in flight, the one that runs and one behind it, and
//! what a step brings is counted when it is done: the plan of the step behind is made with counts that are one step late.
//!
//! - **Rows begin where the rows in flight end**: `Sequence::ahead` positions are taken as computed. What the step that runs
//!   computes is not found by anybody before it is done; who shares it waits, as for a row of the same step.
//! - **A row may follow.** Where the step that runs chooses a token of a sequence, its row in the step behind has that one
//!   token, which nobody knows yet: the rank puts in what it has chosen (`rank/follow.rs`). A block for it is reserved now.
//! - **Nothing behind an end is computed.** Where an answer is as long as it may be is known, and no row follows there. Which
//!   tokens end it goes with the row, and the rank leaves the row out when it has chosen one of them, or none. So no block,
//!   state, name or snapshot ever holds anything behind the end, and the sequence leaves when its last token is known,
//!   whatever is behind it. Stop strings end an answer from without, steps later, in both loops.
//! - **Nobody gives blocks back for a step planned ahead.** It is planned only when there are blocks for all who run;
//!   otherwise the next plan is made when nothing is in flight, by the rules of preemption.
//! - What is aborted stays until the last step is done that was planned by then, and so does what a step reads.
//! - A prompt that leaves its group with its first token is not followed.
//!
//! A token depends on its request alone, so both loops give the same answers; who comes begins a step later here.

use std::collections::VecDeque;

use super::{Scheduler, reuse};
use crate::kv::blocks_for;
use crate::message::{Chosen, StepRow};
use crate::sched::Applied;
use crate::sequence::{Phase, Sequence};

/// One sequence's share of a step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Order of arrival.
    pub arrival: u64,
    /// Its tokens.
    pub count: usize,
    /// It chooses the next one.
    pub chooses: bool,
    /// Its token is what the step before chooses.
    pub follows: bool,
}

impl Part {
    pub(super) fn new((arrival, count): (u64, usize), row: &StepRow) -> Self {
        Self { arrival, count, chooses: row.sample.is_some(), follows: row.follows.is_some() }
    }
}

/// A step that the rank has.
pub(super) struct Flight {
    pub number: u64,
    pub parts: Vec<Part>,
    /// It moves no bytes.
    pub computes_only: bool,
}

/// Steps that the rank has, the one that runs first.
pub(super) type Flights = VecDeque<Flight>;

impl Scheduler {
    /// Whether there is a place behind what is in flight.
    pub(super) fn may_plan(&self) -> bool {
        match self.flights.len() {
            0 => true,
            1 => self.bounds.ahead && self.has_room_ahead(),
            _ => false,
        }
    }

    /// There is a block for whoever runs and needs one.
    fn has_room_ahead(&self) -> bool {
        let running = self.sequences.values().filter(|sequence| sequence.phase == Phase::Running);
        let more = |sequence: &Sequence| {
            let wanted = blocks_for(sequence.next() + 1, self.bounds.block_size);
            wanted.saturating_sub(sequence.blocks.len())
        };
        running.filter(|sequence| sequence.pending() > 0).map(more).sum::<usize>() <= self.pool.available()
    }

    /// The rank has a step.
    pub(super) fn fly(&mut self, flight: Flight) {
        for part in &flight.parts {
            let sequence =
                self.sequences.get_mut(&part.arrival).expect("rows are of sequences that are here");
            sequence.fly(part.count, part.chooses);
        }
        self.flights.push_back(flight);
    }

    /// A row is done: what it brings is counted.
    pub(super) fn advance(
        &mut self,
        part: &Part,
        (chosen, again): (Option<&Chosen>, u32),
        applied: &mut Applied,
    ) {
        let Part { arrival, count, chooses, follows } = *part;
        if again > 0 {
            let computed = self.sequences[&arrival].computed;
            self.reserve_for(arrival, computed + count + again as usize);
        }
        let Some(sequence) = self.sequences.get_mut(&arrival) else {
            assert!(follows && chosen.is_none(), "a sequence in flight is kept until the step is done");
            return; // it has ended with the step before
        };
        sequence.land(count, chooses);
        if follows && chosen.is_none() {
            return; // it was left out
        }
        let token = chosen.map(|chosen| sequence.push(chosen, again, &self.bounds.end_tokens));
        sequence.pass(count + again as usize);
        reuse::seal((arrival, sequence), &mut self.pool, &mut self.shelf, &self.bounds);
        if sequence.phase == Phase::Doomed {
            return;
        }
        let Some(token) = token else { return };
        if token.finish.is_some() {
            self.take_answer(arrival);
            self.remove(arrival);
        }
        applied.tokens.push(token);
    }

    /// Sequences that nobody wants and no step in flight touches are gone.
    pub(super) fn bury(&mut self, done: u64) {
        let over = |s: &Sequence| s.phase == Phase::Doomed && s.doomed <= done;
        let over = self.sequences.iter().filter(|(_, s)| over(s)).map(|(&arrival, _)| arrival);
        for arrival in over.collect::<Vec<_>>() {
            self.remove(arrival);
        }
    }
}
