//! Weights of the parts that decoders are made of. A family puts them together; [`Pass`](super::pass::Pass) computes
//! with them.

use crate::matrix::Matrix;
use crate::op::{Activation, Pairing};

/// Root-mean-square norm.
pub(super) struct Norm {
    /// Factors `[width]`, widened and complete (where a family adds one, it is in them).
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// Attention of one layer.
pub(super) struct AttentionPart {
    /// `[heads * head_dim, hidden]`.
    pub query: Matrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Matrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Matrix,
    /// `[hidden, heads * head_dim]`.
    pub output: Matrix,
    /// Norms of single heads of queries and keys, before they turn.
    pub norms: Option<(Norm, Norm)>,
    /// Heads of queries.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Positions a token sees, itself included; none: all.
    pub window: Option<u32>,
    /// Order of the pairs in queries and keys.
    pub pairing: Pairing,
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

/// What stands before and behind the layers.
pub(super) struct Ends {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// Norm before the output matrix.
    pub norm: Norm,
    /// `[vocab, hidden]`; none: the embedding matrix.
    pub output: Option<Matrix>,
}
