//! What the prefix store has of a sequence is fetched and not computed.
//!
//! - A **waiting** sequence is asked for once: how many blocks of its beginning are there? It begins when that is known, or
//!   when the group gives the store up, and meanwhile holds nothing and lets others begin.
//! - When it begins and the store has more than the ledger finds, it **arrives**: it owns its blocks, the store's bytes are
//!   pulled a few blocks at a time, and it lands behind the last one that came. What does not come is computed.
//! - Blocks that are sealed here, and that the store did not bring, are read with the next step and **kept**: they belong to
//!   the store too until then. There is room for so many at once; what is more is not kept, and counted.
//!
//! Every question has one answer, at most so many are open at once, and the group may give up any of them: a store that is
//! slow, or wrong, or dead costs time and never an answer.

use std::collections::BTreeMap;

use super::{Promised, Scheduler};
use crate::kv::{BlockId, Owner, Pool};
use crate::message::{BlockName, CacheAsk, Export, Import, Place, Reader, SequenceId};
use crate::sequence::{Phase, Sequence};
use crate::snapshot::Promise;
use crate::store::Payload;

/// Blocks in one pull, and more of small ones: up to so many that have no more than these bytes together.
const PULL: usize = 32;
const PULL_MAX: usize = 256;
const PULL_BYTES: usize = 4 << 20;
/// Blocks that may wait to be read for the store.
const KEEPS_MAX: usize = 512;
/// Blocks that one step reads for the store.
const KEEPS_A_STEP: usize = 64;

/// What a group of a plan with a prefix store keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBounds {
    /// Questions that may be open at once.
    pub asks_max: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// It keeps blocks.
    pub keeps: bool,
    /// It keeps snapshots; of a state so many bytes, 0 where the model keeps none.
    pub snapshots: Option<usize>,
}

impl StoreBounds {
    /// Blocks in one pull.
    fn pull(&self) -> usize {
        (PULL_BYTES / self.block_bytes.max(1)).clamp(PULL, PULL_MAX)
    }
}

/// What the prefix store has of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// It was not asked.
    #[default]
    Unknown,
    /// It was not asked: the group's own memory had as much as counts. The store knows of that.
    Unasked,
    /// The answer is on its way.
    Asked,
    /// So many blocks from the first; 0 too where it did not answer.
    Blocks(usize),
}

/// Blocks of an arriving sequence that the store brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetching {
    /// Blocks, from the first, that are here.
    pub(super) here: usize,
    /// Blocks that the store has.
    pub(super) end: usize,
    /// A pull is open.
    pub(super) asked: bool,
}

/// Since the start of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Blocks that the store brought.
    pub fetched: u64,
    /// Blocks that were given to it.
    pub kept: u64,
    /// Blocks that were not, for want of room.
    pub dropped: u64,
    /// Questions that were given up.
    pub given_up: u64,
}

/// The scheduler's side of the prefix store. It uses blocks as a sequence does, all of a beginning at once: what is put down
/// last must be given up last.
#[derive(Default)]
pub(super) struct Shelf {
    /// Sealed blocks that wait to be read, with the number of their sequence.
    keeps: Vec<(u64, BlockName, BlockId)>,
    /// The sequences of those that a step in flight reads, behind its number.
    reading: Vec<(u64, u64)>,
    held: BTreeMap<u64, Held>,
    counts: StoreCounts,
}

/// What the store uses of a sequence.
#[derive(Default)]
struct Held {
    /// From the first up to the last that is kept.
    blocks: Vec<BlockId>,
    /// Those of them that are not read yet.
    open: usize,
}

impl Shelf {
    /// The last of these blocks of a sequence was sealed: it will be read for the store, if there is room for it.
    pub(super) fn keep(&mut self, name: BlockName, (arrival, blocks): (u64, &[BlockId]), pool: &mut Pool) {
        let Some(&block) = blocks.last().filter(|_| self.keeps.len() < KEEPS_MAX) else {
            self.counts.dropped += 1;
            return;
        };
        let held = self.held.entry(arrival).or_default();
        let more = &blocks[held.blocks.len()..];
        pool.hold(more, Owner::Store(arrival));
        held.blocks.extend_from_slice(more);
        held.open += 1;
        self.keeps.push((arrival, name, block));
    }

    /// What the step of this number reads for the store.
    pub(super) fn export(&mut self, step: u64) -> Option<Export> {
        let count = self.keeps.len().min(KEEPS_A_STEP);
        let (mut names, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (arrival, name, block) in self.keeps.drain(..count) {
            self.reading.push((step, arrival));
            names.push(name);
            places.push(Place::Block(block));
        }
        self.counts.kept += count as u64;
        (count > 0).then_some(Export { reader: Reader::Store(names), places })
    }

    /// The step of this number is done.
    pub(super) fn read(&mut self, step: u64, pool: &mut Pool) {
        let read: Vec<_> = self.reading.extract_if(.., |(by, _)| *by == step).collect();
        read.into_iter().for_each(|(_, arrival)| self.close(arrival, 1, pool));
    }

    /// The blocks of a sequence are wanted for another one: those that wait are not read.
    pub(super) fn cancel(&mut self, arrival: u64, pool: &mut Pool) {
        let before = self.keeps.len();
        self.keeps.retain(|(of, ..)| *of != arrival);
        let fewer = before - self.keeps.len();
        self.counts.dropped += fewer as u64;
        self.close(arrival, fewer, pool);
    }

    /// So many of a sequence's blocks are not wanted any more; with the last of them all of it is given back.
    fn close(&mut self, arrival: u64, count: usize, pool: &mut Pool) {
        let Some(held) = self.held.get_mut(&arrival) else { return };
        held.open -= count;
        if held.open == 0 {
            let held = self.held.remove(&arrival).expect("it was just found");
            pool.give_back(held.blocks, Owner::Store(arrival));
        }
    }
}

impl Scheduler {
    /// What is to be asked of the store now. Each question is open until it is answered or given up.
    pub fn asks(&mut self) -> Vec<CacheAsk> {
        let Some(bounds) = self.bounds.store else { return Vec::new() };
        let room = bounds.asks_max.saturating_sub(self.asking().count());
        let arrivals: Vec<u64> = self.sequences.keys().copied().collect();
        arrivals.into_iter().filter_map(|arrival| self.ask(arrival)).take(room).collect()
    }

    fn ask(&mut self, arrival: u64) -> Option<CacheAsk> {
        let pull = self.bounds.store?.pull();
        let sequence = &self.sequences[&arrival];
        let (id, keeping) = (sequence.id(), sequence.request.keeping);
        if matches!(sequence.stored, Stored::Unknown | Stored::Unasked) && self.awaits_store(arrival) {
            let reusable = sequence.reusable(self.bounds.block_size).min(sequence.hashes.len());
            let hashes = sequence.hashes[..reusable].to_vec();
            let beginning = self.beginning(sequence).map(Box::new);
            self.sequences.get_mut(&arrival)?.stored = Stored::Asked;
            return Some(CacheAsk::Seek(id, hashes, keeping, beginning));
        }
        let sequence = self.sequences.get_mut(&arrival)?;
        if sequence.stored == Stored::Unknown && sequence.phase == Phase::Running {
            sequence.stored = Stored::Unasked;
            let found = sequence.hashes[..sequence.sealed].to_vec();
            return (!found.is_empty()).then_some(CacheAsk::Hit(id, found, keeping));
        }
        if let Some(promised) = sequence.promised.as_mut().filter(|_| sequence.fetching.is_some())
            && let Some(name) = promised.ask()?
        {
            return Some(CacheAsk::Bring(id, name));
        }
        let fetching = sequence.fetching.as_mut().filter(|fetching| !fetching.asked)?;
        fetching.asked = true;
        let (first, end) = (fetching.here, fetching.end.min(fetching.here + pull));
        Some(CacheAsk::Fetch(id, first, sequence.hashes[first..end].to_vec()))
    }

    /// Whether a waiting sequence should wait for what the store says of it.
    pub(super) fn awaits_store(&self, arrival: u64) -> bool {
        let sequence = &self.sequences[&arrival];
        let unsaid = !matches!(sequence.stored, Stored::Blocks(_));
        let more = || {
            let reusable = sequence.reusable(self.bounds.block_size).min(sequence.hashes.len());
            let found = self.found(sequence);
            self.worth(reusable) > found || self.may_gain_by_snapshot(sequence, found)
        };
        self.bounds.store.is_some() && sequence.phase == Phase::Waiting && unsaid && more()
    }

    /// The store has the first `blocks` blocks of a sequence, and a snapshot.
    pub fn sought(&mut self, id: SequenceId, blocks: usize, promise: Option<Promise>) {
        if let Some(sequence) = self.find_mut(id)
            && sequence.stored == Stored::Asked
        {
            let most = sequence.hashes.len();
            sequence.stored = Stored::Blocks(blocks.min(most));
            sequence.promised = promise.map(Promised::new);
        }
    }

    /// Bytes of blocks of an arriving sequence, from block `first` on. It lands when these were the last, or are fewer
    /// than were asked for.
    pub fn fetched(&mut self, id: SequenceId, first: usize, data: Vec<Payload>) {
        let Some((bytes, pull)) = self.bounds.store.map(|store| (store.block_bytes, store.pull())) else {
            return;
        };
        let Some((&arrival, sequence)) = self.find(id) else { return };
        let Some(mut fetching) = sequence.fetching.filter(|f| f.asked && f.here == first) else { return };
        let asked = (fetching.end - first).min(pull);
        let whole = data.iter().take(asked).take_while(|data| data.len() == bytes).count();
        let places: Vec<BlockId> = sequence.blocks[first..first + whole].to_vec();
        let imports = places.into_iter().zip(data);
        self.imports
            .extend(imports.map(|(block, data)| (arrival, Import { place: Place::Block(block), data })));
        self.shelf.counts.fetched += whole as u64;
        fetching = Fetching { here: first + whole, asked: false, ..fetching };
        let sequence = self.sequences.get_mut(&arrival).expect("it was just found");
        sequence.fetching = Some(fetching);
        if whole < asked || fetching.here == fetching.end {
            self.land(arrival);
        }
    }

    /// Nobody waits for the store's answer about this sequence any longer; what it has brought is used.
    pub fn give_up(&mut self, id: SequenceId) {
        let Some((&arrival, sequence)) = self.find(id) else { return };
        let (asked, fetching) = (sequence.stored == Stored::Asked, sequence.fetching.is_some());
        if asked || fetching {
            self.shelf.counts.given_up += 1;
            let sequence = self.sequences.get_mut(&arrival).expect("it was just found");
            sequence.stored = Stored::Blocks(0);
            sequence.promised.take_if(|promised| !promised.is_here());
        }
        if fetching {
            self.land(arrival);
        }
    }

    /// Whether a sequence fetches blocks, or may when it begins.
    pub fn may_fetch(&self, id: SequenceId) -> bool {
        let may = |s: &Sequence| s.phase == Phase::Waiting || s.fetching.is_some();
        self.find(id).is_some_and(|(_, sequence)| may(sequence))
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> usize {
        self.bounds.block_size as usize
    }

    /// The store is gone: no question is open any more.
    pub fn store_lost(&mut self) {
        for id in self.asking().collect::<Vec<_>>() {
            self.give_up(id);
        }
    }

    /// Sequences with an open question.
    fn asking(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let fetches = |s: &Sequence| s.fetching.is_some_and(|f| f.asked);
        let brings = |s: &Sequence| s.promised.as_ref().is_some_and(Promised::is_asked);
        let asks = move |s: &&Sequence| s.stored == Stored::Asked || fetches(s) || brings(s);
        self.sequences.values().filter(|s| s.phase != Phase::Doomed).filter(asks).map(Sequence::id)
    }

    /// What went to and fro so far.
    pub fn store_counts(&self) -> StoreCounts {
        self.shelf.counts
    }

    /// A sequence that has just settled arrives, when the store has more of it than the `found` blocks of the ledger.
    pub(super) fn arrive(&self, sequence: &mut Sequence, found: usize) -> bool {
        let Stored::Blocks(stored) = sequence.stored else { return false };
        let end = stored.min(sequence.reusable(self.bounds.block_size));
        if self.worth(end) <= found {
            return false;
        }
        sequence.phase = Phase::Arriving;
        sequence.fetching = Some(Fetching { here: found, end, asked: false });
        true
    }

    /// An arriving sequence begins behind the blocks that are here. They are sealed when their first step is done: until
    /// then their bytes are on the way.
    pub(super) fn land(&mut self, arrival: u64) {
        let Some(mut sequence) = self.sequences.remove(&arrival) else { return };
        if let (Some(fetching), Phase::Arriving) = (sequence.fetching.take(), sequence.phase) {
            sequence.kept = sequence.kept.max(fetching.here);
            sequence.phase = Phase::Running;
            if !self.go_on(&mut sequence, fetching.here) {
                self.skip(&mut sequence, fetching.here);
            }
        }
        self.sequences.insert(arrival, sequence);
    }
}
