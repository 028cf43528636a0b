//! Which block is in which pack, when it expires, and how many bytes each class and tenant has. It is made of footers.
//!
//! A block takes 52 bytes in its pack's list, and 29 to 58 in the table that finds it by its name, whose size doubles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::options::{ClassId, Stamp, Tenant, TierOptions, Use};
use super::pack::{BlockRecord, Footer, HEADER_BYTES, PackName};
use crate::kv::BlockHash;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) pack: u32,
    pub(super) entry: u32,
}

/// What is to become of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It counts.
    Kept,
    /// It is found while it is there, and does not count: it goes when its pack is emptied or written anew.
    GivenUp,
    /// It is not found: damaged, or a newer pack has it.
    Gone,
}

/// How late a block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pinned: bool,
    pub(super) expires: Stamp,
    depth: Reverse<u32>,
}

impl Rank {
    /// Whether it had expired by then. What is pinned does not.
    pub(super) fn is_over(self, now: Stamp) -> bool {
        !self.pinned && self.expires <= now
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) hash: BlockHash,
    start: u32,
    pub(super) bytes: u32,
    pub(super) crc: u32,
    pub(super) stored: Stamp,
    pub(super) last: Use,
    /// Blocks before it in its chain.
    pub(super) depth: u32,
    tenant: u32,
    pub(super) class: ClassId,
    pub(super) state: State,
    pub(super) pinned: bool,
    /// Whether `last` is later than the pack says.
    pub(super) touched: bool,
}

impl Entry {
    /// Its bytes in the object.
    pub(super) fn range(&self) -> Range<u64> {
        u64::from(self.start)..u64::from(self.start) + u64::from(self.bytes)
    }

    /// What goes first is least: what expires first, and of a chain its end.
    pub(super) fn rank(&self) -> Rank {
        Rank { pinned: self.pinned, expires: self.last.expires, depth: Reverse(self.depth) }
    }
}

#[derive(Debug)]
pub(super) struct Pack {
    pub(super) name: PackName,
    pub(super) made: Stamp,
    /// Of the whole object.
    pub(super) bytes: u64,
    pub(super) footer: Range<u64>,
    /// Of blocks that are kept.
    pub(super) kept_bytes: u64,
    /// Number of the wish by which it was known first: a list that was wished for earlier need not have it.
    pub(super) since: u64,
    /// It is being written anew.
    pub(super) busy: bool,
    pub(super) entries: Box<[Entry]>,
}

impl Pack {
    /// Of all its blocks.
    pub(super) fn block_bytes(&self) -> u64 {
        self.footer.start - HEADER_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Each block that is found.
    places: HashMap<BlockHash, Place>,
    packs: Vec<Option<Pack>>,
    /// Numbers without a pack.
    vacant: Vec<u32>,
    names: BTreeMap<PackName, u32>,
    /// Kept bytes by class.
    class_bytes: BTreeMap<ClassId, u64>,
    /// Every tenant that was seen, with its kept bytes, and its place in this list.
    tenants: Vec<(Tenant, u64)>,
    tenant_numbers: BTreeMap<Tenant, u32>,
    pinned_bytes: u64,
    /// Of all objects.
    total_bytes: u64,
}

impl Index {
    /// Takes in a pack of `bytes`. Of a block that is here already the newer pack's counts.
    pub(super) fn insert(&mut self, footer: &Footer, bytes: u64, since: u64, options: &TierOptions) {
        self.remove_named(footer.name);
        let number = self.vacant.pop().unwrap_or(self.packs.len() as u32);
        if number as usize == self.packs.len() {
            self.packs.push(None);
        }
        let tenants: Vec<u32> = footer.tenants.iter().map(|tenant| self.tenant_number(*tenant)).collect();
        let classes: Vec<ClassId> = footer.classes.iter().map(|name| options.class_named(name)).collect();
        let last = |block: &BlockRecord| {
            let guess = options.guess(classes[usize::from(block.class)], block.stored, block.expires);
            Use { used: block.used.unwrap_or(guess.used), expires: block.expires }
        };
        let entries = footer.blocks.iter().map(|block| Entry {
            hash: block.hash,
            start: block.start,
            bytes: block.bytes,
            crc: block.crc,
            stored: block.stored,
            last: last(block),
            depth: block.depth,
            tenant: tenants[usize::from(block.tenant)],
            class: classes[usize::from(block.class)],
            state: State::Gone,
            pinned: false,
            touched: false,
        });
        let pack = Pack {
            name: footer.name,
            made: footer.made,
            bytes,
            footer: footer.start()..bytes,
            kept_bytes: 0,
            since,
            busy: false,
            entries: entries.collect(),
        };
        let count = pack.entries.len() as u32;
        self.packs[number as usize] = Some(pack);
        self.names.insert(footer.name, number);
        self.total_bytes += bytes;
        (0..count).for_each(|entry| self.enter(Place { pack: number, entry }));
    }

    /// Makes a block of a new pack the one that is found, unless a newer pack has it.
    fn enter(&mut self, place: Place) {
        let hash = self.entry(place).hash;
        if let Some(&twin) = self.places.get(&hash) {
            if self.age(twin) >= self.age(place) {
                return;
            }
            let old = *self.entry(twin);
            self.set_state(twin, State::Gone);
            let entry = self.entry_mut(place);
            let last = entry.last.and(old.last);
            entry.touched = last != entry.last;
            entry.last = last;
            self.pin(place, old.pinned);
        }
        self.places.insert(hash, place);
        self.set_state(place, State::Kept);
    }

    /// Of two packs the greater is newer; of two blocks in one, the first counts.
    fn age(&self, place: Place) -> (Stamp, PackName) {
        let pack = self.pack(place.pack).expect("a place is in a pack");
        (pack.made, pack.name)
    }

    /// Forgets a pack and what was found in it.
    pub(super) fn remove(&mut self, number: u32) -> Option<PackName> {
        let entries = self.pack(number)?.entries.len() as u32;
        for entry in 0..entries {
            let place = Place { pack: number, entry };
            self.set_state(place, State::Gone);
        }
        let pack = self.packs[number as usize].take()?;
        self.names.remove(&pack.name);
        self.vacant.push(number);
        self.total_bytes -= pack.bytes;
        Some(pack.name)
    }

    pub(super) fn remove_named(&mut self, name: PackName) -> bool {
        self.number(name).is_some_and(|number| self.remove(number).is_some())
    }

    /// Counts what a block is from now on; one that is gone is found no more.
    pub(super) fn set_state(&mut self, place: Place, state: State) {
        let entry = *self.entry(place);
        if entry.state == state {
            return;
        }
        let pack = self.packs[place.pack as usize].as_mut().expect("a place is in a pack");
        pack.entries[place.entry as usize].state = state;
        let bytes = u64::from(entry.bytes);
        let counts = [
            &mut pack.kept_bytes,
            self.class_bytes.entry(entry.class).or_default(),
            &mut self.tenants[entry.tenant as usize].1,
        ];
        match (entry.state, state) {
            (State::Kept, _) => counts.into_iter().for_each(|count| *count -= bytes),
            (_, State::Kept) => counts.into_iter().for_each(|count| *count += bytes),
            _ => {}
        }
        if state == State::Gone {
            self.pin(place, false);
        }
        if state == State::Gone && self.places.get(&entry.hash) == Some(&place) {
            self.places.remove(&entry.hash);
        }
    }

    /// A block was hit, unless it is known to have been later. Says whether this is news.
    pub(super) fn touch(&mut self, place: Place, hit: Use) -> bool {
        let entry = self.entry_mut(place);
        let last = entry.last.and(hit);
        let news = last != entry.last;
        entry.last = last;
        entry.touched |= news;
        if entry.state == State::GivenUp {
            self.set_state(place, State::Kept);
        }
        news
    }

    pub(super) fn pin(&mut self, place: Place, pinned: bool) {
        let entry = self.entry_mut(place);
        let (before, bytes) = (std::mem::replace(&mut entry.pinned, pinned), u64::from(entry.bytes));
        match (before, pinned) {
            (false, true) => self.pinned_bytes += bytes,
            (true, false) => self.pinned_bytes -= bytes,
            _ => {}
        }
    }

    /// The block of this name that `tenant` may see.
    pub(super) fn find(&self, hash: &BlockHash, tenant: Tenant) -> Option<Place> {
        let place = *self.places.get(hash)?;
        (self.tenant_of(self.entry(place)) == tenant).then_some(place)
    }

    /// Whether anybody has a block of this name.
    pub(super) fn knows(&self, hash: &BlockHash) -> bool {
        self.places.contains_key(hash)
    }

    /// When the block of this name expires, whoever may see it.
    pub(super) fn expires(&self, hash: &BlockHash) -> Option<Stamp> {
        self.places.get(hash).map(|place| self.entry(*place).last.expires)
    }

    pub(super) fn entry(&self, place: Place) -> &Entry {
        &self.pack(place.pack).expect("a place is in a pack").entries[place.entry as usize]
    }

    fn entry_mut(&mut self, place: Place) -> &mut Entry {
        let pack = self.packs[place.pack as usize].as_mut().expect("a place is in a pack");
        &mut pack.entries[place.entry as usize]
    }

    pub(super) fn pack(&self, number: u32) -> Option<&Pack> {
        self.packs.get(number as usize)?.as_ref()
    }

    pub(super) fn set_busy(&mut self, number: u32, busy: bool) {
        if let Some(pack) = self.packs.get_mut(number as usize).and_then(Option::as_mut) {
            pack.busy = busy;
        }
    }

    pub(super) fn number(&self, name: PackName) -> Option<u32> {
        self.names.get(&name).copied()
    }

    /// All packs, by name.
    pub(super) fn packs(&self) -> impl Iterator<Item = (u32, &Pack)> {
        self.names.values().map(|&number| (number, self.pack(number).expect("a name is of a pack")))
    }

    /// Blocks that are found.
    pub(super) fn blocks(&self) -> usize {
        self.places.len()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    pub(super) fn class_bytes(&self, class: ClassId) -> u64 {
        self.class_bytes.get(&class).copied().unwrap_or(0)
    }

    pub(super) fn tenant_bytes(&self, tenant: Tenant) -> u64 {
        self.tenant_numbers.get(&tenant).map_or(0, |&number| self.tenants[number as usize].1)
    }

    /// All tenants with blocks.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (Tenant, u64)> {
        self.tenants.iter().copied().filter(|&(_, bytes)| bytes > 0)
    }

    pub(super) fn tenant_of(&self, entry: &Entry) -> Tenant {
        self.tenants[entry.tenant as usize].0
    }

    fn tenant_number(&mut self, tenant: Tenant) -> u32 {
        let next = self.tenants.len() as u32;
        let number = *self.tenant_numbers.entry(tenant).or_insert(next);
        if number == next {
            self.tenants.push((tenant, 0));
        }
        number
    }

    /// Panics when the index contradicts itself. Takes time in the number of blocks: for tests.
    pub(super) fn audit(&self) {
        let mut found = 0;
        let (mut classes, mut tenants) = (BTreeMap::<ClassId, u64>::new(), vec![0; self.tenants.len()]);
        let (mut pinned, mut total) = (0, 0);
        for (number, pack) in self.packs() {
            total += pack.bytes;
            let mut kept = 0;
            for (entry, held) in pack.entries.iter().enumerate() {
                let here = self.places.get(&held.hash) == Some(&Place { pack: number, entry: entry as u32 });
                assert_eq!(here, held.state != State::Gone, "{:?} is {:?}", held.hash, held.state);
                found += usize::from(here);
                pinned += if held.pinned { u64::from(held.bytes) } else { 0 };
                if held.state == State::Kept {
                    kept += u64::from(held.bytes);
                    *classes.entry(held.class).or_default() += u64::from(held.bytes);
                    tenants[held.tenant as usize] += u64::from(held.bytes);
                }
            }
            assert_eq!(kept, pack.kept_bytes, "kept of {}", pack.name);
        }
        assert_eq!(found, self.places.len(), "each found block is in a pack");
        assert_eq!((total, pinned), (self.total_bytes, self.pinned_bytes));
        assert!(tenants.iter().zip(&self.tenants).all(|(counted, (_, bytes))| counted == bytes));
        assert!(self.class_bytes.iter().all(|(class, bytes)| classes.get(class).unwrap_or(&0) == bytes));
    }
}
