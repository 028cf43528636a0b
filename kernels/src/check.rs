//! Conformance of backends: any implementation of [`Backend`] against [`ReferenceBackend`], over a grid of formats, shapes
//! and numbers of rows. A new backend is finished when [`conform`] finds nothing.
//!
//! Two things are checked. *Closeness*: the largest difference from the reference, divided by the typical size of a
//! result (for a product of `k` terms the root mean squares of both factors times `sqrt(k)`), stays below a bound that
//! rounding explains. *Batch invariance*: a row has the very same bits whether it is computed alone, among others, or in
//! another chunk.

mod batching;
mod compressed;
mod experts;
mod sample;
mod sight;
mod streams;

use std::fmt;

use crate::backend::Backend;
use crate::dtype::DType;
use crate::kv::{KvFormat, KvLayout, Rings};
use crate::matrix::Matrix;
use crate::op::{Activation, Attention, AttentionRow, Pairing, RopeTable};
use crate::reference::ReferenceBackend;

pub use sample::Sample;

/// One case that does not conform.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Operation, format and shape.
    pub case: String,
    /// Largest difference, in units of the typical size; infinite where a bit or a number is wrong that must be exact.
    pub error: f32,
    /// What is allowed.
    pub allowed: f32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: error {:e}, allowed {:e}", self.case, self.error, self.allowed)
    }
}

/// Runs the whole suite; nothing comes back from a backend that conforms.
pub fn conform(backend: &mut dyn Backend) -> Vec<Failure> {
    let mut check =
        Check { backend, reference: ReferenceBackend, failures: Vec::new(), sample: Sample::new(1) };
    check.products();
    check.widening();
    check.rows();
    check.pointwise();
    check.turns();
    for (heads, layout) in LAYOUTS {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8] {
            check.attention((heads, KvLayout { format, ..layout }));
        }
    }
    check.heads();
    check.sight();
    check.experts();
    check.streams();
    check.compressed();
    check.batches();
    check.failures
}

/// Heads of queries, then the layout of keys and values.
type Heads = (usize, KvLayout);

/// Layouts that attention is checked on: shared and own heads, few and many, sizes that fill vectors and sizes that do not.
const LAYOUTS: [Heads; 10] = [
    (4, layout(2, 4, (16, 16), 16)),
    (9, layout(1, 3, (64, 64), 16)),
    (8, layout(1, 2, (24, 24), 32)),
    (4, layout(1, 1, (256, 256), 32)),
    (6, layout(2, 2, (20, 20), 16)),
    (5, layout(1, 1, (12, 12), 8)),
    (2, layout(1, 2, (7, 7), 5)),
    (6, layout(1, 1, (40, 32), 16)),
    (4, layout(2, 2, (9, 21), 8)),
    (49, layout(1, 1, (5, 3), 8)),
];

/// A layout of keys and values of these sizes.
const fn layout(
    layers: usize,
    kv_heads: usize,
    (key_dim, value_dim): (usize, usize),
    block_size: usize,
) -> KvLayout {
    KvLayout {
        layers,
        kv_heads,
        key_dim,
        value_dim,
        block_size,
        format: KvFormat::F32,
        state: 0,
        paired: 0,
        rings: Rings::NONE,
    }
}

/// All activations.
const ACTIVATIONS: [Activation; 5] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::Gelu,
    Activation::ClampedSwiglu { slope: 1.702, limit: 7.0 },
    Activation::ClampedSilu { limit: 1.5 },
];

/// A run of the suite.
struct Check<'a> {
    /// Under test.
    backend: &'a mut dyn Backend,
    /// What it is compared with.
    reference: ReferenceBackend,
    /// What was found.
    failures: Vec<Failure>,
    /// Where the data comes from.
    sample: Sample,
}

impl Check<'_> {
    /// Notes a case whose results differ by more than `allowed` times `size`.
    fn close(&mut self, case: impl fmt::Display, got: &[f32], want: &[f32], (size, allowed): (f32, f32)) {
        let differ = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() / size };
        // A difference that is no number counts as infinite.
        let worst = |max: f32, d: f32| if d.is_nan() { f32::INFINITY } else { max.max(d) };
        let error = got.iter().zip(want).map(differ).fold(0.0, worst);
        if error > allowed {
            self.failures.push(Failure { case: case.to_string(), error, allowed });
        }
    }

    /// Notes a case whose results are not the same bits.
    fn same(&mut self, case: impl fmt::Display, got: &[f32], want: &[f32]) {
        if !got.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())) {
            self.failures.push(Failure { case: case.to_string(), error: f32::INFINITY, allowed: 0.0 });
        }
    }

    /// Products of every format, several shapes and numbers of rows; then several weights at once.
    fn products(&mut self) {
        for dtype in DType::ALL {
            for cols in columns(dtype) {
                for (rows, outputs) in [(1, 1), (1, 37), (2, 9), (3, 8), (4, 24), (5, 25), (23, 64), (64, 7)]
                {
                    let weight = self.sample.matrix(dtype, outputs, cols);
                    self.product(rows, &[&weight]);
                }
            }
        }
        for rows in [1, 6] {
            let (a, b) = (self.sample.matrix(DType::Q8_0, 40, 96), self.sample.matrix(DType::BF16, 13, 96));
            let c = self.sample.matrix(DType::Q4_1, 300, 96);
            self.product(rows, &[&a, &b, &c]);
        }
        // Large enough for every thread to take part.
        let large = self.sample.matrix(DType::Q8_0, 1_000, 288);
        self.product(3, &[&large]);
        self.product(9, &[&large, &large]);
    }

    /// One call with any number of weights.
    fn product(&mut self, rows: usize, weights: &[&Matrix]) {
        let cols = weights[0].cols;
        let x = self.sample.values(rows * cols);
        let mut got: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.rows]).collect();
        let mut parts: Vec<_> = weights.iter().copied().zip(got.iter_mut().map(Vec::as_mut_slice)).collect();
        match parts.as_mut_slice() {
            [(weight, out)] => self.backend.matmul(&x, rows, weight, out),
            parts => self.backend.matmul_many(&x, rows, parts),
        }
        for (weight, got) in weights.iter().zip(&got) {
            let mut want = vec![0.0; rows * weight.rows];
            self.reference.matmul(&x, rows, weight, &mut want);
            let terms = (cols as f32).sqrt();
            let size = rms(&x) * rms(&weight.to_f32()) * terms;
            self.close(format!("matmul {rows} x {weight:?}"), got, &want, (size, 4e-7 * terms));
        }
    }

    /// Weights take part as the very values of `dequantize`: products with rows of the unit matrix give them back.
    fn widening(&mut self) {
        for dtype in DType::ALL {
            for cols in columns(dtype) {
                let weight = self.sample.matrix(dtype, 11, cols);
                let wide = weight.to_f32();
                let (mut x, mut got) = (vec![0.0; cols * cols], vec![0.0; cols * 11]);
                x.iter_mut().step_by(cols + 1).for_each(|x| *x = 1.0);
                self.backend.matmul(&x, cols, &weight, &mut got);
                let want: Vec<f32> = (0..cols * 11).map(|i| wide[i % 11 * cols + i / 11]).collect();
                self.close(format!("widening of {weight:?}"), &got, &want, (1.0, 0.0));
            }
        }
    }

    /// Embedding and norms.
    fn rows(&mut self) {
        for dtype in DType::ALL {
            let table = self.sample.matrix(dtype, 50, 256);
            let (mut got, mut want) = (vec![f32::NAN; 5 * 256], vec![0.0; 5 * 256]);
            self.backend.embed(&table, &[49, 0, 7, 7, 1], &mut got);
            self.reference.embed(&table, &[49, 0, 7, 7, 1], &mut want);
            self.close(format!("embed {table:?}"), &got, &want, (1.0, 0.0));
        }
        for (rows, cols) in [(1, 1), (3, 7), (2, 24), (1, 576), (40, 640), (3, 2_049)] {
            let (x, weight) = (self.sample.values(rows * cols), self.sample.values(cols));
            let (mut got, mut want) = (vec![f32::NAN; rows * cols], vec![0.0; rows * cols]);
            self.backend.rms_norm(&x, &weight, 1e-5, &mut got);
            self.reference.rms_norm(&x, &weight, 1e-5, &mut want);
            self.close(format!("rms_norm {rows} x {cols}"), &got, &want, (1.0, 4e-7 * (cols as f32).sqrt()));
            let mut in_place = x;
            self.backend.rms_norm_in_place(&mut in_place, &weight, 1e-5);
            self.same(format!("rms_norm_in_place {rows} x {cols}"), &in_place, &got);
        }
    }

    /// Operations on single values.
    fn pointwise(&mut self) {
        for count in [1, 8, 13, 1_536, 100_003] {
            let (x, y) = (self.sample.values(count), self.sample.values(count));
            let x: Vec<f32> = x.iter().map(|x| 20.0 * x * x * x).collect();
            for activation in ACTIVATIONS {
                let (mut got, mut want) = (x.clone(), x.clone());
                self.backend.gated(&mut got, &y, activation);
                self.reference.gated(&mut want, &y, activation);
                self.close(format!("gated {activation:?}, {count}"), &got, &want, (1.0, 4e-6));
            }
            let (mut got, mut want) = (x.clone(), x);
            self.backend.add(&mut got, &y);
            self.backend.scale(&mut got, 0.3);
            self.reference.add(&mut want, &y);
            self.reference.scale(&mut want, 0.3);
            self.close(format!("add and scale, {count}"), &got, &want, (1.0, 0.0));
            let bias = self.sample.values(count);
            let (mut got, mut want) = ([y.as_slice(), &got].concat(), [y.as_slice(), &want].concat());
            self.backend.add_bias(&mut got, &bias);
            self.reference.add_bias(&mut want, &bias);
            self.close(format!("add_bias, {count}"), &got, &want, (1.0, 0.0));
        }
    }

    /// Rotary embedding, both pairings, whole heads and parts.
    fn turns(&mut self) {
        for (heads, head_dim, rotated) in [(1, 2, 2), (3, 16, 16), (9, 64, 64), (4, 24, 12), (2, 256, 256)] {
            let frequencies: Vec<f32> = (0..rotated / 2).map(|i| 0.8_f32.powi(i)).collect();
            let table = RopeTable::new(&frequencies, 1.1, 5_000);
            for positions in [vec![0], vec![4_999, 3], (1_000..1_050).collect()] {
                let x = self.sample.values(positions.len() * heads * head_dim);
                for pairing in [Pairing::Half, Pairing::Adjacent] {
                    let (mut got, mut want) = (x.clone(), x.clone());
                    self.backend.rope(&mut got, heads, &positions, &table, pairing);
                    self.reference.rope(&mut want, heads, &positions, &table, pairing);
                    let case = format!("rope {pairing:?} {} x {heads} x {head_dim}", positions.len());
                    self.close(case, &got, &want, (1.0, 4e-7));
                }
            }
        }
    }

    /// Attention of steps that mix prompts and single tokens, with and without a window.
    fn attention(&mut self, (heads, layout): Heads) {
        let (kv, tables) = self.sample.kv(layout, 4, 200);
        let spans = [[(0, 1), (199, 1), (3, 30), (77, 9)], [(0, 200), (15, 2), (0, 0), (16, 1)]];
        let sinks: Vec<f32> = self.sample.values(heads).iter().map(|sink| 3.0 * sink).collect();
        for (window, sinks) in [
            (None, None),
            (None, Some(sinks.as_slice())),
            (Some(1), Some(&sinks)),
            (Some(7), None),
            (Some(24), Some(&sinks)),
            (Some(100), None),
        ] {
            for spans in spans {
                let row = |(&(start, tokens), blocks): (&(u32, usize), _)| {
                    let from = window.map_or(0, |_| start / 2 + start / 3);
                    AttentionRow { start, tokens, from, blocks }
                };
                let rows: Vec<AttentionRow<'_>> =
                    spans.iter().zip(&tables).map(|(s, t)| row((s, t.as_slice()))).collect();
                let scale = (layout.key_dim as f32).sqrt().recip();
                let args = Attention { layer: layout.layers - 1, heads, scale, window, sinks, rows: &rows };
                let count = args.tokens() * heads;
                let q = self.sample.values(count * layout.key_dim);
                let q: Vec<f32> = q.iter().map(|q| 4.0 * q).collect();
                let count = count * layout.value_dim;
                let (mut got, mut want) = (vec![f32::NAN; count], vec![0.0; count]);
                self.backend.attention(&args, &q, &kv, &mut got);
                self.reference.attention(&args, &q, &kv, &mut want);
                let sinks = if sinks.is_some() { ", sinks" } else { "" };
                let case =
                    format!("attention {heads} heads on {layout:?}, window {window:?}{sinks}, {spans:?}");
                self.close(case, &got, &want, (1.0, 1e-5));
            }
        }
    }
}

/// Row lengths to check a format with.
fn columns(dtype: DType) -> Vec<usize> {
    match dtype.block_len() {
        1 => vec![1, 7, 16, 24, 80, 96, 288],
        32 => vec![32, 96, 288],
        block => vec![block, 3 * block],
    }
}

/// Root mean square.
fn rms(x: &[f32]) -> f32 {
    (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt()
}
