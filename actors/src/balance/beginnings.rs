//! Which group was last sent a prompt that begins like this one: its blocks are most likely still there.
//!
//! A guess, for the choice among groups and nothing else: when it is wrong, the blocks are computed again. Of a prompt it
//! keeps the hashes of the first 1, 2, 4, 8, … blocks, so a long prompt takes a few entries and two that begin alike meet
//! at one of them; the entries that were used longest ago go first.

use std::collections::BTreeMap;

use crate::kv::BlockHash;

/// Entries in all.
const KNOWN_MAX: usize = 8_192;

/// See the module.
#[derive(Default)]
pub struct Beginnings {
    groups: BTreeMap<BlockHash, Entry>,
    /// By time of last use.
    order: BTreeMap<u64, BlockHash>,
    clock: u64,
}

struct Entry {
    used: u64,
    group: usize,
}

impl Beginnings {
    /// The group that was last sent the longest known beginning of a prompt with these block hashes, and how many
    /// blocks that is.
    pub fn find(&self, hashes: &[BlockHash]) -> Option<(usize, usize)> {
        let known = |&(blocks, hash): &(usize, BlockHash)| Some((self.groups.get(&hash)?.group, blocks));
        marks(hashes).iter().rev().find_map(known)
    }

    /// A prompt with these block hashes was sent to `group`.
    pub fn learn(&mut self, hashes: &[BlockHash], group: usize) {
        for (_, hash) in marks(hashes) {
            self.clock += 1;
            let entry = Entry { used: self.clock, group };
            if let Some(old) = self.groups.insert(hash, entry) {
                self.order.remove(&old.used);
            }
            self.order.insert(self.clock, hash);
        }
        while self.order.len() > KNOWN_MAX {
            self.order.pop_first().map(|(_, hash)| self.groups.remove(&hash));
        }
    }
}

/// Numbers of blocks, and the hash of the last of them.
fn marks(hashes: &[BlockHash]) -> Vec<(usize, BlockHash)> {
    let counts = (0..usize::BITS).map(|n| 1 << n);
    counts.map_while(|blocks| Some((blocks, *hashes.get(blocks - 1)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::HashChain;

    fn hashes(beginning: u32, blocks: u32) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        let tokens: Vec<u32> =
            (0..blocks).map(|n| if n < 5 { beginning } else { 1000 + n + blocks }).collect();
        HashChain::new(b"test", 1).extend(&mut hashes, &tokens);
        hashes
    }

    #[test]
    fn the_longest_known_beginning_counts() {
        let mut known = Beginnings::default();
        known.learn(&hashes(1, 40), 0);
        known.learn(&hashes(2, 40), 1);
        assert_eq!(known.find(&hashes(1, 40)), Some((0, 32)));
        assert_eq!(known.find(&hashes(1, 7)), Some((0, 4)), "5 blocks are the same, and 4 are a mark");
        known.learn(&hashes(1, 7), 1);
        assert_eq!(known.find(&hashes(1, 9)), Some((1, 4)), "where it was sent last");
        assert_eq!((known.find(&hashes(3, 40)), known.find(&[])), (None, None));
    }

    #[test]
    fn it_keeps_a_bounded_number_and_forgets_the_oldest() {
        let mut known = Beginnings::default();
        for beginning in 0..10_000 {
            known.learn(&hashes(0, 3), 0);
            known.learn(&hashes(beginning + 1, 3), 1);
        }
        assert_eq!((known.groups.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
        assert_eq!(known.find(&hashes(0, 3)), Some((0, 2)), "it is used all the time");
        assert_eq!((known.find(&hashes(1, 3)), known.find(&hashes(10_000, 3))), (None, Some((1, 2))));
    }
}
