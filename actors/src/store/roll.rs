//! Which objects there are, as far as lists have told: packs whose footers are to be read, packs that are none, and
//! journals of touches.

use std::collections::{BTreeMap, BTreeSet};

use millstream_runtime::blob::Listed;

use super::index::Index;
use super::options::{Stamp, WriterId};
use super::pack::PackName;

/// A journal as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalState {
    /// So many bytes.
    Unread(u64),
    Reading,
    /// It says nothing any more after this moment.
    Read(Stamp),
}

/// What the store has beside what is in the index.
#[derive(Debug, Default)]
pub(super) struct Roll {
    /// A list has come, so that numbers of our own that are taken are known.
    pub(super) listed: bool,
    /// Packs to be read, with their lengths.
    unread: BTreeMap<PackName, u64>,
    /// Objects that are no packs, with their lengths, and when they were written where they may be deleted some day.
    refused: BTreeMap<PackName, (u64, Option<u64>)>,
    /// When each object was written, until it has been read.
    written: BTreeMap<PackName, u64>,
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
        } else if self.refused.get(&name).is_none_or(|(bytes, _)| *bytes != object.bytes) {
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
            JournalState::Reading | JournalState::Read(_) => None,
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
    pub(super) fn refuse(&mut self, name: PackName, bytes: u64, waste: bool) {
        let written_s = self.written.remove(&name).filter(|_| waste);
        self.refused.insert(name, (bytes, written_s));
    }

    /// A footer was read, or could not be.
    pub(super) fn forget(&mut self, name: PackName) {
        self.written.remove(&name);
        self.unread.remove(&name);
    }

    /// A journal was read, or written by us.
    pub(super) fn journal(&mut self, name: PackName, until: Stamp) {
        self.journals.insert(name, JournalState::Read(until));
    }

    /// Journals whose content is known, and when they say nothing any more.
    pub(super) fn journals(&self) -> impl Iterator<Item = (PackName, Stamp)> {
        self.journals.iter().filter_map(|(name, state)| match state {
            JournalState::Read(until) => Some((*name, *until)),
            JournalState::Unread(_) | JournalState::Reading => None,
        })
    }

    pub(super) fn drop_journal(&mut self, name: PackName) {
        self.journals.remove(&name);
    }

    /// What nobody will ever finish, written before `before`: not known any more.
    pub(super) fn waste(&mut self, before: Stamp) -> Vec<PackName> {
        let old = |(_, (_, written)): &(&PackName, &(u64, Option<u64>))| {
            written.is_some_and(|written_s| written_s < u64::from(before.0))
        };
        let waste: Vec<PackName> = self.refused.iter().filter(old).map(|(name, _)| *name).collect();
        waste.iter().for_each(|name| drop(self.refused.remove(name)));
        waste
    }
}
