//! Products of many rows of activations with one weight: a panel of weight rows is widened and turned over once, then all
//! rows of activations go past it. A part of a panel, and the activations that meet it, stay in near caches.
#![expect(unsafe_code, reason = "calls code for vectors, and threads write columns of one output")]

use std::cell::RefCell;

use super::Level;
use super::buffer::Buffer;
use super::output::Output;
use super::threads::Pool;
use super::vectors::{BLOCK, Product, TILE};
use crate::matrix::Matrix;

/// Terms of a sum that are added up at a time: so many rows of a panel fit the nearest cache.
const TERMS: usize = 128;
/// Rows of activations at a time: whole tiles, which fit the second cache.
const ROWS: usize = 16 * TILE;

thread_local! {
    /// A panel `[cols, BLOCK]`, then sums `[ROWS, BLOCK]`, then a weight row; grows to the longest rows once.
    static SCRATCH: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
}

/// The activations of a call.
struct Input<'a> {
    /// `[rows, cols]`.
    x: &'a [f32],
    rows: usize,
    cols: usize,
    /// The rows of the last tile where that is not full, zeros behind them.
    last: Vec<f32>,
}

impl<'a> Input<'a> {
    fn new(x: &'a [f32], rows: usize, cols: usize) -> Input<'a> {
        let mut last = x[rows / TILE * TILE * cols..].to_vec();
        last.resize(TILE * cols, 0.0);
        Input { x, rows, cols, last }
    }

    /// A tile of rows from `row` on, terms from `at` on.
    fn tile(&self, row: usize, at: usize) -> &[f32] {
        let rows = if row + TILE <= self.rows { &self.x[row * self.cols..] } else { &self.last };
        &rows[at..TILE * self.cols]
    }
}

/// Runs a product whose arguments have been checked, on a machine that has what `level` names; that is not
/// [`Level::Plain`].
pub(crate) fn run(
    (pool, level): (&mut Pool, Level),
    (x, rows): (&[f32], usize),
    weight: &Matrix,
    out: &mut [f32],
) {
    let (input, out) = (Input::new(x, rows, weight.cols), Output::new(out));
    pool.run(weight.rows.div_ceil(BLOCK), &|panel| {
        // SAFETY: the level says what the machine has; no other chunk has these columns.
        SCRATCH.with_borrow_mut(|scratch| unsafe { columns(level, &input, (weight, panel), scratch, &out) });
    });
}

/// Computes the columns of one panel.
///
/// # Safety
/// The machine has what `level` names; no other thread writes these columns.
unsafe fn columns(
    level: Level,
    input: &Input<'_>,
    (weight, panel): (&Matrix, usize),
    scratch: &mut Buffer,
    out: &Output<'_>,
) {
    let cols = input.cols;
    let (first, count) = (panel * BLOCK, BLOCK.min(weight.rows - panel * BLOCK));
    let scratch = scratch.take(cols * BLOCK + ROWS * BLOCK + cols);
    let (packed, rest) = scratch.split_at_mut(cols * BLOCK);
    let (sums, row) = rest.split_at_mut(ROWS * BLOCK);
    packed.fill(0.0);
    for r in 0..count {
        weight.widen(first + r, row);
        packed.iter_mut().skip(r).step_by(BLOCK).zip(&*row).for_each(|(to, value)| *to = *value);
    }
    for start in (0..input.rows).step_by(ROWS) {
        let rows = ROWS.min(input.rows - start);
        for at in (0..cols).step_by(TERMS) {
            let b = &packed[at * BLOCK..];
            for tile in 0..rows.div_ceil(TILE) {
                let (a, len) = (input.tile(start + tile * TILE, at), TERMS.min(cols - at));
                let product = Product { a, a_stride: cols, b, b_stride: BLOCK, len };
                // SAFETY: the caller's promise.
                unsafe { product.panel(level, &mut sums[tile * TILE * BLOCK..][..TILE * BLOCK], at > 0) };
            }
        }
        for (r, sums) in sums.chunks_exact(BLOCK).take(rows).enumerate() {
            // SAFETY: columns of this panel.
            let out = unsafe { out.part((start + r) * weight.rows + first, count) };
            out.copy_from_slice(&sums[..count]);
        }
    }
}
