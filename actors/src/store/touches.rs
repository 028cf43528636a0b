//! Hits, written down in small objects, so that other processes and the next start know what is in use. A lost one costs
//! a little precision in what goes first, and nothing else.
//!
//! ```text
//! magic 8, packs 4; for each pack writer 8, number 8, runs 4; for each run first block 4, blocks 4, used 4, expires 4;
//! crc32c of all before 4
//! ```
//!
//! Blocks of a chain lie side by side in their pack and are hit together, so a journal of runs is short. The first version
//! did not say when blocks were used.

use std::collections::{BTreeMap, BTreeSet};

use super::index::{Entry, Index, Place, State};
use super::options::{Stamp, TierOptions, Use, WriterId};
use super::pack::PackName;

const MAGIC: &[u8; 8] = b"mstouch2";
const MAGIC_1: &[u8; 8] = b"mstouch1";

/// Neighbours in a pack that were hit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    blocks: u32,
    used: Option<Stamp>,
    expires: Stamp,
}

/// What a journal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Journal(BTreeMap<PackName, Vec<Run>>);

impl Journal {
    /// What the index knows of these blocks.
    pub(super) fn of(places: impl IntoIterator<Item = Place>, index: &Index) -> Self {
        let mut journal = Self::default();
        for place in places {
            let Some(pack) = index.pack(place.pack) else { continue };
            let Use { used, expires } = index.entry(place).last;
            let used = Some(used);
            let runs = journal.0.entry(pack.name).or_default();
            match runs.last_mut() {
                Some(run)
                    if run.first + run.blocks == place.entry
                        && (run.used, run.expires) == (used, expires) =>
                {
                    run.blocks += 1
                }
                _ => runs.push(Run { first: place.entry, blocks: 1, used, expires }),
            }
        }
        journal
    }

    /// All that the index knows beyond what packs say themselves.
    pub(super) fn of_all(index: &Index) -> Self {
        let places = index.packs().flat_map(|(number, pack)| {
            let touched = pack.entries.iter().enumerate().filter(|(_, entry)| entry.touched);
            touched.map(move |(entry, _)| Place { pack: number, entry: entry as u32 })
        });
        Self::of(places, index)
    }

    /// The latest time in it: when that has passed, it says nothing any more.
    pub(super) fn until(&self) -> Stamp {
        self.0.values().flatten().map(|run| run.expires).max().unwrap_or_default()
    }

    /// Lets the index know. What is not here is passed over.
    pub(super) fn apply(&self, index: &mut Index, options: &TierOptions) {
        for (name, runs) in &self.0 {
            let Some(pack) = index.number(*name) else { continue };
            let entries = index.pack(pack).map_or(0, |pack| pack.entries.len() as u32);
            for run in runs {
                let end = run.first.saturating_add(run.blocks).min(entries);
                for entry in run.first..end {
                    let place = Place { pack, entry };
                    let Entry { state, class, stored, last, .. } = *index.entry(place);
                    let guess = options.guess(class, stored, run.expires);
                    let hit = Use { used: run.used.unwrap_or(guess.used), expires: run.expires };
                    if state != State::Gone && last.and(hit) != last {
                        index.touch(place, hit);
                    }
                }
            }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let count = |number: usize| u32::try_from(number).expect("an index has fewer than 2^32 of anything");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(count(self.0.len()).to_le_bytes());
        for (name, runs) in &self.0 {
            bytes.extend(name.writer.0.to_le_bytes());
            bytes.extend(name.number.to_le_bytes());
            bytes.extend(count(runs.len()).to_le_bytes());
            for run in runs {
                [run.first, run.blocks, run.used.unwrap_or_default().0, run.expires.0]
                    .iter()
                    .for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// `None` where it is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let (magic, mut rest) =
            body.split_first_chunk().filter(|_| u32::from_le_bytes(*crc) == crc32c::crc32c(body))?;
        let dated = magic == MAGIC;
        if !dated && magic != MAGIC_1 {
            return None;
        }
        let mut number = || {
            let (bytes, behind) = rest.split_first_chunk::<4>()?;
            rest = behind;
            Some(u32::from_le_bytes(*bytes))
        };
        let mut packs = BTreeMap::new();
        for _ in 0..number()? {
            let [writer, count] =
                [0; 2].map(|_: u64| Some(u64::from(number()?) | u64::from(number()?) << 32));
            let name = PackName { writer: WriterId(writer?), number: count? };
            let mut runs = Vec::new();
            for _ in 0..number()? {
                let (first, blocks) = (number()?, number()?);
                let used = if dated { Some(Stamp(number()?)) } else { None };
                runs.push(Run { first, blocks, used, expires: Stamp(number()?) });
            }
            packs.insert(name, runs);
        }
        number().is_none().then_some(Self(packs))
    }
}

/// Blocks that were hit and are not in a journal yet.
#[derive(Debug, Default)]
pub(super) struct Touches(BTreeSet<Place>);

impl Touches {
    /// A block of a pack was hit.
    pub(super) fn hit(&mut self, place: Place, hit: Use, index: &mut Index) {
        if index.touch(place, hit) {
            self.0.insert(place);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What is to be written down, which is not here any more.
    pub(super) fn take(&mut self, index: &Index) -> Journal {
        Journal::of(std::mem::take(&mut self.0), index)
    }

    /// A pack is gone, and its number may soon be another's.
    pub(super) fn forget(&mut self, pack: u32) {
        let gone: Vec<Place> =
            self.0.range(Place { pack, entry: 0 }..=Place { pack, entry: u32::MAX }).copied().collect();
        for place in gone {
            self.0.remove(&place);
        }
    }
}
