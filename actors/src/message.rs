//! Every message of every lane, on one page. Role files never import each other: they meet here.
//!
//! A message that asks is a verb (`Admit`, `Cancel`), one that tells is a noun (`Tokens`, `StepDone`).

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::Time;

use crate::balance::Report;
use crate::cost::Coefficients;
use crate::kv::{BlockHash, BlockId, LeaseId, SlotId};
use crate::request::{Finish, Keeping, Logprobs, PromptImage, Refusal, Request, RequestId, Sampling, Submit};
use crate::sample::Tally;
use crate::snapshot::{Beginning, Promise, Snapshot, SnapshotName};
use crate::store::{Payload, Told};

/// One attempt at one request inside a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// The request.
    pub request: RequestId,
    /// The attempt.
    pub attempt: u32,
}

impl Request {
    /// The sequence that computes this attempt.
    pub fn sequence(&self) -> SequenceId {
        SequenceId { request: self.id, attempt: self.attempt }
    }

    /// Tokens that it comes with: the prompt, and what was sent of the answer.
    pub fn tokens(&self) -> usize {
        self.prompt.len() + self.sent.len()
    }
}

// ---- gateway ------------------------------------------------------------------------------------------------------

/// Into the gateway.
pub enum GatewayMessage {
    /// shell → gateway (offer)
    Submit(Submit),
    /// shell → gateway (offer, urgent): the client is gone.
    Abandon(RequestId),
    /// detokenizer → gateway (hold)
    Text(Vec<Text>),
    /// tokenizer, router → gateway (hold)
    Failure(Failure),
}

/// A piece of an answer, or the news that one cannot be put together.
pub enum Text {
    /// Tokens in order and the text that they completed.
    Piece(Piece),
    /// Tokens are missing and too many came after them: the attempt is lost.
    Gap(SequenceId),
    /// Logits that the request asked for.
    Observed(Observed),
}

/// Tokens of an answer in order and the text that they completed.
pub struct Piece {
    /// Whose.
    pub sequence: SequenceId,
    /// Tokens of the prompt, for the usage.
    pub prompt_tokens: u32,
    /// What of them was found in KV memory.
    pub found: Found,
    /// Place of `tokens[0]` in the answer, counted from 0.
    pub position: u32,
    /// Ids of the answer.
    pub tokens: Vec<u32>,
    /// One a token, where they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// Byte offset of `text` in the answer's text.
    pub offset: usize,
    /// Whole characters.
    pub text: String,
    /// Set on the last piece.
    pub finish: Option<Finish>,
}

/// An attempt that will bring no more tokens.
pub struct Failure {
    /// Which attempt.
    pub sequence: SequenceId,
    /// Why.
    pub cause: Cause,
}

/// Why an attempt ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A group died, or a lane was full after the request had begun: another attempt may succeed.
    Lost,
    /// No other attempt would do better.
    Refused(Refusal),
    /// It broke for a reason of its own, in a sentence, and would again.
    Failed(String),
}

// ---- tokenizer ----------------------------------------------------------------------------------------------------

/// Into the tokenizer: gateway → tokenizer (offer).
pub struct Tokenize {
    /// As the client asked.
    pub submit: Arc<Submit>,
    /// 0 for the first time.
    pub attempt: u32,
    /// Tokens of the answer that the client already has.
    pub sent: Arc<[u32]>,
    /// The gateway's word on when to give up.
    pub deadline: Time,
}

// ---- router -------------------------------------------------------------------------------------------------------

/// Into the router.
pub enum RouterMessage {
    /// tokenizer → router (offer)
    Arrive(Arc<Request>),
    /// gateway → router (offer, urgent)
    Cancel(Cancel),
    /// encode → router (hold): every image of the request was looked at.
    Spans(Arc<Request>),
    /// encode, prefill, decode → router (hold)
    Ended(Vec<Ended>),
    /// prefill → router (latest), from the prefill group of that number
    PrefillLoad(Load, usize),
    /// decode → router (latest), from the decode group of that number
    DecodeLoad(Load, usize),
}

/// Forget this request, up to and including an attempt: the client has its answer, or wants none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The last attempt that is not wanted any more; earlier ones are not either.
    pub sequence: SequenceId,
}

/// A sequence has left a group, or an encode actor before it came to one.
pub struct Ended {
    /// Which.
    pub sequence: SequenceId,
    /// How.
    pub how: Departure,
}

/// What a group says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// What its steps take, once that is known.
    pub coefficients: Option<Coefficients>,
    /// What it holds.
    pub held: Report,
}

/// How a sequence left a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its last token is on the way.
    Finished,
    /// Its prompt is computed, and decode has its blocks; in a joined group it had them before.
    HandedOver,
    /// Cancelled or expired; nobody waits for it.
    Dropped,
    /// It cannot go on here.
    Failed(Cause),
}

// ---- encode -------------------------------------------------------------------------------------------------------

/// Into an encode actor.
pub enum EncodeMessage {
    /// router → encode (offer): make the embeddings of its images.
    Look(Arc<Request>),
    /// router → encode (offer, urgent)
    Cancel(Cancel),
}

// ---- prefill and decode -------------------------------------------------------------------------------------------

/// Into a prefill group.
pub enum PrefillMessage {
    /// router → prefill (offer)
    Admit(Admit),
    /// router → prefill (offer, urgent)
    Cancel(Cancel),
    /// decode → prefill (offer), with the number of the decode group
    Lease(LeaseMessage, usize),
    /// cache → prefill (reply)
    Cache(CacheAnswer),
    /// rank → prefill (reply)
    Done(StepDone),
}

/// Into a decode group.
pub enum DecodeMessage {
    /// router → decode (offer), joined groups only
    Admit(Admit),
    /// router → decode (offer, urgent)
    Cancel(Cancel),
    /// prefill → decode (offer)
    Handover(Handover),
    /// prefill → decode (reply)
    Blocks(Blocks),
    /// cache → decode (reply)
    Cache(CacheAnswer),
    /// rank → decode (reply)
    Done(StepDone),
}

/// Compute this request.
pub struct Admit {
    /// The request.
    pub request: Arc<Request>,
    /// Which decode group continues it, by number.
    pub decode: usize,
}

/// A computed prompt, offered to a decode group: it may read the leased blocks until the lease ends.
pub struct Handover {
    /// The request.
    pub request: Arc<Request>,
    /// Tokens of the answer so far (`request.sent` included); the last one is not computed yet.
    pub answer: Vec<u32>,
    /// How likely the last of them was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
    /// What of the prompt prefill found in its memory.
    pub found: Found,
    /// Windows of the state know positions from here on.
    pub valid_from: u32,
    /// Which prefill group leases, by number.
    pub prefill: usize,
    /// The right to read.
    pub lease: LeaseId,
    /// What is to be pulled: the blocks under the lease, which hold the prompt and all of `answer` but its last token,
    /// and then the state, where the model keeps one.
    pub pieces: u32,
    /// The lease ends here unless acknowledged.
    pub until: Time,
}

/// What decode says about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMessage {
    /// Send pieces `first..first + count` of the lease: its blocks in order, then the state.
    Pull {
        /// The lease.
        lease: LeaseId,
        /// First piece, counted in the lease.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Everything has been read, or is not wanted: the lease ends.
    Ack {
        /// The lease.
        lease: LeaseId,
    },
    /// No room now: keep it and offer again.
    Refuse {
        /// The lease.
        lease: LeaseId,
    },
}

/// Pieces of a lease, as bytes; `None` when the lease has ended.
pub struct Blocks {
    /// Which prefill group sends, by number.
    pub prefill: usize,
    /// The lease.
    pub lease: LeaseId,
    /// First piece, counted in the lease.
    pub first: u32,
    /// One entry a piece.
    pub data: Option<Vec<Payload>>,
}

// ---- cache ----------------------------------------------------------------------------------------------------------

/// Into the cache.
pub enum CacheMessage {
    /// prefill, decode → cache (offer), from the group of that number
    Ask(CacheAsk, usize),
    /// prefill, decode → cache (offer): what does not fit is not kept.
    Store(Vec<Kept>),
    /// prefill, decode → cache (offer): the same.
    Snapshot(Snapshot),
    /// disk → cache (reply)
    Told(Told),
}

/// What a group asks of the prefix store.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheAsk {
    /// How many of these blocks, a beginning, are there? What is there is made ready, and counts as used. Is there a
    /// snapshot to go on with?
    Seek(SequenceId, Vec<BlockHash>, Keeping, Option<Box<Beginning>>),
    /// The bytes of a snapshot that was promised.
    Bring(SequenceId, Arc<SnapshotName>),
    /// The bytes of these blocks of a sequence, which begin at the given place of its block table.
    Fetch(SequenceId, usize, Vec<BlockHash>),
    /// Nobody waits for this sequence's blocks any more.
    Forget(SequenceId),
    /// No question: these blocks, a beginning, were found in the memory of the group.
    Hit(SequenceId, Vec<BlockHash>, Keeping),
}

impl CacheAsk {
    /// Whose blocks are asked for.
    pub fn sequence(&self) -> SequenceId {
        match self {
            Self::Seek(sequence, ..) | Self::Bring(sequence, _) | Self::Fetch(sequence, ..) => *sequence,
            Self::Hit(sequence, ..) | Self::Forget(sequence) => *sequence,
        }
    }

    /// Whether it has an answer.
    pub fn is_question(&self) -> bool {
        matches!(self, Self::Seek(..) | Self::Bring(..) | Self::Fetch(..))
    }
}

/// cache → prefill, decode (reply): one for each `Seek`, each `Bring` and each `Fetch`.
pub enum CacheAnswer {
    /// The first so many blocks are there, and can be had in about this time; and a snapshot is.
    Sought(SequenceId, usize, Duration, Option<Promise>),
    /// What a snapshot holds; nothing where it is gone.
    Brought(SequenceId, Vec<Payload>),
    /// Blocks from the given place on; fewer than asked for, or none, where the store could not bring them.
    Fetched(SequenceId, usize, Vec<Payload>),
}

/// How a block is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockName {
    /// Its own.
    pub hash: BlockHash,
    /// That of the block before it; `None` for the first.
    pub parent: Option<BlockHash>,
    /// Blocks before it.
    pub depth: u32,
    /// Of the request that it was computed for.
    pub keeping: Keeping,
}

/// A block on its way to the prefix store.
pub struct Kept {
    /// Its name.
    pub name: BlockName,
    /// Its bytes.
    pub data: Payload,
}

// ---- rank ---------------------------------------------------------------------------------------------------------

/// Into a rank: prefill, decode → rank (hold). One forward pass, with the copies that go before and after it.
pub struct Step {
    /// Counted up by the group.
    pub number: u64,
    /// Written into KV memory before the rows run.
    pub imports: Vec<Import>,
    /// The sequences that take part.
    pub rows: Vec<StepRow>,
    /// Read from KV memory after the rows ran.
    pub exports: Vec<Export>,
}

/// What a rank holds of a sequence and can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A block.
    Block(BlockId),
    /// Its state.
    Slot(SlotId),
}

/// Bytes that came from another group, or the prefix store.
pub struct Import {
    /// Where to put them.
    pub place: Place,
    /// As [`Export`] made them.
    pub data: Payload,
}

/// Pieces that leave the group.
pub struct Export {
    /// Where they go.
    pub reader: Reader,
    /// Where they lie.
    pub places: Vec<Place>,
}

/// Who reads what leaves a group.
pub enum Reader {
    /// A decode group that pulled pieces of a lease.
    Decode {
        /// Which, by number.
        decode: usize,
        /// Under which lease.
        lease: LeaseId,
        /// First piece, counted in the lease.
        first: u32,
    },
    /// The prefix store: blocks of these names.
    Store(Vec<BlockName>),
    /// The prefix store: a snapshot of this name.
    Snapshot(SnapshotName),
}

/// One sequence's share of a step.
pub struct StepRow {
    /// Whose.
    pub sequence: SequenceId,
    /// Input tokens.
    pub tokens: Vec<u32>,
    /// Position of the first of them.
    pub start: u32,
    /// The block table up to the last input token.
    pub blocks: Vec<BlockId>,
    /// All images of the sequence, with their embeddings; the rank cuts out what the row needs.
    pub images: Arc<[PromptImage]>,
    /// What the sequence keeps beside it, where the model keeps something.
    pub state: Option<RowState>,
    /// Set when the last token's logits choose the next token.
    pub sample: Option<Sample>,
    /// Positions relative to `start` whose logits are wanted, ascending.
    pub observe: Vec<u32>,
    /// Set when the only token is the one that the step before chooses for this sequence; 0 stands in its place. If it is one
    /// of these, or there is none, the row is not run. The row chooses a token.
    pub follows: Option<Vec<u32>>,
}

/// The part of a row that only models with a state look at; `millstream_kernels::Local` says what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct RowState {
    /// Its slot.
    pub slot: SlotId,
    /// Windows know positions from here on.
    pub valid_from: u32,
    /// The blocks hold everything below this position, and none of it is written again.
    pub written: u32,
    /// Up to three tokens before the first.
    pub before: Vec<u32>,
    /// Where the layers begin that need only the newest tokens of a prompt.
    pub decoder_from: Option<u32>,
}

/// How to choose the next token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The request's choice.
    pub sampling: Arc<Sampling>,
    /// Place of the new token in the answer: the counter of the random numbers.
    pub position: u32,
    /// What the penalties count; empty where there are none.
    pub tally: Arc<Tally>,
    /// Tokens that may not be chosen.
    pub banned: Vec<u32>,
    /// Say how likely the token was, and name so many of the likeliest.
    pub logprobs: Option<u32>,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its id.
    pub id: u32,
    /// How likely it was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
}

/// What a step brought: rank → group (reply).
#[derive(Default)]
pub struct StepDone {
    /// The step's number.
    pub number: u64,
    /// So many times more it was run, each time with every row one token on and the same token chosen: a rank that computes
    /// says 0, one of the simulator may stand for many steps ([`crate::rank::predicted`]).
    pub again: u32,
    /// So many more of the same rows are in flight: the one that is being run, and one behind it. Whatever was in flight
    /// before is among those that were run, or these.
    pub goes_on: u32,
    /// How long the rank had done nothing when it began, since the end of the step before; `None` for its first one, and
    /// where nothing is computed.
    pub gap: Option<Duration>,
    /// One entry a row: the token chosen, where one was asked for, the row was run and the logits are numbers.
    pub tokens: Vec<Option<Chosen>>,
    /// Logits that were asked for.
    pub observed: Vec<Observed>,
    /// One entry an export, in order.
    pub exported: Vec<Exported>,
    /// Sequences with a logit that is not a number, or whose best is not finite: the weights are damaged, or overflow on
    /// this input.
    pub unsound: Vec<SequenceId>,
}

/// Bytes that leave the group.
pub struct Exported {
    /// Who reads them.
    pub reader: Reader,
    /// One entry a place.
    pub data: Vec<Payload>,
}

/// Logits at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Whose.
    pub sequence: SequenceId,
    /// Absolute position of the token they follow.
    pub position: u32,
    /// One a token of the vocabulary.
    pub logits: Vec<f32>,
}

// ---- detokenizer --------------------------------------------------------------------------------------------------

/// Into the detokenizer.
pub enum DetokenizerMessage {
    /// prefill, decode → detokenizer (hold): all tokens of a step at once.
    Tokens(Tokens),
    /// gateway → detokenizer (offer, urgent): nobody reads this request any more.
    Close(RequestId),
}

/// What a step brought for the clients.
#[derive(Default)]
pub struct Tokens {
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Logits that were asked for.
    pub observed: Vec<Observed>,
}

/// What of a sequence was found in KV memory when it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Tokens of the prompt that were not computed.
    pub cached: u32,
    /// Tokens that were found and computed once more, to fill the windows of the state.
    pub replayed: u32,
}

/// One new token of an answer, or a run of it.
pub struct Token {
    /// Whose.
    pub request: Arc<Request>,
    /// Place in the answer, counted from 0.
    pub position: u32,
    /// Its id.
    pub id: u32,
    /// It comes so many times more behind itself; 0 but for made-up tokens of the simulator.
    pub again: u32,
    /// How likely it was, where that was asked for.
    pub logprobs: Option<Arc<Logprobs>>,
    /// Set on the last one.
    pub finish: Option<Finish>,
    /// What of the prompt was found.
    pub found: Found,
}
