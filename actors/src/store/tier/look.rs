//! What a person who looks after a store wants of a tier: what is in it, whether it is what was stored, and that some of
//! it goes now. Other processes may use the store meanwhile: to them a block that went is a miss.

use super::super::compaction::Compaction;
use super::super::fetching::{Reading, readings};
use super::super::index::{Entry, Place, State};
use super::super::options::{Stamp, Tenant};
use super::super::pack::{PackName, Refused};
use super::super::retain::{self, Choice};
use super::super::roll::PACK;
use super::super::wish::{Io, Payload};
use super::{Purpose, Tier};
use crate::kv::BlockHash;

/// A block as a tier knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// Its name.
    pub hash: BlockHash,
    /// Where it is.
    pub pack: PackName,
    /// Name of its class.
    pub class: &'a str,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its bytes.
    pub bytes: u32,
    /// Blocks before it in its chain.
    pub depth: u32,
    /// When it was stored first.
    pub stored: Stamp,
    /// When it was used last, or a little later, never earlier: hits are told in steps of time.
    pub used: Stamp,
    /// When it may go.
    pub expires: Stamp,
    /// Whether it counts: what a class or a tenant has beyond its bytes does not, and goes when its pack does.
    pub kept: bool,
}

impl Held<'_> {
    /// Whether `next`, which lies behind it in its pack, is of the same chain as far as its place tells.
    pub fn leads_to(&self, next: &Self) -> bool {
        let same = (self.pack, self.tenant, self.class) == (next.pack, next.tenant, next.class);
        same && next.depth == self.depth + 1
    }
}

/// What some blocks are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Sum {
    /// One more.
    pub fn add(&mut self, bytes: u32) {
        self.blocks += 1;
        self.bytes += u64::from(bytes);
    }
}

/// A read of a part of a pack, to see whether it is what was stored.
#[derive(Clone, Debug)]
pub struct Inspection {
    reading: Reading,
    object: String,
}

impl Inspection {
    /// What is to be read.
    pub fn io(&self) -> Io {
        Io::Read { name: self.object.clone(), ranges: self.reading.ranges.clone() }
    }

    /// The blocks in it, each with its bytes, and whether `got` has them as they were stored.
    pub fn judge<'a>(&'a self, got: &'a [Payload]) -> impl Iterator<Item = (BlockHash, u64, bool)> + 'a {
        let blocks = self.reading.blocks.iter();
        blocks.map(|block| (block.hash, block.bytes(), Reading::check(block, got).is_some()))
    }
}

impl Tier {
    /// Every block that is found, pack by pack, in the order in which they lie there.
    pub fn held(&self) -> impl Iterator<Item = Held<'_>> {
        let found = self.index.packs().flat_map(|(_, pack)| {
            let found = pack.entries.iter().filter(|entry| entry.state != State::Gone);
            found.map(move |entry| (pack.name, entry))
        });
        found.map(|(pack, entry)| self.as_held(pack, entry))
    }

    fn as_held(&self, pack: PackName, entry: &Entry) -> Held<'_> {
        let class = &self.options.classes[self.options.class(entry.class)];
        Held {
            hash: entry.hash,
            pack,
            class: &class.name,
            tenant: self.index.tenant_of(entry),
            bytes: entry.bytes,
            depth: entry.depth,
            stored: entry.stored,
            used: entry.last.used.min(self.now.max(entry.stored)),
            expires: entry.last.expires,
            kept: entry.state == State::Kept,
        }
    }

    /// All packs, each with its bytes.
    pub fn packs(&self) -> impl Iterator<Item = (PackName, u64)> {
        self.index.packs().map(|(_, pack)| (pack.name, pack.bytes))
    }

    /// Objects that are called as packs are, and are none for us; each with its bytes.
    pub fn refused(&self) -> impl Iterator<Item = (PackName, u64, Refused)> {
        self.roll.refused()
    }

    /// Gives up what classes and tenants have beyond their bytes, and touches no pack: [`Held::kept`] says what it is.
    pub fn bound(&mut self) {
        retain::bound(&mut self.index, &self.options);
    }

    /// These blocks of a pack are not what was stored: the next [`Tier::discard`] has the pack written anew without.
    pub fn lose(&mut self, pack: PackName, blocks: &[BlockHash]) {
        self.condemned.insert(pack);
        blocks.iter().for_each(|hash| self.damaged(pack, *hash));
    }

    /// Wishes away what is no whole pack, but what a later version wrote. Says how many bytes of how many objects.
    pub fn clear(&mut self) -> Sum {
        let broken = self.roll.refused().filter(|(.., why)| *why != Refused::Version);
        let mut sum = Sum::default();
        for (name, bytes, _) in broken.collect::<Vec<_>>() {
            (sum.blocks, sum.bytes) = (sum.blocks + 1, sum.bytes + bytes);
            self.roll.know(name);
            let name = self.object(PACK, name);
            self.want(Purpose::Delete, Io::Delete { name });
        }
        sum
    }

    /// Reads that show whether a pack has what was stored, blocks included that another pack has too.
    pub fn inspections(&self, name: PackName) -> Vec<Inspection> {
        let Some(number) = self.index.number(name) else { return Vec::new() };
        let entries = self.index.pack(number).map_or(0, |pack| pack.entries.len() as u32);
        let places: Vec<Place> = (0..entries).map(|entry| Place { pack: number, entry }).collect();
        let object = self.object(PACK, name);
        let readings = readings(&places, &self.index, &self.options).into_iter();
        readings.map(|reading| Inspection { reading, object: object.clone() }).collect()
    }

    /// Lets go of these blocks for all who use the store: packs that have some of them are written anew without, and
    /// those that have no others are deleted. Wishes for it go on until [`Tier::is_discarding`] says no more.
    pub fn discard(&mut self, which: impl Fn(&Held<'_>) -> bool) -> Sum {
        let mut sum = Sum::default();
        let mut places = Vec::new();
        for (number, pack) in self.index.packs() {
            for (entry, held) in (0..).zip(&pack.entries).filter(|(_, held)| held.state != State::Gone) {
                if which(&self.as_held(pack.name, held)) {
                    sum.add(held.bytes);
                    places.push(Place { pack: number, entry });
                }
            }
        }
        for place in places {
            let pack = self.index.pack(place.pack).expect("a place is in a pack");
            self.condemned.insert(pack.name);
            self.index.set_state(place, State::Gone);
        }
        self.make_room(self.options.budget.total);
        sum
    }

    /// Whether packs wait to be written anew without what was let go: ask for [`Tier::collect`] when no wish is left.
    pub fn is_discarding(&self) -> bool {
        !self.condemned.is_empty()
    }

    /// Puts packs that have what was let go before all others that are to be written anew.
    pub(super) fn condemn(&self, choice: &mut Choice) {
        let numbers = self.condemned.iter().filter_map(|name| self.index.number(*name));
        let free = numbers.filter(|&number| self.index.pack(number).is_some_and(|pack| !pack.busy));
        let mut first: Vec<u32> = free.filter(|number| !choice.delete.contains(number)).collect();
        choice.renew.retain(|number| !first.contains(number));
        first.append(&mut choice.renew);
        choice.renew = first;
    }

    /// Begins to write packs anew. Each that was condemned is tried once.
    pub(super) fn renew(&mut self, choice: &Choice) -> Option<Compaction> {
        let compaction = Compaction::start(&choice.renew, &mut self.index, &self.options);
        let index = &self.index;
        let waits = |number| index.pack(number).is_some_and(|pack| !pack.busy);
        self.condemned.retain(|name| index.number(*name).is_some_and(waits));
        compaction
    }
}
