//! Operations that only eyes have: against the reference, and a token's bits alone against those among others.

use super::{ACTIVATIONS, Check, rms};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::op::{RopeAxes, RopeTable, Whole};

impl Check<'_> {
    /// All of them.
    pub(super) fn sight(&mut self) {
        for (rows, cols) in [(1, 1), (3, 7), (2, 24), (40, 48), (30, 1_152)] {
            self.layer_norm(rows, cols);
        }
        for count in [1, 13, 100_003] {
            for activation in ACTIVATIONS {
                let x: Vec<f32> = self.sample.values(count).iter().map(|x| 9.0 * x).collect();
                let (mut got, mut want) = (x.clone(), x);
                self.backend.activate(&mut got, activation);
                self.reference.activate(&mut want, activation);
                self.close(format!("activate {activation:?}, {count}"), &got, &want, (1.0, 4e-6));
            }
        }
        self.places();
        for (rows, outputs, cols) in [(1, 1, 32), (5, 70, 96), (6, 64, 288), (103, 130, 320), (200, 7, 1_056)]
        {
            for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
                self.tall(dtype, rows, outputs, cols);
            }
        }
        for (tokens, heads, head_dim) in
            [(1, 1, 1), (5, 2, 12), (64, 1, 16), (65, 3, 24), (300, 2, 72), (97, 1, 80), (129, 2, 64)]
        {
            self.whole(tokens, heads, head_dim);
        }
    }

    /// Layer norm, all rows at once and one by one.
    fn layer_norm(&mut self, rows: usize, cols: usize) {
        let x: Vec<f32> = self.sample.values(rows * cols).iter().map(|x| 3.0 * x + 1.0).collect();
        let (weight, bias) = (self.sample.values(cols), self.sample.values(cols));
        let (mut got, mut want, mut alone) = (x.clone(), x.clone(), x);
        self.backend.layer_norm_in_place(&mut got, (&weight, &bias), 1e-5);
        self.reference.layer_norm_in_place(&mut want, (&weight, &bias), 1e-5);
        // Of a single value nothing is left but rounding, which the norm makes large.
        let allowed = if cols == 1 { 1.0 } else { 2e-6 * (cols as f32).sqrt() };
        self.close(format!("layer_norm {rows} x {cols}"), &got, &want, (1.0, allowed));
        for x in alone.chunks_exact_mut(cols) {
            self.backend.layer_norm_in_place(x, (&weight, &bias), 1e-5);
        }
        self.same(format!("layer_norm {rows} x {cols} by rows"), &got, &alone);
    }

    /// Products of many rows: all at once, and each by itself.
    fn tall(&mut self, dtype: DType, rows: usize, outputs: usize, cols: usize) {
        let (weight, x) = (self.sample.matrix(dtype, outputs, cols), self.sample.values(rows * cols));
        let [mut got, mut want, mut alone] = [(); 3].map(|()| vec![f32::NAN; rows * outputs]);
        self.backend.matmul_tall(&x, rows, &weight, &mut got);
        self.reference.matmul_tall(&x, rows, &weight, &mut want);
        let terms = (cols as f32).sqrt();
        let size = rms(&x) * rms(&weight.to_f32()) * terms;
        let case = format!("matmul_tall {rows} x {weight:?}");
        self.close(&case, &got, &want, (size, 4e-7 * terms));
        for (x, out) in x.chunks_exact(cols).zip(alone.chunks_exact_mut(outputs)) {
            self.backend.matmul_tall(x, 1, &weight, out);
        }
        self.same(format!("{case}, row by row"), &alone, &got);
    }

    /// Rotary embedding by places.
    fn places(&mut self) {
        for (heads, head_dim, axes) in
            [(1, 2, vec![2]), (3, 16, vec![0, 1, 2, 0, 1, 2, 0, 1]), (16, 64, [1, 2].repeat(16))]
        {
            let frequencies: Vec<f32> = (0..axes.len()).map(|i| 0.8_f32.powi(i as i32)).collect();
            let rope = RopeAxes::new(RopeTable::new(&frequencies, 1.1, 3_000), axes);
            for count in [1, 50] {
                let places: Vec<[u32; 3]> =
                    (0..count).map(|_| [0; 3].map(|_| self.sample.below(3_000) as u32)).collect();
                let x = self.sample.values(places.len() * heads * head_dim);
                let (mut got, mut want) = (x.clone(), x);
                self.backend.rope_axes(&mut got, heads, &places, &rope);
                self.reference.rope_axes(&mut want, heads, &places, &rope);
                self.close(format!("rope_axes {count} x {heads} x {head_dim}"), &got, &want, (1.0, 4e-7));
            }
        }
    }

    /// Attention of all tokens over all; then that of tokens in another order.
    fn whole(&mut self, tokens: usize, heads: usize, head_dim: usize) {
        let width = heads * head_dim;
        let q: Vec<f32> = self.sample.values(tokens * width).iter().map(|q| 4.0 * q).collect();
        let (k, v) = (self.sample.values(tokens * width), self.sample.values(tokens * width));
        let args = Whole { heads, scale: (head_dim as f32).sqrt().recip(), q: &q, k: &k, v: &v };
        let (mut got, mut want) = (vec![f32::NAN; tokens * width], vec![0.0; tokens * width]);
        self.backend.attention_whole(&args, tokens, &mut got);
        self.reference.attention_whole(&args, tokens, &mut want);
        let case = format!("attention_whole {tokens} x {heads} x {head_dim}");
        self.close(&case, &got, &want, (1.0, 1e-5));
        let turned = |x: &[f32]| x.rchunks_exact(width).flatten().copied().collect::<Vec<f32>>();
        let q = turned(&q);
        let mut other = vec![f32::NAN; tokens * width];
        self.backend.attention_whole(&Whole { q: &q, ..args }, tokens, &mut other);
        self.same(format!("{case}, queries in another order"), &turned(&other), &got);
    }
}
