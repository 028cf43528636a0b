//! gateway: the door. It bounds how many requests are inside, keeps the deadline of each, and is the one place that
//! knows what a client has already got: tokens and text by position.
//!
//! That record is what makes a death invisible. When a group, or any other seat on the road, is lost, the gateway sends
//! the request down the same road again with the tokens that were delivered; repeats are dropped by position, and since
//! a token depends on the request alone, the answer goes on as if nothing had happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, Event, HoldOut, OfferOut, Time};

use crate::drain::Drain;
use crate::message::{Cancel, Cause, Failure, Found, GatewayMessage, Piece, SequenceId, Text, Tokenize};
use crate::outbox::{Outbox, RETRY, Tombstones};
use crate::request::{Outcome, Refusal, Reply, RequestId, Submit, Usage};

/// A request goes down the road at most this often.
const ATTEMPTS_MAX: u32 = 16;
/// Wait before the third attempt; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(20);

/// What the gateway holds to.
#[derive(Clone, Copy, Debug)]
pub struct GatewayBounds {
    /// Requests inside at once.
    pub requests_max: usize,
    /// The longest a request may stay, and how long it stays when it names nothing.
    pub patience: Duration,
}

/// Where the gateway speaks to.
#[derive(Clone)]
pub struct GatewayLanes {
    /// To the tokenizer.
    pub tokenize: OfferOut<Tokenize>,
    /// To the router.
    pub cancel: OfferOut<Cancel>,
    /// To the detokenizer.
    pub close: OfferOut<RequestId>,
    /// To the shell.
    pub replies: HoldOut<Reply>,
    /// The tokenizer's seat: what has begun to answer is past it.
    pub tokenizer: String,
}

/// One answer, as the client knows it.
struct Stream {
    submit: Arc<Submit>,
    attempt: u32,
    deadline: Time,
    prompt_tokens: u32,
    /// Found by the attempt that brought the first token; replayed by any.
    found: Found,
    /// Tokens delivered.
    tokens: Vec<u32>,
    /// Bytes of text delivered.
    bytes: usize,
    /// When the present attempt goes out; `None` once it has.
    again: Option<Time>,
}

/// See the module.
pub struct Gateway {
    bounds: GatewayBounds,
    tokenize: OfferOut<Tokenize>,
    cancels: Outbox<Cancel>,
    closes: Outbox<RequestId>,
    replies: HoldOut<Reply>,
    tokenizer: String,
    streams: BTreeMap<RequestId, Stream>,
    /// Every stream's deadline, and when waiting attempts go out.
    timers: BTreeSet<(Time, RequestId)>,
    /// How fast requests end.
    drain: Drain,
    /// How many have.
    ended: u64,
    /// Clients that went away while their request was on its way here: who goes away is heard first.
    gone: Tombstones,
}

impl Gateway {
    /// An empty house.
    pub fn new(bounds: GatewayBounds, lanes: GatewayLanes) -> Self {
        let GatewayLanes { tokenize, cancel, close, replies, tokenizer } = lanes;
        let (cancels, closes) = (Outbox::new(cancel), Outbox::new(close));
        let (streams, timers, gone) = (BTreeMap::new(), BTreeSet::new(), Tombstones::default());
        let (drain, ended) = (Drain::default(), 0);
        Self { bounds, tokenize, cancels, closes, replies, tokenizer, streams, timers, drain, ended, gone }
    }

    fn submit(&mut self, submit: Submit, ctx: &mut Ctx<'_>) {
        let request = submit.request;
        if self.streams.contains_key(&request) {
            return;
        }
        if self.gone.covers(SequenceId { request, attempt: 0 }) {
            let (outcome, usage) = (Outcome::Cancelled, Usage::default());
            return self.replies.send(Reply::End { request, outcome, usage });
        }
        self.drain.tell(ctx.now(), [self.ended, 0]);
        let patience = submit.patience.unwrap_or(self.bounds.patience).min(self.bounds.patience);
        let deadline = ctx.now() + patience;
        let submit = Arc::new(submit);
        let first = Tokenize { submit: Arc::clone(&submit), attempt: 0, sent: Arc::from([]), deadline };
        if self.streams.len() >= self.bounds.requests_max || self.tokenize.offer(first).is_err() {
            let retry_after = self.drain.predict(ctx.now(), [self.streams.len() as u64, 0]);
            let outcome = Outcome::Refused(Refusal::Overload { retry_after });
            return self.replies.send(Reply::End { request, outcome, usage: Usage::default() });
        }
        ctx.event(Event::Stage { request: request.0, stage: "submit", value: 0 });
        let (tokens, again) = (Vec::new(), None);
        let (prompt_tokens, found) = (0, Found::default());
        let stream = Stream { submit, attempt: 0, deadline, prompt_tokens, found, tokens, bytes: 0, again };
        self.streams.insert(request, stream);
        self.timers.insert((deadline, request));
    }

    fn text(&mut self, text: Text, ctx: &mut Ctx<'_>) {
        match text {
            Text::Observed(seen) => {
                let (request, position) = (seen.sequence.request, seen.position);
                if self.streams.contains_key(&request) {
                    self.replies.send(Reply::Logits { request, position, logits: seen.logits });
                }
            }
            Text::Gap(sequence) => self.lose(sequence, ctx),
            Text::Piece(piece) => self.piece(piece, ctx),
        }
    }

    fn piece(&mut self, mut piece: Piece, ctx: &mut Ctx<'_>) {
        let (sequence, finish) = (piece.sequence, piece.finish);
        let request = sequence.request;
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.prompt_tokens = piece.prompt_tokens;
        if stream.tokens.is_empty() {
            stream.found = piece.found;
        }
        stream.found.replayed = stream.found.replayed.max(piece.found.replayed);
        if !stream.news(&mut piece) {
            return self.lose(SequenceId { attempt: u32::MAX, ..sequence }, ctx);
        }
        let Piece { text, tokens, logprobs, .. } = piece;
        if !tokens.is_empty() || !text.is_empty() {
            self.replies.send(Reply::Text { request, text, tokens, logprobs });
        }
        if let Some(finish) = finish {
            self.call_off(request);
            self.end(request, Outcome::Finished(finish), ctx);
        }
    }

    fn failure(&mut self, failure: Failure, ctx: &mut Ctx<'_>) {
        let Failure { sequence, cause } = failure;
        let Some(stream) = self.streams.get_mut(&sequence.request) else { return };
        if stream.attempt != sequence.attempt {
            return;
        }
        match cause {
            Cause::Lost => self.lose(sequence, ctx),
            Cause::Refused(Refusal::Overload { .. }) if stream.attempt > 0 => self.lose(sequence, ctx),
            Cause::Failed(why) => self.end(sequence.request, Outcome::Failed(why), ctx),
            Cause::Refused(refusal) => self.end(sequence.request, Outcome::Refused(refusal), ctx),
        }
    }

    /// The attempt (or all up to it) brings nothing more: the next one takes over from what the client has.
    fn lose(&mut self, sequence: SequenceId, ctx: &mut Ctx<'_>) {
        let request = sequence.request;
        let Some(stream) = self.streams.get_mut(&request) else { return };
        if stream.attempt > sequence.attempt || stream.again.is_some() {
            return;
        }
        self.call_off(request);
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.attempt += 1;
        if stream.attempt > ATTEMPTS_MAX {
            let why = format!("the request was lost {ATTEMPTS_MAX} times on its way");
            return self.end(request, Outcome::Failed(why), ctx);
        }
        let wait =
            if stream.attempt < 2 { Duration::ZERO } else { BACK_OFF * (1 << (stream.attempt - 2).min(6)) };
        let at = ctx.now() + wait;
        stream.again = Some(at);
        self.timers.insert((at, request));
        ctx.event(Event::Stage { request: request.0, stage: "again", value: u64::from(stream.attempt) });
    }

    /// Sends a waiting attempt down the road; it waits on when the lane is full.
    fn resend(&mut self, request: RequestId, now: Time) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        let sent = stream.tokens.as_slice().into();
        let (submit, deadline) = (Arc::clone(&stream.submit), stream.deadline);
        let message = Tokenize { submit, attempt: stream.attempt, sent, deadline };
        let full = self.tokenize.offer(message).is_err();
        stream.again = full.then_some(now + RETRY);
        if full {
            self.timers.insert((now + RETRY, request));
        }
    }

    /// Nobody waits for the present attempt any more: the router may forget it, and its groups if they still compute it.
    fn call_off(&mut self, request: RequestId) {
        if let Some(stream) = self.streams.get(&request) {
            self.cancels.send(Cancel { sequence: SequenceId { request, attempt: stream.attempt } });
        }
    }

    /// The client went away: before its request came here, or while it is answered, or a moment after its end.
    fn leave(&mut self, request: RequestId, ctx: &mut Ctx<'_>) {
        if self.streams.contains_key(&request) {
            self.abandon(request, Outcome::Cancelled, ctx);
        } else {
            self.gone.add(Cancel { sequence: SequenceId { request, attempt: 0 } }, ctx.now());
        }
    }

    fn abandon(&mut self, request: RequestId, outcome: Outcome, ctx: &mut Ctx<'_>) {
        if self.streams.contains_key(&request) {
            self.call_off(request);
            self.closes.send(request);
            self.end(request, outcome, ctx);
        }
    }

    fn end(&mut self, request: RequestId, outcome: Outcome, ctx: &mut Ctx<'_>) {
        let Some(stream) = self.streams.remove(&request) else { return };
        self.timers.remove(&(stream.deadline, request));
        self.ended += 1;
        self.drain.tell(ctx.now(), [self.ended, 0]);
        if let Some(at) = stream.again {
            self.timers.remove(&(at, request));
        }
        let Stream { prompt_tokens, found, .. } = stream;
        let completion_tokens = stream.tokens.len() as u32;
        let Found { cached: cached_tokens, replayed: replayed_tokens } = found;
        let usage = Usage { prompt_tokens, cached_tokens, replayed_tokens, completion_tokens };
        ctx.event(Event::Stage {
            request: request.0,
            stage: "end",
            value: u64::from(usage.completion_tokens),
        });
        self.replies.send(Reply::End { request, outcome, usage });
    }

    fn due(&mut self, request: RequestId, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        let Some(stream) = self.streams.get(&request) else { return };
        if stream.deadline <= now {
            self.abandon(request, Outcome::Expired, ctx);
        } else if stream.again.is_some_and(|at| at <= now) {
            self.resend(request, now);
        }
    }
}

impl Stream {
    /// Leaves of a piece what is new to the client; false when something before it is missing.
    fn news(&mut self, piece: &mut Piece) -> bool {
        let known = self.tokens.len().checked_sub(piece.position as usize);
        let (Some(known), Some(seen)) = (known, self.bytes.checked_sub(piece.offset)) else { return false };
        let Some(text) = piece.text.get(seen.min(piece.text.len())..) else { return false };
        piece.text = text.to_owned();
        piece.tokens.drain(..known.min(piece.tokens.len()));
        piece.logprobs.drain(..known.min(piece.logprobs.len()));
        self.tokens.extend(&piece.tokens);
        self.bytes += piece.text.len();
        true
    }
}

impl Actor for Gateway {
    type Message = GatewayMessage;

    fn handle(&mut self, message: GatewayMessage, ctx: &mut Ctx<'_>) {
        match message {
            GatewayMessage::Submit(submit) => self.submit(submit, ctx),
            GatewayMessage::Abandon(request) => self.leave(request, ctx),
            GatewayMessage::Text(texts) => texts.into_iter().for_each(|text| self.text(text, ctx)),
            GatewayMessage::Failure(failure) => self.failure(failure, ctx),
        }
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(&(at, request)) = self.timers.first() {
            if at > ctx.now() {
                ctx.wake_at(at);
                break;
            }
            self.timers.pop_first();
            self.due(request, ctx);
        }
        let through = self.cancels.flush() & self.closes.flush();
        if !through {
            ctx.wake_at(ctx.now() + RETRY);
        }
    }

    /// Whatever died on the road took attempts along; nothing tells which, so every one begins again. Repeats are
    /// dropped by position, and old attempts are called off.
    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        let all = peer != self.tokenizer;
        // What has begun to answer is past the tokenizer, unless it was sent down the road again.
        let before = |stream: &Stream| stream.tokens.is_empty() || stream.attempt > 0;
        let hit = self.streams.iter().filter(|(_, stream)| all || before(stream));
        for request in hit.map(|(&request, _)| request).collect::<Vec<_>>() {
            self.lose(SequenceId { request, attempt: u32::MAX }, ctx);
        }
    }
}
