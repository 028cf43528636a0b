//! The scheduler of a group: which tokens of which sequences the next step computes. Pure: `add`, `plan`, `apply`,
//! `abort`, no clock and no lane.
//!
//! A step is a map from sequence to number of tokens, so prompts cut into chunks, single tokens and recomputation after
//! preemption are one case. Rules, in order:
//! 1. running sequences first, in the order of their rights (`sched/queue.rs`: by priority, then the oldest first); one that needs a single token always takes part, prompts share
//!    `chunk_tokens`, and what time the step has (`sched/budget.rs` says how);
//! 2. waiting sequences in that order too, tenants by turns; none overtakes (but one that waits for a beginning it shares); one starts
//!    when blocks for all its tokens can be had, and a slot where the model keeps a state beside them;
//! 3. blocks that hold the beginning of a sequence are shared, not computed again (`sched/reuse.rs` says how);
//! 4. when a running sequence needs a block and none is free, the last of them in that order gives its blocks back and waits
//!    in its old place. The first therefore always gets on, and a preempted answer goes on with the tokens it would
//!    have had, since those depend on the request alone.
//!
//! One step is in flight at a time, or two (`sched/ahead.rs`); what one touches is not given back before it is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_runtime::Time;

use crate::balance::{Held, Report};
use crate::kv::{BlockId, HashChain, Pool};
use crate::message::{Export, Found, Import, Observed, Place, SequenceId, Step, StepDone, Token};
use crate::request::{Logprobs, Refusal, Request};
use crate::sequence::{Phase, Sequence, State};
use crate::store::Payload;

mod ahead;
mod budget;
mod leap;
mod plan;
mod queue;
mod reuse;
mod snapshot;
mod stored;

use ahead::{Flight, Flights, Part};
pub use budget::Timing;
pub use queue::Amount;
use queue::Queue;
pub use reuse::Reused;
pub use snapshot::Promised;
use snapshot::Taken;
use stored::Shelf;
pub use stored::{Fetching, StoreBounds, StoreCounts, Stored};

/// Bounds of one group, from the plan and the model.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Prompt tokens in one step.
    pub chunk_tokens: usize,
    /// Sequences that own blocks at once.
    pub sequences_max: usize,
    /// Sequences that may wait.
    pub waiting_max: usize,
    /// Tokens of theirs.
    pub waiting_tokens_max: u64,
    /// Steps after which nobody overtakes a sequence any more.
    pub wait_steps_max: u64,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks of KV memory.
    pub blocks: usize,
    /// Tokens that end an answer.
    pub end_tokens: Arc<[u32]>,
    /// Whether answers grow here too, or only prompts are computed.
    pub answers: bool,
    /// Names the blocks, so that they are found again; `None`: every sequence computes its own.
    pub reuse: Option<HashChain>,
    /// Set where the model keeps a state beside the blocks.
    pub state: Option<StateBounds>,
    /// Set where the plan has a prefix store.
    pub store: Option<StoreBounds>,
    /// Set where the time of steps is predicted.
    pub timing: Option<Timing>,
    /// The next step is planned while one runs.
    pub ahead: bool,
}

/// What a group of a model with a state keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBounds {
    /// State slots of its rank: one for each sequence that owns blocks, and each lease.
    pub slots: usize,
    /// Tokens that are computed once more behind a found beginning.
    pub replay: usize,
    /// The layers behind the last source of keys see so many of a prompt's tokens, the newest; `None`: all.
    pub keep: Option<u32>,
    /// Of a state that was taken so many of the newest positions may be computed once more.
    pub rewind: usize,
}

/// What a step brought.
#[derive(Default)]
pub struct Applied {
    /// New tokens, in order of rows.
    pub tokens: Vec<Token>,
    /// Logits that were asked for.
    pub observed: Vec<Observed>,
}

/// What the group that computed the prompt of an adopted sequence knows of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adopted {
    /// What was found of it there.
    pub found: Found,
    /// Windows of its state know positions from here on.
    pub valid_from: u32,
}

/// A sequence that left the scheduler with its blocks still in its name.
pub struct Detached {
    /// What is asked.
    pub request: Arc<Request>,
    /// Tokens after the prompt.
    pub answer: Vec<u32>,
    /// How likely the last of them was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
    /// What was found of it here.
    pub found: Found,
    /// Its block table.
    pub blocks: Vec<BlockId>,
    /// What it keeps beside it.
    pub state: Option<State>,
}

/// See the module.
pub struct Scheduler {
    bounds: Bounds,
    pool: Pool,
    /// By order of arrival, which is also the order of rights.
    sequences: BTreeMap<u64, Sequence>,
    arrivals: BTreeMap<SequenceId, u64>,
    arrived: u64,
    imports: Vec<(u64, Import)>,
    exports: Vec<Export>,
    shelf: Shelf,
    taken: Taken,
    queue: Queue,
    flights: Flights,
    steps: u64,
    preemptions: u64,
    reused: Reused,
}

impl Scheduler {
    /// All blocks free, nothing to do.
    pub fn new(bounds: Bounds) -> Self {
        let pool = Pool::new(bounds.blocks).with_slots(bounds.state.map_or(0, |state| state.slots));
        Self {
            bounds,
            pool,
            sequences: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            arrived: 0,
            imports: Vec::new(),
            exports: Vec::new(),
            shelf: Shelf::default(),
            taken: Taken::default(),
            queue: Queue::default(),
            flights: Flights::new(),
            steps: 0,
            preemptions: 0,
            reused: Reused::default(),
        }
    }

    /// Takes a request, or says why not.
    pub fn add(&mut self, request: Arc<Request>, retry_after: std::time::Duration) -> Result<(), Refusal> {
        let sent = Arc::clone(&request.sent);
        self.check_reach(&request)?;
        let (waiting, tokens) = (self.waiting(), request.prompt.len() as u64);
        let long = waiting.sequences > 0 && waiting.tokens + tokens > self.bounds.waiting_tokens_max;
        if waiting.sequences as usize >= self.bounds.waiting_max || long {
            return Err(Refusal::Overload { retry_after });
        }
        self.insert(Sequence::new(request, &sent, self.bounds.reuse.as_ref()));
        Ok(())
    }

    /// Takes a sequence whose first `tokens − 1` entries another group has computed. Says how many of their blocks are
    /// here already; the others are reserved, and so is a slot; their bytes come with [`Scheduler::import`]. `None` when
    /// there is no room now. `before` is what the other group knows of it.
    pub fn adopt(&mut self, request: &Arc<Request>, answer: &[u32], before: Adopted) -> Option<usize> {
        if self.check_reach(request).is_err() || self.owning() >= self.bounds.sequences_max {
            return None;
        }
        let mut sequence = Sequence::new(Arc::clone(request), answer, self.bounds.reuse.as_ref());
        let found = self.found(&sequence);
        if !self.settle(&mut sequence, found) {
            return None;
        }
        self.reused.sought += sequence.tokens.len() as u64;
        self.reused.found += found as u64 * u64::from(self.bounds.block_size);
        sequence.pass(sequence.tokens.len() - 1);
        sequence.kept = sequence.computed / self.bounds.block_size as usize;
        sequence.found = before.found;
        if let Some(state) = &mut sequence.state {
            state.valid_from = before.valid_from as usize;
        }
        sequence.phase = Phase::Arriving;
        let here = sequence.sealed;
        self.insert(sequence);
        Some(here)
    }

    /// Bytes for piece number `first`, `first + 1`, … of an adopted sequence: its blocks, then its state. Unknown sequences are passed over.
    pub fn import(&mut self, id: SequenceId, first: usize, data: Vec<Payload>) {
        let Some((&arrival, sequence)) = self.find(id) else { return };
        let places: Vec<Place> = sequence.places(self.bounds.block_size).skip(first).collect();
        let imports = places.into_iter().zip(data).map(|(place, data)| (arrival, Import { place, data }));
        self.imports.extend(imports);
    }

    /// All bytes of an adopted sequence are here or queued: it takes part from the next step on.
    pub fn start(&mut self, id: SequenceId) {
        if let Some(sequence) = self.find_mut(id)
            && sequence.phase == Phase::Arriving
        {
            sequence.phase = Phase::Running;
        }
    }

    /// Reads pieces of a lease after the next step. The lease that owns them must stay until the step is done.
    pub fn export(&mut self, export: Export) {
        self.exports.push(export);
    }

    /// The next step, if there is something to do, and none in flight or one that it may be behind.
    pub fn plan(&mut self) -> Option<Step> {
        if !self.may_plan() {
            return None;
        }
        let (arrivals, rows) = self.rows();
        let imports: Vec<Import> = self.imports.drain(..).map(|(_, import)| import).collect();
        let mut exports = std::mem::take(&mut self.exports);
        exports.extend(self.shelf.export(self.steps + 1));
        exports.extend(self.snapshots(&arrivals));
        if rows.is_empty() && imports.is_empty() && exports.is_empty() {
            return None;
        }
        self.steps += 1;
        let computes_only = imports.is_empty() && exports.is_empty();
        let parts = arrivals.into_iter().zip(&rows).map(|(share, row)| Part::new(share, row)).collect();
        self.fly(Flight { number: self.steps, parts, computes_only });
        Some(Step { number: self.steps, imports, rows, exports })
    }

    /// What the first step in flight brought. Panics on any other one: the rank and the group would disagree from here on.
    pub fn apply(&mut self, done: &mut StepDone) -> Applied {
        let flight = self.flights.pop_front().expect("a step is done only while one is in flight");
        assert_eq!(flight.number, done.number, "the rank answers the step in flight");
        assert_eq!(flight.parts.len(), done.tokens.len(), "one entry a row");
        self.shelf.read(flight.number, &mut self.pool);
        self.taken.read(flight.number, &mut self.pool);
        let mut applied = Applied { observed: std::mem::take(&mut done.observed), ..Applied::default() };
        if done.again + done.goes_on > 0 {
            self.forget_behind();
            self.steps = flight.number + u64::from(done.again);
        }
        for (part, token) in flight.parts.iter().zip(&done.tokens) {
            self.advance(part, (token.as_ref(), done.again), &mut applied);
        }
        (0..done.goes_on).for_each(|_| self.go_again(&flight.parts));
        self.bury(flight.number + u64::from(done.again));
        applied
    }

    /// Forgets a sequence; its blocks and slot are free now, or when what is in flight is done. False when it is not known.
    pub fn abort(&mut self, id: SequenceId) -> bool {
        let Some((&arrival, sequence)) = self.find(id) else { return false };
        if sequence.phase == Phase::Doomed {
            return false;
        }
        self.imports.retain(|(owner, _)| *owner != arrival);
        if self.flights.is_empty() {
            self.remove(arrival);
        } else {
            self.arrivals.remove(&id);
            if let Some(sequence) = self.sequences.get_mut(&arrival) {
                (sequence.phase, sequence.doomed) = (Phase::Doomed, self.steps);
            }
        }
        true
    }

    /// Lets a running sequence go with its blocks and slot, which stay in its name in the ledger.
    pub fn detach(&mut self, id: SequenceId) -> Option<Detached> {
        let arrival = self.arrivals.remove(&id)?;
        let sequence = self.sequences.remove(&arrival)?;
        let answer = sequence.answer().to_vec();
        let Sequence { request, found, blocks, state, logprobs, .. } = sequence;
        Some(Detached { request, answer, logprobs, found, blocks, state })
    }

    /// Whether the sequence is here and wanted.
    pub fn knows(&self, id: SequenceId) -> bool {
        self.arrivals.contains_key(&id)
    }

    /// The earliest deadline of all sequences.
    pub fn next_deadline(&self) -> Option<Time> {
        self.sequences.values().filter(|s| s.phase != Phase::Doomed).map(|s| s.request.deadline).min()
    }

    /// Sequences that `wanted` picks.
    pub fn select(&self, wanted: impl Fn(&Request) -> bool) -> Vec<SequenceId> {
        let live = self.sequences.values().filter(|s| s.phase != Phase::Doomed);
        live.filter(|s| wanted(&s.request)).map(Sequence::id).collect()
    }

    /// The ledger, for leases.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// The ledger, to read.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Sequences in a phase.
    pub fn count(&self, phase: Phase) -> usize {
        self.sequences.values().filter(|s| s.phase == phase).count()
    }

    /// All that was sent here and has not left, and the same by the tokens that it was sent with.
    pub fn held(&self) -> Report {
        let live = || self.sequences.values().filter(|s| s.phase != Phase::Doomed);
        Report {
            all: live().map(|s| Held::one(s.tokens.len() as u64)).sum(),
            yours: live().map(|s| Held::one(s.request.tokens() as u64)).sum(),
        }
    }

    /// Whether a step is in flight.
    pub fn in_flight(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Steps that were planned so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps in flight.
    pub fn flying(&self) -> usize {
        self.flights.len()
    }

    /// Sequences that lost their blocks to an older one so far.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// What was looked for and found so far.
    pub fn reused(&self) -> Reused {
        self.reused
    }

    fn check_reach(&self, request: &Request) -> Result<(), Refusal> {
        let answer = if self.bounds.answers { request.tokens_max as usize } else { request.sent.len() };
        let tokens = request.prompt.len() + answer;
        let limit = self.pool.total() * self.bounds.block_size as usize;
        if tokens > limit {
            return Err(Refusal::TooLong { tokens: tokens as u64, limit: limit as u64 });
        }
        Ok(())
    }

    /// Sequences that own blocks.
    fn owning(&self) -> usize {
        self.count(Phase::Running) + self.count(Phase::Arriving)
    }

    fn insert(&mut self, mut sequence: Sequence) {
        self.arrived += 1;
        (sequence.since, sequence.grows) = (self.steps, self.bounds.answers);
        let twin = self.arrivals.insert(sequence.id(), self.arrived);
        assert!(twin.is_none(), "{:?} is here already", sequence.id());
        self.sequences.insert(self.arrived, sequence);
    }

    fn remove(&mut self, arrival: u64) {
        if let Some(sequence) = self.sequences.remove(&arrival) {
            if self.arrivals.get(&sequence.id()) == Some(&arrival) {
                self.arrivals.remove(&sequence.id());
            }
            let owner = sequence.owner();
            self.pool.give_back(sequence.blocks, owner);
            if let Some(state) = sequence.state {
                self.pool.state.give_back(state.slot, owner);
            }
        }
    }

    fn find(&self, id: SequenceId) -> Option<(&u64, &Sequence)> {
        let arrival = self.arrivals.get(&id)?;
        self.sequences.get_key_value(arrival)
    }

    fn find_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        let arrival = self.arrivals.get(&id)?;
        self.sequences.get_mut(arrival)
    }
}
