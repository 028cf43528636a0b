//! The scheduler against a memory that remembers: every row must find, in its block table, exactly the tokens before it.
//! A block that is freed too early, shared by mistake or lost in a preemption shows as a foreign token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::kv::BlockId;
use millstream_actors::message::{Chosen, SequenceId, Step, StepDone};
use millstream_actors::request::{Finish, Observe, Request, RequestId, Sampling};
use millstream_actors::sched::{Bounds, Scheduler};
use millstream_actors::sequence::Phase;
use millstream_runtime::Time;
use proptest::prelude::*;

const END: u32 = 999;

fn request(id: u64, prompt: usize, tokens_max: u32) -> Arc<Request> {
    Arc::new(Request {
        id: RequestId(id),
        attempt: 0,
        prompt: (0..prompt as u32).map(|n| (id as u32) * 100 + n).collect(),
        sent: Arc::from([]),
        family: None,
        sampling: Sampling::GREEDY.into(),
        tokens_max,
        tokens_min: 0,
        stops: Arc::from([]),
        stop_tokens: Arc::from([]),
        ignore_end: false,
        logprobs: None,
        deadline: Time::from_nanos(u64::MAX),
        observe: Observe::Nothing,
    })
}

/// The token a model would choose: a function of the tokens before it.
fn chosen(history: &[u32]) -> u32 {
    let sum = history.iter().fold(7u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
    if sum.is_multiple_of(37) { END } else { sum % 900 }
}

/// What the sequence must become, computed alone.
fn alone(request: &Request) -> Vec<u32> {
    let mut tokens = request.prompt.to_vec();
    let mut answer = Vec::new();
    while answer.len() < request.tokens_max as usize && answer.last() != Some(&END) {
        let next = chosen(&tokens);
        tokens.push(next);
        answer.push(next);
    }
    answer
}

/// KV memory that holds the token of every position.
struct Memory {
    block_size: u32,
    cells: BTreeMap<(BlockId, u32), u32>,
}

impl Memory {
    fn cell(&self, blocks: &[BlockId], position: u32) -> (BlockId, u32) {
        (blocks[(position / self.block_size) as usize], position % self.block_size)
    }

    fn run(&mut self, step: &Step) -> StepDone {
        for row in &step.rows {
            for (position, &token) in (row.start..).zip(&row.tokens) {
                let cell = self.cell(&row.blocks, position);
                self.cells.insert(cell, token);
            }
        }
        let tokens = step.rows.iter().map(|row| {
            let end = row.start + row.tokens.len() as u32;
            let history: Vec<u32> = (0..end).map(|p| self.cells[&self.cell(&row.blocks, p)]).collect();
            row.sample.as_ref().map(|_| Chosen { id: chosen(&history), logprobs: None })
        });
        StepDone { number: step.number, tokens: tokens.collect(), ..StepDone::default() }
    }
}

struct World {
    scheduler: Scheduler,
    memory: Memory,
    bounds: Bounds,
    flight: Option<Step>,
    answers: BTreeMap<SequenceId, Vec<u32>>,
    requests: BTreeMap<SequenceId, Arc<Request>>,
    finished: usize,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        let memory = Memory { block_size: bounds.block_size, cells: BTreeMap::new() };
        Self {
            scheduler: Scheduler::new(bounds.clone()),
            memory,
            bounds,
            flight: None,
            answers: BTreeMap::new(),
            requests: BTreeMap::new(),
            finished: 0,
        }
    }

    fn add(&mut self, request: Arc<Request>) {
        if self.scheduler.add(Arc::clone(&request), Duration::from_secs(1)).is_ok() {
            self.requests.insert(request.sequence(), request);
        }
    }

    fn abort(&mut self, nth: usize) {
        let known: Vec<SequenceId> = self.scheduler.select(|_| true);
        if !known.is_empty() {
            let id = known[nth % known.len()];
            assert!(self.scheduler.abort(id));
            self.requests.remove(&id);
        }
    }

    fn plan(&mut self) {
        if self.flight.is_none()
            && let Some(step) = self.scheduler.plan()
        {
            let prompts = step.rows.iter().map(|row| row.tokens.len()).filter(|&n| n > 1);
            assert!(prompts.sum::<usize>() <= self.bounds.chunk_tokens, "the budget of a step");
            assert!(step.rows.len() <= self.bounds.sequences_max);
            self.flight = Some(step);
        }
    }

    fn done(&mut self) {
        let Some(step) = self.flight.take() else { return };
        let mut done = self.memory.run(&step);
        for token in self.scheduler.apply(&mut done).tokens {
            let id = token.request.sequence();
            let answer = self.answers.entry(id).or_default();
            assert_eq!(token.position as usize, answer.len(), "tokens come in order, none twice");
            answer.push(token.id);
            if let Some(finish) = token.finish {
                assert_eq!(answer, &alone(&self.requests[&id]), "the answer it gives alone");
                assert_eq!(finish == Finish::Stop, token.id == END);
                self.finished += 1;
                self.requests.remove(&id);
            }
        }
    }

    fn check(&self) {
        let pool = self.scheduler.pool();
        assert_eq!(pool.total(), self.bounds.blocks);
        assert!(self.scheduler.count(Phase::Waiting) <= self.bounds.waiting_max + self.bounds.sequences_max);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add { prompt: usize, tokens: u32 },
    Abort(usize),
    Plan,
    Done,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1usize..40, 1u32..24).prop_map(|(prompt, tokens)| Op::Add { prompt, tokens }),
        1 => (0usize..8).prop_map(Op::Abort),
        5 => Just(Op::Plan),
        5 => Just(Op::Done),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (1usize..50, 1usize..6, 1usize..8, 1u32..9, 8usize..40).prop_map(
        |(chunk_tokens, sequences_max, waiting_max, block_size, blocks)| Bounds {
            chunk_tokens,
            sequences_max,
            waiting_max,
            block_size,
            blocks,
            end_tokens: Arc::from([END]),
            answers: true,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_gives_the_answer_it_gives_alone(bounds in bounds(), ops in proptest::collection::vec(op(), 1..200)) {
        let mut world = World::new(bounds);
        for (id, op) in (1u64..).zip(ops) {
            match op {
                Op::Add { prompt, tokens } => world.add(request(id, prompt, tokens)),
                Op::Abort(nth) => world.abort(nth),
                Op::Plan => world.plan(),
                Op::Done => world.done(),
            }
            world.check();
        }
        // Whatever is left finishes in bounded time, and then every block is free.
        for _ in 0..20_000 {
            world.plan();
            if world.flight.is_none() {
                break;
            }
            world.done();
        }
        prop_assert!(world.flight.is_none() && world.requests.is_empty(), "stuck: {:?}", world.requests.keys());
        prop_assert_eq!(world.scheduler.pool().used(), 0);
    }
}

#[test]
fn the_oldest_keeps_its_pace_when_memory_runs_out() {
    let bounds = Bounds {
        chunk_tokens: 16,
        sequences_max: 4,
        waiting_max: 4,
        block_size: 2,
        blocks: 14,
        end_tokens: Arc::from([]),
        answers: true,
    };
    let mut world = World::new(bounds);
    for id in 1..=3 {
        world.add(request(id, 5, 20));
    }
    let oldest = SequenceId { request: RequestId(1), attempt: 0 };
    let mut steps = 0;
    while world.requests.contains_key(&oldest) {
        world.plan();
        world.done();
        steps += 1;
    }
    assert_eq!(steps, 20, "a token each step from the first on");
    assert!(world.scheduler.preemptions() > 0, "three such answers do not fit at once");
}

#[test]
fn a_request_that_never_fits_is_refused_at_once() {
    let bounds = Bounds {
        chunk_tokens: 8,
        sequences_max: 2,
        waiting_max: 2,
        block_size: 4,
        blocks: 3,
        end_tokens: Arc::from([]),
        answers: true,
    };
    let mut scheduler = Scheduler::new(bounds);
    assert!(scheduler.add(request(1, 10, 3), Duration::ZERO).is_err());
    assert!(scheduler.add(request(2, 9, 3), Duration::ZERO).is_ok());
}
