//! Products of small matrices that stay in the nearest cache, with the vectors of either instruction set: what attention of
//! images and products of many rows are made of. Each sum is formed from its first term to its last by itself.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use super::Level;

/// Rows of a tile, which are computed side by side.
pub(crate) const TILE: usize = 6;
/// Columns of a panel; keys of a block.
pub(crate) const BLOCK: usize = 64;
/// Values of a row are filled up to whole vectors of so many.
pub(crate) const ROUND: usize = 16;

/// Queries of a head and what they have so far.
pub(crate) struct State {
    /// `[queries, head_dim]`, times the scale of the scores.
    pub q: Vec<f32>,
    /// `[queries, stride]`: sum of weighted values.
    pub sum: Vec<f32>,
    /// `[queries, ROUND]`: sum of weights, in lanes.
    pub total: Vec<f32>,
    /// `[queries]`: largest score.
    pub largest: Vec<f32>,
    /// `[TILE, BLOCK]`: scores of a block, then weights.
    pub weight: Vec<f32>,
}

/// A packed block of one head.
pub(crate) struct Block<'a> {
    /// `[head_dim, BLOCK]`.
    pub keys: &'a [f32],
    /// `[BLOCK, stride]`.
    pub values: &'a [f32],
    pub head_dim: usize,
    pub stride: usize,
    /// Tokens that are there.
    pub seen: usize,
}

impl Block<'_> {
    /// Takes the first `tiles` tiles of queries past this block.
    ///
    /// # Safety
    /// The machine has what `level` names, which is not [`Level::Plain`].
    pub(crate) unsafe fn run(&self, level: Level, state: &mut State, tiles: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match level {
                Level::Plain => unreachable!("plain loops do not pack"),
                Level::Avx2 => avx2::run(self, state, tiles),
                Level::Avx512 => avx512::run(self, state, tiles),
            }
        }
    }
}

/// Two matrices whose product is added up: `[TILE, a_stride]` times `[len, b_stride]`.
pub(crate) struct Product<'a> {
    pub a: &'a [f32],
    pub a_stride: usize,
    pub b: &'a [f32],
    pub b_stride: usize,
    /// Terms of a sum.
    pub len: usize,
}

impl Product<'_> {
    /// Makes `out [TILE, BLOCK]` the product, added to what was there where that is to `keep`.
    ///
    /// # Safety
    /// The machine has what `level` names, which is not [`Level::Plain`].
    pub(crate) unsafe fn panel(&self, level: Level, out: &mut [f32], keep: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            match level {
                Level::Plain => unreachable!("plain loops have no panels"),
                Level::Avx2 => avx2::panel(self, out, keep),
                Level::Avx512 => avx512::panel(self, out, keep),
            }
        }
    }
}

/// The same code for vectors of either width.
macro_rules! kernels {
    (
        $name:ident, $features:literal, $lanes:expr, $most:literal,
        ($zero:ident, $load:ident, $store:ident, $set:ident, $mul:ident, $add:ident, $sub:ident, $max:ident, $fma:ident),
        ($exp:path, $top:path)
    ) => {
        mod $name {
            use super::{BLOCK, Block, Product, ROUND, State, TILE};
            use crate::cpu::lanes::unrolled;
            use std::arch::x86_64::*;

            /// Values of a vector.
            const LANES: usize = $lanes;
            /// Vectors that a tile is wide.
            const MOST: usize = $most;

            /// Takes tiles of queries past a block.
            #[target_feature(enable = $features)]
            pub(super) fn run(block: &Block<'_>, state: &mut State, tiles: usize) {
                let (head_dim, stride) = (block.head_dim, block.stride);
                for tile in 0..tiles {
                    let State { q, sum, total, largest, weight } = &mut *state;
                    let a = &q[tile * TILE * head_dim..][..TILE * head_dim];
                    let scores =
                        Product { a, a_stride: head_dim, b: block.keys, b_stride: BLOCK, len: head_dim };
                    for at in (0..BLOCK).step_by(MOST * LANES) {
                        product::<MOST>(&scores, at, (weight, BLOCK), None);
                    }
                    let mut shrink = [1.0; TILE];
                    for (i, shrink) in shrink.iter_mut().enumerate() {
                        let query = tile * TILE + i;
                        let weight = &mut weight[i * BLOCK..][..BLOCK];
                        let total = &mut total[query * ROUND..][..ROUND];
                        *shrink = softmax(weight, block.seen, total, &mut largest[query]);
                    }
                    let sum = &mut sum[tile * TILE * stride..][..TILE * stride];
                    let values = Product {
                        a: weight,
                        a_stride: BLOCK,
                        b: block.values,
                        b_stride: stride,
                        len: block.seen,
                    };
                    let mut at = 0;
                    while at + MOST * LANES <= stride {
                        product::<MOST>(&values, at, (sum, stride), Some(&shrink));
                        at += MOST * LANES;
                    }
                    while at < stride {
                        product::<1>(&values, at, (sum, stride), Some(&shrink));
                        at += LANES;
                    }
                }
            }

            /// A product of a whole panel.
            #[target_feature(enable = $features)]
            pub(super) fn panel(of: &Product<'_>, out: &mut [f32], keep: bool) {
                let keep = keep.then_some(&[1.0; TILE]);
                for at in (0..BLOCK).step_by(MOST * LANES) {
                    product::<MOST>(of, at, (out, BLOCK), keep);
                }
            }

            /// `V` vectors of each row of `out`, from `at` on: the product, added to what was there times `keep`.
            #[inline]
            #[target_feature(enable = $features)]
            fn product<const V: usize>(
                of: &Product<'_>,
                at: usize,
                (out, stride): (&mut [f32], usize),
                keep: Option<&[f32; TILE]>,
            ) {
                let &Product { a, a_stride, b, b_stride, len } = of;
                assert!(a.len() >= (TILE - 1) * a_stride + len && b.len() >= len * b_stride);
                assert!(at + V * LANES <= b_stride && at + V * LANES <= stride && out.len() >= TILE * stride);
                let mut acc = [[$zero(); V]; TILE];
                if let Some(keep) = keep {
                    unrolled!(i < TILE, {
                        unrolled!(v < V, {
                            // SAFETY: row i of `out` has `stride` values; the vectors end within it.
                            let old = unsafe { $load(out.as_ptr().add(i * stride + at + v * LANES)) };
                            acc[i][v] = $mul(old, $set(keep[i]));
                        });
                    });
                }
                for t in 0..len {
                    let mut x = [$zero(); V];
                    unrolled!(v < V, {
                        // SAFETY: row t of `b` has `b_stride` values; the vectors end within it.
                        x[v] = unsafe { $load(b.as_ptr().add(t * b_stride + at + v * LANES)) };
                    });
                    unrolled!(i < TILE, {
                        // SAFETY: `a` has more than `(TILE - 1) * a_stride + t` values.
                        let factor = $set(unsafe { *a.as_ptr().add(i * a_stride + t) });
                        unrolled!(v < V, {
                            acc[i][v] = $fma(factor, x[v], acc[i][v]);
                        });
                    });
                }
                unrolled!(i < TILE, {
                    unrolled!(v < V, {
                        // SAFETY: as for the load.
                        unsafe { $store(out.as_mut_ptr().add(i * stride + at + v * LANES), acc[i][v]) };
                    });
                });
            }

            /// Turns the scores of a query into weights, of which the first `seen` count, adds them to its total, and
            /// says by how much earlier sums shrink.
            #[inline]
            #[target_feature(enable = $features)]
            fn softmax(weight: &mut [f32], seen: usize, total: &mut [f32], largest: &mut f32) -> f32 {
                assert!(weight.len() == BLOCK && total.len() == ROUND);
                weight[seen..].fill(f32::NEG_INFINITY);
                // SAFETY: `weight` has BLOCK values, which are whole vectors.
                let score = |v: usize| unsafe { $load(weight.as_ptr().add(v * LANES)) };
                let mut top = score(0);
                for v in 1..BLOCK / LANES {
                    top = $max(top, score(v));
                }
                let before = *largest;
                *largest = before.max($top(top));
                let shrink = (before - *largest).exp();
                let most = $set(*largest);
                for part in 0..ROUND / LANES {
                    // SAFETY: `total` has ROUND values, which are whole vectors.
                    let mut sum = unsafe { $load(total.as_ptr().add(part * LANES)) };
                    sum = $mul(sum, $set(shrink));
                    let mut at = part * LANES;
                    while at < BLOCK {
                        // SAFETY: the vector ends within the BLOCK values.
                        unsafe {
                            let p = $exp($sub($load(weight.as_ptr().add(at)), most));
                            $store(weight.as_mut_ptr().add(at), p);
                            sum = $add(sum, p);
                        }
                        at += ROUND;
                    }
                    // SAFETY: as for the load.
                    unsafe { $store(total.as_mut_ptr().add(part * LANES), sum) };
                }
                shrink
            }
        }
    };
}

kernels!(
    avx2,
    "avx2,fma",
    8,
    2,
    (
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_set1_ps,
        _mm256_mul_ps,
        _mm256_add_ps,
        _mm256_sub_ps,
        _mm256_max_ps,
        _mm256_fmadd_ps
    ),
    (crate::cpu::lanes::exp, crate::cpu::lanes::max)
);

kernels!(
    avx512,
    "avx2,fma,avx512f",
    16,
    4,
    (
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_set1_ps,
        _mm512_mul_ps,
        _mm512_add_ps,
        _mm512_sub_ps,
        _mm512_max_ps,
        _mm512_fmadd_ps
    ),
    (super::wide::exp, _mm512_reduce_max_ps)
);

/// Functions on sixteen values.
mod wide {
    use std::arch::x86_64::*;

    use crate::cpu::lanes::{LN_2_HIGH, LN_2_LOW};

    /// `exp` of values up to 88: the formula of [`crate::cpu::lanes::exp`]; 0 below -87.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn exp(x: __m512) -> __m512 {
        let large = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(-87.0));
        let x = _mm512_min_ps(_mm512_set1_ps(88.0), _mm512_max_ps(_mm512_set1_ps(-87.0), x));
        let n = _mm512_roundscale_ps::<0>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN_2_HIGH), x);
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN_2_LOW), r);
        let mut series = _mm512_set1_ps(1.0 / 5_040.0);
        for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(term));
        }
        _mm512_maskz_scalef_ps(large, series, n)
    }
}
