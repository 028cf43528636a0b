//! What prefill and decode share: a scheduler, one rank that runs its steps, and the lanes on which a step's tokens and
//! the sequences that leave are told. One rank owns the step loop and answers a whole step in one message.

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Ctx, Event, HoldOut, Time};

use crate::cost::Known;
use crate::drain::Drain;
use crate::gauges::GroupGauges;
use crate::message::{
    Cancel, Cause, Departure, Ended, Exported, Found, Load, Observed, SequenceId, Step, StepDone, Token,
    Tokens,
};
use crate::outbox::Tombstones;
use crate::rank::predicted::{PredictedRank, Prediction};
use crate::request::{Logprobs, Refusal, Request};
use crate::sched::{Amount, Bounds, Scheduler};
use crate::sequence::Phase;

mod flights;
mod load;
mod store;
mod trial;
mod watch;

use flights::Flights;
pub use load::LoadLane;
use load::Loads;
use store::StoreDoor;
pub use store::StoreLanes;
use watch::Watch;

/// A step that has not come back for so long is lost, and with it the group.
const STEP_PATIENCE: Duration = Duration::from_secs(300);

/// Where a group speaks to.
#[derive(Clone)]
pub struct GroupLanes {
    /// To its rank.
    pub steps: Steps,
    /// To the detokenizer.
    pub tokens: HoldOut<Tokens>,
    /// To the router.
    pub ended: HoldOut<Vec<Ended>>,
    /// To the router as well.
    pub loads: LoadLane,
    /// The router's seat: when it dies, nobody is left who waits for a sequence here.
    pub router: String,
    /// To the prefix store, where the plan has one.
    pub store: Option<StoreLanes>,
}

/// What runs the steps of a group.
#[derive(Clone)]
pub enum Steps {
    /// Its rank, which answers in a message.
    Rank(HoldOut<Step>),
    /// Nobody: a simulation says how long they would take.
    Predicted(Prediction),
}

/// See the module.
pub struct Group {
    /// Which tokens are computed next.
    pub scheduler: Scheduler,
    /// Cancels that may have overtaken what they cancel.
    pub tombstones: Tombstones,
    lanes: GroupLanes,
    gauges: Arc<GroupGauges>,
    ended: Vec<Ended>,
    /// Steps that are on their way.
    flights: Flights,
    /// The prefix store, where the plan has one.
    store: Option<StoreDoor>,
    /// In place of a rank, in a simulation of capacity.
    predicted: Option<PredictedRank>,
    /// What steps take.
    watch: Watch,
    /// How fast who waits begins.
    drain: Drain,
    /// What the router is told of all this.
    loads: Loads,
}

impl Group {
    /// Nothing to do yet.
    pub fn new(bounds: Bounds, lanes: GroupLanes, gauges: Arc<GroupGauges>, known: Arc<Known>) -> Self {
        let (watch, ahead) = (Watch::new(&bounds, known), bounds.ahead);
        let mut scheduler = Scheduler::new(bounds);
        scheduler.predict_with(watch.coefficients());
        let (store, loads) = (lanes.store.clone().map(StoreDoor::new), Loads::new(lanes.loads.clone()));
        let predicted = match &lanes.steps {
            Steps::Rank(_) => None,
            Steps::Predicted(prediction) => Some(PredictedRank::new(prediction.clone(), ahead)),
        };
        let group = Self {
            scheduler,
            tombstones: Tombstones::default(),
            lanes,
            gauges,
            ended: Vec::new(),
            flights: Flights::default(),
            store,
            predicted,
            watch,
            drain: Drain::default(),
            loads,
        };
        group.gauges.blocks_total.set(group.scheduler.pool().total());
        group.gauges.slots_total.set(group.scheduler.pool().state.total());
        group.show(0);
        group
    }

    /// Takes a request, or tells the router why not. False when it was not taken.
    pub fn admit(&mut self, request: &Arc<Request>, ctx: &mut Ctx<'_>) -> bool {
        let sequence = request.sequence();
        if self.tombstones.covers(sequence) || self.scheduler.knows(sequence) {
            return false;
        }
        let retry_after = self.drain.predict(ctx.now(), amounts(self.scheduler.waiting()));
        let late = self.late(request, ctx.now(), retry_after);
        match late.map_or_else(|| self.scheduler.add(Arc::clone(request), retry_after), Err) {
            Ok(()) => {
                ctx.event(Event::Stage {
                    request: request.id.0,
                    stage: "admit",
                    value: request.prompt.len() as u64,
                });
                true
            }
            Err(refusal) => {
                self.leave(sequence, Departure::Failed(Cause::Refused(refusal)));
                false
            }
        }
    }

    /// Why a request is refused that cannot be in time, as far as that is known.
    fn late(&self, request: &Request, now: Time, retry_after: Duration) -> Option<Refusal> {
        let left = Duration::from_nanos(request.deadline.as_nanos().saturating_sub(now.as_nanos()));
        let needs = self.scheduler.prompt_in(request).filter(|_| self.watch.is_sure())?;
        (needs > left).then_some(Refusal::Late { needs, left, retry_after })
    }

    /// Forgets a request up to an attempt.
    pub fn cancel(&mut self, cancel: Cancel, now: Time) {
        self.tombstones.add(cancel, now);
        let SequenceId { request, attempt } = cancel.sequence;
        for sequence in self.scheduler.select(|r| r.id == request && r.attempt <= attempt) {
            self.drop_sequence(sequence, Departure::Dropped);
        }
    }

    /// Ends a sequence that would break again on any other attempt.
    fn fail(&mut self, sequence: SequenceId, why: &str) {
        self.scheduler.abort(sequence);
        self.leave(sequence, Departure::Failed(Cause::Failed(why.to_owned())));
    }

    /// Aborts a sequence and tells the router how it left.
    pub fn drop_sequence(&mut self, sequence: SequenceId, how: Departure) {
        if self.scheduler.abort(sequence) {
            self.leave(sequence, how);
        }
    }

    /// A peer died. With the router, everything here is aborted; says whether it was the router.
    pub fn lost(&mut self, peer: &str) -> bool {
        let router = peer == self.lanes.router;
        if router {
            self.drop_all();
            self.loads.forget();
        }
        self.lost_store(peer);
        router
    }

    fn drop_all(&mut self) {
        for sequence in self.scheduler.select(|_| true) {
            self.scheduler.abort(sequence);
        }
    }

    /// Tells the router, at the end of the turn, that a sequence is here no more.
    pub fn leave(&mut self, sequence: SequenceId, how: Departure) {
        self.ended.push(Ended { sequence, how });
    }

    /// Sends the tokens of a sequence that was taken over once more: those that prefill sent die with it if it dies
    /// before they arrive, and what comes twice is dropped. `how` belongs to them: logprobs, and tokens that were found.
    pub fn resend(
        &mut self,
        request: &Arc<Request>,
        answer: &[u32],
        (logprobs, found): (Option<Arc<Logprobs>>, Found),
    ) {
        let token = |(position, &id)| {
            let (request, logprobs) = (Arc::clone(request), logprobs.clone());
            Token { request, position, id, again: 0, logprobs, finish: None, found }
        };
        let tokens = (0u32..).zip(answer).skip(request.sent.len()).map(token).collect();
        self.send_tokens(tokens, Vec::new());
    }

    /// Steps of a simulation that are over by now: to be done before anything else is, in every call.
    pub fn over(&mut self, now: Time) -> Option<StepDone> {
        let rank = self.predicted.as_mut()?;
        let done = rank.over(now)?;
        let (took, tokens) = (rank.take_times(), self.flights.tokens());
        took.into_iter().for_each(|step| self.time(step, tokens));
        Some(done)
    }

    /// Applies a step and sends its tokens on. Returns them, and the exports for whoever asked.
    pub fn done(&mut self, mut done: StepDone, ctx: &mut Ctx<'_>) -> (Vec<NewToken>, Vec<Exported>) {
        let landed = self.flights.land(ctx.now());
        if self.watch.tried(ctx.now()) {
            return (Vec::new(), Vec::new());
        }
        if self.predicted.is_none() {
            self.watch.done(landed.time);
            self.time(landed.time, landed.tokens);
        }
        if let Some(gap) = done.gap.filter(|_| landed.follows && landed.tokens > 0) {
            self.gauges.step_gaps.add(gap);
        }
        let planned = self.scheduler.steps();
        let mut applied = self.scheduler.apply(&mut done);
        self.flights.go_on(ctx.now(), landed.tokens, self.scheduler.flying());
        let more = (self.scheduler.steps() - planned) as usize;
        self.gauges.steps.add(more);
        self.gauges.tokens.add(more * landed.tokens);
        for sequence in done.unsound {
            applied.tokens.retain(|token| token.request.sequence() != sequence);
            let why = "the model computes a logit that is not a number: are its weights damaged?";
            self.fail(sequence, why);
        }
        let news = applied.tokens.iter().map(NewToken::from).collect::<Vec<_>>();
        for new in news.iter().filter(|new| new.last) {
            self.leave(new.sequence, Departure::Finished);
            ctx.event(Event::Stage { request: new.sequence.request.0, stage: "computed", value: 0 });
        }
        self.send_tokens(applied.tokens, applied.observed);
        (news, self.keep(done.exported))
    }

    /// Ends what is past its deadline, plans the next step, and shows the gauges: the last thing in every turn.
    pub fn settle(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        for sequence in self.scheduler.select(|request| request.deadline <= now) {
            self.drop_sequence(sequence, Departure::Dropped);
        }
        self.give_up(now);
        self.tell();
        self.plan(ctx);
        self.flights.settle();
        self.drain.tell(now, amounts(self.scheduler.begun()));
        self.learn();
        self.ask(ctx);
        if !self.ended.is_empty() {
            self.lanes.ended.send(std::mem::take(&mut self.ended));
        }
        if let Some(deadline) = self.scheduler.next_deadline() {
            ctx.wake_at(deadline);
        }
    }

    /// Shows the numbers of this moment; `leases` are the group's own.
    pub fn show(&self, leases: usize) {
        let (gauges, scheduler) = (&self.gauges, &self.scheduler);
        gauges.blocks_used.set(scheduler.pool().used());
        gauges.slots_used.set(scheduler.pool().state.used());
        gauges.leases.set(leases);
        gauges.running.set(scheduler.count(Phase::Running) + scheduler.count(Phase::Arriving));
        gauges.waiting.set(scheduler.count(Phase::Waiting));
        gauges.preemptions.set(scheduler.preemptions() as usize);
        gauges.blocks_cached.set(scheduler.pool().cached());
        gauges.evictions.set(scheduler.pool().evictions() as usize);
        gauges.tokens_sought.set(scheduler.reused().sought as usize);
        gauges.tokens_found.set(scheduler.reused().found as usize);
        gauges.tokens_replayed.set(scheduler.reused().replayed as usize);
        self.show_store();
    }

    /// Makes use of what the last step took, while the next one runs.
    fn learn(&mut self) {
        let Some(time) = self.watch.learn() else { return };
        self.gauges.step_times.add(time);
        self.gauges.step_error.set((self.watch.error() * 1e6) as usize);
        self.scheduler.predict_with(self.watch.coefficients());
    }

    fn tell(&mut self) {
        let (coefficients, changed) = self.watch.known();
        self.loads.tell(Load { coefficients, held: self.scheduler.held() }, changed);
    }

    fn plan(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        if self.predicted.is_some() {
            // It is always there.
        } else if self.scheduler.in_flight() || self.watch.is_trying() {
            let due = self.flights.since().unwrap_or(now) + STEP_PATIENCE;
            assert!(now < due, "the rank has not answered a step for {} s", STEP_PATIENCE.as_secs());
            ctx.wake_at(due);
        } else if let Some(step) = self.watch.try_next(now) {
            self.flights.send(now, 0);
            self.run(step, ctx);
        }
        while !self.watch.is_trying()
            && let Some(step) = self.scheduler.plan()
        {
            self.send(step, ctx);
        }
        let Some(rank) = &mut self.predicted else { return };
        if let Some(leap) = rank.leap() {
            let rows = self.scheduler.count(Phase::Running) as u64;
            let news = self.loads.steps_to_news(self.scheduler.held(), rows);
            rank.stretch(self.scheduler.repeats(leap.min(news)));
        }
        rank.due().into_iter().for_each(|due| ctx.wake_at(due));
    }

    fn send(&mut self, step: Step, ctx: &mut Ctx<'_>) {
        if self.predicted.is_none() {
            self.watch.sent(&step);
        }
        self.gauges.steps.add(1);
        let tokens = step.rows.iter().map(|row| row.tokens.len()).sum();
        self.gauges.tokens.add(tokens);
        self.flights.send(ctx.now(), tokens);
        for row in step.rows.iter().filter(|row| row.tokens.len() > 1) {
            let stage = Event::Stage {
                request: row.sequence.request.0,
                stage: "chunk",
                value: row.tokens.len() as u64,
            };
            ctx.event(stage);
        }
        self.run(step, ctx);
    }

    fn run(&mut self, step: Step, ctx: &mut Ctx<'_>) {
        match (&self.lanes.steps, &mut self.predicted) {
            (Steps::Rank(lane), _) => lane.send(step),
            (Steps::Predicted(_), Some(rank)) => rank.take(step, ctx.now()),
            (Steps::Predicted(_), None) => unreachable!("a group that predicts was made with what predicts"),
        }
    }

    fn send_tokens(&mut self, tokens: Vec<Token>, observed: Vec<Observed>) {
        if !tokens.is_empty() || !observed.is_empty() {
            self.lanes.tokens.send(Tokens { tokens, observed });
        }
    }
}

fn amounts(amount: Amount) -> [u64; 2] {
    [amount.sequences, amount.tokens]
}

/// A token that the step brought, as its group sees it.
#[derive(Clone, Copy, Debug)]
pub struct NewToken {
    /// Whose.
    pub sequence: SequenceId,
    /// No token of this attempt came before it.
    pub first: bool,
    /// The answer is complete.
    pub last: bool,
}

impl From<&Token> for NewToken {
    fn from(token: &Token) -> Self {
        let first = token.position as usize == token.request.sent.len();
        Self { sequence: token.request.sequence(), first, last: token.finish.is_some() }
    }
}
