//! All of a tier: what can be asked of it, and what it wishes. What it does with answers stands in `told`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::compaction::Compaction;
use super::fetching::{FetchId, FetchPlan, Fetches, News, Reading, Source, readings, sources};
use super::index::{Index, Place};
use super::options::{CLASSES_MAX, ClassId, Stamp, Tenant, TierOptions};
use super::pack::{HEADER_BYTES, PackName, Refused, TRAILER_BYTES};
use super::queue::{NewBlock, Queue, Sealed, Stored};
use super::retain;
use super::roll::{PACK, Roll, TOUCH};
use super::touches::{Journal, Touches};
use super::wish::{Io, Payload, Wish, WishId};
use crate::kv::BlockHash;

mod look;
mod told;

pub use look::{Held, Inspection, Sum};

/// What is read of a pack's end at first. A footer of up to 250 blocks is in it.
const TAIL_BYTES: u64 = 16 << 10;
/// So many journals are folded into one.
const JOURNALS: usize = 32;

/// Blocks on a byte store.
///
/// ```
/// use millstream_actors::kv::HashChain;
/// use millstream_actors::store::{ClassId, FetchId, NewBlock, News, Stamp, Tenant, Tier, TierOptions, WriterId};
/// use millstream_runtime::blob::Memory;
///
/// let (disk, now) = (Memory::new(), Stamp(1_000));
/// let carry_out = |tier: &mut Tier| {
///     while let Some(wish) = tier.wish() {
///         tier.tell(wish.carry_out(&disk), now);
///     }
/// };
/// let mut names = Vec::new();
/// HashChain::new(b"a model", 4).extend(&mut names, &[1, 2, 3, 4]);
/// let block = NewBlock {
///     hash: names[0],
///     parent: None,
///     depth: 0,
///     tokens: 4,
///     class: ClassId(0),
///     tenant: Tenant::default(),
///     bytes: b"keys and values".to_vec().into(),
/// };
///
/// let mut first = Tier::new(TierOptions::new(WriterId(1), [7; 16]));
/// first.refresh();
/// first.store(block, now);
/// first.flush();
/// carry_out(&mut first);
///
/// let mut second = Tier::new(TierOptions::new(WriterId(2), [7; 16]));
/// second.refresh();
/// carry_out(&mut second);
/// let plan = second.fetch(FetchId(0), &names, Tenant::default(), (ClassId(0), now));
/// assert_eq!((plan.blocks, plan.bytes), (1, 15));
/// carry_out(&mut second);
/// let Some(News::Arrived { bytes, .. }) = second.news() else { panic!("it was stored") };
/// assert_eq!(&bytes[..], b"keys and values");
/// ```
#[derive(Debug)]
pub struct Tier {
    options: TierOptions,
    prefix: String,
    index: Index,
    queue: Queue,
    fetches: Fetches,
    touches: Touches,
    roll: Roll,
    compaction: Option<Compaction>,
    /// Packs with blocks that were let go for good.
    condemned: BTreeSet<PackName>,
    /// Of packs and journals together.
    next_number: u64,
    next_wish: u64,
    /// Reads that somebody waits for.
    urgent: VecDeque<Wish>,
    calm: VecDeque<Wish>,
    /// What each wish is for that is not answered.
    purposes: BTreeMap<WishId, Purpose>,
    /// Packs of the queue that could not be written, and how often that was tried.
    again: Vec<(PackName, u32)>,
    /// Wishes that somebody carries out.
    issued: BTreeSet<WishId>,
    /// Everything is to be written as soon as it may.
    flushing: bool,
    /// When the store was last told the time.
    now: Stamp,
    counts: Counts,
}

/// Why something was wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
    List,
    /// The end of a pack of so many bytes.
    Tail(PackName, u64),
    /// Its footer, from this byte on.
    Footer(PackName, u64, u64),
    Journal(PackName),
    Fetch,
    /// A pack of the queue; how often it was tried before.
    Store(PackName, u32),
    Gather,
    Renew,
    /// A journal, until when it says something, and those it stands for.
    Touches(PackName, Stamp, Vec<PackName>),
    Delete,
    /// What the layout is, for people.
    About,
}

/// What a tier has done, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that were written, and their bytes.
    pub stored_blocks: u64,
    /// See there.
    pub stored_bytes: u64,
    /// Blocks for which there was no room in the queue.
    pub dropped_full: u64,
    /// Blocks that could not be written.
    pub dropped_failed: u64,
    /// Blocks that were read for somebody, and their bytes.
    pub fetched_blocks: u64,
    /// See there.
    pub fetched_bytes: u64,
    /// Blocks whose bytes were not what was stored.
    pub damaged_blocks: u64,
    /// Objects that are no packs, or damaged ones, and journals that are none.
    pub refused: u64,
    /// Packs that were gone when they were to be read, or that a list has no more.
    pub vanished_packs: u64,
    /// Calls that failed otherwise.
    pub errors: u64,
    /// Packs that were deleted for room, or because nothing of worth was in them.
    pub deleted_packs: u64,
    /// Packs that were written anew, as a part of another.
    pub renewed_packs: u64,
}

/// What a tier owes and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Of blocks that are not written yet.
    pub queued_bytes: u64,
    /// Fetches that have not ended.
    pub fetches: usize,
    /// Blocks that are being read.
    pub flights: usize,
    /// Wishes that have no answer yet.
    pub wishes: usize,
}

impl Tier {
    /// Knows nothing yet: ask for a [`Tier::refresh`]. Panics when there is no class, or a pack is larger than 1 GiB.
    pub fn new(options: TierOptions) -> Self {
        assert!(
            !options.classes.is_empty() && options.classes.len() <= CLASSES_MAX,
            "one class at least, 255 at most"
        );
        assert!(options.pack_bytes <= 1 << 30, "packs of at most 1 GiB");
        Self {
            prefix: options.prefix(),
            options,
            index: Index::default(),
            queue: Queue::default(),
            fetches: Fetches::default(),
            touches: Touches::default(),
            roll: Roll::default(),
            compaction: None,
            condemned: BTreeSet::new(),
            next_number: 0,
            next_wish: 0,
            urgent: VecDeque::new(),
            calm: VecDeque::new(),
            purposes: BTreeMap::new(),
            again: Vec::new(),
            issued: BTreeSet::new(),
            flushing: false,
            now: Stamp::default(),
            counts: Counts::default(),
        }
    }

    /// Wishes to know what others have written and deleted. Before the first such list nothing is written.
    pub fn refresh(&mut self) {
        if !self.purposes.values().any(|purpose| *purpose == Purpose::List) {
            self.want(Purpose::List, Io::List { prefix: self.prefix.clone() });
        }
    }

    /// Whether all that was listed has been read: before, what is stored may be found missing.
    pub fn is_ready(&self) -> bool {
        let reads = |purpose: &Purpose| {
            matches!(purpose, Purpose::List | Purpose::Tail(..) | Purpose::Footer(..) | Purpose::Journal(_))
        };
        self.roll.is_asked() && !self.purposes.values().any(reads)
    }

    /// Whether a block of this name is here, or waits to be written.
    pub fn knows(&self, hash: &BlockHash) -> bool {
        self.index.knows(hash) || self.queue.knows(hash)
    }

    /// Takes a block in, to be written behind everything else. One that is here already was hit.
    pub fn store(&mut self, block: NewBlock, now: Stamp) -> Stored {
        self.now = self.now.max(now);
        if self.index.knows(&block.hash) {
            self.touch(&[block.hash], block.tenant, (block.class, now));
            return Stored::Known;
        }
        if block.class == ClassId::MEMORY {
            return Stored::Dropped;
        }
        let expires = self.options.hit(block.class, now).expires.min(self.parent_expires(&block, now));
        let stored = self.queue.push(block, (now, expires), &self.options);
        self.counts.dropped_full += u64::from(stored == Stored::Dropped);
        self.seal();
        stored
    }

    /// When the block before it expires: nothing is kept longer than what it continues, and what continues nothing that is
    /// here, not at all once room is wanted, unless it is hit.
    fn parent_expires(&self, block: &NewBlock, now: Stamp) -> Stamp {
        let Some(parent) = &block.parent else { return Stamp(u32::MAX) };
        self.index.expires(parent).or_else(|| self.queue.expires(parent)).unwrap_or(now)
    }

    /// Writes all that waits, and what was hit.
    pub fn flush(&mut self) {
        self.flushing = true;
        self.seal();
    }

    /// What a fetch would bring, and what it would read for it.
    pub fn plan(&self, wanted: &[BlockHash], tenant: Tenant) -> FetchPlan {
        let (found, reads) = self.survey(wanted, tenant);
        FetchPlan::of(&found, &reads)
    }

    /// Where the longest run of `wanted` comes from, and what must be read for it.
    fn survey(&self, wanted: &[BlockHash], tenant: Tenant) -> (Vec<Source>, Vec<Reading>) {
        let found = sources(wanted, tenant, (&self.index, &self.queue, &self.fetches));
        let places: Vec<Place> = found.iter().filter_map(Source::place).collect();
        let reads = readings(&places, &self.index, &self.options);
        (found, reads)
    }

    /// Brings up the longest run of `wanted` that is here; it counts as a hit of that class. [`News`] tell what arrives
    /// and when it has ended. With no block here, or too many fetches at once, none begins: the plan says 0 blocks.
    pub fn fetch(
        &mut self,
        fetch: FetchId,
        wanted: &[BlockHash],
        tenant: Tenant,
        (class, now): (ClassId, Stamp),
    ) -> FetchPlan {
        let (found, reads) = self.survey(wanted, tenant);
        let plan = FetchPlan::of(&found, &reads);
        if plan.blocks == 0 || self.fetches.len() >= self.options.fetches {
            return FetchPlan::default();
        }
        let wanted = &wanted[..plan.blocks];
        self.fetches.begin(fetch, wanted);
        for (place, (hash, source)) in wanted.iter().zip(found).enumerate() {
            match source {
                Source::Memory(bytes) => self.fetches.deliver(fetch, place, bytes),
                Source::Flight | Source::Pack(_) => self.fetches.join(*hash, fetch, place),
            }
        }
        for reading in reads {
            let name = self.object(PACK, reading.pack);
            let wish = self.want(Purpose::Fetch, Io::Read { name, ranges: reading.ranges.clone() });
            self.fetches.readings.insert(wish, reading);
        }
        self.touch(wanted, tenant, (class, now));
        plan
    }

    /// Nothing of this fetch is of use any more. What is being read already is read to its end.
    pub fn cancel(&mut self, fetch: FetchId) {
        self.fetches.cancel(fetch);
        let idle: Vec<WishId> = self.urgent.iter().map(|wish| wish.id).collect();
        for wish in idle {
            let Some(reading) = self.fetches.readings.get(&wish) else { continue };
            if !self.fetches.is_wanted(reading) {
                let reading = self.fetches.readings.remove(&wish).expect("it was there");
                self.fetches.drop_flights(&reading);
                self.purposes.remove(&wish);
                self.urgent.retain(|other| other.id != wish);
            }
        }
    }

    /// These blocks were hit, here or in a tier above.
    pub fn touch(&mut self, hashes: &[BlockHash], tenant: Tenant, (class, now): (ClassId, Stamp)) {
        self.now = self.now.max(now);
        if class == ClassId::MEMORY {
            return;
        }
        let hit = self.options.hit(class, now);
        for place in hashes.iter().filter_map(|hash| self.index.find(hash, tenant)).collect::<Vec<_>>() {
            self.touches.hit(place, hit, &mut self.index);
        }
        if self.touches.len() >= self.options.touches {
            self.write_touches();
        }
    }

    /// Prefers to keep these blocks, or no more, as long as this process lives. Returns how many of them are pinned now:
    /// those that are here, and for which the budget of pins has room.
    pub fn pin(&mut self, hashes: &[BlockHash], tenant: Tenant, pinned: bool) -> usize {
        let mut count = 0;
        for place in hashes.iter().filter_map(|hash| self.index.find(hash, tenant)).collect::<Vec<_>>() {
            let bytes = u64::from(self.index.entry(place).bytes);
            let fits = self.index.pinned_bytes() + bytes <= self.options.budget.pinned;
            if !pinned || fits || self.index.entry(place).pinned {
                self.index.pin(place, pinned);
                count += usize::from(pinned);
            }
        }
        count
    }

    /// Frees room where bytes are beyond a budget.
    pub fn collect(&mut self, now: Stamp) {
        self.now = self.now.max(now);
        self.make_room(self.options.budget.total);
    }

    /// Lets go of all that has expired, though there may be room.
    pub fn expire(&mut self, now: Stamp) {
        retain::give_up_until(&mut self.index, now);
        self.collect(now);
    }

    /// What is to be done next, if somebody may begin with it.
    pub fn wish(&mut self) -> Option<Wish> {
        if self.issued.len() >= self.options.wishes.max(1) {
            return None;
        }
        if self.urgent.is_empty() && self.calm.is_empty() {
            self.read_on();
        }
        let wish = self.urgent.pop_front().or_else(|| self.calm.pop_front())?;
        self.issued.insert(wish.id);
        Some(wish)
    }

    /// What is new for those who fetch.
    pub fn news(&mut self) -> Option<News> {
        self.fetches.news.pop_front()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What is owed and held.
    pub fn ledger(&self) -> Ledger {
        Ledger {
            queued_bytes: self.queue.bytes(),
            fetches: self.fetches.len(),
            flights: self.fetches.flights(),
            wishes: self.purposes.len(),
        }
    }

    /// Blocks that can be found in packs.
    pub fn blocks(&self) -> usize {
        self.index.blocks()
    }

    /// Bytes of all packs.
    pub fn bytes(&self) -> u64 {
        self.index.total_bytes()
    }

    /// Bytes of blocks of a class that count.
    pub fn class_bytes(&self, class: ClassId) -> u64 {
        self.index.class_bytes(class)
    }

    /// Bytes of blocks of a tenant that count.
    pub fn tenant_bytes(&self, tenant: Tenant) -> u64 {
        self.index.tenant_bytes(tenant)
    }

    /// Panics when the books contradict each other. Takes time in the number of blocks: for tests.
    pub fn audit(&self) {
        self.index.audit();
    }

    fn want(&mut self, purpose: Purpose, io: Io) -> WishId {
        let id = WishId(self.next_wish);
        self.next_wish += 1;
        let queue = if purpose == Purpose::Fetch { &mut self.urgent } else { &mut self.calm };
        queue.push_back(Wish { id, io });
        self.purposes.insert(id, purpose);
        id
    }

    fn object(&self, kind: &str, name: PackName) -> String {
        format!("{}{kind}{name}", self.prefix)
    }

    fn next_name(&mut self) -> PackName {
        let number = self.next_number;
        self.next_number += 1;
        PackName { writer: self.options.writer, number }
    }

    fn read(&mut self, purpose: Purpose, name: String, range: Range<u64>) {
        self.want(purpose, Io::Read { name, ranges: vec![range] });
    }

    /// Goes on with what lists have told of: footers first, then journals.
    fn read_on(&mut self) {
        while let Some((name, bytes)) = self.roll.next_pack() {
            if bytes >= HEADER_BYTES + TRAILER_BYTES as u64 {
                let object = self.object(PACK, name);
                return self.read(
                    Purpose::Tail(name, bytes),
                    object,
                    bytes.saturating_sub(TAIL_BYTES)..bytes,
                );
            }
            self.roll.refuse(name, bytes, Refused::NoMarker);
            self.counts.refused += 1;
        }
        let footers = |purpose: &Purpose| matches!(purpose, Purpose::Tail(..) | Purpose::Footer(..));
        if self.purposes.values().any(footers) {
            return;
        }
        if let Some((name, bytes)) = self.roll.next_journal() {
            let object = self.object(TOUCH, name);
            self.read(Purpose::Journal(name), object, 0..bytes);
        }
    }

    /// Writes what is due, once the numbers that are taken are known.
    fn seal(&mut self) {
        if !self.roll.listed {
            return;
        }
        while let Some(class) = self.queue.due(&self.options, self.flushing) {
            let (items, name) = (self.queue.take(class), self.next_name());
            self.queue.write(Sealed::new(items, name, self.now, &self.options));
            self.put(name, 0);
        }
        if std::mem::take(&mut self.flushing) {
            self.write_touches();
        }
    }

    fn put(&mut self, name: PackName, tries: u32) {
        let parts = self.queue.parts(name).expect("it is being written");
        let object = self.object(PACK, name);
        self.want(Purpose::Store(name, tries), Io::Put { name: object, parts });
    }

    /// Writes down what was hit; all that is known, when there are many journals.
    fn write_touches(&mut self) {
        if !self.roll.listed || self.touches.len() == 0 {
            return;
        }
        let journal = self.touches.take(&self.index);
        let known: Vec<PackName> = self.roll.journals().map(|(name, _)| name).collect();
        let fold = known.len() >= JOURNALS;
        let (journal, covers) =
            if fold { (Journal::of_all(&self.index), known) } else { (journal, Vec::new()) };
        let name = self.next_name();
        let io = Io::Put { name: self.object(TOUCH, name), parts: vec![Payload::from(journal.encode())] };
        self.want(Purpose::Touches(name, journal.until(), covers), io);
    }

    fn make_room(&mut self, most: u64) {
        let mut choice = retain::choose(&mut self.index, &self.options, self.now, most);
        self.condemn(&mut choice);
        choice.delete.iter().for_each(|&number| self.delete(number));
        if self.compaction.is_none() && self.roll.listed {
            self.compaction = self.renew(&choice);
            self.compact();
        }
    }

    /// Forgets a pack and wishes it away.
    fn delete(&mut self, number: u32) {
        if let Some(name) = self.forget(number) {
            self.counts.deleted_packs += 1;
            let name = self.object(PACK, name);
            self.want(Purpose::Delete, Io::Delete { name });
        }
    }

    fn forget(&mut self, number: u32) -> Option<PackName> {
        self.touches.forget(number);
        self.index.remove(number)
    }

    /// The next step of writing packs anew.
    fn compact(&mut self) {
        let Some(compaction) = &mut self.compaction else { return };
        if let Some((name, ranges)) = compaction.read(&self.index, &self.options) {
            let name = self.object(PACK, name);
            self.want(Purpose::Gather, Io::Read { name, ranges });
            return;
        }
        let (items, made) = (compaction.take(), self.now.max(compaction.made));
        if items.is_empty() {
            return self.renewed();
        }
        let name = self.next_name();
        let sealed = Sealed::new(items, name, made, &self.options);
        let io = Io::Put { name: self.object(PACK, name), parts: sealed.parts.clone() };
        self.compaction.as_mut().expect("it goes on").seal(sealed);
        self.want(Purpose::Renew, io);
    }

    /// What was written anew takes the place of what it was made of.
    fn renewed(&mut self) {
        let Some(compaction) = self.compaction.take() else { return };
        let (sealed, sources) = compaction.finish();
        if let Some(sealed) = sealed {
            self.index.insert(&sealed.footer, sealed.bytes(), self.next_wish, &self.options);
        }
        for number in sources.into_iter().filter_map(|name| self.index.number(name)).collect::<Vec<_>>() {
            // What was hit after it was given up, and so left behind, is still there only.
            if self.index.pack(number).is_some_and(|pack| pack.kept_bytes > 0) {
                self.index.set_busy(number, false);
            } else {
                self.delete(number);
                self.counts.renewed_packs += 1;
            }
        }
    }
}
