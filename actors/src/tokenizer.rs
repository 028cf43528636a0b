//! tokenizer: what a client wrote to token ids, bounded by what the model and the KV memory can hold. User text can
//! never form a control token; see [`crate::text`].

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut};

use crate::kv::HashChain;
use crate::message::{Cause, Failure, SequenceId, Tokenize};
use crate::prompt::{Encoding, encode, known};
use crate::request::{Prompt, Refusal, Request, Submit};
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
    /// The last prompt of a family and its ids.
    last: Option<(Arc<Prompt>, Arc<[u32]>)>,
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
        Self { tokenizer, template, reach, chain, lanes, last: None }
    }

    /// Ids of the prompt. Requests of a family come one after the other and share one prompt, which is encoded once.
    fn encode(&mut self, submit: &Submit) -> Result<Arc<[u32]>, Refusal> {
        if let Some((_, ids)) = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, &submit.prompt)) {
            return Ok(Arc::clone(ids));
        }
        let ids = encode(&self.tokenizer, self.template.as_deref(), &submit.prompt, Encoding::SERVED)?;
        if ids.is_empty() {
            return Err(invalid("the prompt has no tokens"));
        }
        let ids: Arc<[u32]> = ids.into();
        self.last = submit.family.map(|_| (Arc::clone(&submit.prompt), Arc::clone(&ids)));
        Ok(ids)
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

    fn request(&mut self, message: &Tokenize) -> Result<Request, Refusal> {
        let submit = &message.submit;
        TextStream::new(submit.stops.clone()).map_err(invalid)?;
        known(&self.tokenizer, "logit_bias", submit.sampling.bias.iter().map(|(id, _)| *id))?;
        known(&self.tokenizer, "stop_token_ids", submit.stop_tokens.iter().copied())?;
        let prompt = self.encode(submit)?;
        let tokens_max = self.answer_max(prompt.len(), submit.tokens_max)?;
        if submit.tokens_min > tokens_max {
            let why =
                format!("{} is more than the {tokens_max} tokens the answer may have", submit.tokens_min);
            return Err(Refusal::Field { field: "min_tokens", why });
        }
        let mut hashes = Vec::new();
        if let Some(chain) = &self.chain {
            chain.extend(&mut hashes, &prompt);
        }
        Ok(Request {
            id: submit.request,
            attempt: message.attempt,
            prompt,
            hashes: hashes.into(),
            sent: Arc::clone(&message.sent),
            family: submit.family,
            sampling: Arc::new(submit.sampling.clone()),
            tokens_max,
            tokens_min: submit.tokens_min,
            stops: submit.stops.clone().into(),
            stop_tokens: submit.stop_tokens.clone().into(),
            ignore_end: submit.ignore_end,
            logprobs: submit.logprobs,
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
