//! Blocks on their way up. What is wanted is joined to few large reads; a block is read once, however many wait for it;
//! and each that arrives is checked before anybody sees it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::buffers::LARGE;
use super::index::{Index, Place};
use super::options::{Tenant, TierOptions};
use super::pack::PackName;
use super::queue::Queue;
use super::wish::{Payload, WishId};
use crate::kv::BlockHash;

/// Number of a fetch, chosen by who asks; not used again before it has ended or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// What a fetch would bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchPlan {
    /// Wanted blocks that are here, counted from the first up to the first that is not.
    pub blocks: usize,
    /// How many of them are in memory still, or being read already.
    pub near: usize,
    /// Bytes to be read for the others, with what lies between.
    pub bytes: u64,
    /// In so many reads.
    pub reads: usize,
}

impl FetchPlan {
    pub(super) fn of(found: &[Source], reads: &[Reading]) -> Self {
        let near = found.iter().filter(|source| source.place().is_none()).count();
        let bytes = reads.iter().map(Reading::bytes).sum();
        Self { blocks: found.len(), near, bytes, reads: reads.len() }
    }
}

/// What a tier tells whoever fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A block is here. They come in any order.
    Arrived {
        /// Whose.
        fetch: FetchId,
        /// Its place in what was wanted.
        place: usize,
        /// Its bytes, as they were stored.
        bytes: Payload,
    },
    /// Nothing more comes: the first `blocks` have arrived.
    Ended {
        /// Which.
        fetch: FetchId,
        /// Without a hole, from the first wanted one on.
        blocks: usize,
    },
}

/// Where a wanted block comes from.
#[derive(Debug)]
pub(super) enum Source {
    Memory(Payload),
    /// It is being read.
    Flight,
    Pack(Place),
}

impl Source {
    /// Where it must be read.
    pub(super) fn place(&self) -> Option<Place> {
        if let Source::Pack(place) = self { Some(*place) } else { None }
    }
}

/// Where the longest run of `wanted` comes from that is here.
pub(super) fn sources(
    wanted: &[BlockHash],
    tenant: Tenant,
    (index, queue, fetches): (&Index, &Queue, &Fetches),
) -> Vec<Source> {
    let source = |hash: &BlockHash| {
        if let Some(bytes) = queue.find(hash, tenant) {
            return Some(Source::Memory(bytes.clone()));
        }
        let place = index.find(hash, tenant)?;
        Some(if fetches.flights.contains_key(hash) { Source::Flight } else { Source::Pack(place) })
    };
    wanted.iter().map_while(source).collect()
}

/// A block inside a read.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) hash: BlockHash,
    pub(super) entry: u32,
    crc: u32,
    /// Which of the ranges it is in, and where there.
    range: usize,
    at: Range<usize>,
}

impl Expected {
    /// Bytes of the block.
    pub(super) fn bytes(&self) -> u64 {
        (self.at.end - self.at.start) as u64
    }
}

/// A read of one pack.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) pack: PackName,
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) blocks: Vec<Expected>,
}

impl Reading {
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// What a block's bytes are in what was read, if they are what was stored.
    pub(super) fn check(expected: &Expected, got: &[Payload]) -> Option<Payload> {
        let whole = got.get(expected.range).filter(|whole| expected.at.end <= whole.len())?;
        let bytes = whole.slice(expected.at.clone());
        // A small block alone would keep the memory of all that were read with it.
        let small = |bytes: &Payload| bytes.len() < LARGE && !bytes.is_hollow();
        let own = |bytes: Payload| if small(&bytes) { bytes.to_vec().into() } else { bytes };
        (bytes.sum() == expected.crc).then(|| own(bytes))
    }
}

/// Reads for blocks in the order in which they are wanted. Neighbours in a pack are read as one, unless they are large:
/// then each comes in memory of its own.
pub(super) fn readings(places: &[Place], index: &Index, options: &TierOptions) -> Vec<Reading> {
    let mut readings: Vec<Reading> = Vec::new();
    let mut last = None;
    for &place in places {
        let pack = index.pack(place.pack).expect("a place is in a pack");
        let (entry, wanted) = (index.entry(place), index.entry(place).range());
        let fits = |reading: &Reading| {
            let end = reading.ranges.last().map_or(0, |range| range.end);
            last == Some(place.pack)
                && wanted.start >= end
                && reading.bytes() + (wanted.end - wanted.start) + options.gap_bytes <= options.read_bytes
        };
        if !readings.last().is_some_and(fits) {
            readings.push(Reading { pack: pack.name, ranges: Vec::new(), blocks: Vec::new() });
        }
        last = Some(place.pack);
        let reading = readings.last_mut().expect("one was pushed");
        let near = |range: &&mut Range<u64>| wanted.start - range.end <= options.gap_bytes;
        let joined = reading.ranges.last_mut().filter(|_| (entry.bytes as usize) < LARGE).filter(near);
        match joined {
            Some(range) => range.end = wanted.end,
            None => reading.ranges.push(wanted.clone()),
        }
        let range = reading.ranges.len() - 1;
        let at = (wanted.start - reading.ranges[range].start) as usize;
        let at = at..at + entry.bytes as usize;
        reading.blocks.push(Expected { hash: entry.hash, entry: place.entry, crc: entry.crc, range, at });
    }
    readings
}

/// Somebody's wish for a run of blocks.
#[derive(Debug)]
struct Fetch {
    /// Of all that are still hoped for, which are here.
    arrived: Vec<bool>,
    hashes: Vec<BlockHash>,
}

/// All that is on its way.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    fetches: BTreeMap<FetchId, Fetch>,
    /// Blocks that are being read, with who waits for them and as which.
    flights: BTreeMap<BlockHash, Vec<(FetchId, usize)>>,
    pub(super) readings: BTreeMap<WishId, Reading>,
    pub(super) news: VecDeque<News>,
}

impl Fetches {
    pub(super) fn begin(&mut self, fetch: FetchId, wanted: &[BlockHash]) {
        let state = Fetch { arrived: vec![false; wanted.len()], hashes: wanted.to_vec() };
        assert!(self.fetches.insert(fetch, state).is_none(), "{fetch:?} has not ended");
    }

    pub(super) fn join(&mut self, hash: BlockHash, fetch: FetchId, place: usize) {
        self.flights.entry(hash).or_default().push((fetch, place));
    }

    /// A block is here: for all that wait for it.
    pub(super) fn arrived(&mut self, hash: &BlockHash, bytes: &Payload) {
        for (fetch, place) in self.flights.remove(hash).unwrap_or_default() {
            self.deliver(fetch, place, bytes.clone());
        }
    }

    pub(super) fn deliver(&mut self, fetch: FetchId, place: usize, bytes: Payload) {
        let Some(state) = self.fetches.get_mut(&fetch) else { return };
        // Behind a hole nothing is of use.
        if let Some(arrived) = state.arrived.get_mut(place) {
            *arrived = true;
            self.news.push_back(News::Arrived { fetch, place, bytes });
        }
        self.end_if_done(fetch);
    }

    /// A block does not come: whoever waits for it has what lies before it.
    pub(super) fn missed(&mut self, hash: &BlockHash) {
        for (fetch, place) in self.flights.remove(hash).unwrap_or_default() {
            let Some(state) = self.fetches.get_mut(&fetch) else { continue };
            state.arrived.truncate(place);
            self.end_if_done(fetch);
        }
    }

    fn end_if_done(&mut self, fetch: FetchId) {
        let Some(state) = self.fetches.get(&fetch) else { return };
        if state.arrived.iter().all(|arrived| *arrived) {
            let blocks = state.arrived.len();
            self.forget(fetch);
            self.news.push_back(News::Ended { fetch, blocks });
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(&mut self, fetch: FetchId) {
        self.forget(fetch);
        self.news.retain(|news| match news {
            News::Arrived { fetch: of, .. } | News::Ended { fetch: of, .. } => *of != fetch,
        });
    }

    fn forget(&mut self, fetch: FetchId) {
        let hashes = self.fetches.remove(&fetch).map(|state| state.hashes).unwrap_or_default();
        for hash in hashes {
            if let Some(waiting) = self.flights.get_mut(&hash) {
                waiting.retain(|(who, _)| *who != fetch);
            }
        }
    }

    /// Whether anybody waits for a block of this read.
    pub(super) fn is_wanted(&self, reading: &Reading) -> bool {
        let waits =
            |block: &Expected| self.flights.get(&block.hash).is_some_and(|waiting| !waiting.is_empty());
        reading.blocks.iter().any(waits)
    }

    /// A read that was never made: its blocks are in flight no more.
    pub(super) fn drop_flights(&mut self, reading: &Reading) {
        reading.blocks.iter().for_each(|block| drop(self.flights.remove(&block.hash)));
    }

    pub(super) fn len(&self) -> usize {
        self.fetches.len()
    }

    pub(super) fn flights(&self) -> usize {
        self.flights.len()
    }
}
