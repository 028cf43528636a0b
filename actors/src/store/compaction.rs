//! What is left of packs that went mostly, and small packs, written anew as one: read, checked, put, and only then are
//! the old ones deleted. A crash in between leaves both, of which the newer counts.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::fetching::{Reading, readings};
use super::index::{Index, Place, State};
use super::options::{Stamp, TierOptions};
use super::pack::{Footer, PackName};
use super::queue::{Item, NewBlock, PACK_BLOCKS_MAX, Sealed};
use super::wish::Payload;
use crate::kv::BlockHash;

/// The packs that are written anew, one at a time.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    /// To be read.
    left: VecDeque<PackName>,
    /// Read.
    done: Vec<PackName>,
    /// After the newest of them, so that what is written anew counts.
    pub(super) made: Stamp,
    items: Vec<Item>,
    /// What is being read of the first of `left`.
    reading: Option<(Reading, Range<u64>)>,
    /// Set when it is written.
    sealed: Option<Sealed>,
}

/// What came of a source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    pub(super) source: PackName,
    /// Blocks that are not what was stored. `None` when the pack is not, and stays.
    pub(super) damaged: Option<Vec<BlockHash>>,
    /// Blocks that continue nothing that is here.
    pub(super) orphans: Vec<Place>,
}

impl Compaction {
    /// Begins with as many of `packs` as fill one; they are busy from now on.
    pub(super) fn start(packs: &[u32], index: &mut Index, options: &TierOptions) -> Option<Self> {
        let (mut bytes, mut blocks, mut made, mut left) = (0, 0, Stamp::default(), BTreeSet::new());
        for &number in packs {
            let Some(pack) = index.pack(number) else { continue };
            bytes += pack.kept_bytes;
            blocks += pack.entries.len();
            if !left.is_empty() && (bytes > options.pack_bytes || blocks > PACK_BLOCKS_MAX) {
                break;
            }
            made = made.max(pack.made.after(1));
            left.insert(pack.name);
            index.set_busy(number, true);
        }
        (!left.is_empty()).then(|| Self { left: left.into_iter().collect(), made, ..Self::default() })
    }

    /// What to read next; `None` when all has been read.
    pub(super) fn read(
        &mut self,
        index: &Index,
        options: &TierOptions,
    ) -> Option<(PackName, Vec<Range<u64>>)> {
        loop {
            let name = *self.left.front()?;
            let Some(number) = index.number(name) else {
                self.left.pop_front();
                continue;
            };
            let pack = index.pack(number).expect("a name is of a pack");
            let kept = pack.entries.iter().enumerate().filter(|(_, entry)| entry.state == State::Kept);
            let places: Vec<Place> =
                kept.map(|(entry, _)| Place { pack: number, entry: entry as u32 }).collect();
            let whole = TierOptions { read_bytes: u64::MAX, ..options.clone() };
            let reading = readings(&places, index, &whole).pop();
            let reading = reading.unwrap_or(Reading { pack: name, ranges: Vec::new(), blocks: Vec::new() });
            let mut ranges = reading.ranges.clone();
            ranges.push(pack.footer.clone());
            self.reading = Some((reading, pack.footer.clone()));
            return Some((name, ranges));
        }
    }

    /// The first of what is left was read. What is damaged, or follows on nothing, is left behind.
    pub(super) fn gather(
        &mut self,
        got: &[Payload],
        options: &TierOptions,
        index: &Index,
        knows: impl Fn(&BlockHash) -> bool,
    ) -> Option<Gathered> {
        let ((reading, footer), source) = (self.reading.take()?, self.left.pop_front()?);
        let mut gathered = Gathered { source, damaged: None, orphans: Vec::new() };
        let footer =
            got.last().and_then(|bytes| Footer::decode(bytes, footer.start, options.layout, source).ok());
        let (Some(footer), Some(pack)) = (footer, index.number(source)) else { return Some(gathered) };
        self.done.push(source);
        let mut damaged = Vec::new();
        for expected in &reading.blocks {
            let place = Place { pack, entry: expected.entry };
            let record =
                footer.blocks.get(expected.entry as usize).filter(|record| record.hash == expected.hash);
            let (Some(record), Some(bytes)) = (record, Reading::check(expected, got)) else {
                damaged.push(expected.hash);
                continue;
            };
            let entry = index.entry(place);
            if record.parent.is_some_and(|parent| !knows(&parent)) {
                gathered.orphans.push(place);
            }
            if entry.state == State::Gone || gathered.orphans.last() == Some(&place) {
                continue;
            }
            let (tenant, class) = (index.tenant_of(entry), entry.class);
            let (parent, depth, tokens) = (record.parent, record.depth, record.tokens);
            let block = NewBlock { hash: record.hash, parent, depth, tokens, class, tenant, bytes };
            self.items.push(Item { block, crc: record.crc, stored: record.stored, last: entry.last });
        }
        gathered.damaged = Some(damaged);
        Some(gathered)
    }

    /// The first of what is left cannot be read: it stays as it is.
    pub(super) fn skip(&mut self) -> Option<PackName> {
        self.reading = None;
        self.left.pop_front()
    }

    /// What was read, to be sealed; nothing where nothing is left of it.
    pub(super) fn take(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.items)
    }

    pub(super) fn seal(&mut self, sealed: Sealed) {
        self.sealed = Some(sealed);
    }

    pub(super) fn is_writing(&self, name: PackName) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.footer.name == name)
    }

    /// The pack that was written, and those it stands for.
    pub(super) fn finish(self) -> (Option<Sealed>, Vec<PackName>) {
        (self.sealed, self.done)
    }

    /// Every pack that nothing happens to any more when this is given up.
    pub(super) fn sources(&self) -> impl Iterator<Item = PackName> {
        self.left.iter().chain(&self.done).copied()
    }
}
