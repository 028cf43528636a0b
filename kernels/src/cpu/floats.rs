//! Products with packed floats: some panels at a time, whose columns are widened in registers while few rows of
//! activations are multiplied with them; for many rows they are widened once, into a buffer of a near cache.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod eight;
#[cfg(target_arch = "x86_64")]
mod sixteen;

use std::cell::RefCell;
use std::ops::Range;

use super::Level;
use super::buffer::Buffer;
use super::output::Output;
use crate::dtype::DType;
use crate::packed::PANEL;
use crate::packed::floats::Floats;

/// Panels that are multiplied side by side: one alone would wait for its sums.
const SIDE: usize = 3;
/// Rows of activations that go through panels together: as many as the registers of the widest kernel hold.
const TILE: usize = 8;

thread_local! {
    /// Widened panels; grows to the longest rows once.
    static WIDE: RefCell<Buffer> = const { RefCell::new(Buffer::new()) };
}

/// Computes the columns `range` of `out`, which has `cols` of them, for all rows of `x`. `range` starts at a panel.
///
/// # Safety
/// No other thread writes these columns.
#[expect(unsafe_code, reason = "threads write parts of one output")]
pub(crate) unsafe fn columns(
    level: Level,
    (x, rows): (&[f32], usize),
    (weight, cols): (&Floats, usize),
    range: Range<usize>,
    out: &Output<'_>,
) {
    assert!(range.start.is_multiple_of(PANEL) && range.end <= cols && x.len() == rows * weight.cols);
    if level == Level::Plain {
        for r in range {
            // SAFETY: the caller's promise.
            weight.dot_row(x, r, |row, product| unsafe { out.put(row * cols + r, product) });
        }
        return;
    }
    let panels = range.start / PANEL..range.end.div_ceil(PANEL);
    let mut first = panels.start;
    while first < panels.end {
        // The last ones overlap those before, which come to the same values once more.
        let side = if panels.len() < SIDE { 1 } else { SIDE };
        let from = first.min(panels.end - side);
        let strip = Strip::new(weight, from, side);
        let products = Products { level, x, cols, out, col: from * PANEL };
        // SAFETY: the caller's promise; the level is one that the machine has.
        unsafe {
            if rows > TILE && strip.dtype != DType::F32 {
                WIDE.with_borrow_mut(|wide| products.run(strip.widened(level, wide), rows));
            } else {
                products.run(strip, rows);
            }
        }
        first += side;
    }
}

/// Panels that lie side by side.
#[derive(Copy, Clone)]
struct Strip<'a> {
    /// Format of the values.
    dtype: DType,
    /// Columns.
    cols: usize,
    /// Columns that share a factor.
    run: usize,
    /// How many panels.
    side: usize,
    /// They have been widened into a near cache.
    wide: bool,
    /// Of each, the values; behind the last one nothing.
    values: [&'a [u8]; SIDE],
    /// Of each, the factors; nothing where there are none.
    factors: [&'a [f32]; SIDE],
}

impl<'a> Strip<'a> {
    /// The panels from `first` on.
    fn new(weight: &'a Floats, first: usize, side: usize) -> Strip<'a> {
        let Floats { dtype, cols, run, .. } = *weight;
        let (mut values, mut factors): ([&[u8]; SIDE], [&[f32]; SIDE]) = ([&[]; SIDE], [&[]; SIDE]);
        for panel in 0..side {
            (values[panel], factors[panel]) = (weight.values(first + panel), weight.factors(first + panel));
        }
        Strip { dtype, cols, run, side, wide: false, values, factors }
    }

    /// The same with values of F32, in `buffer`.
    ///
    /// # Safety
    /// The machine has the level.
    #[expect(unsafe_code, reason = "calls code for vectors")]
    unsafe fn widened(self, level: Level, buffer: &'a mut Buffer) -> Strip<'a> {
        let each = self.cols * PANEL;
        let wide = buffer.take(self.side * each);
        for (into, values) in wide.chunks_exact_mut(each).zip(self.values) {
            match level {
                Level::Plain => unreachable!("plain loops read panels themselves"),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's promise.
                Level::Avx512 => unsafe { sixteen::widen(self.dtype, values, into) },
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: the caller's promise.
                _ => unsafe { eight::widen(self.dtype, values, into) },
            }
        }
        let mut values: [&[u8]; SIDE] = [&[]; SIDE];
        for (values, wide) in values.iter_mut().zip(wide.chunks_exact(each)) {
            *values = bytemuck::cast_slice(wide);
        }
        Strip { dtype: DType::F32, wide: true, values, ..self }
    }
}

/// Products of all rows with one strip.
struct Products<'a> {
    level: Level,
    /// Rows of activations.
    x: &'a [f32],
    /// Columns of the output.
    cols: usize,
    /// Where they go.
    out: &'a Output<'a>,
    /// The strip's first column there.
    col: usize,
}

#[expect(unsafe_code, reason = "threads write parts of one output")]
impl Products<'_> {
    /// Computes them, in tiles of a power of two of rows.
    ///
    /// # Safety
    /// No other thread writes these columns; the machine has the level.
    unsafe fn run(&self, strip: Strip<'_>, rows: usize) {
        let mut first = 0;
        while let Some(most) = (rows - first).checked_ilog2() {
            let count = TILE.min(1 << most);
            match self.level {
                Level::Plain => unreachable!("plain loops read panels themselves"),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's promise.
                Level::Avx512 => unsafe { sixteen::tile(self, strip, first..first + count) },
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: the caller's promise.
                _ => unsafe { eight::tile(self, strip, first..first + count) },
            }
            first += count;
        }
    }

    /// Stores consecutive products of row `row`, from the strip's column `col` on; those behind the last are dropped.
    ///
    /// # Safety
    /// No other thread writes these columns.
    #[inline]
    unsafe fn store(&self, row: usize, col: usize, products: &[f32]) {
        let col = self.col + col;
        let count = products.len().min(self.cols.saturating_sub(col));
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.part(row * self.cols + col.min(self.cols), count) };
        out.copy_from_slice(&products[..count]);
    }
}
