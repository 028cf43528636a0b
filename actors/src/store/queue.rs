//! Blocks that wait to be stored. They are collected by class, written a pack at a time, and found meanwhile; when there
//! is no room for one more, it is not stored.

use std::collections::{BTreeMap, BTreeSet};

use super::options::{ClassId, Stamp, Tenant, TierOptions, Use};
use super::pack::{BlockRecord, Footer, HEADER_BYTES, PackName};
use super::wish::Payload;
use crate::kv::BlockHash;

/// The most blocks of a pack, so that a place among them takes 16 bits.
pub(super) const PACK_BLOCKS_MAX: usize = 1 << 16;

/// A block to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Its name.
    pub hash: BlockHash,
    /// The block before it, unless it is the first of its chain.
    pub parent: Option<BlockHash>,
    /// Blocks before it in its chain.
    pub depth: u32,
    /// Positions in it.
    pub tokens: u32,
    /// How long it is kept.
    pub class: ClassId,
    /// Who may find it.
    pub tenant: Tenant,
    /// Its bytes.
    pub bytes: Payload,
}

/// What became of a block that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It will be written.
    Queued,
    /// It is there, or was queued before.
    Known,
    /// The queue is full, or it is for memory alone: it is not stored.
    Dropped,
}

/// A block of a pack that is being made.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) block: NewBlock,
    pub(super) crc: u32,
    pub(super) stored: Stamp,
    pub(super) last: Use,
}

/// A pack that is being written.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    pub(super) footer: Footer,
    pub(super) parts: Vec<Payload>,
}

impl Sealed {
    /// The pack `name` of these blocks.
    pub(super) fn new(items: Vec<Item>, name: PackName, made: Stamp, options: &TierOptions) -> Self {
        let items = in_chains(items);
        let tenants: BTreeSet<Tenant> = items.iter().map(|item| item.block.tenant).collect();
        let tenants: Vec<Tenant> = tenants.into_iter().collect();
        let mut start = HEADER_BYTES;
        let record = |item: &Item| {
            let bytes = item.block.bytes.len() as u64;
            let tenant = tenants.binary_search(&item.block.tenant).expect("it was collected");
            start += bytes;
            BlockRecord {
                hash: item.block.hash,
                parent: item.block.parent,
                start: u32::try_from(start - bytes).expect("a pack is smaller than 4 GiB"),
                bytes: u32::try_from(bytes).expect("a block is smaller than a pack"),
                tokens: item.block.tokens,
                depth: item.block.depth,
                crc: item.crc,
                stored: item.stored,
                used: Some(item.last.used),
                expires: item.last.expires,
                tenant: u16::try_from(tenant).expect("a pack has at most 65,536 blocks"),
                class: u8::try_from(options.class(item.block.class)).expect("classes are few"),
            }
        };
        let blocks = items.iter().map(record).collect();
        let classes = options.classes.iter().map(|class| class.name.clone()).collect();
        let footer = Footer { layout: options.layout, name, made, classes, tenants, blocks };
        let parts = footer.object(items.into_iter().map(|item| item.block.bytes));
        Self { footer, parts }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    fn block_bytes(&self) -> u64 {
        self.footer.start() - HEADER_BYTES
    }
}

/// Chain after chain, each from its beginning, in the order in which the first blocks of the chains came. A chain that
/// parts in two is followed down the one that came first.
fn in_chains(items: Vec<Item>) -> Vec<Item> {
    let here: BTreeSet<BlockHash> = items.iter().map(|item| item.block.hash).collect();
    let mut children: BTreeMap<BlockHash, Vec<usize>> = BTreeMap::new();
    let mut open = Vec::new();
    for (place, item) in items.iter().enumerate().rev() {
        match item.block.parent.filter(|parent| here.contains(parent)) {
            Some(parent) => children.entry(parent).or_default().push(place),
            None => open.push(place),
        }
    }
    let mut order = Vec::with_capacity(items.len());
    while let Some(place) = open.pop() {
        order.push(place);
        open.extend(children.remove(&items[place].block.hash).unwrap_or_default());
    }
    // Blocks that claim to follow each other in a ring have no beginning; they are written all the same.
    order.extend(0..items.len());
    let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    order.into_iter().filter_map(|place| items[place].take()).collect()
}

/// A block as it is found before it is written.
#[derive(Debug)]
struct Waiting {
    /// Who may find it.
    tenant: Tenant,
    bytes: Payload,
    expires: Stamp,
}

/// Blocks that are not stored yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    open: BTreeMap<ClassId, (u64, Vec<Item>)>,
    /// Packs that are being written.
    writing: BTreeMap<PackName, Sealed>,
    /// All of both.
    held: BTreeMap<BlockHash, Waiting>,
    bytes: u64,
}

impl Queue {
    /// Takes in a block that is not here, or drops it.
    pub(super) fn push(
        &mut self,
        block: NewBlock,
        (now, expires): (Stamp, Stamp),
        options: &TierOptions,
    ) -> Stored {
        let bytes = block.bytes.len() as u64;
        if self.knows(&block.hash) {
            return Stored::Known;
        }
        if self.bytes + bytes > options.queue_bytes || HEADER_BYTES + bytes > u64::from(u32::MAX / 2) {
            return Stored::Dropped;
        }
        self.bytes += bytes;
        let waiting = Waiting { tenant: block.tenant, bytes: block.bytes.clone(), expires };
        self.held.insert(block.hash, waiting);
        let class = ClassId(u8::try_from(options.class(block.class)).unwrap_or(0));
        let (filled, items) = self.open.entry(class).or_default();
        *filled += bytes;
        let last = Use { used: now, expires };
        items.push(Item { crc: block.bytes.sum(), block, stored: now, last });
        Stored::Queued
    }

    /// A class that has a pack's worth of blocks, or, where all are to go, any at all.
    pub(super) fn due(&self, options: &TierOptions, all: bool) -> Option<ClassId> {
        let due = |(bytes, items): &(u64, Vec<Item>)| {
            all || *bytes >= options.pack_bytes || items.len() >= PACK_BLOCKS_MAX
        };
        self.open.iter().find(|(_, open)| due(open)).map(|(&class, _)| class)
    }

    /// The blocks of a class, to be written as one pack.
    pub(super) fn take(&mut self, class: ClassId) -> Vec<Item> {
        self.open.remove(&class).map(|(_, items)| items).unwrap_or_default()
    }

    pub(super) fn write(&mut self, sealed: Sealed) {
        self.writing.insert(sealed.footer.name, sealed);
    }

    /// What a pack is made of, while it is being written.
    pub(super) fn parts(&self, name: PackName) -> Option<Vec<Payload>> {
        self.writing.get(&name).map(|sealed| sealed.parts.clone())
    }

    /// Bytes of a pack that is being written.
    pub(super) fn pack_bytes(&self, name: PackName) -> u64 {
        self.writing.get(&name).map_or(0, Sealed::bytes)
    }

    /// A pack is written, or was given up: its blocks wait no more.
    pub(super) fn finish(&mut self, name: PackName) -> Option<Sealed> {
        let sealed = self.writing.remove(&name)?;
        self.bytes -= sealed.block_bytes();
        sealed.footer.blocks.iter().for_each(|block| drop(self.held.remove(&block.hash)));
        Some(sealed)
    }

    pub(super) fn knows(&self, hash: &BlockHash) -> bool {
        self.held.contains_key(hash)
    }

    /// The bytes of a block that `tenant` may see.
    pub(super) fn find(&self, hash: &BlockHash, tenant: Tenant) -> Option<&Payload> {
        self.held.get(hash).filter(|held| held.tenant == tenant).map(|held| &held.bytes)
    }

    /// When a block expires that waits or is being written.
    pub(super) fn expires(&self, hash: &BlockHash) -> Option<Stamp> {
        self.held.get(hash).map(|held| held.expires)
    }

    /// Bytes of blocks that wait or are being written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WriterId;

    fn item(number: u8, parent: Option<u8>) -> Item {
        let hash = |number| BlockHash::from_bytes([number; 16]);
        let bytes = Payload::from(vec![number; 3]);
        let parent = parent.map(hash);
        let block = NewBlock {
            hash: hash(number),
            parent,
            depth: 0,
            tokens: 4,
            class: ClassId(0),
            tenant: Tenant([7; 16]),
            bytes,
        };
        Item { block, crc: 0, stored: Stamp(1), last: Use { used: Stamp(1), expires: Stamp(2) } }
    }

    #[test]
    fn chains_that_came_mixed_lie_apart() {
        // 1-2-3-4 and 11-12, with 21 behind 2 as well, and 31 behind a block that is elsewhere.
        let came = [
            (1, None),
            (11, None),
            (2, Some(1)),
            (31, Some(30)),
            (12, Some(11)),
            (3, Some(2)),
            (21, Some(2)),
        ];
        let items: Vec<Item> =
            came.iter().chain(&[(4, Some(3))]).map(|&(own, parent)| item(own, parent)).collect();
        let order: Vec<u8> = in_chains(items).iter().map(|item| item.block.bytes[0]).collect();
        assert_eq!(order, [1, 2, 3, 4, 21, 11, 12, 31]);
    }

    #[test]
    fn a_full_queue_drops_and_a_written_pack_makes_room() {
        let mut options = TierOptions::new(WriterId(1), [0; 16]);
        (options.queue_bytes, options.pack_bytes) = (7, 6);
        let mut queue = Queue::default();
        let push =
            |queue: &mut Queue, number| queue.push(item(number, None).block, (Stamp(0), Stamp(1)), &options);
        assert_eq!(push(&mut queue, 1), Stored::Queued);
        assert_eq!(queue.due(&options, false), None);
        assert_eq!(push(&mut queue, 1), Stored::Known);
        assert_eq!(push(&mut queue, 2), Stored::Queued);
        assert_eq!(push(&mut queue, 3), Stored::Dropped);
        let class = queue.due(&options, false).expect("a pack's worth");
        let name = PackName { writer: WriterId(1), number: 0 };
        let items = queue.take(class);
        queue.write(Sealed::new(items, name, Stamp(0), &options));
        assert!(
            queue.find(&item(1, None).block.hash, Tenant([7; 16])).is_some(),
            "found while it is written"
        );
        assert!(queue.find(&item(1, None).block.hash, Tenant([8; 16])).is_none(), "not by others");
        assert_eq!(queue.bytes(), 6);
        queue.finish(name).expect("it was being written");
        assert_eq!((queue.bytes(), queue.knows(&item(1, None).block.hash)), (0, false));
    }
}
