//! The ledger of KV blocks: who owns each one, and which are free. Freed too early is worse than leaked, so every move
//! names the owner it expects and a mismatch is a bug, not a warning.

use crate::message::SequenceId;

/// Number of a block in its rank's KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Who may write a block, and must give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A sequence that is computed here.
    Sequence(SequenceId),
    /// A lease, by number: read by a decode group, written by nobody.
    Lease(u64),
}

/// All blocks of one rank.
#[derive(Debug)]
pub struct Pool {
    owners: Vec<Option<Owner>>,
    free: Vec<BlockId>,
}

impl Pool {
    /// `blocks` free blocks.
    pub fn new(blocks: usize) -> Self {
        let last = u32::try_from(blocks).expect("the plan bounds the number of blocks");
        Self { owners: vec![None; blocks], free: (0..last).rev().map(BlockId).collect() }
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.owners.len()
    }

    /// Blocks nobody owns.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks somebody owns.
    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// `count` blocks for `owner`, or none at all.
    pub fn take(&mut self, count: usize, owner: Owner) -> Option<Vec<BlockId>> {
        let rest = self.free.len().checked_sub(count)?;
        let blocks: Vec<BlockId> = self.free.drain(rest..).rev().collect();
        for block in &blocks {
            self.owners[block.0 as usize] = Some(owner);
        }
        Some(blocks)
    }

    /// Ends the ownership of `blocks`. Panics when one of them is not `owner`'s: the ledger would lie from here on.
    pub fn give_back(&mut self, blocks: Vec<BlockId>, owner: Owner) {
        for block in blocks.into_iter().rev() {
            self.expect_owner(block, owner);
            self.owners[block.0 as usize] = None;
            self.free.push(block);
        }
    }

    /// Moves `blocks` from one owner to another. Panics when one of them is not `from`'s.
    pub fn transfer(&mut self, blocks: &[BlockId], from: Owner, to: Owner) {
        for &block in blocks {
            self.expect_owner(block, from);
            self.owners[block.0 as usize] = Some(to);
        }
    }

    fn expect_owner(&self, block: BlockId, owner: Owner) {
        let found = self.owners[block.0 as usize];
        assert!(found == Some(owner), "block {} belongs to {found:?}, not to {owner:?}", block.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestId;

    fn owner(request: u64) -> Owner {
        Owner::Sequence(SequenceId { request: RequestId(request), attempt: 0 })
    }

    #[test]
    fn all_or_nothing() {
        let mut pool = Pool::new(4);
        let three = pool.take(3, owner(1)).unwrap();
        assert_eq!(three, [BlockId(0), BlockId(1), BlockId(2)]);
        assert_eq!(pool.take(2, owner(2)), None);
        assert_eq!(pool.free(), 1);
        pool.give_back(three, owner(1));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    #[should_panic(expected = "belongs to")]
    fn a_block_is_not_given_back_twice() {
        let mut pool = Pool::new(2);
        let blocks = pool.take(1, owner(1)).unwrap();
        pool.give_back(blocks.clone(), owner(1));
        pool.give_back(blocks, owner(1));
    }

    #[test]
    #[should_panic(expected = "belongs to")]
    fn a_lease_takes_the_blocks_from_the_sequence() {
        let mut pool = Pool::new(2);
        let blocks = pool.take(2, owner(1)).unwrap();
        pool.transfer(&blocks, owner(1), Owner::Lease(7));
        pool.give_back(blocks, owner(1));
    }
}
