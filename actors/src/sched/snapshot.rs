//! A sequence goes on where another with the same beginning stood: with a snapshot of it, and no replay.
//!
//! - **Taken** is a snapshot where a prompt is computed, with the step that ends it, and where an answer is, with the step
//!   after that. What an ended sequence leaves is owned by its snapshot until it has been read; nothing waits for that.
//!   The last token of an answer is not computed as a rule, so a snapshot ends before it.
//! - **Promised** is one by the cache when it is asked for blocks. When the sequence begins, and gains more by the snapshot
//!   than by blocks and a replay, it arrives: the snapshot is brought, then the blocks before it, and it goes on behind.
//!   Where the snapshot is gone meanwhile, it does what it would have done without.
//! - The block behind the last full one is the sequence's own: it is copied, and written on from there.

use std::sync::Arc;

use super::Scheduler;
use super::stored::{Fetching, Stored};
use crate::kv::{BlockHash, BlockId, Owner, Pool, SlotId};
use crate::message::{Export, Import, Place, Reader, SequenceId};
use crate::sequence::{Phase, Sequence};
use crate::snapshot::{Beginning, Promise, Rewind, SnapshotName, StateName, Tail};
use crate::store::Payload;

/// A snapshot that a sequence may go on with.
#[derive(Clone, Debug)]
pub struct Promised {
    promise: Promise,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The cache had it.
    Said,
    /// The sequence arrives, and wants it.
    Wanted,
    /// It is on its way.
    Asked,
    /// It is written before the next step.
    Here,
}

impl Promised {
    pub(super) fn new(promise: Promise) -> Self {
        Self { promise, stage: Stage::Said }
    }

    /// Where the sequence goes on.
    pub(super) fn start(&self) -> usize {
        self.promise.start
    }

    pub(super) fn is_here(&self) -> bool {
        self.stage == Stage::Here
    }

    pub(super) fn is_asked(&self) -> bool {
        self.stage == Stage::Asked
    }

    /// What the arriving sequence asks for now: the snapshot, `Some(None)`: blocks, `None`: nothing.
    pub(super) fn ask(&mut self) -> Option<Option<Arc<SnapshotName>>> {
        match self.stage {
            Stage::Wanted => {
                self.stage = Stage::Asked;
                Some(Some(Arc::clone(&self.promise.name)))
            }
            Stage::Asked => None,
            Stage::Said | Stage::Here => Some(None),
        }
    }
}

/// What ended sequences left for their snapshots.
#[derive(Default)]
pub(super) struct Taken {
    /// Read with the next step.
    left: Vec<(SnapshotName, Leavings)>,
    /// Read by a step in flight, of this number.
    reading: Vec<(u64, Leavings)>,
}

struct Leavings {
    owner: Owner,
    block: Option<BlockId>,
    slot: Option<SlotId>,
}

impl Leavings {
    fn places(&self) -> Vec<Place> {
        self.block.map(Place::Block).into_iter().chain(self.slot.map(Place::Slot)).collect()
    }
}

impl Taken {
    /// The step of this number is done.
    pub(super) fn read(&mut self, step: u64, pool: &mut Pool) {
        let read = self.reading.extract_if(.., |(by, _)| *by == step);
        for (_, Leavings { owner, block, slot }) in read {
            pool.give_back(block.into_iter().collect(), owner);
            if let Some(slot) = slot {
                pool.state.give_back(slot, owner);
            }
        }
    }
}

impl Scheduler {
    /// Snapshots that the next step, with these rows, takes: of prompts that end with it, and of answers that have ended.
    pub(super) fn snapshots(&mut self, rows: &[(u64, usize)]) -> Vec<Export> {
        let mut exports = Vec::new();
        for (name, leavings) in self.taken.left.drain(..) {
            exports.push(Export { reader: Reader::Snapshot(name), places: leavings.places() });
            self.taken.reading.push((self.steps + 1, leavings));
        }
        for &(arrival, count) in rows {
            let sequence = &self.sequences[&arrival];
            let end = sequence.next() + count;
            if end == sequence.request.prompt.len()
                && let Some(name) = self.name(sequence, end)
            {
                let block = sequence.blocks.get(name.blocks).filter(|_| !name.tail.is_empty());
                let slot = sequence.state.map(|state| Place::Slot(state.slot));
                let places = block.map(|&block| Place::Block(block)).into_iter().chain(slot).collect();
                exports.push(Export { reader: Reader::Snapshot(name), places });
            }
        }
        exports
    }

    /// Of a sequence that has ended, its last block and its state go to its snapshot.
    pub(super) fn take_answer(&mut self, arrival: u64) {
        let sequence = &self.sequences[&arrival];
        if sequence.computed <= sequence.request.prompt.len() {
            return; // the prompt's is that already
        }
        let Some(name) = self.name(sequence, sequence.computed) else { return };
        let (from, owner) = (sequence.owner(), Owner::Snapshot(sequence.id()));
        let sequence = self.sequences.get_mut(&arrival).expect("it was just read");
        let block = (!name.tail.is_empty()).then(|| sequence.blocks.remove(name.blocks));
        self.pool.transfer(block.as_slice(), from, owner);
        let slot = sequence.state.take().map(|state| state.slot);
        if let Some(slot) = slot {
            self.pool.state.transfer(slot, from, owner);
        }
        self.taken.left.push((name, Leavings { owner, block, slot }));
    }

    /// Name of a snapshot at `end`; `None` where none is to be taken there, or the cache has it.
    fn name(&self, sequence: &Sequence, end: usize) -> Option<SnapshotName> {
        let (size, root) = (self.bounds.block_size as usize, self.root(sequence)?);
        self.bounds.store?.snapshots?;
        let blocks = end / size;
        let tail = Tail::new(&sequence.tokens[blocks * size..end], blocks * size, &sequence.request.images);
        let keep = self.bounds.state.and_then(|state| state.keep);
        let state = sequence.state.map(|state| StateName {
            valid_from: state.valid_from as u32,
            decoder_from: sequence.decoder_from(keep).unwrap_or(0),
        });
        let parent = blocks.checked_sub(1).map_or(root, |last| sequence.hashes[last]);
        let name = SnapshotName { parent, blocks, tail, state };
        let known = sequence.promised.as_ref().is_some_and(|promised| promised.promise.name.covers(&name));
        (!known && (state.is_some() || !name.tail.is_empty())).then_some(name)
    }

    /// What the names of a sequence's blocks begin with: another's are not found, however short the beginning.
    fn root(&self, sequence: &Sequence) -> Option<BlockHash> {
        let chain = self.bounds.reuse.as_ref()?;
        Some(chain.salted(sequence.request.keeping.salt).seed())
    }

    /// How a sequence asks for a snapshot.
    pub(super) fn beginning(&self, sequence: &Sequence) -> Option<Beginning> {
        self.bounds.store?.snapshots?;
        let state = self.bounds.state;
        Some(Beginning {
            root: self.root(sequence)?,
            block_size: self.bounds.block_size as usize,
            here: self.found(sequence),
            tokens: sequence.tokens[..sequence.spared()].to_vec(),
            images: Arc::clone(&sequence.request.images),
            rewind: state.map(|state| Rewind { positions: state.rewind, exact: state.replay }),
            decoder_from: sequence.decoder_from(state.and_then(|state| state.keep)).unwrap_or(0),
        })
    }

    /// Where a sequence would begin behind so many found blocks.
    fn plain_start(&self, blocks: usize) -> usize {
        let found = self.worth(blocks) * self.bounds.block_size as usize;
        found - self.bounds.state.map_or(0, |state| state.replay.min(found))
    }

    /// Whether a snapshot may be worth more to a sequence than the `found` blocks of the ledger.
    pub(super) fn may_gain_by_snapshot(&self, sequence: &Sequence, found: usize) -> bool {
        let kept =
            self.bounds.reuse.is_some() && self.bounds.store.is_some_and(|store| store.snapshots.is_some());
        kept && sequence.spared() > self.plain_start(found)
    }

    /// Whether a sequence goes on further behind the snapshot that it was promised than behind blocks, of which the ledger
    /// has `found`; those before the snapshot can be had.
    pub(super) fn gains_by_snapshot(&self, sequence: &Sequence, found: usize) -> bool {
        let Some(Promised { promise, .. }) = &sequence.promised else { return false };
        let known = found.max(self.stored(sequence));
        promise.name.blocks <= known && promise.start > self.plain_start(known)
    }

    /// Blocks that the store has of a sequence.
    fn stored(&self, sequence: &Sequence) -> usize {
        let Stored::Blocks(stored) = sequence.stored else { return 0 };
        stored.min(sequence.reusable(self.bounds.block_size))
    }

    /// A sequence that has just settled arrives, with the snapshot that it was promised.
    pub(super) fn await_snapshot(&self, sequence: &mut Sequence, found: usize) {
        let Some(promised) = &mut sequence.promised else { return };
        promised.stage = Stage::Wanted;
        let end = promised.promise.name.blocks.max(found);
        sequence.phase = Phase::Arriving;
        sequence.fetching = Some(Fetching { here: found, end, asked: false });
    }

    /// What a snapshot holds, for an arriving sequence. Without it, the sequence arrives as it would have done.
    pub fn brought(&mut self, id: SequenceId, data: Vec<Payload>) {
        let Some((&arrival, sequence)) = self.find(id) else { return };
        let Some(promised) = sequence.promised.as_ref().filter(|promised| promised.is_asked()) else {
            return;
        };
        let imports = self.fills(sequence, &promised.promise.name, data);
        let plain = self.stored(sequence);
        let plain = if self.worth(plain) > 0 { plain } else { 0 };
        let sequence = self.sequences.get_mut(&arrival).expect("it was just found");
        let (Some(promised), Some(fetching)) = (&mut sequence.promised, &mut sequence.fetching) else {
            return;
        };
        if let Some(imports) = imports {
            promised.stage = Stage::Here;
            self.imports.extend(imports.into_iter().map(|import| (arrival, import)));
        } else {
            fetching.end = plain.max(fetching.here);
            sequence.promised = None;
        }
        if fetching.here == fetching.end {
            self.land(arrival);
        }
    }

    /// Where the bytes of a snapshot go; `None` where they are not what they should be. A block that was found whole is
    /// not written.
    fn fills(&self, sequence: &Sequence, name: &SnapshotName, data: Vec<Payload>) -> Option<Vec<Import>> {
        let store = self.bounds.store?;
        let own = *sequence.blocks.get(name.blocks)?;
        let block = (!name.tail.is_empty()).then_some((Place::Block(own), store.block_bytes));
        let slot = sequence.state.zip(store.snapshots).map(|(state, bytes)| (Place::Slot(state.slot), bytes));
        let places: Vec<_> = block.into_iter().chain(slot).collect();
        let fit = |((_, bytes), data): (&(Place, usize), &Payload)| data.len() == *bytes;
        if places.len() != data.len() || !places.iter().zip(&data).all(fit) {
            return None;
        }
        let writes = |place: Place| matches!(place, Place::Slot(_)) || name.blocks >= sequence.sealed;
        let imports = places.into_iter().zip(data).filter(|((place, _), _)| writes(*place));
        Some(imports.map(|((place, _), data)| Import { place, data }).collect())
    }

    /// A landing sequence, of which the first `here` blocks are here, goes on with its snapshot. False where it has none
    /// to go on with.
    pub(super) fn go_on(&mut self, sequence: &mut Sequence, here: usize) -> bool {
        let Some(promised) = &mut sequence.promised else { return false };
        // Whoever is preempted begins again.
        let stage = std::mem::replace(&mut promised.stage, Stage::Said);
        let Promise { name, start, .. } = promised.promise.clone();
        if stage != Stage::Here || here < name.blocks {
            return false;
        }
        let found = here * self.bounds.block_size as usize;
        let replay = found.saturating_sub(start);
        sequence.skip(start);
        sequence.replay(replay);
        if let (Some(state), Some(name)) = (&mut sequence.state, name.state) {
            (state.valid_from, state.written) = (name.valid_from as usize, found.max(start));
        }
        self.reused.sought += sequence.tokens.len() as u64;
        self.reused.found += start as u64;
        self.reused.replayed += replay as u64;
        true
    }
}
