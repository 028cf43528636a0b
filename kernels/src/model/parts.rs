//! Weights of the parts that decoders are made of. A family puts them together; [`Pass`](super::pass::Pass) computes
//! with them.

use super::route::Choice;
use crate::experts::Expert;
use crate::matrix::Matrix;
use crate::op::{Activation, Pairing};

/// Root-mean-square norm.
pub(super) struct Norm {
    /// Factors `[width]`, widened and complete (where a family adds one, it is in them).
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// A matrix, and what is added to its products where the family does so.
pub(super) struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Matrix,
    /// `[outputs]`.
    pub bias: Option<Vec<f32>>,
}

/// Where the keys and values of a layer are kept, and the how manieth it is there.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Kept {
    /// All of them, in blocks.
    Blocks(usize),
    /// Those of the newest positions, in the state.
    Ring(usize),
}

/// Attention of one layer, with heads of their own for keys and values.
pub(super) struct AttentionPart {
    pub kept: Kept,
    /// `[heads * head_dim, hidden]`.
    pub query: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Linear,
    /// `[hidden, heads * head_dim]`.
    pub output: Linear,
    /// Norms of single heads of queries and keys, before they turn.
    pub norms: Option<(Norm, Norm)>,
    /// Heads of queries.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Positions a token sees, itself included; none: all.
    pub window: Option<u32>,
    /// A score for each head that takes part in the softmax and has no value.
    pub sinks: Option<Vec<f32>>,
    /// Order of the pairs in queries and keys.
    pub pairing: Pairing,
}

/// Attention of one layer over a latent that all heads share (multi-head latent attention, DeepSeek-V2). The matrices
/// that would make each head's keys and values from the latent are applied to queries and results instead, so the
/// latent and the part of the keys that turns are all that is kept of a token.
pub(super) struct LatentPart {
    pub query: LatentQuery,
    /// `[rank + turning, hidden]`: the latent of a token, then the part of its key that turns.
    pub key_value: Matrix,
    /// Of the latent.
    pub norm: Norm,
    /// For each head `[rank, still]`: the part of a query that does not turn, to the space of the latent.
    pub into_latent: Vec<Matrix>,
    /// For each head `[value_dim, rank]`: out of the space of the latent.
    pub out_of_latent: Vec<Matrix>,
    /// `[hidden, heads * value_dim]`.
    pub output: Matrix,
    /// Factor of the scores.
    pub scale: f32,
}

/// How queries of latent attention are made, `[heads * (still + turning)]` of each token.
pub(super) enum LatentQuery {
    /// From the residual stream: `[heads * (still + turning), hidden]`.
    Direct(Matrix),
    /// From a latent of their own.
    Ranked {
        /// `[query_rank, hidden]`.
        down: Matrix,
        /// Of the latent.
        norm: Norm,
        /// `[heads * (still + turning), query_rank]`.
        up: Matrix,
    },
}

/// Gated feed-forward layer.
pub(super) struct FeedForward {
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    /// `[intermediate, hidden]`.
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
    pub activation: Activation,
}

/// Mixture of experts.
pub(super) struct Mixture {
    /// `[experts, hidden]`: how much each expert is for a token.
    pub router: Linear,
    /// What is made of that.
    pub choice: Choice,
    pub experts: Vec<Expert>,
    pub activation: Activation,
    /// Computes every token besides.
    pub shared: Option<FeedForward>,
}

/// What stands before and behind the layers.
pub(super) struct Ends {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// Norm before the output matrix.
    pub norm: Norm,
    /// `[vocab, hidden]`; none: the embedding matrix.
    pub output: Option<Matrix>,
}
