//! Full blocks that nobody uses, in the order in which their memory is given up: a segmented LRU.
//!
//! A block that was used once is given up before every block that was used again, the longest unused first; so a long
//! prompt that comes once passes through without touching what many prompts begin with. Blocks that were used again
//! fill at most [`PROTECTED`] of the memory; beyond that, the longest unused of them counts as used once.
//!
//! A sequence puts its last block down first, and whoever uses a block uses all before it in the chain; therefore a
//! block is always given up before the one it continues.

use std::collections::BTreeMap;

use super::BlockId;

/// Share of all blocks that may wait as used again.
const PROTECTED: (usize, usize) = (4, 5);

/// What is known of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// When it was put down, while it waits.
    since: Option<u64>,
    /// Somebody used it after it was first computed.
    again: bool,
}

/// See the module. Every operation takes time in the logarithm of the number of blocks.
#[derive(Debug)]
pub(super) struct Idle {
    marks: Vec<Mark>,
    once: BTreeMap<u64, BlockId>,
    again: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl Idle {
    /// Nothing waits, of `blocks` in all.
    pub(super) fn new(blocks: usize) -> Self {
        Self { marks: vec![Mark::default(); blocks], once: BTreeMap::new(), again: BTreeMap::new(), clock: 0 }
    }

    /// Blocks that wait.
    pub(super) fn len(&self) -> usize {
        self.once.len() + self.again.len()
    }

    /// Nobody uses `block` any more.
    pub(super) fn put(&mut self, block: BlockId) {
        self.enter(block);
        let most = self.marks.len() * PROTECTED.0 / PROTECTED.1;
        if self.again.len() > most
            && let Some((_, oldest)) = self.again.pop_first()
        {
            self.marks[oldest.0 as usize].again = false;
            self.enter(oldest);
        }
    }

    /// Somebody uses `block` again, whether it waited or not.
    pub(super) fn reuse(&mut self, block: BlockId) {
        let mark = &mut self.marks[block.0 as usize];
        if let Some(since) = mark.since.take() {
            let segment = if mark.again { &mut self.again } else { &mut self.once };
            segment.remove(&since);
        }
        mark.again = true;
    }

    /// Gives up the block that is least likely to be used again.
    pub(super) fn give_up(&mut self) -> Option<BlockId> {
        let (_, block) = self.once.pop_first().or_else(|| self.again.pop_first())?;
        self.marks[block.0 as usize] = Mark::default();
        Some(block)
    }

    fn enter(&mut self, block: BlockId) {
        self.clock += 1;
        let mark = &mut self.marks[block.0 as usize];
        mark.since = Some(self.clock);
        let segment = if mark.again { &mut self.again } else { &mut self.once };
        segment.insert(self.clock, block);
    }
}
