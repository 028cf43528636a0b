//! Attention of this family: queries, the keys of the window, the choice of entries, and results in groups.

use super::super::scratch::{Scratch, sized};
use super::parts::{AttentionPart, ChooserPart};
use super::pass::Streams;
use super::scratch::StreamScratch;
use crate::kv::{KvFormat, KvMemory, fp4};
use crate::select::Select;
use crate::windowed::{WindowRow, Windowed};

impl Streams<'_> {
    /// `y` = attention of a layer over windows and chosen entries.
    pub fn attend(&mut self, layer: usize, part: &AttentionPart) {
        let count = self.count();
        let config = &self.model.config;
        let (heads, dim, hidden) = (config.shape.heads, self.model.state.dim, self.pass.hidden);
        let turning = usize::from(part.reads.is_some());
        let Scratch { y, q, k, streams: own, .. } = &mut *self.pass.scratch;
        let backend = &mut *self.pass.backend;
        let y = &y[..count * hidden];
        let latent = sized(&mut own.latent, count * part.query_down.rows);
        let (q, k) = (sized(q, count * heads * dim), sized(k, count * dim));
        backend.matmul_many(y, count, &mut [(&part.query_down, &mut *latent), (&part.key, &mut *k)]);
        backend.rms_norm_in_place(latent, &part.query_norm.weight, part.query_norm.eps);
        backend.rms_norm_in_place(k, &part.key_norm.weight, part.key_norm.eps);
        backend.matmul(latent, count, &part.query_up, q);
        backend.turn(q, (count, heads), &own.turns[turning], false);
        backend.turn(k, (count, 1), &own.turns[turning], false);
        if self.pass.kv.layout().format == KvFormat::Fp4 {
            k.chunks_exact_mut(dim).for_each(fp4::round_window);
        }
        if let Some((chooser, reads)) = part.chooser.as_ref().zip(part.reads) {
            self.choose(chooser, reads);
        }
        let ring = self.model.state.ring(layer);
        let Scratch { q, k, attended, streams: own, .. } = &mut *self.pass.scratch;
        let args = Windowed {
            heads,
            scale: (dim as f64).powf(-0.5) as f32,
            sinks: &part.sinks,
            window: self.model.state.window,
            together: self.together,
            own: &k[..count * dim],
            ring,
            chosen: part.reads.map(|reads| (reads, &own.chosen)),
            rows: &self.windows,
        };
        let attended = sized(attended, count * heads * dim);
        self.pass.backend.windowed(&args, &q[..count * heads * dim], self.pass.kv, attended);
        if !self.together {
            keep_newest(self.pass.kv, &self.windows, ring, &k[..count * dim], dim);
        }
        self.group(part, turning);
    }

    /// `y` = the results of all heads, brought together.
    fn group(&mut self, part: &AttentionPart, turning: usize) {
        let (count, heads, dim) = (self.count(), self.model.config.shape.heads, self.model.state.dim);
        let Scratch { y, attended, streams: own, .. } = &mut *self.pass.scratch;
        let attended = &mut attended[..count * heads * dim];
        self.pass.backend.turn(attended, (count, heads), &own.turns[turning], true);
        let grouped = sized(&mut own.grouped, count * part.output.cols);
        self.pass.backend.matmul_heads(attended, count, &part.groups, grouped);
        self.pass.backend.matmul(grouped, count, &part.output, &mut y[..count * self.pass.hidden]);
    }

    /// Chooses entries for the tokens of `y`.
    fn choose(&mut self, part: &ChooserPart, layer: usize) {
        let (count, hidden) = (self.count(), self.pass.hidden);
        let config = &self.model.config;
        let (heads, dim) = config.index_heads;
        let Scratch { y, streams: own, .. } = &mut *self.pass.scratch;
        let StreamScratch { latent, queries, weights, turns, chosen, runs, .. } = own;
        let latent = &latent[..count * config.query_rank];
        let (queries, weights) = (sized(queries, count * heads * dim), sized(weights, count * heads));
        self.pass.backend.matmul(latent, count, &part.query, queries);
        self.pass.backend.matmul(&y[..count * hidden], count, &part.weights, weights);
        self.pass.backend.turn(queries, (count, heads), &turns[1], false);
        if self.pass.kv.layout().format == KvFormat::Fp4 {
            queries.chunks_exact_mut(dim).for_each(fp4::round_key);
        }
        let args = Select { heads, layer, most: config.chosen, stage: part.stage, rows: &self.pass.rows };
        self.pass.backend.select(&args, (queries, weights), self.pass.kv, chosen, runs);
        #[cfg(test)]
        if let Some(trace) = &mut own.trace {
            trace.chosen.push((0..count).map(|token| own.chosen.of(token).to_vec()).collect());
        }
    }
}

/// Keeps the keys of the newest tokens in the rings of their rows.
pub(super) fn keep_newest(
    kv: &mut KvMemory,
    rows: &[WindowRow<'_>],
    (first, len): (usize, usize),
    keys: &[f32],
    dim: usize,
) {
    let mut keys = keys.chunks_exact(dim);
    for row in rows {
        let ring = &mut kv.slot_mut(row.slot)[first..][..len * dim];
        let own = keys.by_ref().take(row.tokens).enumerate().skip(row.tokens.saturating_sub(len));
        for (token, key) in own {
            let place = (row.start as usize + token) % len;
            ring[place * dim..][..dim].copy_from_slice(key);
        }
    }
}
