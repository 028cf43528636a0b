//! Products with weights that are widened into a buffer of the nearest cache first, a strip of rows at a time; tiles of
//! activations by weights run over it. Every output element is one accumulator of eight lanes, fed along `k` in order, and
//! summed across its lanes at the end in one fixed order.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::buffer::Buffer;
use super::lanes::{self, LANES, unrolled};
use super::output::Output;
use crate::matrix::Matrix;

/// Activations are filled up with zeros to whole groups of so many values.
pub(crate) const GROUP: usize = 32;
/// Weight rows of a strip.
const STRIP: usize = 12;
/// Weight rows of a tile.
const TILE: usize = 3;

/// Activations of one product: `[rows, stride]`, of which the weight's `cols` count and the rest is zero.
#[derive(Copy, Clone)]
pub(crate) struct Input<'a> {
    /// The values, in the order of the widened weights.
    pub x: &'a [f32],
    /// Number of the first row.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values per row: `cols`, rounded up to whole groups.
    pub stride: usize,
}

thread_local! {
    /// Widened weights of a strip; grows to the longest row once.
    pub(super) static SCRATCH: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
}

/// Where products go.
#[derive(Copy, Clone)]
pub(super) struct Place {
    /// Output row of the first row of activations.
    pub row: usize,
    /// Output column of the first weight row.
    pub col: usize,
    /// Columns of the output.
    pub cols: usize,
}

impl Place {
    /// The output element of row `m` of the activations and row `r` of the weights.
    #[inline]
    pub fn at(self, m: usize, r: usize) -> usize {
        (self.row + m) * self.cols + self.col + r
    }
}

/// Computes the columns `range` of `out`: the products of all rows of `input`, as they are, with those rows of `weight`,
/// which are widened by the matrix itself.
///
/// # Safety
/// The machine has the vectors; no other thread writes these columns.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn widened(input: Input<'_>, weight: &Matrix, range: Range<usize>, out: &Output<'_>) {
    assert!(range.end <= weight.rows && input.stride == weight.cols.next_multiple_of(GROUP));
    assert!(input.x.len() >= input.rows * input.stride);
    let widen = |r: usize, wide: &mut [f32]| {
        let (row, rest) = wide.split_at_mut(weight.cols);
        weight.widen(r, row);
        rest.fill(0.0);
    };
    // SAFETY: the caller's promises.
    SCRATCH.with_borrow_mut(|scratch| unsafe { strips(input, (weight.rows, range), widen, (out, scratch)) });
}

/// Any number of rows of activations with the weight rows of `range`, a strip at a time, which `widen` fills with rows.
///
/// # Safety
/// As for [`widened`], with the lengths checked.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn strips(
    input: Input<'_>,
    (cols, range): (usize, Range<usize>),
    widen: impl Fn(usize, &mut [f32]),
    (out, scratch): (&Output<'_>, &mut Buffer),
) {
    let stride = input.stride;
    let scratch = scratch.take(STRIP * stride);
    for first in range.clone().step_by(STRIP) {
        let count = STRIP.min(range.end - first);
        for (r, wide) in scratch.chunks_exact_mut(stride).take(count).enumerate() {
            widen(first + r, wide);
        }
        let strip = &scratch[..count * stride];
        // Tiles of at most four rows, as equal as they can be: a tile of one row is slow.
        let tiles = input.rows.div_ceil(4);
        let mut m = 0;
        for tile in 0..tiles {
            let place = Place { row: input.first + m, col: first, cols };
            let rows = (input.rows - m).div_ceil(tiles - tile);
            let tile = Tile { x: &input.x[m * stride..], w: strip, stride, place };
            // SAFETY: the tile's slices hold the rows that it is told to take.
            unsafe {
                match rows {
                    1 => tile.run::<1>(out),
                    2 => tile.run::<2>(out),
                    3 => tile.run::<3>(out),
                    _ => tile.run::<4>(out),
                }
            }
            m += rows;
        }
    }
}

/// Some rows of activations, and a strip of widened weights to multiply them with.
struct Tile<'a> {
    /// Activations, from the first row of the tile on.
    x: &'a [f32],
    /// Widened weights, whole rows.
    w: &'a [f32],
    /// Values per row of both.
    stride: usize,
    /// Where the products go.
    place: Place,
}

impl Tile<'_> {
    /// `M` rows of activations with the whole strip.
    ///
    /// # Safety
    /// `x` holds `M` rows, this thread alone writes the columns, and the machine has the vectors.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    unsafe fn run<const M: usize>(&self, out: &Output<'_>) {
        let count = self.w.len() / self.stride;
        let mut n = 0;
        while n < count {
            // SAFETY: the caller's promises; the strip has the rows asked for.
            unsafe {
                match count - n {
                    1 => self.part::<M, 1>(n, out),
                    2 => self.part::<M, 2>(n, out),
                    _ => self.part::<M, TILE>(n, out),
                }
            }
            n += TILE;
        }
    }

    /// `M` rows of activations with `N` rows of the strip from `n` on.
    ///
    /// # Safety
    /// As for [`Tile::run`]; the strip has these rows.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    unsafe fn part<const M: usize, const N: usize>(&self, n: usize, out: &Output<'_>) {
        let (x, w) = (&self.x[..M * self.stride], &self.w[n * self.stride..][..N * self.stride]);
        let mut acc = [[lanes::zero(); N]; M];
        let mut k = 0;
        while k < self.stride {
            let mut ws = [lanes::zero(); N];
            unrolled!(r < N, {
                // SAFETY: k is within a row, r below N.
                ws[r] = unsafe { lanes::load_from(w.as_ptr().add(r * self.stride + k)) };
            });
            unrolled!(m < M, {
                // SAFETY: k is within a row, m below M.
                let x = unsafe { lanes::load_from(x.as_ptr().add(m * self.stride + k)) };
                unrolled!(r < N, { acc[m][r] = lanes::fma(x, ws[r], acc[m][r]) });
                keep_order();
            });
            k += LANES;
        }
        unrolled!(r < N, {
            let values = lanes::sums([acc[0][r], acc[1 % M][r], acc[2 % M][r], acc[3 % M][r]]);
            for (m, &value) in values.iter().take(M).enumerate() {
                // SAFETY: this thread alone writes these columns.
                unsafe { out.put(self.place.at(m, n + r), value) };
            }
        });
    }
}

/// Keeps the compiler from moving loads across: it would widen or load more at once than there are registers, and spill
/// accumulators in the innermost loop. Costs no instruction.
#[inline]
pub(super) fn keep_order() {
    compiler_fence(Ordering::SeqCst);
}
