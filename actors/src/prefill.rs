//! prefill: computes prompts and their first token, then hands the sequence over to a decode group under a lease: its
//! blocks, and its state where the model keeps one.
//!
//! A handover that is refused, or meets a full lane, is parked with its lease and offered again; parked leases keep
//! their blocks, so the block pool is the back-pressure. The lease's own deadline runs only while a decode group has
//! the offer; a parked one ends with its request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, Event, OfferOut, ReplyOut, Time};

use crate::group::{Group, NewToken};
use crate::kv::{LeaseId, Leases, NewLease};
use crate::message::{
    Admit, Blocks, Cancel, Cause, Departure, Export, Exported, Found, Handover, LeaseMessage, Place,
    PrefillMessage, Reader, SequenceId,
};
use crate::outbox::RETRY;
use crate::request::{Logprobs, Request};
use crate::sched::Detached;

/// A refused handover is offered again after this long.
const PARKED: Duration = Duration::from_millis(2);

/// Lanes to one decode group.
#[derive(Clone)]
pub struct DecodeLanes {
    /// The seat at the other end.
    pub seat: String,
    /// Offers of computed prompts.
    pub handover: OfferOut<Handover>,
    /// Bytes it pulled.
    pub blocks: ReplyOut<Blocks>,
}

/// A computed prompt that no decode group has yet.
struct Parked {
    request: Arc<Request>,
    answer: Vec<u32>,
    logprobs: Option<Arc<Logprobs>>,
    /// What of the prompt was found here.
    found: Found,
    /// Windows of its state know positions from here on.
    valid_from: u32,
    pieces: u32,
    reader: usize,
    /// Not before this time; `None` while the offer is with the decode group.
    again: Option<Time>,
}

/// See the module.
pub struct Prefill {
    group: Group,
    leases: Leases,
    /// Which prefill group this is.
    number: usize,
    decodes: Vec<DecodeLanes>,
    /// How long a decode group may take to read.
    lease: Duration,
    targets: BTreeMap<SequenceId, usize>,
    handovers: BTreeMap<LeaseId, Parked>,
}

impl Prefill {
    /// Prefill group `number` over `group`, handing over to `decodes`.
    pub fn new(number: usize, group: Group, decodes: Vec<DecodeLanes>, lease: Duration) -> Self {
        let (targets, handovers) = (BTreeMap::new(), BTreeMap::new());
        Self { group, leases: Leases::default(), number, decodes, lease, targets, handovers }
    }

    fn admit(&mut self, admit: &Admit, ctx: &mut Ctx<'_>) {
        if self.group.admit(&admit.request, ctx) {
            self.targets.insert(admit.request.sequence(), admit.decode);
        }
    }

    fn cancel(&mut self, cancel: Cancel, now: Time) {
        self.group.cancel(cancel, now);
        let SequenceId { request, attempt } = cancel.sequence;
        for id in self.leases.select(|l| l.sequence.request == request && l.sequence.attempt <= attempt) {
            self.end(id, Departure::Dropped);
        }
    }

    fn lease(&mut self, message: LeaseMessage, reader: usize, now: Time) {
        match message {
            LeaseMessage::Pull { lease, first, count } => self.pull(lease, first, count, reader),
            LeaseMessage::Ack { lease } => self.end(lease, Departure::HandedOver),
            LeaseMessage::Refuse { lease } => self.park(lease, now),
        }
    }

    /// Reads the pieces with the next step, or says that the lease has ended.
    fn pull(&mut self, id: LeaseId, first: u32, count: u32, reader: usize) {
        let Ok(lease) = self.leases.get_mut(id) else {
            self.decodes[reader].blocks.reply(Blocks { prefill: self.number, lease: id, first, data: None });
            return;
        };
        let blocks = lease.blocks.iter().map(|&block| Place::Block(block));
        let pieces = blocks.chain(lease.slot.map(Place::Slot));
        let places = pieces.skip(first as usize).take(count as usize).collect();
        lease.reading += 1;
        self.group
            .scheduler
            .export(Export { reader: Reader::Decode { decode: reader, lease: id, first }, places });
    }

    fn park(&mut self, id: LeaseId, now: Time) {
        if let (Ok(lease), Some(parked)) = (self.leases.get_mut(id), self.handovers.get_mut(&id)) {
            lease.until = parked.request.deadline;
            parked.again = Some(now + PARKED);
        }
    }

    /// Ends a lease and tells the router how its sequence left. A stale one is passed over.
    fn end(&mut self, id: LeaseId, how: Departure) {
        if let Ok(sequence) = self.leases.end(self.group.scheduler.pool_mut(), id) {
            self.handovers.remove(&id);
            self.group.leave(sequence, how);
        }
    }

    /// Steps of a simulation that are over by now.
    fn over(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(done) = self.group.over(ctx.now()) {
            let (news, exported) = self.group.done(done, ctx);
            self.done(&news, exported, ctx);
        }
    }

    /// Sends bytes to those who pulled them, and makes leases of the prompts that are computed now.
    fn done(&mut self, news: &[NewToken], exported: Vec<Exported>, ctx: &mut Ctx<'_>) {
        for Exported { reader, data } in exported {
            let Reader::Decode { decode, lease, first } = reader else { continue };
            self.leases.read_done(self.group.scheduler.pool_mut(), lease);
            let blocks = Blocks { prefill: self.number, lease, first, data: Some(data) };
            self.decodes[decode].blocks.reply(blocks);
        }
        for new in news {
            let reader = self.targets.remove(&new.sequence);
            if let (false, Some(reader)) = (new.last, reader) {
                self.grant(new.sequence, reader, ctx);
            }
        }
    }

    fn grant(&mut self, sequence: SequenceId, reader: usize, ctx: &mut Ctx<'_>) {
        let Some(detached) = self.group.scheduler.detach(sequence) else { return };
        let Detached { request, answer, logprobs, found, blocks, state } = detached;
        let valid_from = state.map_or(0, |state| state.valid_from as u32);
        let slot = state.map(|state| state.slot);
        let (pieces, again) = ((blocks.len() + slot.iter().len()) as u32, Some(ctx.now()));
        let parked = Parked { pieces, reader, answer, logprobs, found, valid_from, again, request };
        let lease = NewLease { sequence, blocks, slot, reader, until: parked.request.deadline };
        let id = self.leases.grant(self.group.scheduler.pool_mut(), ctx.now(), lease);
        self.handovers.insert(id, parked);
    }

    /// Offers every parked handover whose time has come.
    fn offer(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        for (&id, parked) in &mut self.handovers {
            let Some(again) = parked.again else { continue };
            if again > now {
                ctx.wake_at(again);
                continue;
            }
            let until = parked.request.deadline.min(now + self.lease);
            let handover = Handover {
                request: Arc::clone(&parked.request),
                answer: parked.answer.clone(),
                logprobs: parked.logprobs.clone(),
                found: parked.found,
                valid_from: parked.valid_from,
                prefill: self.number,
                lease: id,
                pieces: parked.pieces,
                until,
            };
            match (self.decodes[parked.reader].handover.offer(handover), self.leases.get_mut(id)) {
                (Ok(()), Ok(lease)) => {
                    lease.until = until;
                    parked.again = None;
                    ctx.event(Event::Stage {
                        request: parked.request.id.0,
                        stage: "handover",
                        value: id.number,
                    });
                }
                _ => {
                    parked.again = Some(now + RETRY);
                    ctx.wake_at(now + RETRY);
                }
            }
        }
    }

    /// A lease that ran out while decode had the offer: the handover, or its acknowledgement, was lost on the way.
    fn expire(&mut self, now: Time) {
        for id in self.leases.select(|lease| lease.until <= now) {
            self.end(id, Departure::Failed(Cause::Lost));
        }
        let scheduler = &self.group.scheduler;
        self.targets.retain(|sequence, _| scheduler.knows(*sequence));
    }
}

impl Actor for Prefill {
    type Message = PrefillMessage;

    fn handle(&mut self, message: PrefillMessage, ctx: &mut Ctx<'_>) {
        self.over(ctx);
        match message {
            PrefillMessage::Admit(admit) => self.admit(&admit, ctx),
            PrefillMessage::Cancel(cancel) => self.cancel(cancel, ctx.now()),
            PrefillMessage::Cache(answer) => self.group.answered(answer, ctx),
            PrefillMessage::Lease(message, reader) => self.lease(message, reader, ctx.now()),
            PrefillMessage::Done(done) => {
                let (news, exported) = self.group.done(done, ctx);
                self.done(&news, exported, ctx);
            }
        }
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        self.over(ctx);
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        self.expire(ctx.now());
        self.offer(ctx);
        self.group.settle(ctx);
        if let Some(end) = self.leases.next_end() {
            ctx.wake_at(end);
        }
        self.group.show(self.leases.len());
    }

    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        self.over(ctx);
        let reader = self.decodes.iter().position(|decode| decode.seat == peer);
        let everything = self.group.lost(peer);
        for id in self.leases.select(|lease| everything || Some(lease.reader) == reader) {
            self.end(id, Departure::Dropped);
        }
    }
}
