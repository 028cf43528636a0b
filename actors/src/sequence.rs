//! The tokens of one attempt as they grow, and how far they are computed.

use std::sync::Arc;

use crate::kv::{BlockId, Owner};
use crate::message::{SequenceId, Token};
use crate::request::{Finish, Request};

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
}

impl Sequence {
    /// Nothing computed yet; `answer` are the tokens that follow the prompt.
    pub fn new(request: Arc<Request>, answer: &[u32]) -> Self {
        let tokens = [&request.prompt, answer].concat();
        Self { request, tokens, computed: 0, blocks: Vec::new(), phase: Phase::Waiting }
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
    pub fn push(&mut self, id: u32, end_tokens: &[u32]) -> Token {
        let position = self.answer().len() as u32;
        self.tokens.push(id);
        let request = &self.request;
        let finish = if end_tokens.contains(&id) && !request.ignore_end {
            Some(Finish::Stop)
        } else if position + 1 >= request.tokens_max {
            Some(Finish::Length)
        } else {
            None
        };
        Token { request: Arc::clone(request), position, id, finish }
    }
}
