//! tokenizer: what a client wrote to token ids, bounded by what the model and the KV memory can hold. User text can
//! never form a control token; see [`crate::text`].

use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::Model;
use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut};

use crate::kv::HashChain;
use crate::message::{Cause, Failure, SequenceId, Tokenize};
use crate::prompt::{Encoding, Eyes, Reader, known};
use crate::request::{Prompt, PromptImage, Refusal, Request, Submit};
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

/// What the tokenizer reads with.
#[derive(Clone)]
pub struct Reading {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders chats; without one they are refused.
    pub template: Option<Arc<ChatTemplate>>,
    /// Says how many tokens an image takes; without eyes images are refused.
    pub model: Arc<dyn Model>,
    /// Names the blocks of prompts, where some group reuses them.
    pub chain: Option<HashChain>,
}

/// A prompt that was read, shared by a family.
#[derive(Clone)]
struct Read {
    ids: Arc<[u32]>,
    images: Arc<[PromptImage]>,
}

/// See the module.
pub struct TokenizerActor {
    reading: Reading,
    reach: Reach,
    lanes: TokenizerLanes,
    /// The last prompt of a family and what it is to the model.
    last: Option<(Arc<Prompt>, Read)>,
}

impl TokenizerActor {
    /// Reads with `reading` what fits into `reach`.
    pub fn new(reading: Reading, reach: Reach, lanes: TokenizerLanes) -> Self {
        Self { reading, reach, lanes, last: None }
    }

    /// The prompt as the model reads it. Requests of a family come one after the other and share one prompt, which is
    /// encoded once.
    fn encode(&mut self, submit: &Submit) -> Result<Read, Refusal> {
        if let Some((_, read)) = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, &submit.prompt)) {
            return Ok(read.clone());
        }
        if let Prompt::Hollow { tokens, .. } = &*submit.prompt {
            let ids = std::iter::repeat_n(0, *tokens as usize).collect();
            return Ok(Read { ids, images: Arc::from([]) });
        }
        let Reading { tokenizer, template, model, .. } = &self.reading;
        let (template, eyes) = (template.as_deref(), Eyes::of(model.as_ref()));
        let reader = Reader { tokenizer, template, eyes, tokens_max: Some(self.reach.tokens) };
        let encoded = reader.encode(&submit.prompt, Encoding::SERVED)?;
        if encoded.ids.is_empty() {
            let field = if matches!(*submit.prompt, Prompt::Chat(_)) { "messages" } else { "prompt" };
            return Err(Refusal::Field { field, why: "has no tokens".to_owned() });
        }
        let read = Read { ids: encoded.ids.into(), images: encoded.images.into() };
        self.last = submit.family.map(|_| (Arc::clone(&submit.prompt), read.clone()));
        Ok(read)
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
        let tokenizer = &self.reading.tokenizer;
        known(tokenizer, "logit_bias", submit.sampling.bias.iter().map(|(id, _)| *id))?;
        known(tokenizer, "stop_token_ids", submit.stop_tokens.iter().copied())?;
        let Read { ids: prompt, images } = self.encode(submit)?;
        let tokens_max = self.answer_max(prompt.len(), submit.tokens_max)?;
        if submit.tokens_min > tokens_max {
            let why =
                format!("{} is more than the {tokens_max} tokens the answer may have", submit.tokens_min);
            return Err(Refusal::Field { field: "min_tokens", why });
        }
        let mut hashes = match &*submit.prompt {
            Prompt::Hollow { blocks, .. } if self.reading.chain.is_some() => blocks.to_vec(),
            _ => Vec::new(),
        };
        if let Some(chain) = &self.reading.chain {
            chain.salted(submit.keeping.salt).extend_seeing(&mut hashes, &prompt, &images);
        }
        Ok(Request {
            id: submit.request,
            attempt: message.attempt,
            prompt,
            images,
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
            keeping: submit.keeping,
            priority: submit.priority,
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
