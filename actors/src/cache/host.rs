//! The host tier: blocks in the memory of this process, up to a number of bytes. Given up first is what was not asked for
//! the longest, and of a chain its end: what is found must have all before it.

use std::collections::BTreeMap;

use crate::kv::BlockHash;
use crate::store::Payload;

/// One block.
struct Entry {
    data: Payload,
    /// When it was last asked for, or put here: a count.
    at: u64,
}

/// See the module.
pub struct Host {
    bytes_max: u64,
    bytes: u64,
    entries: BTreeMap<BlockHash, Entry>,
    order: BTreeMap<u64, BlockHash>,
    clock: u64,
}

impl Host {
    /// Empty; it holds at most `bytes_max` bytes of blocks.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: 0, entries: BTreeMap::new(), order: BTreeMap::new(), clock: 0 }
    }

    /// The most bytes of blocks that may be here.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of the blocks that are here.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks that are here.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// Whether a block is here.
    pub fn has(&self, hash: &BlockHash) -> bool {
        self.entries.contains_key(hash)
    }

    /// A block's bytes.
    pub fn get(&self, hash: &BlockHash) -> Option<Payload> {
        self.entries.get(hash).map(|entry| entry.data.clone())
    }

    /// Blocks of a chain, in order, are wanted: they are kept longer than all others, the first of them the longest.
    pub fn touch(&mut self, chain: &[BlockHash]) {
        for hash in chain.iter().rev() {
            let Some(entry) = self.entries.get_mut(hash) else { continue };
            self.order.remove(&entry.at);
            self.clock += 1;
            entry.at = self.clock;
            self.order.insert(self.clock, *hash);
        }
    }

    /// Puts blocks of a chain, in order, here. Those for which others would have to go that are kept longer stay out.
    pub fn put(&mut self, chain: &[(BlockHash, Payload)]) {
        for (hash, data) in chain.iter().rev() {
            self.drop_entry(hash);
            self.clock += 1;
            self.order.insert(self.clock, *hash);
            self.bytes += data.len() as u64;
            self.entries.insert(*hash, Entry { data: data.clone(), at: self.clock });
        }
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            self.drop_entry(&oldest.clone());
        }
    }

    fn drop_entry(&mut self, hash: &BlockHash) {
        if let Some(entry) = self.entries.remove(hash) {
            self.order.remove(&entry.at);
            self.bytes -= entry.data.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::HashChain;

    fn chain(identity: &[u8], blocks: u32) -> Vec<(BlockHash, Payload)> {
        let (mut hashes, tokens) = (Vec::new(), (0..blocks).collect::<Vec<_>>());
        HashChain::new(identity, 1).extend(&mut hashes, &tokens);
        hashes.into_iter().map(|hash| (hash, Payload::from(vec![7; 10]))).collect()
    }

    #[test]
    fn the_end_of_the_chain_that_was_not_wanted_goes_first() {
        let (a, b) = (chain(b"a", 4), chain(b"b", 4));
        let mut host = Host::new(60);
        host.put(&a);
        host.put(&b);
        let here = |host: &Host, chain: &[(BlockHash, Payload)]| {
            chain.iter().filter(|(hash, _)| host.has(hash)).count()
        };
        assert_eq!((here(&host, &a), here(&host, &b), host.bytes()), (2, 4, 60));
        assert!(host.has(&a[0].0) && host.has(&a[1].0), "a beginning without a hole");
        let names: Vec<BlockHash> = a.iter().map(|(hash, _)| *hash).collect();
        host.touch(&names);
        host.put(&chain(b"c", 2));
        assert_eq!((here(&host, &a), here(&host, &b)), (2, 2));
        assert!(host.has(&b[1].0) && !host.has(&b[2].0));
    }

    #[test]
    fn what_is_larger_than_all_of_it_leaves_a_beginning_and_counts_right() {
        let long = chain(b"a", 9);
        let mut host = Host::new(35);
        host.put(&long);
        host.put(&long);
        assert_eq!((host.bytes(), host.blocks()), (30, 3));
        assert!(host.has(&long[2].0) && host.get(&long[3].0).is_none());
    }
}
