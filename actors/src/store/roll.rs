//! Which objects there are, as far as lists have told: packs whose footers are to be read, packs that are none, and
//! journals of touches.

use std::collections::{BTreeMap, BTreeSet};

use millstream_runtime::blob::Listed;

use super::index::Index;
use super::options::{Stamp, WriterId};
use super::pack::{PackName, Refused};

/// A journal as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalState {
    /// So many bytes.
    Unread(u64),
    Reading,
    /// It says nothing any more after this moment.
    Read(Stamp),
    /// It is not understood, and left to whoever does.
    Strange,
}

/// An object that is no pack.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    bytes: u64,
    why: Refused,
    /// When it was written, where it may be deleted some day.
    written_s: Option<u64>,
    /// How often it was read. What has come wrong once may come right.
    reads: u32,
}

/// What the store has beside what is in the index.
#[derive(Debug, Default)]
pub(super) struct Roll {
    /// A list has come, so that numbers of our own that are taken are known.
    pub(super) listed: bool,
    /// Packs to be read, with their lengths.
    unread: BTreeMap<PackName, u64>,
    /// When each object was written, until it has been read.
    written: BTreeMap<PackName, u64>,
    refused: BTreeMap<PackName, Refusal>,
    journals: BTreeMap<PackName, JournalState>,
}

/// What a list says that was not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Packs that are there no more.
    pub(super) vanished: Vec<u32>,
    /// The first number of `writer` that is not taken.
    pub(super) next: u64,
}

pub(super) const PACK: &str = "pack-";
pub(super) const TOUCH: &str = "touch-";
/// What the layout is, for people.
pub(super) const ABOUT: &str = "about.json";

/// Whether an object of this name is a pack: written once, never changed.
pub fn is_pack(object: &str) -> bool {
    let rest = object.rsplit_once('/').and_then(|(_, rest)| rest.strip_prefix(PACK));
    rest.is_some_and(|name| name.parse::<PackName>().is_ok())
}

impl Roll {
    /// Compares with a list that was wished for as number `since`. `writing` are packs that will be known without it.
    pub(super) fn update(
        &mut self,
        listed: &[Listed],
        (prefix, writer, since): (&str, WriterId, u64),
        writing: impl Fn(PackName) -> bool,
        index: &Index,
    ) -> Changes {
        let (mut packs, mut journals) = (BTreeSet::new(), BTreeSet::new());
        for object in listed {
            let Some(rest) = object.name.strip_prefix(prefix) else { continue };
            if let Some(name) = rest.strip_prefix(PACK).and_then(|name| name.parse().ok()) {
                packs.insert(name);
                if !writing(name) && index.number(name).is_none() {
                    self.add(name, object);
                }
            } else if let Some(name) = rest.strip_prefix(TOUCH).and_then(|name| name.parse().ok()) {
                journals.insert(name);
                self.journals.entry(name).or_insert(JournalState::Unread(object.bytes));
            }
        }
        self.unread.retain(|name, _| packs.contains(name));
        self.refused.retain(|name, _| packs.contains(name));
        self.written.retain(|name, _| packs.contains(name));
        self.journals.retain(|name, _| journals.contains(name));
        self.listed = true;
        let gone = index.packs().filter(|(_, pack)| pack.since <= since && !packs.contains(&pack.name));
        let own = packs.iter().chain(&journals).filter(|name| name.writer == writer);
        Changes {
            vanished: gone.map(|(number, _)| number).collect(),
            next: own.map(|name| name.number.saturating_add(1)).max().unwrap_or(0),
        }
    }

    fn add(&mut self, name: PackName, object: &Listed) {
        if let Some(bytes) = self.unread.get_mut(&name) {
            *bytes = object.bytes;
        } else if self.written.contains_key(&name) {
            // It is being read.
        } else if self.refused.get(&name).is_none_or(|refusal| refusal.bytes != object.bytes) {
            self.refused.remove(&name);
            self.unread.insert(name, object.bytes);
            self.written.insert(name, object.written_s);
        }
    }

    /// A pack whose footer is to be read next; it is not unread any more.
    pub(super) fn next_pack(&mut self) -> Option<(PackName, u64)> {
        self.unread.pop_first()
    }

    /// A journal that is to be read next, once all packs are known.
    pub(super) fn next_journal(&mut self) -> Option<(PackName, u64)> {
        let unread = |(name, state): (&PackName, &JournalState)| match state {
            JournalState::Unread(bytes) => Some((*name, *bytes)),
            JournalState::Reading | JournalState::Read(_) | JournalState::Strange => None,
        };
        let (name, bytes) = self.journals.iter().find_map(unread)?;
        self.journals.insert(name, JournalState::Reading);
        Some((name, bytes))
    }

    /// Whether everything that was listed has been asked for.
    pub(super) fn is_asked(&self) -> bool {
        self.listed
            && self.unread.is_empty()
            && !self.journals.values().any(|state| matches!(state, JournalState::Unread(_)))
    }

    /// An object is no pack. Where it is only unfinished or damaged it may be deleted when it is old.
    pub(super) fn refuse(&mut self, name: PackName, bytes: u64, why: Refused) {
        let waste = matches!(why, Refused::NoMarker | Refused::Checksum | Refused::Senseless);
        let written_s = self.written.remove(&name).filter(|_| waste);
        let reads = 1 + self.refused.get(&name).map_or(0, |refusal| refusal.reads);
        self.refused.insert(name, Refusal { bytes, why, written_s, reads });
    }

    /// Objects that are no packs, with their bytes, and why they are none.
    pub(super) fn refused(&self) -> impl Iterator<Item = (PackName, u64, Refused)> {
        self.refused.iter().map(|(name, refusal)| (*name, refusal.bytes, refusal.why))
    }

    /// A footer could not be read.
    pub(super) fn forget(&mut self, name: PackName) {
        self.written.remove(&name);
    }

    /// A pack is known, or an object is none any more.
    pub(super) fn know(&mut self, name: PackName) {
        self.written.remove(&name);
        self.refused.remove(&name);
    }

    /// A journal was read, or written by us: until when it says something, if it is understood.
    pub(super) fn journal(&mut self, name: PackName, until: Option<Stamp>) {
        self.journals.insert(name, until.map_or(JournalState::Strange, JournalState::Read));
    }

    /// Journals whose content is known, and when they say nothing any more.
    pub(super) fn journals(&self) -> impl Iterator<Item = (PackName, Stamp)> {
        self.journals.iter().filter_map(|(name, state)| match state {
            JournalState::Read(until) => Some((*name, *until)),
            JournalState::Unread(_) | JournalState::Reading | JournalState::Strange => None,
        })
    }

    pub(super) fn drop_journal(&mut self, name: PackName) {
        self.journals.remove(&name);
    }

    /// What nobody will ever finish, written before `before`: not known any more. It is read once more before.
    pub(super) fn waste(&mut self, before: Stamp) -> Vec<PackName> {
        let old = |(name, refusal): (&PackName, &Refusal)| {
            let written_s = refusal.written_s.filter(|written_s| *written_s < u64::from(before.0))?;
            Some((*name, *refusal, written_s))
        };
        let mut waste = Vec::new();
        for (name, refusal, written_s) in self.refused.iter().filter_map(old).collect::<Vec<_>>() {
            if refusal.reads > 1 {
                self.refused.remove(&name);
                waste.push(name);
            } else {
                self.unread.insert(name, refusal.bytes);
                self.written.insert(name, written_s);
            }
        }
        waste
    }
}
