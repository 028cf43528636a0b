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

use std::collections::BTreeSet;

use super::{Bounds, Scheduler};
use crate::kv::{BlockHash, Pool, blocks_for};
use crate::sequence::Sequence;

/// Tokens since the start of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reused {
    /// Tokens of the sequences that began, or began again after a preemption.
    pub sought: u64,
    /// Those of them that were found.
    pub found: u64,
}

/// Blocks that the rows of one step compute.
#[derive(Default)]
pub(super) struct Claims(BTreeSet<BlockHash>);

impl Claims {
    /// The next `count` tokens of `sequence` are computed in this step.
    pub(super) fn add(&mut self, sequence: &Sequence, count: usize, block_size: u32) {
        let first = sequence.computed / block_size as usize;
        let end = blocks_for(sequence.computed + count, block_size).min(sequence.hashes.len());
        self.0.extend(sequence.hashes.get(first..end).unwrap_or_default());
    }

    /// Whether the block that `sequence` would begin now is computed in this step.
    pub(super) fn cover_next_of(&self, sequence: &Sequence, block_size: u32) -> bool {
        let size = block_size as usize;
        let next = sequence.computed / size;
        sequence.computed.is_multiple_of(size)
            && next < sequence.reusable(block_size)
            && sequence.hashes.get(next).is_some_and(|hash| self.0.contains(hash))
    }
}

/// Seals the blocks of `sequence` that are full now.
pub(super) fn seal(sequence: &mut Sequence, pool: &mut Pool, bounds: &Bounds) {
    let Some(chain) = &bounds.reuse else { return };
    let (tokens, images) = (&sequence.tokens[..sequence.computed], &sequence.request.images);
    chain.extend_seeing(&mut sequence.hashes, tokens, images);
    let (owner, full) = (sequence.owner(), sequence.computed / bounds.block_size as usize);
    for n in sequence.sealed..full {
        sequence.blocks[n] = pool.seal(sequence.blocks[n], sequence.hashes[n], owner);
    }
    sequence.sealed = sequence.sealed.max(full);
}

impl Scheduler {
    /// Gives a sequence that owns nothing its block table: what is found of it, and blocks of its own for the rest.
    /// False, and nothing has changed, when that would not leave each of the other owning sequences a block to grow into.
    pub(super) fn settle(&mut self, sequence: &mut Sequence) -> bool {
        let reusable = sequence.reusable(self.bounds.block_size);
        let known = sequence.hashes.iter().take(reusable);
        let mut blocks: Vec<_> = known.map_while(|hash| self.pool.find(hash)).collect();
        let found = blocks.len();
        let own = blocks_for(sequence.tokens.len(), self.bounds.block_size) - found;
        let spare = if self.bounds.answers { self.owning() } else { 0 };
        if own + spare + self.pool.cached_of(&blocks) > self.pool.available() {
            return false;
        }
        let owner = sequence.owner();
        self.pool.share(&blocks, owner);
        blocks.extend(self.pool.take(own, owner).expect("the blocks were counted"));
        (sequence.blocks, sequence.sealed) = (blocks, found);
        self.reused.sought += sequence.tokens.len() as u64;
        self.reused.found += found as u64 * u64::from(self.bounds.block_size);
        true
    }

    /// Shares what others have sealed of a running sequence's next blocks since it began.
    pub(super) fn catch_up(&mut self, arrival: u64) {
        let size = self.bounds.block_size as usize;
        let sequence = self.sequences.get_mut(&arrival).expect("only known sequences catch up");
        let owner = sequence.owner();
        while sequence.computed.is_multiple_of(size)
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
