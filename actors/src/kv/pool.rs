//! The ledger of KV blocks: who uses each one, which are free, and which wait to be used again. Freed too early is worse
//! than leaked, so every move names the owner it expects and a mismatch is a bug, not a warning.
//!
//! A block is in one of three states, and their numbers always add up to all blocks:
//! - **free**: it holds nothing of worth;
//! - **used**: by one sequence that writes it, or, once it is full and **sealed** under its hash, by any number of
//!   sequences and leases that read it. A sealed block is never written again;
//! - **cached**: sealed and used by nobody. It is found by its hash until its memory is wanted ([`super::idle`] says
//!   which goes first).

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};

use super::hash::BlockHash;
use super::idle::Idle;
use super::slots::Slots;
use crate::message::SequenceId;

/// Number of a block in its rank's KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Who uses a block, and must give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A sequence that is computed here. It writes its blocks until they are sealed.
    Sequence(SequenceId),
    /// A lease, by number: read by a decode group, written by nobody.
    Lease(u64),
    /// The prefix store, until blocks of a sequence, by number, have been read for it.
    Store(u64),
    /// A snapshot of a sequence that has ended, until it has been read.
    Snapshot(SequenceId),
}

/// What is known of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    users: u32,
    /// Set while it is sealed.
    hash: Option<BlockHash>,
}

/// All blocks of one rank, and its state slots.
#[derive(Debug)]
pub struct Pool {
    marks: Vec<Mark>,
    /// Who uses which block.
    rights: HashSet<(BlockId, Owner), FixedState>,
    free: Vec<BlockId>,
    /// Every sealed block.
    index: HashMap<BlockHash, BlockId, FixedState>,
    idle: Idle,
    evictions: u64,
    /// What sequences keep beside their blocks.
    pub state: Slots,
}

impl Pool {
    /// `blocks` free blocks.
    pub fn new(blocks: usize) -> Self {
        let last = u32::try_from(blocks).expect("the plan bounds the number of blocks");
        Self {
            marks: vec![Mark::default(); blocks],
            rights: HashSet::default(),
            free: (0..last).rev().map(BlockId).collect(),
            index: HashMap::default(),
            idle: Idle::new(blocks),
            evictions: 0,
            state: Slots::default(),
        }
    }

    /// The same, with `slots` free state slots.
    pub fn with_slots(self, slots: usize) -> Self {
        Self { state: Slots::new(slots), ..self }
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.marks.len()
    }

    /// Blocks that hold nothing of worth.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Sealed blocks that nobody uses.
    pub fn cached(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that can be had: free and cached ones.
    pub fn available(&self) -> usize {
        self.free() + self.cached()
    }

    /// Blocks somebody uses.
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// Cached blocks whose memory was wanted, so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The sealed block of this name.
    pub fn find(&self, hash: &BlockHash) -> Option<BlockId> {
        self.index.get(hash).copied()
    }

    /// How many of `blocks` are cached: using them leaves so many fewer to be had.
    pub fn cached_of(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.marks[block.0 as usize].users == 0).count()
    }

    /// `count` blocks to write, for `owner`, or none at all.
    pub fn take(&mut self, count: usize, owner: Owner) -> Option<Vec<BlockId>> {
        if count > self.available() {
            return None;
        }
        let blocks: Vec<BlockId> = (0..count).map_while(|_| self.vacate()).collect();
        blocks.iter().for_each(|&block| self.enter(block, owner));
        Some(blocks)
    }

    /// Sealed blocks to read, for `owner` too. Panics when one of them is not sealed, or is `owner`'s already.
    pub fn share(&mut self, blocks: &[BlockId], owner: Owner) {
        for &block in blocks {
            assert!(self.marks[block.0 as usize].hash.is_some(), "block {} is not sealed", block.0);
            self.idle.reuse(block);
            self.enter(block, owner);
        }
    }

    /// Sealed blocks that somebody uses, for `owner` too; that does not count as using them again. Panics as `share` does,
    /// or when nobody uses one of them.
    pub fn hold(&mut self, blocks: &[BlockId], owner: Owner) {
        for &block in blocks {
            let mark = self.marks[block.0 as usize];
            assert!(mark.hash.is_some() && mark.users > 0, "block {} is nobody's: {mark:?}", block.0);
            self.enter(block, owner);
        }
    }

    /// `owner` has filled `block` and writes it no more. Returns the block that bears the name: where another does, that
    /// one is shared and `block` goes back. Panics when `owner` is not the only user, or the block is sealed already.
    pub fn seal(&mut self, block: BlockId, hash: BlockHash, owner: Owner) -> BlockId {
        self.expect_writes(&[block], owner);
        match self.find(&hash) {
            Some(twin) => {
                self.give_back(vec![block], owner);
                self.share(&[twin], owner);
                twin
            }
            None => {
                self.marks[block.0 as usize].hash = Some(hash);
                self.index.insert(hash, block);
                block
            }
        }
    }

    /// Panics unless `owner` may write each of `blocks`: it is the only user, and the block is not sealed.
    pub fn expect_writes(&self, blocks: &[BlockId], owner: Owner) {
        for &block in blocks {
            let mark = self.marks[block.0 as usize];
            let writes = mark.users == 1 && mark.hash.is_none() && self.rights.contains(&(block, owner));
            assert!(writes, "block {} is not {owner:?}'s to write: {mark:?}", block.0);
        }
    }

    /// Ends the use of `blocks`, in the order of a sequence. Panics when one of them is not `owner`'s: the ledger would
    /// lie from here on.
    pub fn give_back(&mut self, blocks: Vec<BlockId>, owner: Owner) {
        for block in blocks.into_iter().rev() {
            self.leave(block, owner);
            let mark = self.marks[block.0 as usize];
            match (mark.users, mark.hash) {
                (0, Some(_)) => self.idle.put(block),
                (0, None) => self.free.push(block),
                _ => {}
            }
        }
    }

    /// Moves `blocks` from one owner to another. Panics when one of them is not `from`'s.
    pub fn transfer(&mut self, blocks: &[BlockId], from: Owner, to: Owner) {
        for &block in blocks {
            self.leave(block, from);
            self.enter(block, to);
        }
    }

    /// Panics when the ledger contradicts itself. Takes time in the number of blocks: for tests.
    pub fn audit(&self) {
        self.state.audit();
        let users: usize = self.marks.iter().map(|mark| mark.users as usize).sum();
        assert_eq!(users, self.rights.len(), "users are counted");
        let used = self.marks.iter().filter(|mark| mark.users > 0).count();
        assert_eq!(used, self.used(), "free, cached and used ones are all");
        assert_eq!(self.marks.iter().filter(|mark| mark.hash.is_some()).count(), self.index.len());
        for (block, mark) in (0..).map(BlockId).zip(&self.marks) {
            assert!(
                mark.hash.is_none_or(|hash| self.find(&hash) == Some(block)),
                "block {} is found: {mark:?}",
                block.0
            );
        }
        for mark in &self.marks {
            assert!(mark.users <= 1 || mark.hash.is_some(), "only sealed blocks are shared: {mark:?}");
        }
        for block in &self.free {
            let mark = self.marks[block.0 as usize];
            assert!(mark.users == 0 && mark.hash.is_none(), "block {} is free: {mark:?}", block.0);
        }
    }

    /// A block that nobody uses, freed of what it held.
    fn vacate(&mut self) -> Option<BlockId> {
        if let Some(block) = self.free.pop() {
            return Some(block);
        }
        let block = self.idle.give_up()?;
        let hash = self.marks[block.0 as usize].hash.take().expect("only sealed blocks wait");
        self.index.remove(&hash);
        self.evictions += 1;
        Some(block)
    }

    fn enter(&mut self, block: BlockId, owner: Owner) {
        let news = self.rights.insert((block, owner));
        assert!(news, "block {} belongs to {owner:?} already", block.0);
        self.marks[block.0 as usize].users += 1;
    }

    fn leave(&mut self, block: BlockId, owner: Owner) {
        let held = self.rights.remove(&(block, owner));
        assert!(held, "block {} belongs to {:?}, not to {owner:?}", block.0, self.owners(block));
        self.marks[block.0 as usize].users -= 1;
    }

    fn owners(&self, block: BlockId) -> Vec<Owner> {
        self.rights.iter().filter(|(held, _)| *held == block).map(|&(_, owner)| owner).collect()
    }
}

#[cfg(test)]
mod tests;
