//! decode: takes over computed prompts, pulls their blocks, and computes a token each step. A joined group computes
//! prompts as well and needs no handover.
//!
//! A handover is refused when there is no room; it comes again. Blocks that are here already are not pulled; the others,
//! and then the state where the model keeps one, come a few at a time, and the lease is acknowledged when the last piece is here, so that prefill gets its memory back as
//! early as possible.

use std::collections::BTreeMap;

use millstream_runtime::{Actor, Ctx, Event, OfferOut, Time};

use crate::group::Group;
use crate::kv::LeaseId;
use crate::message::{Blocks, Cause, DecodeMessage, Departure, Handover, LeaseMessage, SequenceId, StepDone};
use crate::outbox::{Outbox, RETRY};
use crate::sched::Adopted;

/// Pieces in one pull.
const PULL: u32 = 32;

/// The lane to one prefill group.
#[derive(Clone)]
pub struct PrefillLane {
    /// The seat at the other end.
    pub seat: String,
    /// Pulls, acknowledgements, refusals.
    pub leases: OfferOut<LeaseMessage>,
}

/// A sequence whose blocks are on their way.
struct Arrival {
    sequence: SequenceId,
    /// Pieces under the lease.
    pieces: u32,
    /// Pieces that are here.
    here: u32,
    until: Time,
}

/// See the module.
pub struct Decode {
    group: Group,
    prefills: Vec<(String, Outbox<LeaseMessage>)>,
    /// By prefill group and lease.
    arrivals: BTreeMap<(usize, LeaseId), Arrival>,
}

impl Decode {
    /// A decode group over `group`, fed by `prefills` (none when it is joined).
    pub fn new(group: Group, prefills: Vec<PrefillLane>) -> Self {
        let prefills = prefills.into_iter().map(|lane| (lane.seat, Outbox::new(lane.leases))).collect();
        Self { group, prefills, arrivals: BTreeMap::new() }
    }

    fn handover(&mut self, handover: Handover, ctx: &mut Ctx<'_>) {
        let Handover { request, answer, logprobs, found, valid_from, prefill, lease, pieces, until } =
            handover;
        let sequence = request.sequence();
        if self.group.tombstones.covers(sequence) {
            return self.say(prefill, LeaseMessage::Ack { lease });
        }
        if self.group.scheduler.knows(sequence) || ctx.now() >= until {
            return; // a late twin: the lease it names has ended or will
        }
        let Some(here) = self.group.scheduler.adopt(&request, &answer, Adopted { found, valid_from }) else {
            return self.say(prefill, LeaseMessage::Refuse { lease });
        };
        let here = here as u32;
        ctx.event(Event::Stage { request: request.id.0, stage: "pull", value: u64::from(pieces - here) });
        self.group.resend(&request, &answer, (logprobs, found));
        self.arrivals.insert((prefill, lease), Arrival { sequence, pieces, here, until });
        self.pull(prefill, lease, ctx);
    }

    /// Asks for the next pieces; when all are here, the sequence starts and the lease ends.
    fn pull(&mut self, prefill: usize, lease: LeaseId, ctx: &mut Ctx<'_>) {
        let Some(&Arrival { sequence, pieces, here, .. }) = self.arrivals.get(&(prefill, lease)) else {
            return;
        };
        if here < pieces {
            let count = PULL.min(pieces - here);
            return self.say(prefill, LeaseMessage::Pull { lease, first: here, count });
        }
        self.arrivals.remove(&(prefill, lease));
        self.group.scheduler.start(sequence);
        ctx.event(Event::Stage { request: sequence.request.0, stage: "arrived", value: u64::from(pieces) });
        self.say(prefill, LeaseMessage::Ack { lease });
    }

    /// Pieces of a prompt are here, or its lease has ended. Those nobody waits for are passed over.
    fn blocks(&mut self, blocks: Blocks, ctx: &mut Ctx<'_>) {
        let Blocks { prefill, lease, first, data } = blocks;
        let Some(arrival) = self.arrivals.get_mut(&(prefill, lease)) else { return };
        let sequence = arrival.sequence;
        let Some(data) = data else {
            self.arrivals.remove(&(prefill, lease));
            return self.group.drop_sequence(sequence, Departure::Failed(Cause::Lost));
        };
        if first != arrival.here {
            return;
        }
        arrival.here += data.len() as u32;
        self.group.scheduler.import(sequence, first as usize, data);
        self.pull(prefill, lease, ctx);
    }

    /// Steps of a simulation that are over by now.
    fn over(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(done) = self.group.over(ctx.now()) {
            self.done(done, ctx);
        }
    }

    /// A step is done. The router is told of prompts that are computed, which are those that were not handed over.
    fn done(&mut self, done: StepDone, ctx: &mut Ctx<'_>) {
        let (news, _) = self.group.done(done, ctx);
        for new in news.iter().filter(|new| new.first && !new.last) {
            self.group.leave(new.sequence, Departure::HandedOver);
        }
    }

    fn say(&mut self, prefill: usize, message: LeaseMessage) {
        self.prefills[prefill].1.send(message);
    }

    /// Arrivals whose sequence was dropped end their lease; those that took too long are lost.
    fn sweep(&mut self, now: Time) {
        let over: Vec<(usize, LeaseId)> = self
            .arrivals
            .iter()
            .filter(|(_, arrival)| arrival.until <= now || !self.group.scheduler.knows(arrival.sequence))
            .map(|(&key, _)| key)
            .collect();
        for (prefill, lease) in over {
            if let Some(arrival) = self.arrivals.remove(&(prefill, lease)) {
                self.group.drop_sequence(arrival.sequence, Departure::Failed(Cause::Lost));
                self.say(prefill, LeaseMessage::Ack { lease });
            }
        }
    }
}

impl Actor for Decode {
    type Message = DecodeMessage;

    fn handle(&mut self, message: DecodeMessage, ctx: &mut Ctx<'_>) {
        self.over(ctx);
        match message {
            DecodeMessage::Admit(admit) => {
                self.group.admit(&admit.request, ctx);
            }
            DecodeMessage::Cancel(cancel) => self.group.cancel(cancel, ctx.now()),
            DecodeMessage::Handover(handover) => self.handover(handover, ctx),
            DecodeMessage::Blocks(blocks) => self.blocks(blocks, ctx),
            DecodeMessage::Cache(answer) => self.group.answered(answer, ctx),
            DecodeMessage::Done(done) => self.done(done, ctx),
        }
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        self.over(ctx);
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        self.sweep(ctx.now());
        self.group.settle(ctx);
        let mut through = true;
        for (_, outbox) in &mut self.prefills {
            through &= outbox.flush();
        }
        if !through {
            ctx.wake_at(ctx.now() + RETRY);
        }
        if let Some(until) = self.arrivals.values().map(|arrival| arrival.until).min() {
            ctx.wake_at(until);
        }
        self.group.show(0);
    }

    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        self.over(ctx);
        self.group.lost(peer);
        let Some(number) = self.prefills.iter().position(|(seat, _)| seat == peer) else { return };
        self.prefills[number].1.clear();
        for ((prefill, lease), arrival) in std::mem::take(&mut self.arrivals) {
            if prefill == number {
                self.group.drop_sequence(arrival.sequence, Departure::Failed(Cause::Lost));
            } else {
                self.arrivals.insert((prefill, lease), arrival);
            }
        }
    }
}
