//! The shelf of snapshots: in the memory of this process, up to a number of bytes, and a few behind each block. Given up
//! first is what was not asked for the longest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::kv::BlockHash;
use crate::snapshot::{Beginning, Promise, Snapshot, SnapshotName};
use crate::store::Payload;

/// Snapshots behind one block: one of the prompt that ends there, and of some answers.
const TAILS: usize = 8;

/// One snapshot.
struct Entry {
    name: Arc<SnapshotName>,
    data: Vec<Payload>,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.data.iter().map(|data| data.len() as u64).sum()
    }
}

/// See the module.
pub struct Snapshots {
    bytes_max: u64,
    bytes: u64,
    /// By when each was last asked for, or put here: a count.
    entries: BTreeMap<u64, Entry>,
    /// Those behind each block, the oldest first.
    behind: BTreeMap<BlockHash, Vec<u64>>,
    clock: u64,
}

impl Snapshots {
    /// Empty; it holds at most `bytes_max` bytes of blocks and states.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: 0, entries: BTreeMap::new(), behind: BTreeMap::new(), clock: 0 }
    }

    /// Bytes of the snapshots that are here.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Snapshots that are here.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Takes a snapshot in, in the place of those that it makes useless.
    pub fn put(&mut self, snapshot: Snapshot) {
        let entry = Entry { name: Arc::new(snapshot.name), data: snapshot.data };
        if entry.bytes() > self.bytes_max {
            return;
        }
        let behind = self.behind.get(&entry.name.parent).cloned().unwrap_or_default();
        for &at in &behind {
            if self.entries[&at].name.covers(&entry.name) {
                return self.touch(at);
            }
        }
        let useless = behind.iter().filter(|at| entry.name.covers(&self.entries[at].name));
        let crowd = (behind.len() + 1).saturating_sub(TAILS);
        for at in useless.chain(&behind[..crowd]).copied().collect::<Vec<_>>() {
            self.remove(at);
        }
        self.insert(entry);
        while self.bytes > self.bytes_max {
            let Some((&oldest, _)) = self.entries.first_key_value() else { return };
            self.remove(oldest);
        }
    }

    /// The snapshot behind which the most of a sequence is computed: of `hashes`, the names of its blocks, the first
    /// `known` can be had. `byte` is what bringing a byte takes, in nanoseconds.
    pub fn find(
        &mut self,
        hashes: &[BlockHash],
        beginning: &Beginning,
        (known, byte): (usize, f64),
    ) -> Option<Promise> {
        let parent = |blocks: usize| blocks.checked_sub(1).map_or(beginning.root, |last| hashes[last]);
        let candidates = (0..=known.min(hashes.len())).rev().map(|blocks| (blocks, parent(blocks)));
        let (start, at) = candidates.filter_map(|place| self.best(place, beginning)).next()?;
        let entry = &self.entries[&at];
        let time = Duration::from_nanos((entry.bytes() as f64 * byte) as u64);
        let promise = Promise { name: Arc::clone(&entry.name), start, time };
        self.touch(at);
        Some(promise)
    }

    /// The bytes of a snapshot, if it is here still.
    pub fn get(&mut self, name: &SnapshotName) -> Option<Vec<Payload>> {
        let behind = self.behind.get(&name.parent)?;
        let at = behind.iter().copied().find(|at| *self.entries[at].name == *name)?;
        let data = self.entries[&at].data.clone();
        self.touch(at);
        Some(data)
    }

    /// Of the snapshots behind a block, that behind which a sequence goes on the furthest, and where.
    fn best(&self, (blocks, parent): (usize, BlockHash), beginning: &Beginning) -> Option<(usize, u64)> {
        let behind = self.behind.get(&parent)?.iter();
        let named = behind.map(|at| (at, &self.entries[at].name)).filter(|(_, name)| name.blocks == blocks);
        named.filter_map(|(&at, name)| Some((beginning.start(name)?, at))).max()
    }

    fn touch(&mut self, at: u64) {
        if let Some(entry) = self.remove(at) {
            self.insert(entry);
        }
    }

    fn insert(&mut self, entry: Entry) {
        self.clock += 1;
        self.bytes += entry.bytes();
        self.behind.entry(entry.name.parent).or_default().push(self.clock);
        self.entries.insert(self.clock, entry);
    }

    fn remove(&mut self, at: u64) -> Option<Entry> {
        let entry = self.entries.remove(&at)?;
        self.bytes -= entry.bytes();
        if let Some(behind) = self.behind.get_mut(&entry.name.parent) {
            behind.retain(|&other| other != at);
            if behind.is_empty() {
                self.behind.remove(&entry.name.parent);
            }
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::HashChain;
    use crate::snapshot::{Rewind, StateName, Tail};

    const SIZE: usize = 4;

    fn hashes(tokens: &[u32]) -> (BlockHash, Vec<BlockHash>) {
        let (chain, mut hashes) = (HashChain::new(b"a model", SIZE as u32), Vec::new());
        chain.extend(&mut hashes, tokens);
        (chain.seed(), hashes)
    }

    /// Of ten bytes; taken at the end of `tokens`.
    fn snapshot(tokens: &[u32], state: bool) -> Snapshot {
        let (root, hashes) = hashes(tokens);
        let (blocks, rest) = (hashes.len(), &tokens[hashes.len() * SIZE..]);
        let parent = hashes.last().copied().unwrap_or(root);
        let state = state.then_some(StateName { valid_from: 0, decoder_from: 0 });
        let name = SnapshotName { parent, blocks, tail: Tail::new(rest, blocks * SIZE, &[]), state };
        Snapshot { name, data: vec![Payload::from(vec![tokens.len() as u8; 10])] }
    }

    fn find(shelf: &mut Snapshots, tokens: &[u32], known: usize, state: bool) -> Option<usize> {
        let (root, hashes) = hashes(tokens);
        let (images, tokens) = (Arc::from([]), tokens[..tokens.len() - 1].to_vec());
        let rewind = state.then_some(Rewind { positions: 1, exact: 0 });
        let beginning =
            Beginning { root, block_size: SIZE, here: 0, tokens, images, rewind, decoder_from: 0 };
        let promise = shelf.find(&hashes, &beginning, (known, 1.0))?;
        let data = shelf.get(&promise.name).expect("it was just found");
        assert_eq!((data[0].len(), promise.time), (10, Duration::from_nanos(10)));
        Some(promise.start)
    }

    fn text(count: u32) -> Vec<u32> {
        (1..=count).collect()
    }

    #[test]
    fn the_furthest_one_behind_a_known_block_is_found() {
        for state in [false, true] {
            let mut shelf = Snapshots::new(1000);
            [2, 6, 7, 10].into_iter().for_each(|count| shelf.put(snapshot(&text(count), state)));
            assert_eq!(shelf.count(), 3 + usize::from(state), "what another holds too is not kept twice");
            assert_eq!(find(&mut shelf, &text(13), 3, state), Some(10));
            assert_eq!(find(&mut shelf, &text(13), 1, state), Some(7), "the second block cannot be had");
            assert_eq!(find(&mut shelf, &text(7), 1, state), Some(6), "one is computed");
            assert_eq!(find(&mut shelf, &[&text(3)[..], &[9; 9]].concat(), 3, state), Some(2));
            assert_eq!(find(&mut shelf, &[9; 9], 2, state), None);
        }
    }

    #[test]
    fn the_budget_holds_and_what_was_asked_for_stays() {
        let mut shelf = Snapshots::new(35);
        (1..=3).for_each(|n| shelf.put(snapshot(&[n, n], false)));
        assert_eq!(find(&mut shelf, &[1, 1, 7], 0, false), Some(2));
        shelf.put(snapshot(&[4, 4], false));
        assert_eq!((shelf.bytes(), shelf.count()), (30, 3));
        assert_eq!(find(&mut shelf, &[2, 2, 7], 0, false), None, "not asked for the longest");
        assert_eq!(find(&mut shelf, &[1, 1, 7], 0, false), Some(2));
        let large = Snapshot { data: vec![Payload::from(vec![0; 36])], ..snapshot(&[5], false) };
        shelf.put(large);
        assert_eq!(shelf.count(), 3, "what is larger than the shelf drives nothing out");
    }

    #[test]
    fn few_are_kept_behind_one_block() {
        let mut shelf = Snapshots::new(1000);
        (1..=20).for_each(|n| shelf.put(snapshot(&[&text(4)[..], &[n, n]].concat(), true)));
        assert_eq!((shelf.count(), shelf.bytes()), (TAILS, 10 * TAILS as u64));
        assert_eq!(shelf.behind.len(), 1);
        let ends = |n: u32| [&text(4)[..], &[n, n, 7]].concat();
        assert_eq!(
            (find(&mut shelf, &ends(12), 1, true), find(&mut shelf, &ends(13), 1, true)),
            (None, Some(6))
        );
    }
}
