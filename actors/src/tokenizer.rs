//! tokenizer: what a client wrote to token ids, bounded by what the model and the KV memory can hold. User text can
//! never form a control token; see [`crate::text`].

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut};

use crate::kv::HashChain;
use crate::message::{Cause, Failure, SequenceId, Tokenize};
use crate::request::{Prompt, Refusal, Request};
use crate::text::{ChatTemplate, TextStream, Tokenizer};

/// What a request is told when the router's lane is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long prompt and answer may be.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Tokens of prompt and answer together: the model's context or the KV memory, whichever is less.
    pub tokens: u32,
    /// Tokens of an answer when the client names no bound.
    pub answer: u32,
}

/// Where the tokenizer speaks to.
#[derive(Clone)]
pub struct TokenizerLanes {
    /// To the router.
    pub prompts: OfferOut<Arc<Request>>,
    /// To the gateway.
    pub failures: HoldOut<Failure>,
}

/// See the module.
pub struct TokenizerActor {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    reach: Reach,
    /// Names the blocks of prompts, where some group reuses them.
    chain: Option<HashChain>,
    lanes: TokenizerLanes,
}

impl TokenizerActor {
    /// Encodes with `tokenizer`, renders chats with `template` (without one, chats are refused), names blocks with
    /// `chain`.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        reach: Reach,
        chain: Option<HashChain>,
        lanes: TokenizerLanes,
    ) -> Self {
        Self { tokenizer, template, reach, chain, lanes }
    }

    fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, Refusal> {
        let ids = match prompt {
            Prompt::Chat(messages) => {
                let template = self.template.as_ref();
                let template =
                    template.ok_or_else(|| invalid("this model has no chat template: send plain text"))?;
                let marked = template.render(messages, true).map_err(invalid)?;
                self.tokenizer.encode_marked(&marked)
            }
            Prompt::Text(text) => self.tokenizer.encode_prompt(text),
            Prompt::Tokens(ids) => ids.clone(),
        };
        let vocab = self.tokenizer.vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(invalid(format!("token {id} is not in the vocabulary of {vocab}")));
        }
        if ids.is_empty() { Err(invalid("the prompt has no tokens")) } else { Ok(ids) }
    }

    /// The longest answer that fits behind a prompt of `prompt` tokens. An answer that was asked for and does not fit
    /// is refused, not cut.
    fn answer_max(&self, prompt: usize, asked: Option<u32>) -> Result<u32, Refusal> {
        let limit = u64::from(self.reach.tokens);
        let tokens = prompt as u64 + u64::from(asked.unwrap_or(1));
        if tokens > limit {
            return Err(Refusal::TooLong { tokens, limit });
        }
        let room = (limit - prompt as u64) as u32;
        Ok(asked.unwrap_or_else(|| self.reach.answer.min(room)))
    }

    fn request(&self, message: &Tokenize) -> Result<Request, Refusal> {
        let submit = &message.submit;
        TextStream::new(submit.stops.clone()).map_err(invalid)?;
        let prompt = self.encode(&submit.prompt)?;
        let tokens_max = self.answer_max(prompt.len(), submit.tokens_max)?;
        let mut hashes = Vec::new();
        if let Some(chain) = &self.chain {
            chain.extend(&mut hashes, &prompt);
        }
        Ok(Request {
            id: submit.request,
            attempt: message.attempt,
            prompt: prompt.into(),
            hashes: hashes.into(),
            sent: Arc::clone(&message.sent),
            sampling: submit.sampling,
            tokens_max,
            stops: submit.stops.clone().into(),
            ignore_end: submit.ignore_end,
            deadline: message.deadline,
            observe: submit.observe.clone(),
        })
    }
}

fn invalid(why: impl ToString) -> Refusal {
    Refusal::Invalid(why.to_string())
}

impl Actor for TokenizerActor {
    type Message = Tokenize;

    fn handle(&mut self, message: Tokenize, ctx: &mut Ctx<'_>) {
        let sequence = SequenceId { request: message.submit.request, attempt: message.attempt };
        if ctx.now() >= message.deadline {
            return; // the gateway has given up on it
        }
        let sent = self.request(&message).and_then(|request| {
            let tokens = request.prompt.len() as u64;
            ctx.event(Event::Stage { request: sequence.request.0, stage: "tokenise", value: tokens });
            let full = Refusal::Overload { retry_after: RETRY_AFTER };
            self.lanes.prompts.offer(Arc::new(request)).map_err(|_| full)
        });
        if let Err(refusal) = sent {
            self.lanes.failures.send(Failure { sequence, cause: Cause::Refused(refusal) });
        }
    }
}
