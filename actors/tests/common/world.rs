//! A scheduler with a memory that remembers, and what must hold after everything that happens to it. With a state, the
//! memory holds what the stand-in of `windows.rs` keeps.

mod asks;
mod bounds;
mod runs;
mod within;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::cache::Snapshots;
use millstream_actors::kv::{BlockHash, BlockId, SlotId};
use millstream_actors::message::{CacheAsk, Export, Exported, Found, Place, Reader, SequenceId, StepRow};
use millstream_actors::rank::follow::Follow;
use millstream_actors::request::{Observe, Request, RequestId};
use millstream_actors::sched::{Adopted, Bounds, Scheduler, StateBounds};
use millstream_actors::sequence::Phase;
use millstream_runtime::Time;

use crate::windows::{self, Alone, ENTRY, EXACT, Given, NUMBERS, Store, WINDOW};

pub use bounds::{bounds, request, with_snapshots, with_state};
use runs::Flown;

pub const END: u32 = 999;

/// The token a model would choose: a function of the tokens before it.
pub fn chosen(history: &[u32]) -> u32 {
    token_of(history.iter().fold(7u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token)))
}

fn token_of(word: u32) -> u32 {
    if word.is_multiple_of(37) { END } else { word % 900 }
}

/// Where the last layers of the stand-in begin.
fn decoder_from(request: &Request, state: StateBounds) -> Option<u32> {
    let from = request.prompt.len().checked_sub(state.keep? as usize)?;
    let unseen = match &request.observe {
        Observe::Nothing => true,
        Observe::At(positions) => positions.first().is_none_or(|&first| first as usize >= from),
        Observe::All => false,
    };
    (unseen && from > 0).then_some(from as u32)
}

/// What the sequence must become, computed alone: its tokens and, with a state, all that is kept of them.
fn alone(request: &Request, bounds: &Bounds) -> (Vec<u32>, Alone) {
    let mut tokens: Vec<u32> = Vec::new();
    let mut kept = Alone::default();
    let mut push = |tokens: &mut Vec<u32>, token: u32| {
        tokens.push(token);
        let Some(state) = bounds.state else { return chosen(tokens) };
        kept.push(token, decoder_from(request, state)).map_or(END, token_of)
    };
    let mut next = END;
    for &token in request.prompt.iter() {
        next = push(&mut tokens, token);
    }
    let mut answer: Vec<u32> = Vec::new();
    let ended = |answer: &[u32]| answer.last().is_some_and(|token| bounds.end_tokens.contains(token));
    while answer.len() < request.tokens_max as usize && !ended(&answer) {
        answer.push(next);
        next = push(&mut tokens, next);
    }
    (answer, kept)
}

/// KV memory that holds the token of every position, and with a state the entries and windows of the stand-in.
struct Memory {
    block_size: u32,
    cells: BTreeMap<(BlockId, u32), u32>,
    entries: BTreeMap<(BlockId, u32), [u32; ENTRY]>,
    windows: BTreeMap<(SlotId, u32), [u32; NUMBERS]>,
}

/// What one row sees of it.
struct View<'a> {
    memory: &'a mut Memory,
    row: &'a StepRow,
    slot: SlotId,
}

impl Memory {
    fn cell(&self, blocks: &[BlockId], position: u32) -> (BlockId, u32) {
        (blocks[(position / self.block_size) as usize], position % self.block_size)
    }

    fn import(&mut self, place: Place, data: &[u8]) {
        let numbers = data.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let numbers: Vec<u32> = numbers.collect();
        match place {
            Place::Block(block) => {
                for (at, token) in (0..).zip(numbers.chunks(1 + ENTRY)) {
                    self.cells.insert((block, at), token[0]);
                    self.entries.insert((block, at), [token[1], token[2]]);
                }
            }
            Place::Slot(slot) => {
                for (at, numbers) in (0..).zip(numbers.chunks(NUMBERS)) {
                    self.windows.insert((slot, at), numbers.try_into().expect("the numbers of a place"));
                }
            }
        }
    }

    /// Snapshots that the step takes.
    fn export(&self, export: &Export) -> Exported {
        let Reader::Snapshot(name) = &export.reader else { panic!("nothing else is kept") };
        let cell = |cell: (BlockId, u32)| {
            let token = self.cells.get(&cell).copied().unwrap_or_default();
            [&[token][..], &self.entries.get(&cell).copied().unwrap_or_default()].concat()
        };
        let numbers = |place: &Place| match *place {
            Place::Block(block) => (0..self.block_size).flat_map(|at| cell((block, at))).collect::<Vec<_>>(),
            Place::Slot(slot) => (0..WINDOW)
                .flat_map(|at| self.windows.get(&(slot, at)).copied().unwrap_or_default())
                .collect(),
        };
        let bytes = |place| numbers(place).into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>().into();
        Exported { reader: Reader::Snapshot(name.clone()), data: export.places.iter().map(bytes).collect() }
    }

    /// The token that a row chooses, if it chooses one.
    fn row(&mut self, row: &StepRow) -> Option<u32> {
        let written = row.state.as_ref().map_or(0, |state| state.written);
        for (position, &token) in (row.start..).zip(&row.tokens) {
            let cell = self.cell(&row.blocks, position);
            if position >= written {
                self.cells.insert(cell, token);
            }
            assert_eq!(self.cells.get(&cell), Some(&token), "what is not written was found");
        }
        let end = row.start + row.tokens.len() as u32;
        let history: Vec<u32> = (0..end).map(|p| self.cells[&self.cell(&row.blocks, p)]).collect();
        let word = match &row.state {
            None => Some(chosen(&history)),
            Some(state) => {
                let start = row.start as usize;
                assert_eq!(
                    state.before,
                    history[start.saturating_sub(3)..start],
                    "the tokens before the row"
                );
                let (tokens, start, before) = (row.tokens.as_slice(), row.start, state.before.as_slice());
                let (valid_from, decoder_from) = (state.valid_from, state.decoder_from);
                let given = Given { tokens, start, valid_from, written, before, decoder_from };
                let words = windows::compute(&mut View { memory: self, row, slot: state.slot }, &given);
                words.last().copied().flatten().map(token_of)
            }
        };
        row.sample.as_ref().map(|_| word.expect("a row that chooses ends where all layers run"))
    }
}

impl Store for View<'_> {
    fn window(&self, place: u32) -> [u32; NUMBERS] {
        self.memory.windows.get(&(self.slot, place)).copied().unwrap_or_default()
    }

    fn put_window(&mut self, place: u32, numbers: [u32; NUMBERS]) {
        self.memory.windows.insert((self.slot, place), numbers);
    }

    fn entry(&self, position: u32) -> [u32; ENTRY] {
        self.memory.entries[&self.memory.cell(&self.row.blocks, position)]
    }

    fn put_entry(&mut self, position: u32, numbers: [u32; ENTRY]) {
        let cell = self.memory.cell(&self.row.blocks, position);
        self.memory.entries.insert(cell, numbers);
    }
}

/// Bytes of the blocks that are still on their way to an adopted sequence.
struct Arrival {
    id: SequenceId,
    next: usize,
    rest: Vec<Vec<u8>>,
}

/// A sequence as it is alone, by the names of its blocks.
struct Known {
    tokens: Vec<u32>,
    hashes: Vec<BlockHash>,
    entries: Vec<[u32; ENTRY]>,
}

pub struct World {
    pub scheduler: Scheduler,
    memory: Memory,
    bounds: Bounds,
    flights: VecDeque<Flown>,
    follow: Follow,
    /// The next step that runs finds a logit that is not a number.
    spoilt: bool,
    arriving: Vec<Arrival>,
    pub answers: BTreeMap<SequenceId, Vec<u32>>,
    /// What has not ended.
    pub requests: BTreeMap<SequenceId, Arc<Request>>,
    /// Tokens that were computed.
    pub computed: usize,
    /// What the last token of each said was found.
    pub found: BTreeMap<RequestId, Found>,
    /// Everything that may be found.
    known: Vec<Known>,
    /// Steps that were planned, or could have been: its clock.
    pub now: u64,
    /// Snapshots, and what is asked of them.
    pub shelf: Snapshots,
    asks: Vec<CacheAsk>,
}

impl World {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            scheduler: Scheduler::new(bounds.clone()),
            memory: Memory {
                block_size: bounds.block_size,
                cells: BTreeMap::new(),
                entries: BTreeMap::new(),
                windows: BTreeMap::new(),
            },
            bounds,
            flights: VecDeque::new(),
            follow: Follow::default(),
            spoilt: false,
            arriving: Vec::new(),
            answers: BTreeMap::new(),
            requests: BTreeMap::new(),
            computed: 0,
            found: BTreeMap::new(),
            known: Vec::new(),
            now: 0,
            shelf: Snapshots::new(4_000),
            asks: Vec::new(),
        }
    }

    pub fn add(&mut self, request: Arc<Request>) {
        if self.scheduler.add(Arc::clone(&request), Duration::from_secs(1)).is_ok() {
            self.answers.insert(request.sequence(), request.sent.to_vec());
            self.learn(request);
        }
    }

    /// Another group has computed the prompt and the first token.
    pub fn adopt(&mut self, request: Arc<Request>) {
        let one = Request { tokens_max: 1, ..(*request).clone() };
        let (answer, there) = alone(&one, &Bounds { answers: true, ..self.bounds.clone() });
        if answer == [END] || request.tokens_max < 2 {
            return;
        }
        let (size, length) = (self.bounds.block_size as usize, request.prompt.len());
        // There too, a beginning may have been found, and as much of it replayed as it takes.
        let valid_from = (length - 1).saturating_sub(EXACT as usize) as u32;
        let before = Adopted { found: Found::default(), valid_from };
        let Some(next) = self.scheduler.adopt(&request, &answer, before) else { return };
        let entry = |position: usize| there.entries.get(position).copied().unwrap_or_default();
        let token = |position: usize| [&[request.prompt[position]][..], &entry(position)].concat();
        let bytes = |numbers: Vec<u32>| numbers.into_iter().flat_map(u32::to_le_bytes).collect();
        let block = |first: usize| bytes((first..length.min(first + size)).flat_map(token).collect());
        let mut rest: Vec<Vec<u8>> = (0..length).step_by(size).skip(next).map(block).collect();
        rest.extend(self.bounds.state.map(|_| bytes(windows_after(&there, length))));
        self.answers.insert(request.sequence(), answer);
        self.arriving.push(Arrival { id: request.sequence(), next, rest });
        self.learn(request);
    }

    /// At most two pieces of the oldest arrival come in; with the last one it starts.
    pub fn arrive(&mut self) {
        let Some(arrival) = self.arriving.first_mut() else { return };
        let piece: Vec<Vec<u8>> = arrival.rest.drain(..arrival.rest.len().min(2)).collect();
        let count = piece.len();
        self.scheduler.import(arrival.id, arrival.next, piece.into_iter().map(Into::into).collect());
        arrival.next += count;
        if arrival.rest.is_empty() {
            self.scheduler.start(self.arriving.remove(0).id);
        }
    }

    fn learn(&mut self, request: Arc<Request>) {
        let (answer, kept) = alone(&request, &self.bounds);
        let tokens = [request.prompt.to_vec(), answer].concat();
        let mut hashes = Vec::new();
        if let Some(chain) = &self.bounds.reuse {
            chain.extend(&mut hashes, &tokens);
        }
        self.known.push(Known { tokens, hashes, entries: kept.entries });
        self.requests.insert(request.sequence(), request);
    }

    /// Whether an answer is the one that is given alone, whatever was found.
    fn exact(&self) -> bool {
        self.bounds.state.is_none_or(|state| state.replay >= EXACT as usize)
    }

    pub fn abort(&mut self, nth: usize) {
        let known: Vec<SequenceId> = self.scheduler.select(|_| true);
        if !known.is_empty() {
            self.forget(known[nth % known.len()]);
        }
    }

    /// What is past its deadline goes, as a group has it.
    fn expire(&mut self) {
        let now = Time::from_nanos(self.now);
        for id in self.scheduler.select(|request| request.deadline <= now) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: SequenceId) {
        assert!(self.scheduler.abort(id));
        self.arriving.retain(|arrival| arrival.id != id);
        self.asks.retain(|ask| ask.sequence() != id);
        self.requests.remove(&id);
    }

    /// Steps until nothing is left; false when it would take for ever.
    pub fn finish(&mut self) -> bool {
        for _ in 0..20_000 {
            self.arrive();
            self.plan(); // whoever begins may ask for what it is to arrive with
            self.ask();
            let asked = !self.asks.is_empty();
            self.answer();
            self.plan();
            if self.flights.is_empty() && self.arriving.is_empty() && !asked {
                break;
            }
            self.done();
        }
        self.flights.is_empty() && self.requests.is_empty()
    }

    /// The ledger agrees with itself; a block that is found holds the tokens it is named for, and none is found without
    /// all before it.
    pub fn check(&self) {
        let pool = self.scheduler.pool();
        pool.audit();
        assert_eq!(pool.total(), self.bounds.blocks);
        let waiting = self.scheduler.waiting();
        assert!(self.scheduler.count(Phase::Waiting) <= self.bounds.waiting_max + self.bounds.sequences_max);
        assert_eq!(waiting.sequences as usize, self.scheduler.count(Phase::Waiting));
        let owning = self.scheduler.count(Phase::Running) + self.scheduler.count(Phase::Arriving);
        let slots = self.bounds.state.map_or(0, |_| owning + self.scheduler.count(Phase::Doomed));
        let slots = if self.bounds.store.is_some() { pool.state.total() } else { slots };
        assert!(pool.state.used() <= slots && pool.state.used() >= owning.min(slots), "{:?}", pool.state);
        for Known { tokens, hashes, entries } in &self.known {
            let blocks: Vec<Option<BlockId>> = hashes.iter().map(|hash| pool.find(hash)).collect();
            assert!(blocks.is_sorted_by(|a, b| a.is_some() >= b.is_some()), "a hole: {blocks:?}");
            for (position, token) in tokens.iter().enumerate() {
                let (n, at) =
                    (position / self.bounds.block_size as usize, position as u32 % self.bounds.block_size);
                let Some(block) = blocks.get(n).copied().flatten() else { break };
                assert_eq!(self.memory.cells.get(&(block, at)), Some(token), "{block:?}");
                if self.bounds.state.is_some() && self.exact() {
                    assert_eq!(self.memory.entries.get(&(block, at)), entries.get(position), "{block:?}");
                }
            }
        }
    }
}

/// The bytes of the state after `length` tokens; what came after them is not in it.
fn windows_after(there: &Alone, length: usize) -> Vec<u32> {
    let numbers = |place: u32| {
        there.window(place).map(|number| number * u32::from(there.window(place)[0] <= length as u32))
    };
    (0..WINDOW).flat_map(numbers).collect()
}
