//! The tokens of one attempt as they grow, and how far they are computed.

use std::sync::Arc;

use crate::kv::{BlockHash, BlockId, HashChain, Owner, SlotId, blocks_for};
use crate::message::{Chosen, Found, Place, RowState, Sample, SequenceId, Token};
use crate::request::{Finish, Logprobs, Observe, Request};
use crate::sample::Tally;
use crate::sched::{Fetching, Promised, Stored};

/// Where a sequence stands in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Owns neither blocks nor a slot; its turn comes in order of arrival.
    Waiting,
    /// Owns blocks whose bytes are still on their way, from another group or the prefix store.
    Arriving,
    /// Takes part in steps.
    Running,
    /// Nobody wants it any more; steps in flight still touch its blocks.
    Doomed,
}

/// What a sequence keeps beside its blocks while it owns some, where the model keeps something.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Where it lies.
    pub slot: SlotId,
    /// Windows know positions from here on.
    pub valid_from: usize,
    /// Positions that were found: what the blocks hold of them is not written again.
    pub written: usize,
}

/// Tokens before a row that its arithmetic may look back on.
const BEFORE: usize = 3;

/// Tokens that an answer may have before the sequence's memory moves.
const GROWS: usize = 512;

/// One sequence. Written by the scheduler alone.
///
/// Invariants: `computed < tokens.len()` unless doomed; `blocks` hold at least `computed` positions while running; the
/// first `sealed` of them are full and are never written again. `computed` is below their end only while a state is
/// replayed.
#[derive(Debug)]
pub struct Sequence {
    /// What is asked.
    pub request: Arc<Request>,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// How many of `tokens` have their KV entries.
    pub computed: usize,
    /// Positions behind them that rows in flight compute.
    pub ahead: usize,
    /// Rows in flight that choose a token.
    choosing: usize,
    /// Whether answers grow where it is.
    pub grows: bool,
    /// Once it is doomed: the last step that touches it.
    pub doomed: u64,
    /// The block table.
    pub blocks: Vec<BlockId>,
    /// What it keeps beside them.
    pub state: Option<State>,
    /// How many of `blocks`, from the first, are sealed in the ledger.
    pub sealed: usize,
    /// How many of them the prefix store has, or was offered.
    pub kept: usize,
    /// What the prefix store has of it.
    pub stored: Stored,
    /// Set while it arrives from there.
    pub fetching: Option<Fetching>,
    /// A snapshot that it goes on with, or may when it begins.
    pub promised: Option<Promised>,
    /// Hashes of the full blocks of `tokens`, as far as they are made; none where blocks are not reused.
    pub hashes: Vec<BlockHash>,
    /// What was found of it.
    pub found: Found,
    /// Steps of its group before it came.
    pub since: u64,
    /// The most that `computed` ever was: what is found below was paid for.
    reached: usize,
    /// Where it stands.
    pub phase: Phase,
    /// What its penalties count, of all of `tokens`.
    pub tally: Arc<Tally>,
    /// How likely the last token was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
}

impl Sequence {
    /// Nothing computed yet; `answer` are the tokens that follow the prompt, `chain` names its blocks.
    pub fn new(request: Arc<Request>, answer: &[u32], chain: Option<&HashChain>) -> Self {
        let mut tokens =
            Vec::with_capacity(request.prompt.len() + answer.len() + GROWS.min(request.tokens_max as usize));
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(answer);
        let tally = Arc::new(Tally::new(&request.sampling, &request.prompt, answer));
        let mut hashes = Vec::new();
        if let Some(chain) = chain {
            hashes.extend_from_slice(&request.hashes);
            chain.salted(request.keeping.salt).extend_seeing(&mut hashes, &tokens, &request.images);
        }
        Self {
            request,
            tokens,
            computed: 0,
            ahead: 0,
            choosing: 0,
            grows: true,
            doomed: 0,
            blocks: Vec::new(),
            state: None,
            sealed: 0,
            kept: 0,
            stored: Stored::Unknown,
            fetching: None,
            promised: None,
            hashes,
            found: Found::default(),
            since: 0,
            reached: 0,
            phase: Phase::Waiting,
            tally,
            logprobs: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> SequenceId {
        self.request.sequence()
    }

    /// Something of it was computed, or found, before.
    pub fn has_begun(&self) -> bool {
        self.reached > 0
    }

    /// As the ledger knows it.
    pub fn owner(&self) -> Owner {
        Owner::Sequence(self.id())
    }

    /// Where its next row begins: behind what is computed, and what is in flight.
    pub fn next(&self) -> usize {
        self.computed + self.ahead
    }

    /// Tokens that wait for a step, with one that a row in flight chooses and that is not the last; at least 1 while the
    /// sequence lives and nothing of it is in flight.
    pub fn pending(&self) -> usize {
        let grows = self.grows && self.answer().len() + self.choosing < self.request.tokens_max as usize;
        let coming = if grows { self.choosing } else { self.choosing.saturating_sub(1) };
        (self.tokens.len() + coming).saturating_sub(self.next())
    }

    /// Tokens that have no entries yet, in flight or not.
    pub fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// A row of so many tokens is in flight.
    pub fn fly(&mut self, count: usize, chooses: bool) {
        self.ahead += count;
        self.choosing += usize::from(chooses);
    }

    /// The first of its rows in flight is done.
    pub fn land(&mut self, count: usize, chooses: bool) {
        self.ahead -= count;
        self.choosing -= usize::from(chooses);
    }

    /// Tokens, from the first, that need not be computed if they are found: those before the last one and before the
    /// first one whose logits are wanted.
    pub fn spared(&self) -> usize {
        self.observed_from().min(self.tokens.len() - 1)
    }

    /// Whole blocks of them.
    pub fn reusable(&self, block_size: u32) -> usize {
        self.spared() / block_size as usize
    }

    /// The first position whose logits are wanted.
    fn observed_from(&self) -> usize {
        match &self.request.observe {
            Observe::Nothing => usize::MAX,
            Observe::At(positions) => positions.first().map_or(usize::MAX, |&first| first as usize),
            Observe::All => 0,
        }
    }

    /// Where the layers begin that need only the newest `keep` tokens of a prompt; `None`: they see all of it. It
    /// follows from the request alone, so that it is the same on every path and attempt.
    pub fn decoder_from(&self, keep: Option<u32>) -> Option<u32> {
        let from = self.request.prompt.len().checked_sub(keep? as usize)?;
        (from > 0 && from <= self.observed_from()).then_some(from as u32)
    }

    /// The next `positions` were found.
    pub fn skip(&mut self, positions: usize) {
        let end = self.computed + positions;
        self.found.cached += end.min(self.request.prompt.len()).saturating_sub(self.reached) as u32;
        self.pass(positions);
    }

    /// The next `positions` were found, and are computed once more.
    pub fn replay(&mut self, positions: usize) {
        self.found.replayed += positions as u32;
    }

    /// The next `positions` have their entries.
    pub fn pass(&mut self, positions: usize) {
        self.computed += positions;
        self.reached = self.reached.max(self.computed);
    }

    /// Where the bytes of what is computed lie, in the order in which they travel: the blocks, then the state.
    pub fn places(&self, block_size: u32) -> impl Iterator<Item = Place> + '_ {
        let state = self.state.map(|state| Place::Slot(state.slot));
        let blocks = &self.blocks[..blocks_for(self.computed, block_size)];
        blocks.iter().map(|&block| Place::Block(block)).chain(state)
    }

    /// What a row that begins now says of the state.
    pub fn row_state(&self, keep: Option<u32>) -> Option<RowState> {
        let State { slot, valid_from, written } = self.state?;
        Some(RowState {
            slot,
            valid_from: valid_from as u32,
            written: written as u32,
            before: self.tokens[self.next().saturating_sub(BEFORE)..self.next()].to_vec(),
            decoder_from: self.decoder_from(keep),
        })
    }

    /// Tokens after the prompt.
    pub fn answer(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// Appends a sampled token, and `again` so many times, and says whether the answer ends with it.
    pub fn push(&mut self, chosen: &Chosen, again: u32, end_tokens: &[u32]) -> Token {
        let position = self.answer().len() as u32;
        let id = chosen.id;
        self.tokens.extend(std::iter::repeat_n(id, 1 + again as usize));
        let tally = Arc::make_mut(&mut self.tally);
        (0..=again).for_each(|_| tally.add(id));
        self.logprobs.clone_from(&chosen.logprobs);
        let request = &self.request;
        let finish = if self.ends(end_tokens).any(|end| end == id) {
            Some(Finish::Stop)
        } else if position + again + 1 >= request.tokens_max {
            Some(Finish::Length)
        } else {
            None
        };
        let (logprobs, found) = (chosen.logprobs.clone(), self.found);
        Token { request: Arc::clone(request), position, id, again, logprobs, finish, found }
    }

    /// How the next token is chosen that no row in flight does. No token that would end it may be, before it is as long as it must be.
    pub fn sample(&self, end_tokens: &[u32]) -> Sample {
        let (request, position) = (&self.request, (self.answer().len() + self.choosing) as u32);
        let early = position < request.tokens_min;
        Sample {
            sampling: Arc::clone(&request.sampling),
            position,
            tally: Arc::clone(&self.tally),
            banned: if early { self.ends(end_tokens).collect() } else { Vec::new() },
            logprobs: request.logprobs,
        }
    }

    /// Tokens that end it.
    pub fn ends<'a>(&'a self, end_tokens: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let own = if self.request.ignore_end { &[] } else { end_tokens };
        own.iter().chain(self.request.stop_tokens.iter()).copied()
    }
}
