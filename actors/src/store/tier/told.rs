//! What a tier does with the answers to its wishes. None of them is trusted, and none is needed: what fails is a miss,
//! or is tried again, or is dropped and counted.

use std::ops::Range;

use millstream_runtime::blob::{BlobError, BlobErrorKind, Doing, Listed};

use super::super::compaction::Gathered;
use super::super::fetching::Reading;
use super::super::index::{Place, State};
use super::super::options::Stamp;
use super::super::pack::{Footer, PackName, Refused};
use super::super::roll::{ABOUT, PACK, TOUCH};
use super::super::touches::Journal;
use super::super::wish::{Got, Io, Payload, Told, WishId};
use super::{Purpose, Tier};
use crate::kv::BlockHash;

/// How often a pack is tried to be written before its blocks are dropped.
const TRIES: u32 = 3;
/// An object that is no pack is left alone for so long: somebody may know better.
const WASTE_S: u32 = 86_400;

impl Tier {
    /// What came of a wish. An answer that nobody waits for is passed over.
    pub fn tell(&mut self, told: Told, now: Stamp) {
        self.now = self.now.max(now);
        self.issued.remove(&told.id);
        let Some(purpose) = self.purposes.remove(&told.id) else { return };
        self.counts.errors += u64::from(told.result.is_err());
        match (purpose, told.result) {
            (Purpose::List, Ok(Got::Listed(listed))) => self.listed(told.id, &listed),
            (Purpose::Tail(name, bytes), result) => self.tail(name, bytes, read(result)),
            (Purpose::Footer(name, start, bytes), result) => self.footer(name, start..bytes, read(result)),
            (Purpose::Journal(name), result) => self.journal(name, read(result)),
            (Purpose::Fetch, result) => self.fetched(told.id, read(result)),
            (Purpose::Store(name, tries), result) => self.stored(name, tries, result.err()),
            (Purpose::Gather, result) => self.gathered(read(result)),
            (Purpose::Renew, Ok(_)) => {
                self.renewed();
                self.make_room(self.options.budget.total);
            }
            (Purpose::Renew, Err(_)) => self.give_up_compaction(),
            (Purpose::Touches(name, until, covers), Ok(_)) => self.touched(name, until, covers),
            (Purpose::List | Purpose::Touches(..) | Purpose::Delete | Purpose::About, _) => {}
        }
        self.write_again();
    }

    /// What failed is written once more when nothing is being deleted: there may have been no room.
    fn write_again(&mut self) {
        if self.again.is_empty() || self.purposes.values().any(|purpose| *purpose == Purpose::Delete) {
            return;
        }
        for (name, tries) in std::mem::take(&mut self.again) {
            self.put(name, tries);
        }
    }

    /// Whoever carried out wishes is gone: nothing comes of those that were begun.
    pub fn lost(&mut self, now: Stamp) {
        for id in std::mem::take(&mut self.issued) {
            let cause = "whoever carried it out is gone".to_owned();
            let kind = BlobErrorKind::Broken;
            let error = BlobError { doing: Doing::Read, name: self.prefix.clone(), kind, cause };
            self.tell(Told { id, result: Err(error) }, now);
        }
    }

    fn listed(&mut self, id: WishId, listed: &[Listed]) {
        let (queue, compaction) = (&self.queue, &self.compaction);
        let writing = |name: PackName| {
            queue.parts(name).is_some()
                || compaction.as_ref().is_some_and(|compaction| compaction.is_writing(name))
        };
        let known = (self.prefix.as_str(), self.options.writer, id.0);
        let changes = self.roll.update(listed, known, writing, &self.index);
        self.next_number = self.next_number.max(changes.next);
        for number in changes.vanished {
            self.vanished(number);
        }
        let over = self.roll.journals().filter(|(_, until)| *until < self.now).map(|(name, _)| name);
        let over = over.collect();
        self.delete_journals(over);
        for name in self.roll.waste(Stamp(self.now.0.saturating_sub(WASTE_S))) {
            let name = self.object(PACK, name);
            self.want(Purpose::Delete, Io::Delete { name });
        }
        self.describe(listed);
        self.seal();
    }

    /// Writes what the layout is, where nobody has.
    fn describe(&mut self, listed: &[Listed]) {
        let name = format!("{}{ABOUT}", self.prefix);
        if let Some(about) = self.options.about.take()
            && listed.iter().all(|object| object.name != name)
        {
            self.want(Purpose::About, Io::Put { name, parts: vec![about] });
        }
    }

    fn vanished(&mut self, number: u32) {
        self.counts.vanished_packs += u64::from(self.forget(number).is_some());
    }

    fn tail(&mut self, name: PackName, bytes: u64, got: Result<Vec<Payload>, BlobError>) {
        let Ok(got) = got else { return self.roll.forget(name) };
        let tail = got.first().map_or(&[][..], |tail| &tail[..]);
        let from = bytes.saturating_sub(tail.len() as u64);
        match Footer::place(tail, bytes) {
            Err(refused) => self.refuse(name, bytes, refused),
            Ok(place) if place.start >= from => {
                let footer = got[0].slice((place.start - from) as usize..tail.len());
                self.footer(name, place, Ok(vec![footer]));
            }
            Ok(place) => {
                let object = self.object(PACK, name);
                self.read(Purpose::Footer(name, place.start, bytes), object, place);
            }
        }
    }

    fn footer(&mut self, name: PackName, place: Range<u64>, got: Result<Vec<Payload>, BlobError>) {
        let Ok(got) = got else { return self.roll.forget(name) };
        let bytes = got.first().map_or(&[][..], |bytes| &bytes[..]);
        match Footer::decode(bytes, place.start, self.options.layout, name) {
            Ok(footer) => {
                self.roll.know(name);
                self.options.learn(&footer.classes);
                self.index.insert(&footer, place.end, self.next_wish, &self.options);
            }
            Err(refused) => self.refuse(name, place.end, refused),
        }
    }

    fn refuse(&mut self, name: PackName, bytes: u64, refused: Refused) {
        self.counts.refused += 1;
        self.roll.refuse(name, bytes, refused);
    }

    fn journal(&mut self, name: PackName, got: Result<Vec<Payload>, BlobError>) {
        let Ok(got) = got else { return self.roll.drop_journal(name) };
        let journal = got.first().and_then(|bytes| Journal::decode(bytes));
        self.counts.refused += u64::from(journal.is_none());
        self.roll.journal(name, journal.as_ref().map(Journal::until));
        journal.unwrap_or_default().apply(&mut self.index, &self.options);
    }

    fn fetched(&mut self, id: WishId, got: Result<Vec<Payload>, BlobError>) {
        let Some(reading) = self.fetches.readings.remove(&id) else { return };
        let missing = got.as_ref().is_err_and(|error| error.kind == BlobErrorKind::Missing);
        let got = got.unwrap_or_default();
        for block in &reading.blocks {
            match Reading::check(block, &got) {
                Some(bytes) => {
                    self.counts.fetched_blocks += 1;
                    self.counts.fetched_bytes += bytes.len() as u64;
                    self.fetches.arrived(&block.hash, &bytes);
                }
                None => {
                    // Without bytes the store has failed, and the block may be good.
                    if !got.is_empty() {
                        self.damaged(reading.pack, block.hash);
                    }
                    self.fetches.missed(&block.hash);
                }
            }
        }
        if let Some(number) = self.index.number(reading.pack).filter(|_| missing) {
            self.vanished(number);
        }
    }

    /// A block is not what was stored: it is not looked for there again.
    pub(super) fn damaged(&mut self, pack: PackName, hash: BlockHash) {
        self.counts.damaged_blocks += 1;
        let Some(number) = self.index.number(pack) else { return };
        let entries = self.index.pack(number).map_or(&[][..], |pack| &pack.entries[..]);
        let entry = entries.iter().position(|entry| entry.hash == hash && entry.state != State::Gone);
        if let Some(entry) = entry {
            self.index.set_state(Place { pack: number, entry: entry as u32 }, State::Gone);
        }
    }

    fn stored(&mut self, name: PackName, tries: u32, error: Option<BlobError>) {
        match error {
            None => {
                let sealed = self.queue.finish(name).expect("it was being written");
                self.counts.stored_blocks += sealed.footer.blocks.len() as u64;
                self.counts.stored_bytes += sealed.bytes();
                self.index.insert(&sealed.footer, sealed.bytes(), self.next_wish, &self.options);
                self.make_room(self.options.budget.total);
            }
            Some(error) if tries + 1 < TRIES => {
                if error.kind == BlobErrorKind::Full {
                    // The store itself says where its budget ends: twice what is to be written before what is there now.
                    let wanted = 2 * self.queue.pack_bytes(name);
                    self.make_room(self.index.total_bytes().saturating_sub(wanted));
                }
                self.again.push((name, tries + 1));
            }
            Some(_) => {
                let sealed = self.queue.finish(name).expect("it was being written");
                self.counts.dropped_failed += sealed.footer.blocks.len() as u64;
            }
        }
    }

    fn gathered(&mut self, got: Result<Vec<Payload>, BlobError>) {
        let Some(mut compaction) = self.compaction.take() else { return };
        match got {
            Ok(got) => {
                let knows = |hash: &BlockHash| self.index.knows(hash) || self.queue.knows(hash);
                if let Some(gathered) = compaction.gather(&got, &self.options, &self.index, knows) {
                    self.gathered_from(gathered);
                }
            }
            Err(error) => {
                let source = compaction.skip().and_then(|name| self.index.number(name));
                if let Some(number) = source.filter(|_| error.kind == BlobErrorKind::Missing) {
                    self.vanished(number);
                } else if let Some(number) = source {
                    self.index.set_busy(number, false);
                }
            }
        }
        self.compaction = Some(compaction);
        self.compact();
    }

    fn gathered_from(&mut self, gathered: Gathered) {
        let source = gathered.source;
        match gathered.damaged {
            Some(damaged) => damaged.into_iter().for_each(|hash| self.damaged(source, hash)),
            None => {
                self.counts.refused += 1;
                self.index.number(source).into_iter().for_each(|number| self.index.set_busy(number, false));
            }
        }
        for place in gathered.orphans {
            if self.index.entry(place).state == State::Kept {
                self.index.set_state(place, State::GivenUp);
            }
        }
    }

    /// What could not be written anew stays as it is.
    fn give_up_compaction(&mut self) {
        let Some(compaction) = self.compaction.take() else { return };
        for number in compaction.sources().filter_map(|name| self.index.number(name)).collect::<Vec<_>>() {
            self.index.set_busy(number, false);
        }
    }

    fn touched(&mut self, name: PackName, until: Stamp, covers: Vec<PackName>) {
        self.roll.journal(name, Some(until));
        self.delete_journals(covers);
    }

    fn delete_journals(&mut self, names: Vec<PackName>) {
        for name in names {
            self.roll.drop_journal(name);
            let name = self.object(TOUCH, name);
            self.want(Purpose::Delete, Io::Delete { name });
        }
    }
}

/// What a read brought.
fn read(result: Result<Got, BlobError>) -> Result<Vec<Payload>, BlobError> {
    result.map(|got| if let Got::Bytes(bytes) = got { bytes } else { Vec::new() })
}
