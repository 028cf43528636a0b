//! detokenizer: tokens to text. It puts the tokens of an answer in order, drops those it has seen (a restarted group
//! sends some again), and cuts the answer at stop strings. The text never depends on how tokens were cut into messages.
//!
//! A stream that begins in the middle, because this seat or the group was restarted, is rebuilt from the tokens that the
//! client already has: text is a function of the tokens, so its byte offsets agree with what the gateway sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_runtime::{Actor, Ctx, HoldOut};

use crate::message::{Cancel, DetokenizerMessage, SequenceId, Text, Token, Tokens};
use crate::outbox::Tombstones;
use crate::request::{Finish, Request, RequestId};
use crate::text::{TextStream, Tokenizer};

/// Tokens that may wait for one before them.
const AHEAD_MAX: usize = 64;

/// One answer.
struct Stream {
    request: Arc<Request>,
    text: TextStream,
    /// Tokens put into `text`.
    tokens: u32,
    /// Bytes that came out of it.
    bytes: usize,
    /// Tokens of the prompt that were not computed, as the last token said.
    cached: u32,
    ahead: BTreeMap<u32, Token>,
}

impl Stream {
    fn open(request: &Arc<Request>, tokenizer: &Tokenizer) -> Self {
        let text = TextStream::new(request.stops.to_vec()).expect("the tokenizer refuses bad stop strings");
        let mut stream = Self {
            request: Arc::clone(request),
            text,
            tokens: 0,
            bytes: 0,
            cached: 0,
            ahead: BTreeMap::new(),
        };
        for &id in request.sent.iter() {
            stream.bytes += stream.text.push(tokenizer.bytes(id)).text.len();
            stream.tokens += 1;
        }
        stream
    }

    /// A later attempt: what it says was delivered is known, even where this stream never saw it.
    fn follow(&mut self, request: &Arc<Request>, tokenizer: &Tokenizer) {
        if request.sent.len() as u32 > self.tokens {
            let ahead = std::mem::take(&mut self.ahead);
            *self = Self::open(request, tokenizer);
            self.ahead = ahead.into_iter().filter(|(position, _)| *position >= self.tokens).collect();
        }
        self.request = Arc::clone(request);
    }

    /// Takes the tokens that are in order now; `None` when there are none.
    fn piece(&mut self, tokenizer: &Tokenizer) -> Option<Text> {
        let (position, offset) = (self.tokens, self.bytes);
        let (mut tokens, mut text) = (Vec::new(), String::new());
        let mut finish = None;
        while let (None, Some(token)) = (finish, self.ahead.remove(&self.tokens)) {
            self.tokens += 1;
            self.cached = token.cached;
            tokens.push(token.id);
            if token.finish != Some(Finish::Stop) {
                let piece = self.text.push(tokenizer.bytes(token.id));
                text.push_str(&piece.text);
                if piece.stopped {
                    finish = Some(Finish::Stop);
                    break;
                }
            }
            if token.finish.is_some() {
                text.push_str(&self.text.finish());
                finish = token.finish;
            }
        }
        self.bytes += text.len();
        let (sequence, prompt_tokens) = (self.request.sequence(), self.request.prompt.len() as u32);
        let cached_tokens = self.cached;
        let piece =
            Text::Piece { sequence, prompt_tokens, cached_tokens, position, tokens, offset, text, finish };
        (self.tokens > position).then_some(piece)
    }
}

/// See the module.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    texts: HoldOut<Vec<Text>>,
    gateway: String,
    streams: BTreeMap<RequestId, Stream>,
    over: Tombstones,
}

impl Detokenizer {
    /// Sends text to the seat `gateway` through `texts`.
    pub fn new(tokenizer: Arc<Tokenizer>, texts: HoldOut<Vec<Text>>, gateway: String) -> Self {
        Self { tokenizer, texts, gateway, streams: BTreeMap::new(), over: Tombstones::default() }
    }

    fn tokens(&mut self, tokens: Tokens, ctx: &mut Ctx<'_>) {
        let mut touched = Vec::new();
        for token in tokens.tokens {
            let request = token.request.id;
            if self.accept(token) && touched.last() != Some(&request) {
                touched.push(request);
            }
        }
        let mut texts: Vec<Text> = tokens.observed.into_iter().map(Text::Observed).collect();
        texts.extend(touched.into_iter().filter_map(|request| self.read(request, ctx)));
        if !texts.is_empty() {
            self.texts.send(texts);
        }
    }

    /// Files a token under its stream; false when it is not news.
    fn accept(&mut self, token: Token) -> bool {
        let sequence = token.request.sequence();
        if self.over.covers(sequence) {
            return false;
        }
        let tokenizer = &self.tokenizer;
        let stream =
            self.streams.entry(sequence.request).or_insert_with(|| Stream::open(&token.request, tokenizer));
        if stream.request.attempt < sequence.attempt {
            stream.follow(&token.request, tokenizer);
        }
        let news = token.position >= stream.tokens;
        if news {
            stream.ahead.insert(token.position, token);
        }
        news
    }

    fn read(&mut self, request: RequestId, ctx: &mut Ctx<'_>) -> Option<Text> {
        let stream = self.streams.get_mut(&request)?;
        let sequence = stream.request.sequence();
        let piece = stream.piece(&self.tokenizer);
        if stream.ahead.len() > AHEAD_MAX {
            self.streams.remove(&request);
            return Some(Text::Gap(sequence));
        }
        if matches!(&piece, Some(Text::Piece { finish: Some(_), .. })) {
            self.close(request, ctx);
        }
        piece
    }

    fn close(&mut self, request: RequestId, ctx: &mut Ctx<'_>) {
        self.streams.remove(&request);
        let sequence = SequenceId { request, attempt: u32::MAX };
        self.over.add(Cancel { sequence }, ctx.now());
    }
}

impl Actor for Detokenizer {
    type Message = DetokenizerMessage;

    fn handle(&mut self, message: DetokenizerMessage, ctx: &mut Ctx<'_>) {
        match message {
            DetokenizerMessage::Tokens(tokens) => self.tokens(tokens, ctx),
            DetokenizerMessage::Close(request) => self.close(request, ctx),
        }
    }

    /// The only seat that reads is gone, and its streams with it. (The groups' deaths do not matter here: what they sent
    /// is what the next life will send again.)
    fn lost(&mut self, peer: &str, _ctx: &mut Ctx<'_>) {
        if peer == self.gateway {
            self.streams.clear();
        }
    }

    /// Streams past their deadline have no reader.
    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now();
        self.streams.retain(|_, stream| stream.request.deadline > now);
        if let Some(deadline) = self.streams.values().map(|stream| stream.request.deadline).min() {
            ctx.wake_at(deadline);
        }
    }
}
