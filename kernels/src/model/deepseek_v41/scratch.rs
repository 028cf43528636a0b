//! Activations of this family, kept from one step to the next.

use crate::residual::Mixes;
use crate::windowed::Lists;

/// Activations of several streams and compressed attention.
#[derive(Default)]
pub(in crate::model) struct StreamScratch {
    /// How the streams are read next, and how the part in progress writes to them.
    pub mixes: Mixes,
    /// Cosines and sines of the tokens `[tokens, 2, pairs]`, for either set of frequencies.
    pub turns: [Vec<f32>; 2],
    /// The same of compressed entries.
    pub entry_turns: Vec<f32>,
    /// Latents of queries `[tokens, query_rank]`.
    pub latent: Vec<f32>,
    /// Results of attention in groups `[tokens, groups * output_rank]`.
    pub grouped: Vec<f32>,
    /// Values and scores of a source `[tokens, dim]`.
    pub values: Vec<f32>,
    pub scores: Vec<f32>,
    /// Entries `[entries, dim]`, and their keys `[entries, index_dim]`.
    pub entries: Vec<f32>,
    pub entry_keys: Vec<f32>,
    /// Queries of a chooser `[tokens, heads, index_dim]` and weights of its heads.
    pub queries: Vec<f32>,
    pub weights: Vec<f32>,
    /// Chosen entries of each token, and the runs that are looked at.
    pub chosen: Lists,
    pub runs: Lists,
    /// Classes of the newest tokens `[tokens, longest]`, and rows that they name.
    pub ngrams: Vec<u32>,
    pub rows: Vec<usize>,
    /// Those rows, and keys and values made of them.
    pub found: Vec<f32>,
    pub recalled: Vec<f32>,
    /// What the drafter rests on `[tokens, targets * hidden]`.
    pub features: Vec<f32>,
    /// Streams of the tokens that give logits, and with what they are read.
    pub last: Vec<f32>,
    pub last_read: Vec<f32>,
    /// What tests look at.
    #[cfg(test)]
    pub trace: Option<super::tests::Trace>,
}

impl StreamScratch {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let floats = [
            &self.turns[0],
            &self.turns[1],
            &self.entry_turns,
            &self.latent,
            &self.grouped,
            &self.values,
            &self.scores,
            &self.entries,
            &self.entry_keys,
            &self.queries,
            &self.weights,
            &self.found,
            &self.recalled,
            &self.features,
            &self.last,
            &self.last_read,
        ];
        floats.iter().map(|buffer| buffer.capacity() * size_of::<f32>()).sum::<usize>()
            + self.mixes.bytes()
            + self.chosen.bytes()
            + self.runs.bytes()
            + self.ngrams.capacity() * size_of::<u32>()
            + self.rows.capacity() * size_of::<usize>()
    }
}
