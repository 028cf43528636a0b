//! The ledger against a plain model, and what a scan must not do.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::kv::HashChain;
use crate::request::RequestId;

const SIZE: u32 = 2;

fn owner(request: u64) -> Owner {
    Owner::Sequence(SequenceId { request: RequestId(request), attempt: 0 })
}

/// Names of `blocks` blocks of prompt number `prompt`; prompts of one family begin with the same three blocks.
fn names(prompt: u32, blocks: usize) -> Vec<BlockHash> {
    let family = |n: usize| if n < 3 * SIZE as usize { prompt % 4 } else { 1000 + prompt };
    let tokens: Vec<u32> = (0..blocks * SIZE as usize).map(family).collect();
    let mut hashes = Vec::new();
    HashChain::new(b"test", SIZE).extend(&mut hashes, &tokens);
    hashes
}

/// A sequence comes, finds what is known of it, and computes the rest. Returns its table and how much it found.
fn come(pool: &mut Pool, names: &[BlockHash], owner: Owner) -> Option<(Vec<BlockId>, usize)> {
    let mut table: Vec<BlockId> = names.iter().map_while(|name| pool.find(name)).collect();
    let found = table.len();
    if names.len() - found + pool.cached_of(&table) > pool.available() {
        return None;
    }
    pool.share(&table, owner);
    table.extend(pool.take(names.len() - found, owner).unwrap());
    for n in found..names.len() {
        table[n] = pool.seal(table[n], names[n], owner);
    }
    Some((table, found))
}

#[test]
fn all_or_nothing() {
    let mut pool = Pool::new(4);
    let three = pool.take(3, owner(1)).unwrap();
    assert_eq!(three, [BlockId(0), BlockId(1), BlockId(2)]);
    assert_eq!(pool.take(2, owner(2)), None);
    assert_eq!(pool.free(), 1);
    pool.give_back(three, owner(1));
    assert_eq!((pool.used(), pool.cached()), (0, 0));
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

#[test]
#[should_panic(expected = "is not sealed")]
fn a_block_that_is_still_written_is_not_shared() {
    let mut pool = Pool::new(2);
    let blocks = pool.take(1, owner(1)).unwrap();
    pool.share(&blocks, owner(2));
}

#[test]
#[should_panic(expected = "to write")]
fn a_shared_block_is_not_sealed_again() {
    let mut pool = Pool::new(2);
    let names = names(0, 2);
    let (table, _) = come(&mut pool, &names[..1], owner(1)).unwrap();
    pool.seal(table[0], names[1], owner(1));
}

#[test]
fn a_shared_block_stays_until_its_last_user_leaves_and_then_waits() {
    let mut pool = Pool::new(4);
    let names = names(0, 2);
    let (first, _) = come(&mut pool, &names, owner(1)).unwrap();
    let (second, found) = come(&mut pool, &names, owner(2)).unwrap();
    assert_eq!((found, &second), (2, &first));
    pool.give_back(first, owner(1));
    assert_eq!((pool.used(), pool.cached(), pool.free()), (2, 0, 2));
    pool.give_back(second, owner(2));
    assert_eq!((pool.used(), pool.cached(), pool.free()), (0, 2, 2));
    assert!(pool.take(4, owner(3)).is_some(), "cached blocks are given up when their memory is wanted");
    assert_eq!((pool.evictions(), pool.find(&names[0])), (2, None));
}

#[test]
fn two_who_computed_the_same_block_keep_one_of_them() {
    let mut pool = Pool::new(4);
    let name = names(0, 1)[0];
    let first = pool.take(1, owner(1)).unwrap()[0];
    let second = pool.take(1, owner(2)).unwrap()[0];
    assert_eq!(pool.seal(first, name, owner(1)), first);
    assert_eq!(pool.seal(second, name, owner(2)), first);
    assert_eq!((pool.used(), pool.free()), (1, 3));
    pool.audit();
}

#[test]
fn a_scan_of_ten_times_the_memory_leaves_a_hot_prefix_in_place() {
    let mut pool = Pool::new(100);
    let hot = names(0, 20);
    for user in 1..=2 {
        let (table, _) = come(&mut pool, &hot, owner(user)).unwrap();
        pool.give_back(table, owner(user));
    }
    for prompt in 0..28 {
        let user = owner(10 + u64::from(prompt));
        let (table, found) = come(&mut pool, &names(4 * prompt + 5, 40), user).unwrap();
        assert!(found <= 3);
        pool.give_back(table, user);
    }
    assert!(pool.evictions() > 900, "{} blocks came and went", pool.evictions());
    assert_eq!(come(&mut pool, &hot, owner(3)).unwrap().1, 20);
}

/// Where all of the memory was used again, what is new still has a fifth of it to be asked for a second time.
#[test]
fn what_is_new_has_its_chance_beside_what_is_hot() {
    let mut pool = Pool::new(50);
    let comes = |pool: &mut Pool, prompt: u32, blocks, user| {
        let (table, found) = come(pool, &names(prompt, blocks), owner(user)).unwrap();
        pool.give_back(table, owner(user));
        found
    };
    for user in [1, 2, 3] {
        comes(&mut pool, 0, 50, user);
    }
    assert_eq!(comes(&mut pool, 1, 8, 4), 0);
    assert_eq!(comes(&mut pool, 2, 2, 5), 0);
    assert_eq!(comes(&mut pool, 1, 8, 6), 8, "what came in between took the memory of others");
    assert_eq!(comes(&mut pool, 0, 50, 7), 40);
}

/// What was hot and is asked for no more makes room for what is hot now.
#[test]
fn a_prefix_that_has_gone_cold_goes_in_the_end() {
    let mut pool = Pool::new(50);
    for prompt in 0..30 {
        let names = names(4 * prompt, 10);
        for user in [u64::from(prompt) * 2, u64::from(prompt) * 2 + 1] {
            let (table, _) = come(&mut pool, &names, owner(user)).unwrap();
            pool.give_back(table, owner(user));
        }
    }
    let known = |prompt: u32| names(4 * prompt, 10).iter().map_while(|name| pool.find(name)).count();
    assert_eq!((known(29), known(28)), (10, 10));
    assert_eq!(known(1), 3, "but for what the others begin with too");
}

/// The order of giving up, as one reads it in the header of the lists: plain vectors, the next one to go in front.
#[derive(Default)]
struct Plain {
    once: Vec<BlockId>,
    again: Vec<BlockId>,
    used_again: BTreeMap<BlockId, bool>,
}

impl Plain {
    fn put(&mut self, block: BlockId, most: usize) {
        if self.used_again.get(&block) == Some(&true) {
            self.again.push(block);
        } else {
            self.once.push(block);
        }
        if self.again.len() > most {
            let oldest = self.again.remove(0);
            self.used_again.insert(oldest, false);
            self.once.push(oldest);
        }
    }

    fn reuse(&mut self, block: BlockId) {
        self.once.retain(|&other| other != block);
        self.again.retain(|&other| other != block);
        self.used_again.insert(block, true);
    }

    fn give_up(&mut self) -> Option<BlockId> {
        let segment = if self.once.is_empty() { &mut self.again } else { &mut self.once };
        let block = (!segment.is_empty()).then(|| segment.remove(0))?;
        self.used_again.remove(&block);
        Some(block)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_given_up_in_the_order_of_the_plain_lists(blocks in 1usize..12, ops in proptest::collection::vec((0u8..10, 0u32..12), 1..200)) {
        let (mut idle, mut plain) = (Idle::new(blocks), Plain::default());
        let mut waits: BTreeSet<BlockId> = BTreeSet::new();
        for (op, block) in ops {
            let block = BlockId(block % blocks as u32);
            if op == 0 {
                let gone = idle.give_up();
                prop_assert_eq!(gone, plain.give_up());
                gone.map(|gone| waits.remove(&gone));
            } else if op < 5 {
                idle.reuse(block);
                plain.reuse(block);
                waits.remove(&block);
            } else if waits.insert(block) {
                idle.put(block);
                plain.put(block, blocks * 4 / 5);
            }
            prop_assert_eq!(idle.len(), waits.len());
        }
    }

    /// Sequences of a few families come and go in any order: the ledger never contradicts itself, what is known of a
    /// prompt is always its beginning without a hole, and what is held is what was given.
    #[test]
    fn the_ledger_holds_whatever_comes_and_goes(ops in proptest::collection::vec((0u8..3, 0u32..9, 1usize..9), 1..150)) {
        let mut pool = Pool::new(20);
        let mut here: BTreeMap<u64, Vec<BlockId>> = BTreeMap::new();
        for (user, (op, prompt, blocks)) in (1u64..).zip(ops) {
            if op == 0 && !here.is_empty() {
                let nth = *here.keys().nth(blocks % here.len()).unwrap();
                pool.give_back(here.remove(&nth).unwrap(), owner(nth));
            } else if let Some((table, _)) = come(&mut pool, &names(prompt, blocks), owner(user)) {
                here.insert(user, table);
            }
            pool.audit();
            let held: BTreeSet<BlockId> = here.values().flatten().copied().collect();
            prop_assert_eq!(pool.used(), held.len());
            for prompt in 0..9 {
                let known: Vec<bool> = names(prompt, 8).iter().map(|name| pool.find(name).is_some()).collect();
                prop_assert!(known.is_sorted_by(|before, after| before >= after), "a hole: {known:?}");
            }
        }
        for (user, table) in here {
            pool.give_back(table, owner(user));
        }
        prop_assert_eq!(pool.used(), 0);
        pool.audit();
    }
}
