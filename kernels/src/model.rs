//! What a model is to the rest of the system: something that computes steps. The families are behind one trait, so that
//! a rank never knows which one it runs.

mod decoder;
mod deepseek;
mod deepseek_v41;
mod draft;
mod gemma3;
mod gpt_oss;
mod latent;
mod llama;
mod load;
mod parts;
mod pass;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_vl;
mod rings;
mod route;
mod scratch;
mod source;
mod survey;
mod text;
mod vision;

pub use draft::{Choose, DraftRow, Drafter, Drafts};
pub(crate) use load::work_of_config;
pub use load::{Activations, Loaded, load, load_beside, load_with};
pub use scratch::Scratch;
pub use survey::{Survey, outline, survey};
pub use text::{GgufTokenizer, TextFiles};
pub use vision::{ImagePlan, Pixels, Vision};

use crate::backend::Backend;
use crate::error::Error;
use crate::kv::{AHEAD, KvFormat, KvLayout, KvMemory, Rings};
use crate::work::WorkFacts;

/// A loaded model. Weights are shared and never change; all that a step changes is in its arguments.
pub trait Model: Send + Sync {
    /// What is known of the model without running it.
    fn facts(&self) -> &Facts;

    /// How the model sees, where it has eyes.
    fn vision(&self) -> Option<&dyn Vision> {
        None
    }

    /// How the model guesses further tokens, where it does.
    fn drafter(&self) -> Option<&dyn Drafter> {
        None
    }

    /// Computes one step: the tokens of every row are embedded, their keys and values written to `kv`, and the logits
    /// that the rows want left in `scratch` ([`Scratch::logits`]), rows in order.
    ///
    /// A row's values do not depend on the other rows nor on how its tokens were cut into steps, to the last bit.
    ///
    /// # Errors
    /// [`Error::Step`] or [`Error::KvLayout`] if the step does not fit the model or the memory; nothing is written then.
    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        backend: &mut dyn Backend,
    ) -> Result<(), Error>;
}

/// What is known of a model from its files.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name of the family: `llama`, `qwen3_moe`.
    pub family: &'static str,
    /// Number of token ids; the length of a row of logits.
    pub vocab: usize,
    /// Positions the model was made for: a sequence may have so many tokens.
    pub context: u32,
    /// Layers; each keeps keys and values, unless they are compressed.
    pub layers: usize,
    /// Heads of keys and values per layer.
    pub kv_heads: usize,
    /// Values per head of a key.
    pub key_dim: usize,
    /// Values per head of a value.
    pub value_dim: usize,
    /// Values that a token is between layers; the embedding table is `[vocab, hidden]`.
    pub hidden: usize,
    /// Weights, as numbers; shared ones count once.
    pub parameters: u64,
    /// Bytes those take as stored.
    pub bytes: u64,
    /// The part of `bytes` that is the embedding table.
    pub embedding_bytes: u64,
    /// The embedding table is the output matrix too.
    pub tied: bool,
    /// The part of the weights that is experts.
    pub experts: ExpertFacts,
    /// Tokens that end an answer (end of text, end of turn), ascending.
    pub eos: Vec<u32>,
    /// Token that starts every text, if the files name one.
    pub bos: Option<u32>,
    /// What a sequence keeps beside its blocks whatever the layout; `None`: nothing. [`Facts::state_in`] knows rings too.
    pub state: Option<StateFacts>,
    /// Token that stands for one row of an image in the ids; `None`: the model has no eyes.
    pub image_token: Option<u32>,
    /// What blocks and slots hold where keys and values are compressed and shared by layers; `None`: each layer keeps keys
    /// and values of every token in blocks.
    pub compressed: Option<CompressedFacts>,
    /// Layers that see a window, beside layers that see everything: they may keep it in a ring of the state instead of in
    /// blocks ([`KvLayout::with_rings`]).
    pub rings: Rings,
    /// What a row of a step asks of the arithmetic.
    pub work: WorkFacts,
}

/// What a model keeps whose layers share few sources of compressed keys. A source has one head; an entry's value is its
/// key too (`value_dim` numbers), and its own key (`key_dim`) is what the indexer compares with.
///
/// Blocks take `(key_dim + value_dim) * (sources - paired / 2)` numbers a token, besides what rounding to whole vectors adds.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct CompressedFacts {
    /// Sources of keys, in the order of their layers.
    pub sources: usize,
    /// So many of them, the first ones, keep an entry for each two tokens.
    pub paired: usize,
    /// Numbers of a state slot: a window for each layer, and what pairs are made of.
    pub state: usize,
}

/// What a sequence keeps beside its blocks, in a state slot: windows of the newest tokens, remainders of compression.
///
/// A slot knows positions from [`Local::valid_from`] on, so a sequence that begins behind found blocks computes some
/// tokens before their end once more (a *replay*): they fill the windows, and write no block.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct StateFacts {
    /// Tokens a window holds, the newest included: the length of a bounded replay.
    pub window: u32,
    /// Replayed tokens after which everything is as if nothing had been found.
    pub exact_replay: u32,
    /// Where the layers behind the last source of keys need only the newest tokens of a prompt: how many of them
    /// ([`Local::decoder_from`]).
    pub decoder_keep: Option<u32>,
    /// So many of the newest positions may be computed once more, or others in their place: a state holds still what that
    /// takes.
    pub rewind: u32,
}

/// Experts of all layers, of which each token is computed by a few; all zero where a model has none.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ExpertFacts {
    /// Weights, as numbers.
    pub parameters: u64,
    /// Bytes those take as stored.
    pub bytes: u64,
    /// Experts of a layer.
    pub count: usize,
    /// Those that compute a token.
    pub per_token: usize,
}

impl Facts {
    /// Layout of KV memory that fits the model, with blocks of `block_size` tokens, numbers as they are and windows in
    /// blocks; any other format fits too, and so does the layout with its rings.
    pub fn kv_layout(&self, block_size: usize) -> KvLayout {
        let Facts { layers, kv_heads, key_dim, value_dim, .. } = *self;
        let whole = CompressedFacts { sources: layers, paired: 0, state: 0 };
        let CompressedFacts { sources: layers, paired, state } = self.compressed.unwrap_or(whole);
        let (format, rings) = (KvFormat::F32, Rings::NONE);
        KvLayout { layers, kv_heads, key_dim, value_dim, block_size, format, state, paired, rings }
    }

    /// What a sequence keeps beside its blocks in memory of this layout; `None`: nothing.
    pub fn state_in(&self, layout: &KvLayout) -> Option<StateFacts> {
        let Rings { layers, window } = layout.rings;
        let rings = || StateFacts {
            window: window as u32,
            // Each of these layers is as it was so many positions behind the one before.
            exact_replay: (layers * (window - 1)) as u32,
            decoder_keep: None,
            rewind: AHEAD as u32,
        };
        self.state.or_else(|| (layers > 0).then(rings))
    }
}

/// One sequence's share of a step.
#[derive(Copy, Clone, Debug, Default)]
pub struct Row<'a> {
    /// Its next tokens.
    pub tokens: &'a [u32],
    /// Position of the first of them; keys and values of all positions before it are in the blocks.
    pub start: u32,
    /// Its block table: position `p` lies in block `blocks[p / block_size]`.
    pub blocks: &'a [u32],
    /// For which tokens the logits are wanted.
    pub logits: Want<'a>,
    /// What the sequence keeps beside its blocks; the default for models that keep nothing.
    pub local: Local<'a>,
    /// Embeddings that stand in for some of the tokens, ascending.
    pub spans: &'a [Span<'a>],
    /// Positions that heads turn by, one a token: time, row, column, as [`Vision::turns`] counts them; empty: the
    /// tokens' own positions.
    pub turns: &'a [[u32; 3]],
}

/// The part of a row that only models with a state look at.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Local<'a> {
    /// Its state slot.
    pub slot: u32,
    /// Windows know positions from here on; what lies before is not seen in them.
    pub valid_from: u32,
    /// The blocks hold everything of the positions below this one; none of it is written again.
    pub written: u32,
    /// Up to three tokens before the first, in their order; fewer only at the start of the sequence.
    pub before: &'a [u32],
    /// Layers behind the last source of keys run on positions from here on only, and see none before in their windows;
    /// `None`: on all. A row that gives logits ends behind it.
    pub decoder_from: Option<u32>,
}

/// Embeddings of consecutive tokens of a row, in the place of those that the ids have: a piece of an image.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Span<'a> {
    /// Its first token, relative to the row's.
    pub first: u32,
    /// `[tokens, width]`, as [`Vision::encode`] gives them.
    pub embeddings: &'a [f32],
    /// Values of a token: `hidden`, or more where an image also enters deeper layers.
    pub width: usize,
}

/// Which tokens of a row give logits. Only these pass the last norm and the output matrix.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Want<'a> {
    /// None: a chunk inside a prompt.
    #[default]
    Nothing,
    /// The last one.
    Last,
    /// Those at these places, relative to the row's first token, ascending.
    At(&'a [u32]),
    /// All.
    All,
}
