//! Activations of a step, kept from one step to the next: once the largest step was seen, computing allocates nothing.

use super::deepseek_v41::StreamScratch;
use super::route::Picker;
use crate::experts::{ExpertBuffers, Routing};
use crate::op::AttentionRow;

/// Memory for activations. One per rank; any model can use it, one step at a time.
#[derive(Default)]
pub struct Scratch {
    /// Tokens of all rows, in order.
    pub(super) tokens: Vec<u32>,
    /// Their positions.
    pub(super) positions: Vec<u32>,
    /// What they turn by, where heads turn by more than the position.
    pub(super) turns: Vec<[u32; 3]>,
    /// Which of them give logits: ascending indices into `tokens`.
    pub(super) wanted: Vec<usize>,
    /// Rows as attention takes them; empty between steps, kept for its capacity.
    pub(super) rows: Vec<AttentionRow<'static>>,
    /// Where positions of rows lie in rings; empty between steps, kept for its capacity.
    pub(super) tables: Vec<u32>,
    /// Residual stream `[tokens, hidden]`.
    pub(super) x: Vec<f32>,
    /// What enters or leaves a part of a layer `[tokens, hidden]`.
    pub(super) y: Vec<f32>,
    /// Queries `[tokens, heads, key_dim]`.
    pub(super) q: Vec<f32>,
    /// Keys `[tokens, kv_heads, key_dim]`.
    pub(super) k: Vec<f32>,
    /// Values `[tokens, kv_heads, value_dim]`.
    pub(super) v: Vec<f32>,
    /// Result of attention `[tokens, heads, value_dim]`.
    pub(super) attended: Vec<f32>,
    /// What latent attention makes on its way.
    pub(super) latent: LatentScratch,
    /// What a mixture of experts makes on its way.
    pub(super) mixture: MixtureScratch,
    /// What several residual streams and compressed attention make on their way.
    pub(super) streams: StreamScratch,
    /// Gate of the feed-forward layer `[tokens, intermediate]`.
    pub(super) gate: Vec<f32>,
    /// What it gates, same shape.
    pub(super) up: Vec<f32>,
    /// Logits `[wanted, vocab]`; may be longer than the last step's.
    pub(super) logits: Vec<f32>,
    /// Vocabulary of the model that computed the last step.
    pub(super) vocab: usize,
}

/// Activations of latent attention.
#[derive(Default)]
pub(super) struct LatentScratch {
    /// Latents of queries `[tokens, query_rank]`.
    pub query: Vec<f32>,
    /// Queries `[tokens, heads, still + turning]`.
    pub heads: Vec<f32>,
    /// Parts of queries that do not turn `[tokens, heads, still]`.
    pub still: Vec<f32>,
    /// The same in the space of the latent `[tokens, heads, rank]`.
    pub inside: Vec<f32>,
    /// Latent and turning part of the keys `[tokens, rank + turning]`.
    pub key_value: Vec<f32>,
}

/// Activations of a mixture of experts.
#[derive(Default)]
pub(super) struct MixtureScratch {
    /// `[tokens, experts]`.
    pub logits: Vec<f32>,
    /// Tokens that experts are chosen for otherwise; empty: none.
    pub marked: Vec<bool>,
    /// Who computes what.
    pub routing: Routing,
    pub picker: Picker,
    pub buffers: ExpertBuffers,
    /// What the experts come to `[tokens, hidden]`.
    pub out: Vec<f32>,
}

impl Scratch {
    /// Empty; it grows with the first steps.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// Leaves `logits [wanted tokens, vocab]` as those of the last step: for models of other crates.
    pub fn leave_logits(&mut self, vocab: usize, logits: Vec<f32>) {
        assert!(logits.len().is_multiple_of(vocab), "logits of whole tokens");
        self.wanted = (0..logits.len() / vocab).collect();
        (self.vocab, self.logits) = (vocab, logits);
    }

    /// Logits of the last step `[wanted tokens, vocab]`: those of the first row's wanted tokens, then the second's.
    pub fn logits(&self) -> &[f32] {
        &self.logits[..self.wanted.len() * self.vocab]
    }

    /// How many rows of logits the last step left.
    pub fn logits_rows(&self) -> usize {
        self.wanted.len()
    }

    /// Bytes held. Constant once the largest step was seen.
    pub fn bytes(&self) -> usize {
        let (latent, mixture) = (&self.latent, &self.mixture);
        let own =
            [&self.x, &self.y, &self.q, &self.k, &self.v, &self.attended, &self.gate, &self.up, &self.logits];
        let parts = [
            &latent.query,
            &latent.heads,
            &latent.still,
            &latent.inside,
            &latent.key_value,
            &mixture.logits,
            &mixture.out,
        ];
        let floats = own.iter().chain(&parts);
        floats.map(|buffer| buffer.capacity() * size_of::<f32>()).sum::<usize>()
            + (self.tokens.capacity() + self.positions.capacity() + self.tables.capacity()) * size_of::<u32>()
            + self.turns.capacity() * size_of::<[u32; 3]>()
            + self.wanted.capacity() * size_of::<usize>()
            + self.rows.capacity() * size_of::<AttentionRow<'_>>()
            + self.streams.bytes()
            + mixture.marked.capacity()
            + mixture.routing.bytes()
            + mixture.picker.bytes()
            + mixture.buffers.bytes()
    }
}

/// The first `len` values of a buffer, which grows if it must. Values of earlier steps are left in it.
pub(super) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
