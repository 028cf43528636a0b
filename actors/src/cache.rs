//! cache: blocks by hash, for every group of the process, and beyond its life. What a group seals is kept in host memory
//! and, where the plan has a tier that lasts, on its way down to that; any group finds it, and so does the next process.
//!
//! The answer to a question never waits for another group, and a group never waits long for this: what is not brought is
//! computed. A `Seek` says how much of a beginning there is, and begins to bring up what host memory does not hold, while
//! the sequence may still wait for its group; each `Fetch` is answered as soon as its blocks are here, or it is known that
//! no more of them will come.
//!
//! Reading and writing is done by [`crate::disk`] seats; what is asked of them is [`crate::store`]'s business.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::blob::Doing;
use millstream_runtime::{Actor, Ctx, HoldOut, ReplyOut, Time};

use crate::gauges::CacheGauges;
use crate::kv::BlockHash;
use crate::message::{BlockName, CacheAnswer, CacheAsk, CacheMessage, Kept, SequenceId};
use crate::request::Keeping;
use crate::snapshot::{Beginning, SnapshotName};
use crate::store::{
    ClassId, FetchId, Got, NewBlock, News, Payload, Stamp, Stored, Tenant, Tier, TierOptions, Told, Wish,
};

mod flight;
mod host;
mod snapshots;

use flight::Flight;
pub use host::Host;
pub use snapshots::Snapshots;

/// Blocks that wait to be written are written after this long, full pack or not.
const SETTLED: Duration = Duration::from_millis(250);
/// How often room is made.
const SWEEP: Duration = Duration::from_secs(30);
/// It is looked what other processes have written this often: where a list is quick, so that what they computed is found
/// soon, and where it takes long.
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);
/// So many times as long as a list took, no other one is made.
const LISTS: u32 = 100;
/// A disk that takes longer for a wish stands still: groups do not wait that long. It is given nothing to read where another
/// one may, and when all of them stand still nobody begins to wait.
const STILL: Duration = Duration::from_secs(2);
/// Blocks that were brought up and not asked for are let go after this long: who wanted them may have gone unheard.
const LINGER: Duration = Duration::from_secs(60);
/// What a byte is predicted to take from host memory, and from a disk before it was measured, in nanoseconds.
const NEAR: f64 = 0.5;
const FAR: f64 = 2.0;
/// What a read is predicted to take beside its bytes.
const SEEK: Duration = Duration::from_millis(1);

/// A tier that lasts.
pub struct Lasting {
    /// What it is and keeps.
    pub options: TierOptions,
    /// Tokens in a block.
    pub block_size: u32,
    /// The wall clock when the driver's began.
    pub began: Stamp,
    /// To those that read and write.
    pub disks: Vec<HoldOut<Wish>>,
}

/// See the module.
pub struct Cache {
    host: Host,
    snapshots: Snapshots,
    /// A seat and a lane for each group, in order.
    groups: Vec<(String, ReplyOut<CacheAnswer>)>,
    gauges: Arc<CacheGauges>,
    below: Option<Below>,
}

/// What is below host memory.
struct Below {
    tier: Tier,
    block_size: u32,
    began: Stamp,
    /// Lanes, and how many wishes are out on each.
    disks: Vec<(HoldOut<Wish>, usize)>,
    /// Which disk has a wish, since when, and how many bytes it reads.
    out: BTreeMap<u64, (usize, Time, u64)>,
    flights: BTreeMap<SequenceId, Flight>,
    fetches: BTreeMap<FetchId, SequenceId>,
    next: u64,
    /// Nanoseconds that a byte takes, of late.
    byte: f64,
    /// When what waits is written.
    flush: Option<Time>,
    refresh: Time,
    sweep: Time,
}

impl Cache {
    /// A cache of so many bytes of host memory for blocks, and for snapshots, that answers these groups.
    pub fn new(
        (blocks, snapshots): (u64, u64),
        lasting: Option<Lasting>,
        groups: Vec<(String, ReplyOut<CacheAnswer>)>,
        gauges: Arc<CacheGauges>,
    ) -> Self {
        let (host, snapshots) = (Host::new(blocks), Snapshots::new(snapshots));
        let cache = Self { host, snapshots, groups, gauges, below: lasting.map(Below::new) };
        cache.show();
        cache
    }

    fn ask(&mut self, ask: CacheAsk, group: usize, now: Time) {
        match ask {
            CacheAsk::Seek(sequence, hashes, keeping, beginning) => {
                self.seek(sequence, (&hashes, keeping, beginning), (group, now));
            }
            CacheAsk::Bring(sequence, name) => self.bring(sequence, &name, group),
            CacheAsk::Fetch(sequence, first, hashes) => self.fetch(sequence, (first, hashes), group, now),
            CacheAsk::Forget(sequence) => self.forget(sequence),
            CacheAsk::Hit(_, hashes, keeping) => self.hit(&hashes, keeping, now),
        }
    }

    /// Blocks that are in use, from the first of a chain on, are kept longer, as long as the class of whoever uses them
    /// says.
    fn hit(&mut self, hashes: &[BlockHash], keeping: Keeping, now: Time) {
        self.host.touch(hashes);
        if let Some(below) = &mut self.below {
            below.tier.touch(hashes, keeping.tenant, (keeping.class, below.stamp(now)));
            below.lower(hashes, keeping, (&self.host, now));
        }
    }

    fn seek(
        &mut self,
        sequence: SequenceId,
        (hashes, keeping, beginning): (&[BlockHash], Keeping, Option<Box<Beginning>>),
        (group, now): (usize, Time),
    ) {
        self.forget(sequence);
        let found: Vec<Payload> = hashes.iter().map_while(|hash| self.host.get(hash)).collect();
        let (near, bytes) = (found.len(), found.iter().map(|data| data.len()).sum::<usize>());
        self.hit(&hashes[..near], keeping, now);
        self.gauges.sought.add(hashes.len());
        let mut answer = (near, Duration::from_nanos((bytes as f64 * NEAR) as u64));
        if let Some(below) = &mut self.below {
            let (blocks, time) =
                below.begin(sequence, (hashes, keeping), (near, group, now), self.host.bytes_max());
            answer = (near + blocks, answer.1 + time);
        }
        let promise = beginning.and_then(|beginning| {
            let known = answer.0.max(beginning.here);
            self.snapshots.find(hashes, &beginning, (known, NEAR))
        });
        self.groups[group].1.reply(CacheAnswer::Sought(sequence, answer.0, answer.1, promise));
    }

    fn bring(&mut self, sequence: SequenceId, name: &SnapshotName, group: usize) {
        let data = self.snapshots.get(name);
        self.gauges.snapshots_brought.add(data.iter().len());
        self.groups[group].1.reply(CacheAnswer::Brought(sequence, data.unwrap_or_default()));
    }

    fn fetch(
        &mut self,
        sequence: SequenceId,
        (first, hashes): (usize, Vec<BlockHash>),
        group: usize,
        now: Time,
    ) {
        let flight = self.below.as_mut().and_then(|below| below.flights.get_mut(&sequence));
        match flight {
            Some(flight) => (flight.asked, flight.until) = (Some((first, hashes)), now + LINGER),
            None => {
                let data: Vec<_> = hashes.iter().map_while(|hash| self.host.get(hash)).collect();
                self.gauges.hits.add(data.len());
                return self.groups[group].1.reply(CacheAnswer::Fetched(sequence, first, data));
            }
        }
        self.serve(sequence);
    }

    /// Answers the open `Fetch` of a sequence, if all of its blocks are here or no more come.
    fn serve(&mut self, sequence: SequenceId) {
        let Some(below) = &mut self.below else { return };
        let Some(flight) = below.flights.get_mut(&sequence) else { return };
        let Some((first, data)) = flight.answer(|hash| self.host.get(hash)) else { return };
        self.gauges.hits.add(data.len());
        self.groups[flight.group].1.reply(CacheAnswer::Fetched(sequence, first, data));
        if flight.is_done() {
            self.forget(sequence);
        }
    }

    fn forget(&mut self, sequence: SequenceId) {
        if let Some(below) = &mut self.below {
            below.forget(sequence);
        }
    }

    fn store(&mut self, kept: Vec<Kept>, now: Time) {
        let news: Vec<_> = kept.into_iter().filter(|kept| !self.host.has(&kept.name.hash)).collect();
        self.gauges.stored.add(news.len());
        let chain: Vec<_> = news.iter().map(|kept| (kept.name.hash, kept.data.clone())).collect();
        self.host.put(&chain);
        if let Some(below) = &mut self.below {
            news.into_iter().for_each(|kept| _ = below.store(kept, now));
        }
    }

    /// An answer of a disk.
    fn told(&mut self, told: Told, now: Time) {
        let Some(below) = &mut self.below else { return };
        below.back(&told, now);
        below.tier.tell(told, below.stamp(now));
    }

    /// Takes in what the tier has brought up, and answers those who wait for it.
    fn news(&mut self) {
        let Some(below) = &mut self.below else { return };
        let mut served = Vec::new();
        while let Some(news) = below.tier.news() {
            let (fetch, arrived) = match news {
                News::Arrived { fetch, place, bytes } => (fetch, Some((place, bytes))),
                News::Ended { fetch, .. } => (fetch, None),
            };
            let Some(&sequence) = below.fetches.get(&fetch) else { continue };
            let Some(flight) = below.flights.get_mut(&sequence) else { continue };
            match arrived {
                Some((place, bytes)) => self.host.put(&[(flight.arrive(place, bytes.clone()), bytes)]),
                None => {
                    flight.end();
                    // They came from the first to the last; kept longest is the first.
                    self.host.touch(&flight.names);
                }
            }
            if served.last() != Some(&sequence) {
                served.push(sequence);
            }
        }
        served.into_iter().for_each(|sequence| self.serve(sequence));
    }

    fn show(&self) {
        let gauges = &self.gauges;
        gauges.host_bytes.set(self.host.bytes() as usize);
        gauges.host_blocks.set(self.host.blocks());
        gauges.snapshots.set(self.snapshots.count());
        gauges.snapshot_bytes.set(self.snapshots.bytes() as usize);
        let Some(below) = &self.below else { return };
        let (tier, counts) = (&below.tier, below.tier.counts());
        gauges.lasting_bytes.set(tier.bytes() as usize);
        gauges.lasting_blocks.set(tier.blocks());
        gauges.unwritten_bytes.set(tier.ledger().queued_bytes as usize);
        gauges.flights.set(below.flights.len());
        gauges.read_bytes.set(counts.fetched_bytes as usize);
        gauges.written_bytes.set(counts.stored_bytes as usize);
        gauges.damaged_blocks.set(counts.damaged_blocks as usize);
        gauges.unwritten_blocks.set((counts.dropped_full + counts.dropped_failed) as usize);
        gauges.refused_objects.set(counts.refused as usize);
        gauges.errors.set(counts.errors as usize);
        for (number, (_, bytes)) in (0..).zip(&gauges.classes) {
            bytes.set(tier.class_bytes(ClassId(number)) as usize);
        }
    }
}

impl Below {
    fn new(lasting: Lasting) -> Self {
        let Lasting { options, block_size, began, disks } = lasting;
        Self {
            tier: Tier::new(options),
            block_size,
            began,
            disks: disks.into_iter().map(|disk| (disk, 0)).collect(),
            out: BTreeMap::new(),
            flights: BTreeMap::new(),
            fetches: BTreeMap::new(),
            next: 0,
            byte: FAR,
            flush: None,
            refresh: Time::ZERO,
            sweep: Time::ZERO,
        }
    }

    fn stamp(&self, now: Time) -> Stamp {
        self.began.after(u32::try_from(now.as_nanos() / 1_000_000_000).unwrap_or(u32::MAX))
    }

    /// Begins to bring up what follows the first `near` blocks, as far as that fits into `room` bytes with what is on its
    /// way already. Says how many blocks these are, and what they will take.
    fn begin(
        &mut self,
        sequence: SequenceId,
        (hashes, Keeping { tenant, class, .. }): (&[BlockHash], Keeping),
        (near, group, now): (usize, usize, Time),
        room: u64,
    ) -> (usize, Duration) {
        let flying: u64 = self.flights.values().map(|flight| flight.bytes).sum();
        let still = (0..self.disks.len()).all(|disk| self.stands_still(disk, now));
        let fit = self.fitting(&hashes[near..], tenant, room.saturating_sub(flying));
        if fit == 0 || still {
            return (0, Duration::ZERO);
        }
        let wanted = &hashes[near..near + fit];
        let fetch = FetchId(self.next);
        self.next += 1;
        let plan = self.tier.fetch(fetch, wanted, tenant, (class, self.stamp(now)));
        if plan.blocks > 0 {
            let names = wanted[..plan.blocks].to_vec();
            self.fetches.insert(fetch, sequence);
            self.flights
                .insert(sequence, Flight::new((fetch, group), near, names, (plan.bytes, now + LINGER)));
        }
        let read = Duration::from_nanos((plan.bytes as f64 * self.byte) as u64);
        (plan.blocks, read + SEEK * plan.reads as u32)
    }

    /// How many of these blocks, from the first, can be read into so many bytes.
    fn fitting(&self, hashes: &[BlockHash], tenant: Tenant, room: u64) -> usize {
        let mut blocks = hashes.len();
        loop {
            let plan = self.tier.plan(&hashes[..blocks], tenant);
            if plan.bytes <= room {
                return plan.blocks;
            }
            blocks = (plan.blocks as u64 * room / plan.bytes) as usize;
        }
    }

    /// Whether a disk should have answered long ago.
    fn stands_still(&self, disk: usize, now: Time) -> bool {
        self.out.values().any(|&(on, sent, _)| on == disk && now.saturating_since(sent) > STILL)
    }

    fn forget(&mut self, sequence: SequenceId) {
        if let Some(flight) = self.flights.remove(&sequence) {
            self.fetches.remove(&flight.fetch);
            self.tier.cancel(flight.fetch);
        }
    }

    fn store(&mut self, kept: Kept, now: Time) -> Stored {
        let block = NewBlock {
            hash: kept.name.hash,
            parent: kept.name.parent,
            depth: kept.name.depth,
            tokens: self.block_size,
            class: kept.name.keeping.class,
            tenant: kept.name.keeping.tenant,
            bytes: kept.data,
        };
        let stored = self.tier.store(block, self.stamp(now));
        if stored == Stored::Queued {
            self.flush.get_or_insert(now + SETTLED);
        }
        stored
    }

    /// Blocks of a chain that were kept in memory only are written for whoever wants them to last.
    fn lower(&mut self, hashes: &[BlockHash], keeping: Keeping, (host, now): (&Host, Time)) {
        if keeping.class == ClassId::MEMORY {
            return;
        }
        let mut parent = None;
        for (depth, &hash) in (0..).zip(hashes) {
            if !self.tier.knows(&hash) {
                // What follows would not be found without this one.
                let Some(data) = host.get(&hash) else { return };
                let kept = Kept { name: BlockName { hash, parent, depth, keeping }, data };
                if self.store(kept, now) == Stored::Dropped {
                    return;
                }
            }
            parent = Some(hash);
        }
    }

    /// Gives wishes to the disk with the least to do.
    fn pump(&mut self, now: Time) {
        while let Some(wish) = self.tier.wish() {
            let busy = |&disk: &usize| (self.stands_still(disk, now), self.disks[disk].1);
            let least = (0..self.disks.len()).min_by_key(busy);
            let disk = least.expect("a tier that lasts has a disk");
            self.disks[disk].1 += 1;
            self.out.insert(wish.id.0, (disk, now, wish.reads()));
            self.disks[disk].0.send(wish);
        }
    }

    /// A disk has answered.
    fn back(&mut self, told: &Told, now: Time) {
        let Some((disk, sent, bytes)) = self.out.remove(&told.id.0) else { return };
        self.disks[disk].1 -= 1;
        let listed = match &told.result {
            Ok(got) => matches!(got, Got::Listed(_)),
            Err(error) => error.doing == Doing::List,
        };
        if listed {
            let pause = now.saturating_since(sent) * LISTS;
            self.refresh = now + pause.clamp(*REFRESH.start(), *REFRESH.end());
        }
        if bytes >= 1 << 16 {
            let took = now.saturating_since(sent).as_nanos() as f64 / bytes as f64;
            self.byte += (took - self.byte) / 8.0;
        }
    }

    /// The disks are gone, and all that was asked of them.
    fn disks_lost(&mut self, now: Time) {
        self.out.clear();
        self.disks.iter_mut().for_each(|(_, out)| *out = 0);
        self.tier.lost(self.stamp(now));
        self.refresh = now; // a list may have been among it
    }

    /// What is due by the clock. Says when the next thing is.
    fn tick(&mut self, now: Time) -> Time {
        if self.flush.is_some_and(|flush| flush <= now) {
            self.flush = None;
            self.tier.flush();
        }
        if self.refresh <= now {
            self.refresh = now + *REFRESH.end(); // or sooner, once it is known how long it takes
            self.tier.refresh();
        }
        if self.sweep <= now {
            self.sweep = now + SWEEP;
            // What was hit since is written down, also where nothing is stored.
            self.tier.flush();
            self.tier.collect(self.stamp(now));
            let over =
                self.flights.iter().filter(|(_, flight)| flight.until <= now).map(|(&sequence, _)| sequence);
            over.collect::<Vec<_>>().into_iter().for_each(|sequence| self.forget(sequence));
        }
        let next = self.refresh.min(self.sweep);
        self.flush.map_or(next, |flush| flush.min(next))
    }
}

impl Actor for Cache {
    type Message = CacheMessage;

    fn handle(&mut self, message: CacheMessage, ctx: &mut Ctx<'_>) {
        match message {
            CacheMessage::Ask(ask, group) => self.ask(ask, group, ctx.now()),
            CacheMessage::Store(kept) => self.store(kept, ctx.now()),
            CacheMessage::Snapshot(snapshot) => self.snapshots.put(snapshot),
            CacheMessage::Told(told) => self.told(told, ctx.now()),
        }
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        self.news();
        if let Some(below) = &mut self.below {
            ctx.wake_at(below.tick(ctx.now()));
            below.pump(ctx.now());
        }
        self.show();
    }

    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        let Some(below) = &mut self.below else { return };
        let Some(number) = self.groups.iter().position(|(seat, _)| seat == peer) else {
            return below.disks_lost(ctx.now());
        };
        let theirs = below.flights.iter().filter(|(_, flight)| flight.group == number);
        theirs.map(|(&sequence, _)| sequence).collect::<Vec<_>>().into_iter().for_each(|s| self.forget(s));
    }
}
