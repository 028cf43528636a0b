//! Which rows the next step has: the rules of [`super`], in their order.

use std::sync::Arc;

use super::Scheduler;
use super::budget::Budget;
use super::reuse::Claims;
use crate::kv::blocks_for;
use crate::message::StepRow;
use crate::sequence::Phase;

/// A step as it is chosen.
struct Choice {
    /// Order of arrival and tokens of each row.
    rows: Vec<(u64, usize)>,
    /// What prompts may still be given.
    budget: Budget,
    /// Blocks that the rows compute.
    claims: Claims,
}

impl Scheduler {
    pub(super) fn rows(&mut self) -> (Vec<(u64, usize)>, Vec<StepRow>) {
        let running = self.by_right();
        if self.bounds.state.is_none() {
            running.iter().for_each(|&arrival| self.catch_up(arrival));
        }
        let mut choice = Choice { rows: Vec::new(), budget: self.budget(), claims: self.claims() };
        for arrival in running {
            self.choose(arrival, &mut choice);
        }
        let mut line = self.line();
        while let Some(arrival) = self.queue.next(&mut line)
            && !self.is_spent(&choice.budget)
        {
            if self.awaits_store(arrival) || self.gains_by_waiting(arrival, &choice.rows) {
                self.queue.pass(&mut line);
                continue;
            }
            if !self.begin(arrival) {
                break;
            }
            self.queue.charge(&line);
            self.queue.pass(&mut line);
            self.choose(arrival, &mut choice);
        }
        let rows = choice.rows.iter().map(|&(arrival, count)| self.row(arrival, count)).collect();
        (choice.rows, rows)
    }

    /// Blocks that the step in flight computes.
    fn claims(&self) -> Claims {
        let mut claims = Claims::default();
        for sequence in self.sequences.values().filter(|sequence| sequence.ahead > 0) {
            claims.add(sequence, (sequence.computed, sequence.next()), self.bounds.block_size);
        }
        claims
    }

    /// Gives a running sequence its share of the step, if blocks can be had and nobody computes its next one already.
    fn choose(&mut self, arrival: u64, choice: &mut Choice) {
        if self.sequences[&arrival].phase != Phase::Running {
            return; // preempted while one before it was served
        }
        let sequence = &self.sequences[&arrival];
        let count = if sequence.pending() == 1 { 1 } else { self.share(sequence, &choice.budget) };
        let waits =
            self.bounds.state.is_none() && choice.claims.cover_next_of(sequence, self.bounds.block_size);
        let (start, end) = (sequence.next(), sequence.next() + count);
        if count == 0 || waits || !self.reserve(arrival, end) {
            return;
        }
        self.spend(arrival, count, &mut choice.budget);
        choice.claims.add(&self.sequences[&arrival], (start, end), self.bounds.block_size);
        choice.rows.push((arrival, count));
    }

    /// Moves a waiting sequence to the running ones when blocks for all its tokens, and a slot where the model keeps a
    /// state, can be had.
    fn begin(&mut self, arrival: u64) -> bool {
        if self.owning() >= self.bounds.sequences_max {
            return false;
        }
        let Some(mut sequence) = self.sequences.remove(&arrival) else { return false };
        let all = self.found(&sequence);
        let promised = self.gains_by_snapshot(&sequence, all);
        let found = if promised { all } else { self.worth(all) };
        let room = self.settle(&mut sequence, found);
        if room && promised {
            self.await_snapshot(&mut sequence, found);
        } else if room && !self.arrive(&mut sequence, found) {
            self.skip(&mut sequence, found);
            sequence.phase = Phase::Running;
        }
        self.sequences.insert(arrival, sequence);
        room
    }

    /// Blocks for `positions` of a running sequence, taken from who comes last if need be. False when that was itself, or when
    /// a step is in flight: then nobody gives blocks back.
    pub(super) fn reserve(&mut self, arrival: u64, positions: usize) -> bool {
        loop {
            let sequence = &self.sequences[&arrival];
            let wanted = blocks_for(positions, self.bounds.block_size).saturating_sub(sequence.blocks.len());
            if let Some(blocks) = self.pool.take(wanted, sequence.owner()) {
                let sequence = self.sequences.get_mut(&arrival).expect("it was just read");
                sequence.blocks.extend(blocks);
                return true;
            }
            if !self.flights.is_empty() {
                return false;
            }
            let last = self.by_right().last().copied();
            let last = last.expect("the sequence that asks is running");
            self.preempt(last);
            if last == arrival {
                return false;
            }
        }
    }

    fn preempt(&mut self, arrival: u64) {
        let sequence = self.sequences.get_mut(&arrival).expect("only known sequences are preempted");
        let owner = sequence.owner();
        (sequence.computed, sequence.sealed) = (0, 0);
        sequence.phase = Phase::Waiting;
        self.pool.give_back(std::mem::take(&mut sequence.blocks), owner);
        if let Some(state) = sequence.state.take() {
            self.pool.state.give_back(state.slot, owner);
        }
        self.shelf.cancel(arrival, &mut self.pool);
        self.imports.retain(|(of, _)| *of != arrival);
        self.preemptions += 1;
    }

    fn row(&self, arrival: u64, count: usize) -> StepRow {
        let sequence = &self.sequences[&arrival];
        let (start, end) = (sequence.next(), sequence.next() + count);
        let used = blocks_for(end, self.bounds.block_size);
        let follows = end > sequence.tokens.len();
        let last = count == sequence.pending();
        let size = self.bounds.block_size as usize;
        let write = start.max(sequence.state.map_or(0, |state| state.written)) / size;
        self.pool.expect_writes(sequence.blocks.get(write..used).unwrap_or_default(), sequence.owner());
        let wants = |offset: &u32| sequence.request.observe.wants(start as u32 + offset);
        StepRow {
            sequence: sequence.id(),
            tokens: if follows { vec![0] } else { sequence.tokens[start..end].to_vec() },
            start: start as u32,
            blocks: sequence.blocks[..used].to_vec(),
            images: Arc::clone(&sequence.request.images),
            state: sequence.row_state(self.bounds.state.and_then(|state| state.keep)),
            sample: last.then(|| sequence.sample(&self.bounds.end_tokens)),
            observe: (0..count as u32).filter(wants).collect(),
            follows: follows.then(|| sequence.ends(&self.bounds.end_tokens).collect()),
        }
    }
}
