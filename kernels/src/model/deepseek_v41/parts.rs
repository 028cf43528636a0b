//! Weights of the parts that layers of this family are made of.

use super::super::parts::{Mixture, Norm};
use super::engram::EngramRows;
use crate::matrix::Matrix;
use crate::select::Stage;

/// A layer, of the model or of its drafter.
pub(super) struct Block {
    pub attention_norm: Norm,
    pub attention_mix: Mix,
    pub attention: AttentionPart,
    pub feed_forward_norm: Norm,
    pub feed_forward_mix: Mix,
    pub mixture: Mixture,
    /// What it looks up before all else.
    pub lookup: Option<Lookup>,
    /// Its input is what the drafter rests on: which part of that.
    pub feature: Option<usize>,
}

/// How a part of a layer reads the streams and writes to them.
pub(super) struct Mix {
    /// `[streams * (2 + streams), streams * hidden]`.
    pub weight: Matrix,
    pub scale: [f32; 3],
    /// One for each output.
    pub base: Vec<f32>,
}

/// Attention of a layer.
pub(super) struct AttentionPart {
    /// `[query_rank, hidden]`.
    pub query_down: Matrix,
    pub query_norm: Norm,
    /// `[heads * head_dim, query_rank]`.
    pub query_up: Matrix,
    /// `[head_dim, hidden]`: keys of the window, which are the values too.
    pub key: Matrix,
    pub key_norm: Norm,
    /// For each group of heads `[output_rank, heads of a group * head_dim]`.
    pub groups: Vec<Matrix>,
    /// `[hidden, groups * output_rank]`.
    pub output: Matrix,
    /// For each head.
    pub sinks: Vec<f32>,
    /// The source of entries it reads; none: it sees its window only.
    pub reads: Option<usize>,
    pub source: Option<SourcePart>,
    pub chooser: Option<ChooserPart>,
}

/// Makes compressed entries.
pub(super) struct SourcePart {
    /// Which layer of blocks.
    pub layer: usize,
    /// `[head_dim, hidden]`.
    pub value: Matrix,
    /// `[head_dim, hidden]`: how much of each token of a pair; none: entries are single tokens.
    pub gate: Option<Matrix>,
    pub norm: Norm,
    /// `[index_dim, head_dim]`: what choosers compare with.
    pub key: Matrix,
    pub key_norm: Norm,
}

/// Chooses entries.
pub(super) struct ChooserPart {
    /// `[index_heads * index_dim, query_rank]`.
    pub query: Matrix,
    /// `[index_heads, hidden]`.
    pub weights: Matrix,
    /// Values of an entry's key.
    pub stage: Option<Stage>,
}

/// Rows that the newest tokens name.
pub(super) struct Lookup {
    /// Layer, by which their numbers are found.
    pub layer: usize,
    pub rows: EngramRows,
    /// `[(streams + 1) * hidden, values of all rows of a token]`: a key for each stream, and the value.
    pub key_value: Matrix,
    /// Norms of the streams and of the keys.
    pub norms: (Vec<f32>, Vec<f32>),
}

/// The drafter.
pub(super) struct DraftPart {
    pub blocks: Vec<Block>,
    /// `[hidden, targets * hidden]`.
    pub entry: Matrix,
    pub entry_norm: Norm,
    pub norm: Norm,
    /// What a guess knows of the one before: `[vocab, rank]`, and `[vocab, rank]` from that to logits.
    pub markov: (Matrix, Matrix),
    /// `[hidden + rank]`: how sure a guess is.
    pub confidence: Vec<f32>,
    /// Tokens that are guessed at once.
    pub block: usize,
    /// Token that stands where a guess is wanted.
    pub noise: u32,
}
