//! The tokens of one attempt as they grow, and how far they are computed.

use std::sync::Arc;

use crate::kv::{BlockId, Owner};
use crate::message::{Chosen, Sample, SequenceId, Token};
use crate::request::{Finish, Logprobs, Request};
use crate::sample::Tally;

/// Where a sequence stands in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Owns no blocks; its turn comes in order of arrival.
    Waiting,
    /// Owns blocks whose bytes are still on their way from another group.
    Arriving,
    /// Takes part in steps.
    Running,
    /// Nobody wants it any more; a step in flight still touches its blocks.
    Doomed,
}

/// One sequence. Written by the scheduler alone.
///
/// Invariants: `computed < tokens.len()` unless doomed; `blocks` hold at least `computed` positions while running.
#[derive(Debug)]
pub struct Sequence {
    /// What is asked.
    pub request: Arc<Request>,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// How many of `tokens` have their KV entries.
    pub computed: usize,
    /// The block table.
    pub blocks: Vec<BlockId>,
    /// Where it stands.
    pub phase: Phase,
    /// What its penalties count, of all of `tokens`.
    pub tally: Arc<Tally>,
    /// How likely the last token was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
}

impl Sequence {
    /// Nothing computed yet; `answer` are the tokens that follow the prompt.
    pub fn new(request: Arc<Request>, answer: &[u32]) -> Self {
        let tokens = [&request.prompt, answer].concat();
        let tally = Arc::new(Tally::new(&request.sampling, &request.prompt, answer));
        let (blocks, phase) = (Vec::new(), Phase::Waiting);
        Self { request, tokens, computed: 0, blocks, phase, tally, logprobs: None }
    }

    /// Its name.
    pub fn id(&self) -> SequenceId {
        self.request.sequence()
    }

    /// As the ledger knows it.
    pub fn owner(&self) -> Owner {
        Owner::Sequence(self.id())
    }

    /// Tokens that wait for a step; at least 1 while the sequence lives.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens after the prompt.
    pub fn answer(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// Appends a sampled token and says whether it is the last.
    pub fn push(&mut self, chosen: &Chosen, end_tokens: &[u32]) -> Token {
        let position = self.answer().len() as u32;
        let id = chosen.id;
        self.tokens.push(id);
        Arc::make_mut(&mut self.tally).add(id);
        self.logprobs.clone_from(&chosen.logprobs);
        let request = &self.request;
        let finish = if self.ends(end_tokens).any(|end| end == id) {
            Some(Finish::Stop)
        } else if position + 1 >= request.tokens_max {
            Some(Finish::Length)
        } else {
            None
        };
        Token { request: Arc::clone(request), position, id, logprobs: chosen.logprobs.clone(), finish }
    }

    /// How its next token is chosen. No token that would end it may be, before it is as long as it must be.
    pub fn sample(&self, end_tokens: &[u32]) -> Sample {
        let (request, position) = (&self.request, self.answer().len() as u32);
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
    fn ends<'a>(&'a self, end_tokens: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let own = if self.request.ignore_end { &[] } else { end_tokens };
        own.iter().chain(self.request.stop_tokens.iter()).copied()
    }
}
