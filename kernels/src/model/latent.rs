//! Latent attention on its way through a step. A query goes into the space of the latent head by head, attention runs
//! there with one head of keys and values for all, and its results come out head by head. In KV memory a key is the part
//! that turns and then the latent; a value is the latent.

use super::parts::{LatentPart, LatentQuery};
use super::pass::{Pass, store, written};
use super::scratch::{LatentScratch, Scratch, sized};
use crate::op::{Attention, Pairing, RopeTable};

impl Pass<'_> {
    /// `y` = latent attention of layer `layer` over `y` and all tokens before it.
    pub fn attend_latent(&mut self, layer: usize, part: &LatentPart, rope: &RopeTable) {
        self.latent_queries(part, rope);
        self.latent_keys(layer, part, rope);
        let Scratch { tokens, y, q, attended, latent, .. } = &mut *self.scratch;
        let (count, heads) = (tokens.len(), part.into_latent.len());
        let (rank, value_dim) = (part.norm.weight.len(), part.out_of_latent[0].rows);
        let q = &q[..count * heads * (rope.rotated() + rank)];
        let args = Attention { layer, heads, scale: part.scale, window: None, sinks: None, rows: &self.rows };
        let inside = sized(&mut latent.inside, count * heads * rank);
        self.backend.attention(&args, q, self.kv, inside);
        let attended = sized(attended, count * heads * value_dim);
        self.backend.matmul_heads(inside, count, &part.out_of_latent, attended);
        self.backend.matmul(attended, count, &part.output, &mut y[..count * self.hidden]);
    }

    /// `q [tokens, heads, turning + rank]` = the queries of `y`, in the space of the latent.
    fn latent_queries(&mut self, part: &LatentPart, rope: &RopeTable) {
        let Scratch { tokens, positions, y, q, latent, .. } = &mut *self.scratch;
        let LatentScratch { query, heads: split, still, inside, .. } = latent;
        let (count, heads) = (tokens.len(), part.into_latent.len());
        let (rank, turning) = (part.norm.weight.len(), rope.rotated());
        let (still_dim, y) = (part.into_latent[0].cols, &y[..count * self.hidden]);
        let split = sized(split, count * heads * (still_dim + turning));
        match &part.query {
            LatentQuery::Direct(weight) => self.backend.matmul(y, count, weight, split),
            LatentQuery::Ranked { down, norm, up } => {
                let query = sized(query, count * down.rows);
                self.backend.matmul(y, count, down, query);
                self.backend.rms_norm_in_place(query, &norm.weight, norm.eps);
                self.backend.matmul(query, count, up, split);
            }
        }
        let still = sized(still, count * heads * still_dim);
        for (head, still) in split.chunks_exact(still_dim + turning).zip(still.chunks_exact_mut(still_dim)) {
            still.copy_from_slice(&head[..still_dim]);
        }
        let inside = sized(inside, count * heads * rank);
        self.backend.matmul_heads(still, count, &part.into_latent, inside);
        let q = sized(q, count * heads * (turning + rank));
        let parts = split.chunks_exact(still_dim + turning).zip(inside.chunks_exact(rank));
        for ((head, inside), q) in parts.zip(q.chunks_exact_mut(turning + rank)) {
            q[..turning].copy_from_slice(&head[still_dim..]);
            q[turning..].copy_from_slice(inside);
        }
        self.backend.rope(q, heads, positions, rope, Pairing::Adjacent);
    }

    /// Stores the latents of `y` and the parts of its keys that turn.
    fn latent_keys(&mut self, layer: usize, part: &LatentPart, rope: &RopeTable) {
        let Scratch { tokens, positions, y, k, v, latent, .. } = &mut *self.scratch;
        let (count, rank, turning) = (tokens.len(), part.norm.weight.len(), rope.rotated());
        let both = sized(&mut latent.key_value, count * (rank + turning));
        self.backend.matmul(&y[..count * self.hidden], count, &part.key_value, both);
        let v = sized(v, count * rank);
        for (both, v) in both.chunks_exact(rank + turning).zip(v.chunks_exact_mut(rank)) {
            v.copy_from_slice(&both[..rank]);
        }
        self.backend.rms_norm_in_place(v, &part.norm.weight, part.norm.eps);
        let k = sized(k, count * (turning + rank));
        let parts = both.chunks_exact(rank + turning).zip(v.chunks_exact(rank));
        for ((both, v), k) in parts.zip(k.chunks_exact_mut(turning + rank)) {
            k[..turning].copy_from_slice(&both[rank..]);
            k[turning..].copy_from_slice(v);
        }
        self.backend.rope(k, 1, positions, rope, Pairing::Adjacent);
        store(self.kv, layer, written(&self.rows, &self.locals), (k, v));
    }
}
