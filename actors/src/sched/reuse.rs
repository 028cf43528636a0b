//! What is known of a sequence is not computed again.
//!
//! - A sequence begins with the longest run of blocks that the ledger finds by their hashes; the last token is always
//!   computed, so that there are logits.
//! - Every block that becomes full, of prompt or answer, is sealed when the step that filled it is done. What a step in
//!   flight writes is therefore never found.
//! - **Sharing in flight**: a sequence whose next block is computed by a row chosen before it in the same step sits
//!   that step out, and shares the block when it is sealed. Nothing of this is remembered from step to step: when the
//!   other one is cancelled, preempted or lost, the next plan finds no claim, and the sequence goes on alone. It waits
//!   for a row that is there, of a sequence older than itself (or, in the step in which it begins, any other), so
//!   nobody waits in a circle, and nobody for ever.
//! - A sequence whose block another one sealed first takes that one for its own: of what is sealed, the ledger holds
//!   one copy, and a block is never found without all before it.
//!
//! A model may keep a **state** beside the blocks: windows that blocks do not hold. A sequence of such a model that begins
//! behind found blocks *replays* some tokens before their end: their rows fill the windows and write no block. Therefore
//! - what is found counts only as far as it is longer than the replay;
//! - once it has begun it computes every token itself, and neither catches up nor waits;
//! - **before** it begins it waits for a row that is there, of a sequence that computes its next block now or later,
//!   when what it would find then is worth it. This too is decided anew in each step, and whoever waits holds nothing.
//!   Others may begin before it, but none whose beginning is the same: they wait for that same row.

use std::collections::BTreeSet;

use super::stored::Shelf;
use super::{Bounds, Promised, Scheduler};
use crate::kv::{BlockHash, Pool, blocks_for};
use crate::message::BlockName;
use crate::sequence::{Phase, Sequence, State};

/// Tokens since the start of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// Tokens of the sequences that began, or began again after a preemption.
    pub sought: u64,
    /// Those of them that were found and not computed.
    pub found: u64,
    /// Those that were found and computed once more, for a state.
    pub replayed: u64,
}

/// Blocks that the rows of one step compute.
#[derive(Default)]
pub(super) struct Claims(BTreeSet<BlockHash>);

impl Claims {
    /// The tokens of `sequence` from `start` up to `end` are computed in this step, or in the one in flight.
    pub(super) fn add(&mut self, sequence: &Sequence, (start, end): (usize, usize), block_size: u32) {
        let first = start / block_size as usize;
        let end = blocks_for(end, block_size).min(sequence.hashes.len());
        self.0.extend(sequence.hashes.get(first..end).unwrap_or_default());
    }

    /// Whether the block that `sequence` would begin now is computed in this step.
    pub(super) fn cover_next_of(&self, sequence: &Sequence, block_size: u32) -> bool {
        let size = block_size as usize;
        let next = sequence.next() / size;
        sequence.next().is_multiple_of(size)
            && next < sequence.reusable(block_size)
            && sequence.hashes.get(next).is_some_and(|hash| self.0.contains(hash))
    }
}

/// Seals the blocks of a sequence that are full now, and offers the new ones to the prefix store.
pub(super) fn seal(
    (arrival, sequence): (u64, &mut Sequence),
    pool: &mut Pool,
    shelf: &mut Shelf,
    bounds: &Bounds,
) {
    let Some(chain) = &bounds.reuse else { return };
    let (tokens, images) = (&sequence.tokens[..sequence.computed], &sequence.request.images);
    let keeping = sequence.request.keeping;
    let (owner, full) = (sequence.owner(), sequence.computed / bounds.block_size as usize);
    if sequence.hashes.len() < full {
        chain.salted(keeping.salt).extend_seeing(&mut sequence.hashes, tokens, images);
    }
    for n in sequence.sealed..full {
        let (own, hash) = (sequence.blocks[n], sequence.hashes[n]);
        sequence.blocks[n] = pool.seal(own, hash, owner);
        if bounds.store.is_some_and(|store| store.keeps) && n >= sequence.kept && sequence.blocks[n] == own {
            let parent = n.checked_sub(1).map(|before| sequence.hashes[before]);
            let name = BlockName { hash, parent, depth: n as u32, keeping };
            shelf.keep(name, (arrival, &sequence.blocks[..=n]), pool);
        }
    }
    sequence.sealed = sequence.sealed.max(full);
    sequence.kept = sequence.kept.max(full);
}

impl Scheduler {
    /// Blocks of a sequence, from the first, that the ledger finds: a beginning without a hole.
    pub(super) fn found(&self, sequence: &Sequence) -> usize {
        let reusable = sequence.reusable(self.bounds.block_size).min(sequence.hashes.len());
        sequence.hashes[..reusable].partition_point(|hash| self.pool.find(hash).is_some())
    }

    /// How many of `found` blocks are worth beginning behind: none that would have to be replayed as a whole.
    pub(super) fn worth(&self, found: usize) -> usize {
        let replay = self.bounds.state.map_or(0, |state| state.replay);
        if found * self.bounds.block_size as usize > replay { found } else { 0 }
    }

    /// Gives a sequence that owns nothing its block table: the first `found`, which the ledger knows, and blocks of its
    /// own for the rest; and a slot, where the model keeps a state. False, and nothing has changed, when there is no slot,
    /// or when that would not leave each of the other owning sequences a block to grow into.
    pub(super) fn settle(&mut self, sequence: &mut Sequence, found: usize) -> bool {
        let known = sequence.hashes[..found].iter();
        let mut blocks: Vec<_> = known.map_while(|hash| self.pool.find(hash)).collect();
        assert_eq!(blocks.len(), found, "what is found has no hole");
        let own = blocks_for(sequence.tokens.len(), self.bounds.block_size) - found;
        let spare = if self.bounds.answers { self.owning() } else { 0 };
        if own + spare + self.pool.cached_of(&blocks) > self.pool.available() {
            return false;
        }
        let owner = sequence.owner();
        let state = self.bounds.state.is_some().then(|| self.pool.state.take(owner));
        if state == Some(None) {
            return false;
        }
        let written = found * self.bounds.block_size as usize;
        sequence.state = state.flatten().map(|slot| State { slot, valid_from: 0, written });
        self.pool.share(&blocks, owner);
        blocks.extend(self.pool.take(own, owner).expect("the blocks were counted"));
        (sequence.blocks, sequence.sealed) = (blocks, found);
        true
    }

    /// A sequence that has just settled begins behind the `blocks` that were found, or so many tokens before their end as
    /// are replayed.
    pub(super) fn skip(&mut self, sequence: &mut Sequence, blocks: usize) {
        let size = self.bounds.block_size as usize;
        let found = self.worth(blocks) * size;
        let replay = self.bounds.state.map_or(0, |state| state.replay.min(found));
        let start = found - replay;
        sequence.skip(start);
        sequence.replay(replay);
        if let Some(state) = &mut sequence.state {
            (state.valid_from, state.written) = (start, blocks * size);
        }
        self.reused.sought += sequence.tokens.len() as u64;
        self.reused.found += start as u64;
        self.reused.replayed += replay as u64;
    }

    /// Whether a waiting sequence of a model with a state finds more that is worth it when it waits: one of `rows`, or one in
    /// flight, belongs to a sequence with the same beginning that computes its next block now or later.
    pub(super) fn gains_by_waiting(&self, arrival: u64, rows: &[(u64, usize)]) -> bool {
        let Some(state) = self.bounds.state else { return false };
        let sequence = &self.sequences[&arrival];
        // Hashes are chained: sequences that agree at a block agree at all before it. They must agree at the next one, and
        // at the first that is worth more than the replay, behind the snapshot that it may go on with.
        let ahead = state.replay + sequence.promised.as_ref().map_or(0, Promised::start);
        let decides = self.found(sequence).max(ahead / self.bounds.block_size as usize);
        if decides >= sequence.reusable(self.bounds.block_size) {
            return false;
        }
        let Some(hash) = sequence.hashes.get(decides) else { return false };
        let same = |other: &Sequence| other.hashes.get(decides) == Some(hash);
        rows.iter().any(|(other, _)| same(&self.sequences[other]))
            || self.sequences.values().any(|s| s.ahead > 0 && s.phase == Phase::Running && same(s))
    }

    /// Shares what others have sealed of a running sequence's next blocks since it began.
    pub(super) fn catch_up(&mut self, arrival: u64) {
        let size = self.bounds.block_size as usize;
        let sequence = self.sequences.get_mut(&arrival).expect("only known sequences catch up");
        let owner = sequence.owner();
        while sequence.ahead == 0
            && sequence.computed == sequence.sealed * size
            && sequence.computed / size < sequence.reusable(size as u32)
        {
            let next = sequence.computed / size;
            let found = sequence.hashes.get(next).and_then(|hash| self.pool.find(hash));
            let Some(block) = found else { break };
            let own = std::mem::replace(&mut sequence.blocks[next], block);
            self.pool.give_back(vec![own], owner);
            self.pool.share(&[block], owner);
            sequence.sealed = next + 1;
            sequence.skip(size);
            self.reused.found += size as u64;
        }
    }
}
