//! What a client asked and how it ends. These types cross the rim: the shell fills a [`Submit`], the gateway answers
//! with [`Reply`]s. Everything between lives in [`crate::message`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::ImagePlan;
use millstream_runtime::Time;

use crate::kv::{BlockHash, Salt};
use crate::picture::Picture;
use crate::store::{ClassId, Tenant};

/// Names one request for the life of the running graph; the shell counts them up from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Who speaks in a chat message. Roles are a closed list, so that a role can never smuggle a control token into a prompt.
pub use crate::text::{ChatMessage, ChatRole, Content, Part};

mod sampling;

pub use sampling::{Logprobs, Sampling};

/// What the model reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, rendered by the model's chat template with the turn of the assistant opened.
    Chat(Vec<ChatMessage>),
    /// Plain text, in which control tokens are text like any other; the tokenizer puts the begin token before it where
    /// the family has one.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// So many tokens of no meaning, whose full blocks bear these names: what simulations of capacity ask, and no client can.
    Hollow {
        /// How many.
        tokens: u32,
        /// Of the full blocks, in order; those of the last ones may be missing.
        blocks: Arc<[BlockHash]>,
    },
}

/// Which logits the caller wants to see, by absolute position in prompt + answer. For tools, not for clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Observe {
    /// None of them.
    #[default]
    Nothing,
    /// At these positions, ascending.
    At(Vec<u32>),
    /// At every position.
    All,
}

impl Observe {
    /// Whether the logits after the token at `position` are wanted.
    pub fn wants(&self, position: u32) -> bool {
        match self {
            Self::Nothing => false,
            Self::At(positions) => positions.binary_search(&position).is_ok(),
            Self::All => true,
        }
    }
}

/// Whose the blocks of a request are, and how long they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// How long, from their last use.
    pub class: ClassId,
    /// Who may find them in a tier.
    pub tenant: Tenant,
    /// Part of their names.
    pub salt: Salt,
}

impl Keeping {
    /// Blocks of a tenant of the topology, of those alone who send this salt.
    pub fn of(class: ClassId, tenant: Option<&str>, salt: Option<&str>) -> Self {
        Self { class, tenant: Tenant::of(tenant, salt), salt: Salt::of(tenant, salt) }
    }
}

/// A request as the shell hands it to the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Submit {
    /// Chosen by the shell, never used twice.
    pub request: RequestId,
    /// What the model reads. Requests of one family share it, and it is encoded once.
    pub prompt: Arc<Prompt>,
    /// Requests that ask the same prompt at the same time carry the same number, that of any one of them, and are
    /// computed by the same group.
    pub family: Option<RequestId>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Longest answer in tokens; `None` takes the gateway's default, cut to what the model's context leaves.
    pub tokens_max: Option<u32>,
    /// No end token, stop token or stop string counts before the answer has so many tokens.
    pub tokens_min: u32,
    /// The answer ends before the first of these (none is empty).
    pub stops: Vec<String>,
    /// The answer ends with the first of these, which adds nothing to its text.
    pub stop_tokens: Vec<u32>,
    /// Go on past end tokens (not past `stop_tokens`).
    pub ignore_end: bool,
    /// Say how likely each token was, and name so many of the likeliest beside it.
    pub logprobs: Option<u32>,
    /// How long the client is ready to wait in all; `None` takes the gateway's default, which is also the most.
    pub patience: Option<Duration>,
    /// Logits to be shown.
    pub observe: Observe,
    /// Whose its blocks are, and how long they are kept.
    pub keeping: Keeping,
    /// Who waits comes in this order, the lowest number first; 0 is usual.
    pub priority: i32,
}

impl Submit {
    /// A request that wishes nothing but this. The number is still to be chosen.
    pub fn new(prompt: impl Into<Arc<Prompt>>, sampling: Sampling) -> Self {
        Self {
            request: RequestId(0),
            prompt: prompt.into(),
            family: None,
            sampling,
            tokens_max: None,
            tokens_min: 0,
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            logprobs: None,
            patience: None,
            observe: Observe::Nothing,
            keeping: Keeping::default(),
            priority: 0,
        }
    }
}

/// A request as the groups see it: tokenised, bounded, with an absolute deadline. `attempt` counts how often the gateway
/// sent it down the road; `sent` are the tokens of the answer that the client already has from earlier attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The client's request.
    pub id: RequestId,
    /// 0 for the first time down the road.
    pub attempt: u32,
    /// Token ids of the prompt, never empty.
    pub prompt: Arc<[u32]>,
    /// Images that some of the prompt's tokens stand for, ascending.
    pub images: Arc<[PromptImage]>,
    /// Hashes of the prompt's full blocks; none where no group reuses blocks.
    pub hashes: Arc<[BlockHash]>,
    /// Token ids of the answer that an earlier attempt delivered.
    pub sent: Arc<[u32]>,
    /// See [`Submit::family`].
    pub family: Option<RequestId>,
    /// How tokens are chosen.
    pub sampling: Arc<Sampling>,
    /// Longest answer in tokens, `sent` included; at least 1.
    pub tokens_max: u32,
    /// See [`Submit::tokens_min`]; at most `tokens_max`.
    pub tokens_min: u32,
    /// Stop strings, for the detokenizer.
    pub stops: Arc<[String]>,
    /// Tokens that end the answer beside the model's own.
    pub stop_tokens: Arc<[u32]>,
    /// Go on past end tokens.
    pub ignore_end: bool,
    /// See [`Submit::logprobs`].
    pub logprobs: Option<u32>,
    /// After this everyone forgets the request.
    pub deadline: Time,
    /// Logits to be shown.
    pub observe: Observe,
    /// See [`Submit::keeping`].
    pub keeping: Keeping,
    /// See [`Submit::priority`].
    pub priority: i32,
}

/// What an image is to the model: `[tokens, width]`, shared by all who need it.
pub type Embeddings = Arc<[f32]>;

/// An image of a prompt: where it stands, and what it is to the model once it was looked at.
#[derive(Clone, PartialEq)]
pub struct PromptImage {
    /// Position of its first token.
    pub first: u32,
    /// What becomes of it, and how many tokens that takes.
    pub plan: ImagePlan,
    /// The image.
    pub picture: Arc<Picture>,
    /// Set by the encode role. A sequence that is computed again needs them again, so they stay with the request.
    pub embeddings: Option<Embeddings>,
}

impl PromptImage {
    /// The position behind its last token.
    pub fn end(&self) -> usize {
        self.first as usize + self.plan.tokens
    }

    /// An image for tests that looks at none; `shade` tells it from others.
    #[cfg(test)]
    pub(crate) fn sample(first: u32, tokens: usize, shade: u8) -> Self {
        use crate::picture::{Detail, PictureBounds};

        let mut gif = b"GIF89a\x01\0\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0".to_vec();
        gif.push(shade);
        let bounds = PictureBounds { bytes: 100, pixels: 100 };
        let picture = Picture::read("x", gif, Detail::High, bounds).expect("a header").into();
        let plan = ImagePlan { width: 1, height: 1, tokens, grid: (1, tokens as u32) };
        Self { first, plan, picture, embeddings: None }
    }
}

impl fmt::Debug for PromptImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, plan, picture, embeddings } = self;
        write!(f, "PromptImage({first}, {plan:?}, {picture:?}, encoded: {})", embeddings.is_some())
    }
}

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token, a stop token or a stop string.
    Stop,
    /// `tokens_max` or the model's context is reached.
    Length,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A bound of the system is reached; come back after this long.
    Overload {
        /// When it is worth trying again.
        retry_after: Duration,
    },
    /// By prediction its prompt would not be computed before its deadline.
    Late {
        /// What that takes, with all that comes before it.
        needs: Duration,
        /// What is left until the deadline.
        left: Duration,
        /// When what waits now will be done.
        retry_after: Duration,
    },
    /// Prompt and answer do not fit the model or its KV memory.
    TooLong {
        /// Tokens asked for.
        tokens: u64,
        /// Tokens that fit.
        limit: u64,
    },
    /// The request itself is wrong, and how.
    Invalid(String),
    /// One of its images cannot be seen.
    Image {
        /// Where it stands in the request, as a path.
        place: String,
        /// A whole sentence without its full stop.
        why: String,
    },
    /// One of its settings does not fit this model or the other settings.
    Field {
        /// The setting, by its name in the HTTP interface.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer is complete.
    Finished(Finish),
    /// The client went away.
    Cancelled,
    /// The deadline passed.
    Expired,
    /// Never started.
    Refused(Refusal),
    /// A fault that could not be mended, in a sentence.
    Failed(String),
}

/// What a request cost, in tokens. The gateway is its only writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many of them were found in KV memory by the attempt that brought the first token.
    pub cached_tokens: u32,
    /// How many tokens were found and computed once more, to fill the windows of a state: the most that any attempt
    /// replayed. With a replay that is not exact, the answer depends on what was found where this is not 0.
    pub replayed_tokens: u32,
    /// Tokens of the answer, an end token included.
    pub completion_tokens: u32,
}

/// What the gateway tells the shell about one request, in order; `End` is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// More of the answer. `tokens` are the ids it came from (a piece may be empty while characters are incomplete).
    Text {
        /// Whose answer.
        request: RequestId,
        /// New text, whole characters.
        text: String,
        /// Ids of the tokens behind it.
        tokens: Vec<u32>,
        /// One a token, where they were asked for.
        logprobs: Vec<Logprobs>,
    },
    /// Logits that [`Observe`] asked for; they may come twice after a restart.
    Logits {
        /// Whose.
        request: RequestId,
        /// Absolute position of the token they follow.
        position: u32,
        /// One number a token of the vocabulary.
        logits: Vec<f32>,
    },
    /// The last word on a request.
    End {
        /// Whose.
        request: RequestId,
        /// How it ended.
        outcome: Outcome,
        /// What it cost.
        usage: Usage,
    },
}

impl Reply {
    /// The request it belongs to.
    pub fn request(&self) -> RequestId {
        match self {
            Self::Text { request, .. } | Self::Logits { request, .. } | Self::End { request, .. } => *request,
        }
    }
}
