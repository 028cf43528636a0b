//! A scheduler with a memory that remembers, and what must hold after everything that happens to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::kv::{BlockHash, BlockId, HashChain};
use millstream_actors::message::{Chosen, SequenceId, Step, StepDone};
use millstream_actors::request::{Finish, Observe, Request, RequestId, Sampling};
use millstream_actors::sched::{Bounds, Scheduler};
use millstream_actors::sequence::Phase;
use millstream_runtime::Time;

pub const END: u32 = 999;

pub fn bounds(reuse: bool, block_size: u32, blocks: usize) -> Bounds {
    Bounds {
        chunk_tokens: 16,
        sequences_max: 4,
        waiting_max: 4,
        block_size,
        blocks,
        end_tokens: Arc::from([END]),
        answers: true,
        reuse: reuse.then(|| HashChain::new(b"test", block_size)),
    }
}

/// Request `id` with this prompt.
pub fn request(id: u64, prompt: &[u32], tokens_max: u32) -> Arc<Request> {
    Arc::new(Request {
        id: RequestId(id),
        attempt: 0,
        prompt: prompt.into(),
        images: Arc::from([]),
        hashes: Arc::from([]),
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
pub fn chosen(history: &[u32]) -> u32 {
    let sum = history.iter().fold(7u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
    if sum.is_multiple_of(37) { END } else { sum % 900 }
}

/// What the sequence must become, computed alone.
fn alone(request: &Request, end_tokens: &[u32]) -> Vec<u32> {
    let mut tokens = request.prompt.to_vec();
    let mut answer: Vec<u32> = Vec::new();
    let ended = |answer: &[u32]| answer.last().is_some_and(|token| end_tokens.contains(token));
    while answer.len() < request.tokens_max as usize && !ended(&answer) {
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
        for import in &step.imports {
            for (place, token) in (0..).zip(import.data.chunks(4)) {
                let token = u32::from_le_bytes(token.try_into().expect("four bytes a token"));
                self.cells.insert((import.block, place), token);
            }
        }
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

/// Bytes of the blocks that are still on their way to an adopted sequence.
struct Arrival {
    id: SequenceId,
    next: usize,
    rest: Vec<Vec<u8>>,
}

pub struct World {
    pub scheduler: Scheduler,
    memory: Memory,
    bounds: Bounds,
    pub flight: Option<Step>,
    arriving: Vec<Arrival>,
    pub answers: BTreeMap<SequenceId, Vec<u32>>,
    /// What has not ended.
    pub requests: BTreeMap<SequenceId, Arc<Request>>,
    /// Tokens that were computed.
    pub computed: usize,
    /// What the last token of each said was found.
    pub cached: BTreeMap<RequestId, u32>,
    /// Everything that may be found, by the names of its blocks.
    known: Vec<(Vec<u32>, Vec<BlockHash>)>,
}

impl World {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            scheduler: Scheduler::new(bounds.clone()),
            memory: Memory { block_size: bounds.block_size, cells: BTreeMap::new() },
            bounds,
            flight: None,
            arriving: Vec::new(),
            answers: BTreeMap::new(),
            requests: BTreeMap::new(),
            computed: 0,
            cached: BTreeMap::new(),
            known: Vec::new(),
        }
    }

    pub fn add(&mut self, request: Arc<Request>) {
        if self.scheduler.add(Arc::clone(&request), Duration::from_secs(1)).is_ok() {
            self.learn(request);
        }
    }

    /// Another group has computed the prompt and the first token.
    pub fn adopt(&mut self, request: Arc<Request>) {
        let first = chosen(&request.prompt);
        if first == END || request.tokens_max < 2 {
            return;
        }
        let Some(next) = self.scheduler.adopt(&request, &[first], 0) else { return };
        let block = |tokens: &[u32]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let rest = request.prompt.chunks(self.bounds.block_size as usize).skip(next).map(block).collect();
        self.answers.insert(request.sequence(), vec![first]);
        self.arriving.push(Arrival { id: request.sequence(), next, rest });
        self.learn(request);
    }

    /// At most two blocks of the oldest arrival come in; with the last one it starts.
    pub fn arrive(&mut self) {
        let Some(arrival) = self.arriving.first_mut() else { return };
        let piece: Vec<Vec<u8>> = arrival.rest.drain(..arrival.rest.len().min(2)).collect();
        let count = piece.len();
        self.scheduler.import(arrival.id, arrival.next, piece);
        arrival.next += count;
        if arrival.rest.is_empty() {
            self.scheduler.start(self.arriving.remove(0).id);
        }
    }

    fn learn(&mut self, request: Arc<Request>) {
        let tokens = [request.prompt.to_vec(), alone(&request, &self.bounds.end_tokens)].concat();
        let mut hashes = Vec::new();
        if let Some(chain) = &self.bounds.reuse {
            chain.extend(&mut hashes, &tokens);
        }
        self.known.push((tokens, hashes));
        self.requests.insert(request.sequence(), request);
    }

    pub fn abort(&mut self, nth: usize) {
        let known: Vec<SequenceId> = self.scheduler.select(|_| true);
        if !known.is_empty() {
            let id = known[nth % known.len()];
            assert!(self.scheduler.abort(id));
            self.arriving.retain(|arrival| arrival.id != id);
            self.requests.remove(&id);
        }
    }

    pub fn plan(&mut self) {
        if self.flight.is_none()
            && let Some(step) = self.scheduler.plan()
        {
            let prompts = step.rows.iter().map(|row| row.tokens.len()).filter(|&n| n > 1);
            assert!(prompts.sum::<usize>() <= self.bounds.chunk_tokens, "the budget of a step");
            assert!(step.rows.len() <= self.bounds.sequences_max);
            self.flight = Some(step);
        }
    }

    pub fn done(&mut self) {
        let Some(step) = self.flight.take() else { return };
        self.computed += step.rows.iter().map(|row| row.tokens.len()).sum::<usize>();
        let mut done = self.memory.run(&step);
        for token in self.scheduler.apply(&mut done).tokens {
            let id = token.request.sequence();
            self.cached.insert(id.request, token.cached);
            let answer = self.answers.entry(id).or_default();
            assert_eq!(token.position as usize, answer.len(), "tokens come in order, none twice");
            answer.push(token.id);
            if let Some(finish) = token.finish {
                let end_tokens = &self.bounds.end_tokens;
                assert_eq!(answer, &alone(&self.requests[&id], end_tokens), "the answer it gives alone");
                assert_eq!(finish == Finish::Stop, end_tokens.contains(&token.id));
                self.requests.remove(&id);
            }
        }
    }

    /// Steps until nothing is left; false when it would take for ever.
    pub fn finish(&mut self) -> bool {
        for _ in 0..20_000 {
            self.arrive();
            self.plan();
            if self.flight.is_none() && self.arriving.is_empty() {
                break;
            }
            self.done();
        }
        self.flight.is_none() && self.requests.is_empty()
    }

    /// The ledger agrees with itself; a block that is found holds the tokens it is named for, and none is found without
    /// all before it.
    pub fn check(&self) {
        let pool = self.scheduler.pool();
        pool.audit();
        assert_eq!(pool.total(), self.bounds.blocks);
        assert!(self.scheduler.count(Phase::Waiting) <= self.bounds.waiting_max + self.bounds.sequences_max);
        for (tokens, hashes) in &self.known {
            let blocks: Vec<Option<BlockId>> = hashes.iter().map(|hash| pool.find(hash)).collect();
            assert!(blocks.is_sorted_by(|a, b| a.is_some() >= b.is_some()), "a hole: {blocks:?}");
            for (block, tokens) in blocks.iter().zip(tokens.chunks(self.bounds.block_size as usize)) {
                let Some(block) = block else { break };
                for (place, token) in (0..).zip(tokens) {
                    assert_eq!(self.memory.cells.get(&(*block, place)), Some(token), "{block:?}");
                }
            }
        }
    }
}
