//! router: which group computes a request. It counts what it has sent itself, so its picture is never older than its own
//! decisions; groups tell it how fast they are and how far their answers have grown; [`crate::balance`] chooses. A prompt with images goes to an encode actor first, and is placed when it comes
//! back.
//!
//! It also knows which requests a group's death takes along, and tells the gateway, which sends them down the road again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use looks::Looks;
use millstream_kernels::work::WorkFacts;
use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut, Time};

use crate::balance::{Beginnings, Capacity, Decodes, Held, Prefills, Prompt, Rule, Sent};
use crate::drain::Drain;
use crate::message::{Admit, Cancel, Cause, Departure, Ended, Failure, RouterMessage, SequenceId};
use crate::outbox::{Outbox, RETRY, Tombstones};
use crate::request::{Refusal, Request, RequestId};

mod looks;

pub use looks::EncodeDoor;

/// Lanes to one group.
#[derive(Clone)]
pub struct GroupDoor {
    /// The seat at the other end.
    pub seat: String,
    /// Requests; decode groups have one only when they are joined.
    pub admit: Option<OfferOut<Admit>>,
    /// Cancels.
    pub cancel: OfferOut<Cancel>,
    /// What it can hold.
    pub capacity: Capacity,
}

/// How groups are chosen.
#[derive(Clone)]
pub struct Choosing {
    /// Prefill groups are compared so.
    pub rule: Rule,
    /// What prompts of the model ask.
    pub work: WorkFacts,
    /// Tokens of a chunk.
    pub chunk_tokens: u32,
    /// Tokens of a block, which is what a hash of a prompt stands for.
    pub block_size: u32,
}

/// Where the router speaks to, beside the groups.
#[derive(Clone)]
pub struct RouterLanes {
    /// To the gateway.
    pub failures: HoldOut<Failure>,
    /// The gateway's seat: when it dies, nobody waits for anything here.
    pub gateway: String,
}

/// A group as the router speaks to it.
struct Door {
    seat: String,
    admit: Option<OfferOut<Admit>>,
    cancel: Outbox<Cancel>,
}

impl From<GroupDoor> for Door {
    fn from(door: GroupDoor) -> Self {
        Self { seat: door.seat, admit: door.admit, cancel: Outbox::new(door.cancel) }
    }
}

/// A request that was sent to its groups.
struct Route {
    attempt: u32,
    family: Option<RequestId>,
    /// What computes the prompt, until that is done; in joined groups the same.
    prefill: Option<(usize, Sent)>,
    decode: usize,
    held: Held,
    deadline: Time,
    /// Its last token has left the group. The route stays until the gateway has that token: it may still be lost with
    /// the group on its way.
    computed: bool,
    /// The prefill group that sends that token, where the answer ended with its first.
    last: Option<usize>,
}

/// See the module.
pub struct Router {
    prefills: Vec<Door>,
    decodes: Vec<Door>,
    to_prefill: Prefills,
    to_decode: Decodes,
    /// Of the prompts that prefill groups computed.
    beginnings: Beginnings,
    /// Tokens that a hash of theirs stands for.
    block_size: u32,
    /// Requests that have no groups yet.
    looks: Looks,
    lanes: RouterLanes,
    routes: BTreeMap<RequestId, Route>,
    deadlines: BTreeSet<(Time, RequestId)>,
    tombstones: Tombstones,
    /// What has been computed since the start.
    left: Held,
    /// How fast that goes.
    drain: Drain,
}

impl Router {
    /// Routes over `prefills` and `decodes`; without `prefills` the decode groups are joined. Prompts with images go
    /// through `encoders`.
    pub fn new(
        prefills: Vec<GroupDoor>,
        decodes: Vec<GroupDoor>,
        encoders: Vec<EncodeDoor>,
        (lanes, choosing): (RouterLanes, Choosing),
    ) -> Self {
        let Choosing { rule, work, chunk_tokens, block_size } = choosing;
        let computing = if prefills.is_empty() { decodes.len() } else { prefills.len() };
        Self {
            to_prefill: Prefills::new(rule, computing, (work, chunk_tokens)),
            to_decode: Decodes::new(decodes.iter().map(|door| door.capacity), (0, 1)),
            prefills: prefills.into_iter().map(Door::from).collect(),
            decodes: decodes.into_iter().map(Door::from).collect(),
            beginnings: Beginnings::default(),
            block_size,
            looks: Looks::new(encoders),
            lanes,
            routes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tombstones: Tombstones::default(),
            left: Held::default(),
            drain: Drain::default(),
        }
    }

    fn arrive(&mut self, request: Arc<Request>, ctx: &mut Ctx<'_>) {
        let sequence = request.sequence();
        let older = |attempt: u32| attempt < request.attempt;
        let newer = self.routes.get(&request.id).is_none_or(|route| older(route.attempt))
            && self.looks.get(request.id).is_none_or(|away| older(away.attempt));
        if !newer || self.tombstones.covers(sequence) {
            return;
        }
        self.forget(request.id);
        if !Looks::needs(&request) {
            return self.place(request, ctx);
        }
        match self.looks.send(&request) {
            true => {
                self.deadlines.insert((request.deadline, request.id));
            }
            false => self.refuse(sequence, ctx.now()),
        }
    }

    /// An encode actor gives a request back.
    fn seen(&mut self, request: Arc<Request>, ctx: &mut Ctx<'_>) {
        if self.looks.get(request.id).is_some_and(|away| away.attempt == request.attempt) {
            self.forget(request.id);
            self.place(request, ctx);
        }
    }

    /// Sends a request to its groups.
    fn place(&mut self, request: Arc<Request>, ctx: &mut Ctx<'_>) {
        let sequence = request.sequence();
        self.drain.tell(ctx.now(), [self.left.requests, self.left.tokens]);
        let (prefill, decode) = self.groups_for(&request);
        let Some(decode) = decode else { return self.refuse(sequence, ctx.now()) };
        let door = prefill.and_then(|(number, _)| self.prefills.get(number)).unwrap_or(&self.decodes[decode]);
        let door = &door.admit;
        let admit = Admit { request: Arc::clone(&request), decode };
        if door.as_ref().is_none_or(|door| door.offer(admit).is_err()) {
            return self.refuse(sequence, ctx.now());
        }
        ctx.event(Event::Stage { request: request.id.0, stage: "route", value: decode as u64 });
        if let Some((number, _)) = prefill {
            self.beginnings.learn(&request.hashes, number);
        }
        self.remember(&request, prefill, decode);
    }

    /// The groups that a request's family is on, or else those picked for it alone.
    fn groups_for(&mut self, request: &Request) -> (Option<(usize, Sent)>, Option<usize>) {
        let prompt = self.prompt(request);
        let related = |route: &&Route| request.family.is_some() && route.family == request.family;
        let mut family = self.routes.values().filter(related);
        let decode = family.clone().map(|route| route.decode).next();
        let prefill = family.find_map(|route| route.prefill).map(|(number, _)| number);
        if self.is_joined() {
            let at = decode.map(|number| (number, self.to_prefill.sent(number, prompt)));
            let busy = |number| self.to_decode.taken(number, held(request));
            let at = at.or_else(|| self.to_prefill.pick_beside(prompt, busy));
            return (at, at.map(|(number, _)| number));
        }
        let prefill = prefill.map(|number| (number, self.to_prefill.sent(number, prompt)));
        let prefill = prefill.or_else(|| self.to_prefill.pick(prompt));
        (prefill, decode.or_else(|| self.to_decode.pick(held(request))))
    }

    /// Decode groups compute prompts too.
    fn is_joined(&self) -> bool {
        self.prefills.is_empty()
    }

    /// What is known of a prompt.
    fn prompt(&self, request: &Request) -> Prompt {
        let tokens = request.prompt.len() as u32;
        let (by, blocks) = self.beginnings.find(&request.hashes).unzip();
        let known = blocks.unwrap_or(0) as u32 * self.block_size;
        Prompt { tokens, known: known.min(tokens), by }
    }

    fn remember(&mut self, request: &Request, prefill: Option<(usize, Sent)>, decode: usize) {
        if let Some((number, sent)) = prefill {
            self.to_prefill.add(number, sent);
        }
        let held = held(request);
        self.to_decode.add(decode, held);
        let (attempt, deadline) = (request.attempt, request.deadline);
        let family = request.family;
        let route = Route { attempt, family, prefill, decode, held, deadline, computed: false, last: None };
        self.routes.insert(request.id, route);
        self.deadlines.insert((request.deadline, request.id));
    }

    fn refuse(&mut self, sequence: SequenceId, now: Time) {
        let waits = self.routes.values().filter(|route| !route.computed).map(|route| route.held);
        let waits: Held = waits.sum();
        let retry_after = self.drain.predict(now, [waits.requests, waits.tokens]);
        let cause = Cause::Refused(Refusal::Overload { retry_after });
        self.lanes.failures.send(Failure { sequence, cause });
    }

    fn cancel(&mut self, cancel: Cancel, now: Time) {
        self.tombstones.add(cancel, now);
        let SequenceId { request, attempt } = cancel.sequence;
        if let Some(&away) = self.looks.get(request).filter(|away| away.attempt <= attempt) {
            self.forget(request);
            self.looks.cancel(away, cancel);
        }
        if self.routes.get(&request).is_some_and(|route| route.attempt <= attempt)
            && let Some(route) = self.forget(request)
        {
            self.cancel_route(&route, cancel);
        }
    }

    fn ended(&mut self, ended: Ended, now: Time) {
        let Ended { sequence, how } = ended;
        let attempts = [
            self.routes.get(&sequence.request).map(|route| route.attempt),
            self.looks.get(sequence.request).map(|away| away.attempt),
        ];
        if !attempts.contains(&Some(sequence.attempt)) {
            return;
        }
        match how {
            Departure::HandedOver => self.left_prefill(sequence.request),
            Departure::Finished => self.computed(sequence.request, now),
            Departure::Dropped => {
                self.forget(sequence.request);
            }
            Departure::Failed(cause) => {
                self.forget(sequence.request);
                self.lanes.failures.send(Failure { sequence, cause });
            }
        }
    }

    fn left_prefill(&mut self, request: RequestId) {
        if let Some(route) = self.routes.get_mut(&request)
            && let Some((number, sent)) = route.prefill.take()
        {
            self.to_prefill.remove(number, sent);
        }
    }

    fn computed(&mut self, request: RequestId, now: Time) {
        let prefill = self.routes.get(&request).and_then(|route| route.prefill);
        self.left_prefill(request);
        if let Some(route) = self.routes.get_mut(&request)
            && !std::mem::replace(&mut route.computed, true)
        {
            route.last = prefill.map(|(number, _)| number);
            self.to_decode.remove(route.decode, route.held);
            self.left += route.held;
            self.drain.tell(now, [self.left.requests, self.left.tokens]);
        }
    }

    fn forget(&mut self, request: RequestId) -> Option<Route> {
        if let Some(away) = self.looks.remove(request) {
            self.deadlines.remove(&(away.deadline, request));
        }
        let route = self.routes.remove(&request)?;
        self.deadlines.remove(&(route.deadline, request));
        if let Some((number, sent)) = route.prefill {
            self.to_prefill.remove(number, sent);
        }
        if !route.computed {
            self.to_decode.remove(route.decode, route.held);
        }
        Some(route)
    }

    /// Forgets every route that `picked` picks, and cancels it in its groups.
    fn call_off(&mut self, picked: impl Fn(&Route) -> bool) -> Vec<SequenceId> {
        let routes = self.routes.iter().filter(|(_, route)| picked(route));
        let sequences: Vec<SequenceId> =
            routes.map(|(&request, route)| SequenceId { request, attempt: route.attempt }).collect();
        for &sequence in &sequences {
            if let Some(route) = self.forget(sequence.request) {
                self.cancel_route(&route, Cancel { sequence });
            }
        }
        sequences
    }

    /// The same for requests that are away: all, or those with a dead encode actor.
    fn call_back(&mut self, dead: Option<usize>) -> Vec<SequenceId> {
        let sequences = self.looks.sequences(dead);
        for &sequence in &sequences {
            let away = self.looks.get(sequence.request).copied();
            self.forget(sequence.request);
            if let (Some(away), None) = (away, dead) {
                self.looks.cancel(away, Cancel { sequence });
            }
        }
        sequences
    }

    fn cancel_route(&mut self, route: &Route, cancel: Cancel) {
        if route.computed {
            return; // its groups have let go of it
        }
        if let Some(prefill) = route.prefill.and_then(|(number, _)| self.prefills.get_mut(number)) {
            prefill.cancel.send(cancel);
        }
        self.decodes[route.decode].cancel.send(cancel);
    }

    /// Everything that was on a dead group is lost; what its partner group still holds of it is cancelled.
    fn lose(&mut self, was_there: impl Fn(&Route) -> bool) {
        for sequence in self.call_off(was_there) {
            self.lanes.failures.send(Failure { sequence, cause: Cause::Lost });
        }
    }
}

/// What a request adds to a decode group.
fn held(request: &Request) -> Held {
    Held::one(request.tokens() as u64)
}

impl Actor for Router {
    type Message = RouterMessage;

    fn handle(&mut self, message: RouterMessage, ctx: &mut Ctx<'_>) {
        match message {
            RouterMessage::Arrive(request) => self.arrive(request, ctx),
            RouterMessage::Spans(request) => self.seen(request, ctx),
            RouterMessage::Cancel(cancel) => self.cancel(cancel, ctx.now()),
            RouterMessage::Ended(ended) => ended.into_iter().for_each(|ended| self.ended(ended, ctx.now())),
            RouterMessage::PrefillLoad(load, number) => {
                load.coefficients.into_iter().for_each(|speed| self.to_prefill.report(number, speed));
            }
            RouterMessage::DecodeLoad(load, number) => {
                self.to_decode.report(number, load.held);
                let speed = load.coefficients.filter(|_| self.is_joined());
                speed.into_iter().for_each(|speed| self.to_prefill.report(number, speed));
            }
        }
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(&(deadline, request)) = self.deadlines.first() {
            if deadline > ctx.now() {
                ctx.wake_at(deadline);
                break;
            }
            self.forget(request);
        }
        if !self.looks.flush() {
            ctx.wake_at(ctx.now() + RETRY);
        }
        for group in self.prefills.iter_mut().chain(&mut self.decodes) {
            if !group.cancel.flush() {
                ctx.wake_at(ctx.now() + RETRY);
            }
        }
    }

    fn lost(&mut self, peer: &str, _ctx: &mut Ctx<'_>) {
        if peer == self.lanes.gateway {
            self.call_off(|_| true);
            self.call_back(None);
        }
        if let Some(dead) = self.looks.died(peer) {
            for sequence in self.call_back(Some(dead)) {
                self.lanes.failures.send(Failure { sequence, cause: Cause::Lost });
            }
        }
        if let Some(number) = self.prefills.iter().position(|group| group.seat == peer) {
            self.prefills[number].cancel.clear();
            let there = |route: &Route| [route.prefill.map(|(at, _)| at), route.last].contains(&Some(number));
            self.lose(there);
        }
        if let Some(number) = self.decodes.iter().position(|group| group.seat == peer) {
            self.decodes[number].cancel.clear();
            self.lose(|route| route.decode == number);
        }
    }
}
