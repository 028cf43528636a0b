//! Batch invariance: what a row comes to has the same bits alone, among others, and in other chunks. The scheduler mixes
//! requests as they come, and a client must not see an answer change because of its neighbours.

use super::{ACTIVATIONS, Check, Heads, LAYOUTS};
use crate::dtype::DType;
use crate::kv::KvMemory;
use crate::op::{Attention, AttentionRow};

impl Check<'_> {
    /// All operations in which rows could meet.
    pub(super) fn batches(&mut self) {
        for dtype in DType::ALL {
            let cols = if dtype.block_len() == 1 { 300 } else { 512 };
            self.rows_alone(dtype, cols, 29);
        }
        self.rows_alone(DType::Q8_0, 576, 600);
        self.gates_alone();
        for heads in LAYOUTS {
            self.chunks(heads);
        }
    }

    /// Products of 1 to 40 rows at once with those of each row alone.
    fn rows_alone(&mut self, dtype: DType, cols: usize, outputs: usize) {
        let weight = self.sample.matrix(dtype, outputs, cols);
        let x = self.sample.values(40 * cols);
        let mut alone = vec![0.0; 40 * outputs];
        for (x, out) in x.chunks_exact(cols).zip(alone.chunks_exact_mut(outputs)) {
            self.backend.matmul(x, 1, &weight, out);
        }
        for rows in 1..=40 {
            // The last rows, so that each row also changes its place in a tile.
            let first = 40 - rows;
            let (mut got, x) = (vec![f32::NAN; rows * outputs], &x[first * cols..]);
            self.backend.matmul(x, rows, &weight, &mut got);
            self.same(format!("matmul {rows} rows at once, {weight:?}"), &got, &alone[first * outputs..]);
        }
        let (mut got, mut other) = (vec![0.0; 40 * outputs], vec![0.0; 40 * outputs]);
        self.backend.matmul_many(&x, 40, &mut [(&weight, &mut other), (&weight, &mut got)]);
        self.same(format!("matmul_many, {weight:?}"), &got, &alone);
    }

    /// Gates of rows that do not fill vectors.
    fn gates_alone(&mut self) {
        let (x, up) = (self.sample.values(13 * 9), self.sample.values(13 * 9));
        for activation in ACTIVATIONS {
            let (mut all, mut alone) = (x.clone(), x.clone());
            self.backend.gated(&mut all, &up, activation);
            for (x, up) in alone.chunks_exact_mut(13).zip(up.chunks_exact(13)) {
                self.backend.gated(x, up, activation);
            }
            self.same(format!("gated {activation:?} by rows"), &all, &alone);
        }
    }

    /// Attention of a prompt at once, in chunks, and token by token among others.
    fn chunks(&mut self, (heads, layout): Heads) {
        let (kv, tables) = self.sample.kv(layout, 2, 150);
        let (width, wide) = (heads * layout.key_dim, heads * layout.value_dim);
        let (q, sinks) = (self.sample.values(150 * width), self.sample.values(heads));
        for (window, sinks) in [(None, None), (Some(20), None), (Some(20), Some(sinks.as_slice()))] {
            let args = Attention { layer: 0, heads, scale: 0.5, window, sinks, rows: &[] };
            let whole = self.attend(&args, &q, &kv, &[(0, 150, &tables[0])]);
            for size in [1, 5, 16, 64, 97] {
                let (mut got, mut start) = (Vec::new(), 0);
                while start < 150 {
                    let tokens = size.min(150 - start);
                    let chunk = &q[start * width..][..tokens * width];
                    // Another row comes first, so that the chunk changes its place in the step.
                    let both = [&q[..3 * width], chunk].concat();
                    let rows = [(40, 3, &tables[1]), (start, tokens, &tables[0])];
                    got.extend_from_slice(&self.attend(&args, &both, &kv, &rows)[3 * wide..]);
                    start += tokens;
                }
                let case =
                    format!("attention in chunks of {size}, {heads} heads on {layout:?}, window {window:?}");
                self.same(case, &got, &whole);
            }
        }
    }

    /// Attention of rows given as first position, number of tokens and block table.
    fn attend(
        &mut self,
        args: &Attention<'_>,
        q: &[f32],
        kv: &KvMemory,
        rows: &[(usize, usize, &Vec<u32>)],
    ) -> Vec<f32> {
        let rows: Vec<AttentionRow<'_>> = rows
            .iter()
            .map(|&(start, tokens, blocks)| AttentionRow { start: start as u32, tokens, from: 0, blocks })
            .collect();
        let layout = kv.layout();
        let mut out = vec![f32::NAN; q.len() / layout.key_dim * layout.value_dim];
        self.backend.attention(&Attention { rows: &rows, ..*args }, q, kv, &mut out);
        out
    }
}
