//! Steps that come out alike, for ranks of the simulator: while nothing can join and nothing ends, each plan gives the rows
//! of the one before it, one token on. Such a rank may run them as one, and is asked how many were over whenever anything
//! comes to the group; so the scheduler is at every moment where single steps would have brought it.

use super::Scheduler;
use super::ahead::{Flight, Part};
use crate::kv::blocks_for;
use crate::request::Observe;
use crate::sequence::{Phase, Sequence};

impl Scheduler {
    /// How many times the first step in flight may run, one behind the other and what is in flight behind it among them, before a plan could come out differently if nothing
    /// comes to the group; at least 1. `most` is returned at most.
    ///
    /// Rows must be single tokens of answers, and all there are. Then blocks are only taken, so whoever waits and could not
    /// begin cannot begin later either. The last time is that in which the first answer ends, or in which the first block
    /// gets full, where blocks are read for the prefix store.
    pub fn repeats(&self, most: u32) -> u32 {
        let running = self.sequences.values().filter(|sequence| sequence.phase == Phase::Running).count();
        let Some(first) = self.flights.front() else { return 1 };
        let rows = || first.parts.iter().map(|part| &self.sequences[&part.arrival]);
        let same = |(part, other): (&Part, &Part)| part.arrival == other.arrival;
        let alike = |flight: &Flight| {
            let all = flight.computes_only && flight.parts.len() == running;
            all && flight.parts.iter().zip(&first.parts).all(same)
        };
        if !self.flights.iter().all(alike) || !rows().all(grows) {
            return 1;
        }
        let times = rows().map(|sequence| self.times(sequence)).min().unwrap_or(1).min(most as usize);
        let more = |sequence: &Sequence| {
            let blocks = blocks_for(sequence.computed + times, self.bounds.block_size);
            blocks.saturating_sub(sequence.blocks.len())
        };
        let fits = rows().map(more).sum::<usize>() <= self.pool.available();
        if fits { times.max(1) as u32 } else { 1 }
    }

    /// How many times a row may run.
    fn times(&self, sequence: &Sequence) -> usize {
        let left = sequence.request.tokens_max as usize - sequence.answer().len();
        let size = self.bounds.block_size as usize;
        match self.bounds.store {
            Some(store) if store.keeps => left.min(size - sequence.computed % size),
            _ => left,
        }
    }

    /// Blocks for so many positions of a sequence in flight, which [`Scheduler::repeats`] has found.
    pub(super) fn reserve_for(&mut self, arrival: u64, positions: usize) {
        let reserved = self.reserve(arrival, positions);
        assert!(reserved, "steps are run again only where there are blocks for them");
    }

    /// The step behind the first is one of those that the first stood for.
    pub(super) fn forget_behind(&mut self) {
        for part in self.flights.pop_front().into_iter().flat_map(|flight| flight.parts) {
            if let Some(sequence) = self.sequences.get_mut(&part.arrival) {
                sequence.land(part.count, part.chooses);
            }
        }
    }

    /// The rank has the same rows once more.
    pub(super) fn go_again(&mut self, parts: &[Part]) {
        for part in parts {
            self.reserve_for(part.arrival, self.sequences[&part.arrival].next() + part.count);
        }
        self.steps += 1;
        self.fly(Flight { number: self.steps, parts: parts.to_vec(), computes_only: true });
    }
}

/// Whether a row is a further token of an answer that nobody looks into.
fn grows(sequence: &Sequence) -> bool {
    let begun = !sequence.answer().is_empty() && sequence.uncomputed() == 1;
    begun && sequence.request.observe == Observe::Nothing
}
