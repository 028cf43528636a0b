//! A group and the prefix store: questions with a bound on the time they may take, and blocks on their way down.
//!
//! A lane that is full, an answer that is late and a store that died are all the same: what was asked for is computed, and
//! what was to be kept is not. What would take longer to fetch than to compute is not fetched; the time to compute is
//! measured on the steps of this group, and the time to fetch is the store's word.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_runtime::{Ctx, OfferOut, Time};

use super::Group;
use crate::message::{CacheAnswer, CacheAsk, Exported, Kept, Reader, SequenceId};
use crate::snapshot::{Promise, Snapshot};

/// An answer that has not come for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Steps of fewer tokens say little of what a prompt costs.
const TELLING: usize = 32;

/// Where a group speaks to the prefix store.
#[derive(Clone)]
pub struct StoreLanes {
    /// Seat of the cache actor.
    pub seat: String,
    /// Questions.
    pub asks: OfferOut<CacheAsk>,
    /// Blocks to be kept.
    pub keeps: OfferOut<Vec<Kept>>,
    /// Snapshots to be kept.
    pub snapshots: OfferOut<Snapshot>,
}

/// A group's side of the prefix store.
pub(super) struct StoreDoor {
    lanes: StoreLanes,
    /// Until when an open question is waited for.
    due: BTreeMap<SequenceId, Time>,
    /// Those for which the store may hold blocks ready.
    promised: BTreeSet<SequenceId>,
    /// Nanoseconds that a token of a prompt takes to compute, of late; `None` until a step has told.
    token: Option<f64>,
    /// Blocks that met a full lane.
    refused: u64,
}

impl StoreDoor {
    pub(super) fn new(lanes: StoreLanes) -> Self {
        Self { lanes, due: BTreeMap::new(), promised: BTreeSet::new(), token: None, refused: 0 }
    }
}

impl Group {
    /// An answer of the prefix store.
    pub fn answered(&mut self, answer: CacheAnswer, ctx: &mut Ctx<'_>) {
        let Some(door) = &mut self.store else { return };
        match answer {
            CacheAnswer::Sought(sequence, blocks, time, promise) => {
                door.due.remove(&sequence);
                let worth = |time: Duration, tokens: usize| {
                    door.token.is_none_or(|token| time.as_nanos() as f64 <= token * tokens as f64)
                };
                let fast = worth(time, blocks * self.scheduler.block_size());
                let promise = promise.filter(|Promise { time, start, .. }| worth(*time, *start));
                self.scheduler.sought(sequence, if fast { blocks } else { 0 }, promise);
                door.promised.extend((blocks > 0).then_some(sequence));
                ctx.event(stage(sequence, "sought", blocks as u64));
            }
            CacheAnswer::Brought(sequence, data) => {
                door.due.remove(&sequence);
                ctx.event(stage(sequence, "snapshot", data.len() as u64));
                self.scheduler.brought(sequence, data);
            }
            CacheAnswer::Fetched(sequence, first, data) => {
                door.due.remove(&sequence);
                ctx.event(stage(sequence, "fetched", data.len() as u64));
                self.scheduler.fetched(sequence, first, data);
            }
        }
    }

    /// Gives up what is late: before the next step is planned, which those who waited may take part in.
    pub(super) fn give_up(&mut self, now: Time) {
        let Some(door) = &mut self.store else { return };
        let over: Vec<SequenceId> = door
            .due
            .iter()
            .filter(|&(&sequence, &due)| due <= now || !self.scheduler.knows(sequence))
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in over {
            door.due.remove(&sequence);
            self.scheduler.give_up(sequence);
            let _ = door.lanes.asks.offer(CacheAsk::Forget(sequence)); // it answers in time, or is late once more
        }
    }

    /// Asks what is to be asked: after the next step was planned, which may have let somebody arrive.
    pub(super) fn ask(&mut self, ctx: &mut Ctx<'_>) {
        let Some(door) = &mut self.store else { return };
        let now = ctx.now();
        for ask in self.scheduler.asks() {
            let (sequence, question) = (ask.sequence(), ask.is_question());
            match door.lanes.asks.offer(ask) {
                Ok(()) if question => _ = door.due.insert(sequence, now + PATIENCE),
                Ok(()) => {}
                Err(_) => {
                    self.scheduler.give_up(sequence);
                    ctx.wake_at(now); // it may take part in a step now
                }
            }
        }
        let (asks, scheduler) = (&door.lanes.asks, &self.scheduler);
        // The lane may be full; then it is said later.
        door.promised.retain(|&id| scheduler.may_fetch(id) || asks.offer(CacheAsk::Forget(id)).is_err());
        if let Some(&due) = door.due.values().min() {
            ctx.wake_at(due);
        }
    }

    /// Sends what was read for the store on its way, and returns the rest.
    pub(super) fn keep(&mut self, exported: Vec<Exported>) -> Vec<Exported> {
        let mut others = Vec::new();
        for Exported { reader, data } in exported {
            match (reader, &mut self.store) {
                (Reader::Store(names), Some(door)) => {
                    let kept = names.iter().zip(data).map(|(&name, data)| Kept { name, data });
                    if door.lanes.keeps.offer(kept.collect()).is_err() {
                        door.refused += names.len() as u64;
                    }
                }
                (Reader::Snapshot(name), Some(door)) => {
                    let _ = door.lanes.snapshots.offer(Snapshot { name, data }); // then there is one less
                }
                (reader, _) => others.push(Exported { reader, data }),
            }
        }
        others
    }

    /// A step of so many tokens is done that took so long: what a token of it took.
    pub(super) fn time(&mut self, step: Duration, tokens: usize) {
        if let (Some(door), true) = (&mut self.store, tokens >= TELLING) {
            let took = step.as_nanos() as f64 / tokens as f64;
            door.token = Some(door.token.map_or(took, |token| token + (took - token) / 8.0));
        }
    }

    pub(super) fn lost_store(&mut self, peer: &str) {
        if let Some(door) = self.store.as_mut().filter(|door| door.lanes.seat == peer) {
            door.due.clear();
            door.promised.clear();
            self.scheduler.store_lost();
        }
    }

    pub(super) fn show_store(&self) {
        let Some(door) = &self.store else { return };
        let counts = self.scheduler.store_counts();
        self.gauges.blocks_fetched.set(counts.fetched as usize);
        self.gauges.blocks_kept.set((counts.kept - door.refused) as usize);
        self.gauges.blocks_unkept.set((counts.dropped + door.refused) as usize);
        self.gauges.fetches_given_up.set(counts.given_up as usize);
    }
}

fn stage(sequence: SequenceId, stage: &'static str, value: u64) -> millstream_runtime::Event {
    millstream_runtime::Event::Stage { request: sequence.request.0, stage, value }
}
