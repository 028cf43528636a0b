//! Several residual streams: how they are mixed, read and written, and what is looked up for them.

use super::{Check, rms};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::residual::{Mixes, Mixing, Recall};

/// Streams, width of one, tokens.
const SHAPES: [(usize, usize, usize); 6] =
    [(4, 64, 1), (4, 128, 37), (4, 7, 9), (2, 24, 5), (3, 16, 40), (1, 8, 2)];

impl Check<'_> {
    /// All operations on streams, at once and token by token.
    pub(super) fn streams(&mut self) {
        for (streams, width, tokens) in SHAPES {
            let x = self.sample.values(tokens * streams * width);
            let mixes = self.mixes((streams, width, tokens), &x);
            self.writes((streams, width, tokens), &x, &mixes);
            self.recalls((streams, width, tokens), &x);
        }
        for (heads, head_dim, rotated) in [(1, 16, 16), (4, 32, 16), (3, 10, 4), (2, 24, 8)] {
            self.ends((heads, head_dim), rotated);
        }
    }

    /// Mixes; and what they read.
    fn mixes(&mut self, (streams, width, tokens): (usize, usize, usize), x: &[f32]) -> Mixes {
        let outputs = streams * (2 + streams);
        let weight = self.sample.matrix(DType::F32, outputs, streams * width);
        let base = self.sample.values(outputs);
        let scale = [0.7, 1.3, 2.0];
        let args =
            Mixing { streams, weight: &weight, scale, base: &base, eps: 1e-6, small: 1e-6, rounds: 20 };
        let (mut got, mut want) = (Mixes::default(), Mixes::default());
        self.backend.mix(&args, x, &mut got);
        self.reference.mix(&args, x, &mut want);
        let case = format!("mix {tokens} x {streams} x {width}");
        for (got, want) in [(&got.read, &want.read), (&got.write, &want.write), (&got.carry, &want.carry)] {
            self.close(&case, got, want, (1.0, 1e-4));
        }
        let mut alone = Mixes::default();
        for (token, x) in x.chunks_exact(streams * width).enumerate() {
            self.backend.mix(&args, x, &mut alone);
            let all = streams * streams;
            self.same(format!("{case} alone"), &alone.read, &got.read[token * streams..][..streams]);
            self.same(format!("{case} alone"), &alone.write, &got.write[token * streams..][..streams]);
            self.same(format!("{case} alone"), &alone.carry, &got.carry[token * all..][..all]);
        }
        let norm = self.sample.values(width);
        let (mut read, mut want) = (vec![f32::NAN; tokens * width], vec![0.0; tokens * width]);
        self.backend.collapse(x, &got.read, &norm, 1e-6, &mut read);
        self.reference.collapse(x, &got.read, &norm, 1e-6, &mut want);
        self.close(format!("collapse, {case}"), &read, &want, (1.0, 1e-5));
        let rows = x.chunks_exact(streams * width).zip(got.read.chunks_exact(streams));
        for ((x, mix), out) in rows.zip(want.chunks_exact_mut(width)) {
            self.backend.collapse(x, mix, &norm, 1e-6, out);
        }
        self.same(format!("collapse alone, {case}"), &read, &want);
        got
    }

    /// Results that go to streams.
    fn writes(&mut self, (streams, width, tokens): (usize, usize, usize), x: &[f32], mixes: &Mixes) {
        let y = self.sample.values(tokens * width);
        let (mut got, mut want) = (x.to_vec(), x.to_vec());
        self.backend.spread(&mut got, &y, mixes);
        self.reference.spread(&mut want, &y, mixes);
        let case = format!("spread {tokens} x {streams} x {width}");
        self.close(&case, &got, &want, (1.0, 1e-5));
        let mut alone = x.to_vec();
        for (token, x) in alone.chunks_exact_mut(streams * width).enumerate() {
            let own = Mixes {
                write: mixes.write[token * streams..][..streams].to_vec(),
                carry: mixes.carry[token * streams * streams..][..streams * streams].to_vec(),
                ..Mixes::default()
            };
            self.backend.spread(x, &y[token * width..][..width], &own);
        }
        self.same(format!("{case} alone"), &alone, &got);
    }

    /// Lookups, of which one token has none.
    fn recalls(&mut self, (streams, width, tokens): (usize, usize, usize), x: &[f32]) {
        let norms = (self.sample.values(streams * width), self.sample.values(streams * width));
        let kv = self.sample.values(tokens * (streams + 1) * width);
        let skip: Vec<bool> = (0..tokens).map(|token| token == 1).collect();
        let args = Recall { norms: (&norms.0, &norms.1), streams, eps: 1e-6, skip: &skip };
        let (mut got, mut want) = (x.to_vec(), x.to_vec());
        self.backend.recall(&args, &mut got, &kv);
        self.reference.recall(&args, &mut want, &kv);
        let case = format!("recall {tokens} x {streams} x {width}");
        self.close(&case, &got, &want, (1.0 + rms(&kv), 1e-4));
        let mut alone = x.to_vec();
        let each = (streams + 1) * width;
        for (token, x) in alone.chunks_exact_mut(streams * width).enumerate() {
            let args = Recall { skip: &skip[token..=token], ..args };
            self.backend.recall(&args, x, &kv[token * each..][..each]);
        }
        self.same(format!("{case} alone"), &alone, &got);
    }

    /// Ends of heads that turn, and turn back.
    fn ends(&mut self, (heads, head_dim): (usize, usize), rotated: usize) {
        let tokens = 21;
        let x = self.sample.values(tokens * heads * head_dim);
        let angles = self.sample.values(tokens * rotated / 2);
        let turns: Vec<f32> = angles
            .chunks_exact(rotated / 2)
            .flat_map(|angles| angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())))
            .collect();
        let (mut got, mut want) = (x.clone(), x.clone());
        self.backend.turn(&mut got, (tokens, heads), &turns, false);
        self.reference.turn(&mut want, (tokens, heads), &turns, false);
        let case = format!("turn {heads} x {head_dim}, {rotated}");
        self.close(&case, &got, &want, (1.0, 4e-7));
        let mut alone = x.clone();
        for (x, turn) in alone.chunks_exact_mut(heads * head_dim).zip(turns.chunks_exact(rotated)) {
            self.backend.turn(x, (1, heads), turn, false);
        }
        self.same(format!("{case} alone"), &alone, &got);
        self.backend.turn(&mut got, (tokens, heads), &turns, true);
        self.close(format!("{case} and back"), &got, &x, (1.0, 4e-7));
    }
}
