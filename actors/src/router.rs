//! router: which group computes a request. It counts what it has sent itself, so its picture is never older than its own
//! decisions: prefill by outstanding prompt tokens, decode by active requests, the lowest number among equals. A
//! prefill group that was last sent a prompt that begins alike is taken before the least loaded one, unless more waits
//! there than its blocks save. A prompt with images goes to an encode actor first, and is placed when it comes back.
//!
//! It also knows which requests a group's death takes along, and tells the gateway, which sends them down the road again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use beginnings::Beginnings;
use looks::Looks;
use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut, Time};

use crate::message::{Admit, Cancel, Cause, Departure, Ended, Failure, RouterMessage, SequenceId};
use crate::outbox::{Outbox, RETRY, Tombstones};
use crate::request::{Refusal, Request, RequestId};

mod beginnings;
mod looks;

pub use looks::EncodeDoor;

/// What a request is told when every lane is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Lanes to one group.
#[derive(Clone)]
pub struct GroupDoor {
    /// The seat at the other end.
    pub seat: String,
    /// Requests; decode groups have one only when they are joined.
    pub admit: Option<OfferOut<Admit>>,
    /// Cancels.
    pub cancel: OfferOut<Cancel>,
}

/// Where the router speaks to, beside the groups.
#[derive(Clone)]
pub struct RouterLanes {
    /// To the gateway.
    pub failures: HoldOut<Failure>,
    /// The gateway's seat: when it dies, nobody waits for anything here.
    pub gateway: String,
}

/// A group as the router sees it.
struct Load {
    seat: String,
    admit: Option<OfferOut<Admit>>,
    cancel: Outbox<Cancel>,
    /// Prompt tokens (prefill) or requests (decode) that were sent and have not ended.
    outstanding: u64,
}

impl From<GroupDoor> for Load {
    fn from(door: GroupDoor) -> Self {
        Self { seat: door.seat, admit: door.admit, cancel: Outbox::new(door.cancel), outstanding: 0 }
    }
}

/// A request that was sent to its groups.
struct Route {
    attempt: u32,
    family: Option<RequestId>,
    /// `None` once the prompt has left it, and in joined groups.
    prefill: Option<usize>,
    decode: usize,
    prompt: u64,
    deadline: Time,
    /// Its last token has left the group. The route stays until the gateway has that token: it may still be lost with
    /// the group on its way.
    computed: bool,
}

/// See the module.
pub struct Router {
    prefills: Vec<Load>,
    decodes: Vec<Load>,
    /// Of the prompts that prefill groups computed.
    beginnings: Beginnings,
    /// Requests that have no groups yet.
    looks: Looks,
    lanes: RouterLanes,
    routes: BTreeMap<RequestId, Route>,
    deadlines: BTreeSet<(Time, RequestId)>,
    tombstones: Tombstones,
}

impl Router {
    /// Routes over `prefills` and `decodes`; without `prefills` the decode groups are joined. Prompts with images go
    /// through `encoders`.
    pub fn new(
        prefills: Vec<GroupDoor>,
        decodes: Vec<GroupDoor>,
        encoders: Vec<EncodeDoor>,
        lanes: RouterLanes,
    ) -> Self {
        Self {
            prefills: prefills.into_iter().map(Load::from).collect(),
            decodes: decodes.into_iter().map(Load::from).collect(),
            beginnings: Beginnings::default(),
            looks: Looks::new(encoders),
            lanes,
            routes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tombstones: Tombstones::default(),
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
            false => self.refuse(sequence),
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
        let (prefill, decode) = self.groups_for(&request);
        let Some(decode) = decode else { return self.refuse(sequence) };
        let door = prefill.map_or(&self.decodes[decode].admit, |number| &self.prefills[number].admit);
        let admit = Admit { request: Arc::clone(&request), decode };
        if door.as_ref().is_none_or(|door| door.offer(admit).is_err()) {
            return self.refuse(sequence);
        }
        ctx.event(Event::Stage { request: request.id.0, stage: "route", value: decode as u64 });
        if let Some(number) = prefill {
            self.beginnings.learn(&request.hashes, number);
        }
        self.remember(&request, prefill, decode);
    }

    /// The groups that a request's family is on, or else those picked for it alone.
    fn groups_for(&self, request: &Request) -> (Option<usize>, Option<usize>) {
        let related = |route: &&Route| request.family.is_some() && route.family == request.family;
        let family = || self.routes.values().filter(related);
        let prefill = family().find_map(|route| route.prefill).or_else(|| self.pick(request));
        (prefill, family().map(|route| route.decode).next().or_else(|| least(&self.decodes)))
    }

    /// The group that computes a prompt; none when decode computes it, joined.
    fn pick(&self, request: &Request) -> Option<usize> {
        let least = least(&self.prefills)?;
        let waits = |number: usize| self.prefills[number].outstanding;
        let worth = |&(number, blocks): &(usize, usize)| {
            let saved = request.prompt.len() * blocks / request.hashes.len();
            waits(number) <= waits(least) + saved as u64
        };
        let known = self.beginnings.find(&request.hashes).filter(worth);
        Some(known.map_or(least, |(number, _)| number))
    }

    fn remember(&mut self, request: &Request, prefill: Option<usize>, decode: usize) {
        let prompt = request.prompt.len() as u64;
        if let Some(number) = prefill {
            self.prefills[number].outstanding += prompt;
        }
        self.decodes[decode].outstanding += 1;
        let (attempt, deadline) = (request.attempt, request.deadline);
        let family = request.family;
        let route = Route { attempt, family, prefill, decode, prompt, deadline, computed: false };
        self.routes.insert(request.id, route);
        self.deadlines.insert((request.deadline, request.id));
    }

    fn refuse(&mut self, sequence: SequenceId) {
        let cause = Cause::Refused(Refusal::Overload { retry_after: RETRY_AFTER });
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

    fn ended(&mut self, ended: Ended) {
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
            Departure::Finished => self.computed(sequence.request),
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
            && let Some(number) = route.prefill.take()
        {
            self.prefills[number].outstanding -= route.prompt;
        }
    }

    fn computed(&mut self, request: RequestId) {
        self.left_prefill(request);
        if let Some(route) = self.routes.get_mut(&request)
            && !std::mem::replace(&mut route.computed, true)
        {
            self.decodes[route.decode].outstanding -= 1;
        }
    }

    fn forget(&mut self, request: RequestId) -> Option<Route> {
        if let Some(away) = self.looks.remove(request) {
            self.deadlines.remove(&(away.deadline, request));
        }
        let route = self.routes.remove(&request)?;
        self.deadlines.remove(&(route.deadline, request));
        if let Some(number) = route.prefill {
            self.prefills[number].outstanding -= route.prompt;
        }
        if !route.computed {
            self.decodes[route.decode].outstanding -= 1;
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
        if let Some(number) = route.prefill {
            self.prefills[number].cancel.send(cancel);
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

/// The number of the least loaded group.
fn least(groups: &[Load]) -> Option<usize> {
    (0..groups.len()).min_by_key(|&number| (groups[number].outstanding, number))
}

impl Actor for Router {
    type Message = RouterMessage;

    fn handle(&mut self, message: RouterMessage, ctx: &mut Ctx<'_>) {
        match message {
            RouterMessage::Arrive(request) => self.arrive(request, ctx),
            RouterMessage::Spans(request) => self.seen(request, ctx),
            RouterMessage::Cancel(cancel) => self.cancel(cancel, ctx.now()),
            RouterMessage::Ended(ended) => ended.into_iter().for_each(|ended| self.ended(ended)),
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
            self.lose(|route| route.prefill == Some(number));
        }
        if let Some(number) = self.decodes.iter().position(|group| group.seat == peer) {
            self.decodes[number].cancel.clear();
            self.lose(|route| route.decode == number);
        }
    }
}
