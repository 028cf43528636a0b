//! detokenizer: tokens to text. It puts the tokens of an answer in order, drops those it has seen (a restarted group
//! sends some again), and cuts the answer at stop strings. The text never depends on how tokens were cut into messages.
//!
//! A stream that begins in the middle, because this seat or the group was restarted, is rebuilt from the tokens that the
//! client already has: text is a function of the tokens, so its byte offsets agree with what the gateway sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_runtime::{Actor, Ctx, HoldOut, Time};

use crate::message::{Cancel, DetokenizerMessage, Found, Piece, SequenceId, Text, Token, Tokens};
use crate::outbox::Tombstones;
use crate::request::{Finish, Logprobs, Request, RequestId};
use crate::text::{self, TextStream, Tokenizer};

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
    /// What of the prompt was found, as the last token said.
    found: Found,
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
            found: Found::default(),
            ahead: BTreeMap::new(),
        };
        for &id in request.sent.iter() {
            stream.bytes += stream.push(id, tokenizer).text.len();
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

    /// Adds the text of the next token. Stop strings count only once the answer is as long as it must be.
    fn push(&mut self, id: u32, tokenizer: &Tokenizer) -> text::Piece {
        self.tokens += 1;
        let bytes = tokenizer.bytes(id);
        if self.tokens <= self.request.tokens_min { self.text.pass(bytes) } else { self.text.push(bytes) }
    }

    /// Takes the tokens that are in order now; `None` when there are none.
    fn piece(&mut self, tokenizer: &Tokenizer) -> Option<Piece> {
        let (sequence, prompt_tokens) = (self.request.sequence(), self.request.prompt.len() as u32);
        let mut piece = Piece {
            sequence,
            prompt_tokens,
            found: Found::default(),
            position: self.tokens,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            offset: self.bytes,
            text: String::new(),
            finish: None,
        };
        while let (None, Some(token)) = (piece.finish, self.ahead.remove(&self.tokens)) {
            self.take(token, &mut piece, tokenizer);
        }
        self.bytes += piece.text.len();
        piece.found = self.found;
        (!piece.tokens.is_empty()).then_some(piece)
    }

    fn take(&mut self, token: Token, piece: &mut Piece, tokenizer: &Tokenizer) {
        self.found = token.found;
        piece.tokens.extend(std::iter::repeat_n(token.id, 1 + token.again as usize));
        let end = token.finish == Some(Finish::Stop);
        if end {
            // It adds nothing to the text, and begins where that ends.
            piece.text.push_str(&self.text.finish());
            piece.finish = token.finish;
            self.tokens += 1;
        }
        if self.request.logprobs.is_some() {
            let start = self.bytes + piece.text.len() + self.text.held();
            let said = token.logprobs.map_or_else(Logprobs::default, Arc::unwrap_or_clone);
            piece.logprobs.push(Logprobs { start, ..said });
        }
        if !end && token.again > 0 && tokenizer.bytes(token.id).is_empty() {
            // Made up: nothing comes of it.
            self.tokens += 1 + token.again;
        } else if !end {
            let text::Piece { text, stopped } = self.push(token.id, tokenizer);
            piece.text.push_str(&text);
            piece.finish = stopped.then_some(Finish::Stop);
        }
        if let (None, Some(finish)) = (piece.finish, token.finish) {
            piece.text.push_str(&self.text.finish());
            piece.finish = Some(finish);
        }
    }
}

/// See the module.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    texts: HoldOut<Vec<Text>>,
    gateway: String,
    streams: BTreeMap<RequestId, Stream>,
    /// No stream has an earlier deadline.
    next: Option<Time>,
    over: Tombstones,
}

impl Detokenizer {
    /// Sends text to the seat `gateway` through `texts`.
    pub fn new(tokenizer: Arc<Tokenizer>, texts: HoldOut<Vec<Text>>, gateway: String) -> Self {
        Self { tokenizer, texts, gateway, streams: BTreeMap::new(), next: None, over: Tombstones::default() }
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
        let (tokenizer, deadline) = (&self.tokenizer, token.request.deadline);
        self.next = Some(self.next.map_or(deadline, |next| next.min(deadline)));
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
        if piece.as_ref().is_some_and(|piece| piece.finish.is_some()) {
            self.close(request, ctx);
        }
        piece.map(Text::Piece)
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
        if self.streams.is_empty() {
            self.next = None;
        } else if self.next.is_some_and(|next| next <= now) {
            self.streams.retain(|_, stream| stream.request.deadline > now);
            self.next = self.streams.values().map(|stream| stream.request.deadline).min();
        }
        if let Some(next) = self.next {
            ctx.wake_at(next);
        }
    }
}
