//! Products with packed weights on the threads of a machine: activations become integers once, tile by tile; then each
//! thread takes panels, and goes through the tiles while some panels are in its nearest caches.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod rows;

use std::ops::Range;

use super::Level;
use super::buffer::Buffer;
use super::output::Output;
use super::threads::Pool;
use crate::packed::form::{Known, Run, with_form};
use crate::packed::input::{self, WORDS};
use crate::packed::{GROUP, PANEL, Packed, plain};

/// Rows of activations that go through a panel together: as many as the registers of the widest kernel hold.
pub(crate) const TILE: usize = 8;
/// Bytes of panels that all tiles go through before the next ones.
const NEAR: usize = 96 << 10;
/// Values of activations below which the calling thread quantises them alone.
const SMALL: usize = 1 << 13;

/// Quantised activations, for any number of products with the same rows.
#[derive(Copy, Clone)]
pub(crate) struct Tiles<'a> {
    /// All tiles, one behind the other.
    words: &'a [u32],
    /// Rows of activations.
    rows: usize,
    /// Groups per row.
    groups: usize,
}

/// One tile.
#[derive(Copy, Clone)]
pub(crate) struct Tile<'a> {
    /// As [`input`] lays it out.
    words: &'a [u32],
    /// Its first row.
    first: usize,
    /// Its rows: a power of two, at most [`TILE`].
    rows: usize,
}

impl<'a> Tiles<'a> {
    /// Quantises all rows of `x`, which are of `cols` values, into `buffer`; no tile goes beyond a multiple of `each` rows.
    pub fn new(
        (pool, level): (&mut Pool, Level),
        (x, cols): (&[f32], usize),
        each: usize,
        buffer: &'a mut Buffer,
    ) -> Tiles<'a> {
        let (groups, rows) = (cols / GROUP, x.len() / cols.max(1));
        let size = (WORDS * groups).max(1);
        let words: &mut [f32] = buffer.take(WORDS * groups * rows);
        // Where there are several runs of rows, each is done as a whole.
        let part = if each < rows { each } else { TILE };
        let part = if x.len() < SMALL { words.len() } else { part * size };
        pool.run_parts(words, part, &|start, words| {
            let first = start / size;
            for (run, words) in words.chunks_mut(each.max(1) * size).enumerate() {
                for (place, rows) in tiles(words.len() / size) {
                    let tile = &mut words[place * size..][..rows * size];
                    let x = &x[(first + run * each + place) * cols..][..rows * cols];
                    quantise(level, x, cols, bytemuck::cast_slice_mut(tile));
                }
            }
        });
        Tiles { words: bytemuck::cast_slice(words), rows, groups }
    }

    /// Run `part` of `rows` rows.
    pub fn part(self, part: usize, rows: usize) -> Tiles<'a> {
        let each = WORDS * self.groups * rows;
        Tiles { words: &self.words[part * each..][..each], rows, ..self }
    }

    /// All tiles.
    fn iter(self) -> impl Iterator<Item = Tile<'a>> {
        let size = WORDS * self.groups;
        let tile = move |(first, rows)| {
            let words = &self.words[first * size..][..rows * size];
            Tile { words, first, rows }
        };
        tiles(self.rows).map(tile)
    }
}

/// First row and number of rows of each tile: as many as [`TILE`], then powers of two, so that few kernels do.
fn tiles(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = rows - first;
        let count = if left >= TILE { TILE } else { 1 << left.checked_ilog2()? };
        first += count;
        Some((first - count, count))
    })
}

/// [`input::quantise`], compiled for the machine.
fn quantise(level: Level, x: &[f32], cols: usize, tile: &mut [u32]) {
    match level {
        Level::Plain => input::quantise(x, cols, tile),
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        // SAFETY: the level says that the machine has the features.
        Level::Avx2 | Level::Avx512 => unsafe { avx2::quantise(x, cols, tile) },
        // Vectors are in the code for every machine.
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonDot => input::quantise(x, cols, tile),
    }
}

/// Computes the columns `range` of `out`, which has `cols` of them. `range` starts at a panel.
///
/// # Safety
/// No other thread writes these columns.
#[expect(unsafe_code, reason = "threads write parts of one output")]
pub(crate) unsafe fn columns(
    level: Level,
    tiles: Tiles<'_>,
    (weight, cols): (&Packed, usize),
    range: Range<usize>,
    out: &Output<'_>,
) {
    assert!(range.start.is_multiple_of(PANEL) && range.end <= cols && weight.groups == tiles.groups);
    let near = (NEAR / weight.panel(0).len().max(1)).max(1) * PANEL;
    for first in range.clone().step_by(near) {
        let near = first..range.end.min(first + near);
        for tile in tiles.iter() {
            let target = Target { out, cols, tile };
            with_form(weight.dtype, Panels { level, weight, range: near.clone(), target });
        }
    }
}

/// Panels that a tile goes through. Made by [`columns`] alone, with its promise that no other thread writes the columns.
struct Panels<'a> {
    level: Level,
    weight: &'a Packed,
    /// Columns of the output; it starts at a panel.
    range: Range<usize>,
    target: Target<'a>,
}

impl Run for Panels<'_> {
    #[inline]
    fn run<F: Known>(self) {
        // SAFETY: the promise of `columns`; the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for a level")]
        unsafe {
            match self.level {
                Level::Plain => self.target.plain(self.weight, self.range),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::panels::<F>(&self),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::panels::<F>(&self),
                #[cfg(target_arch = "aarch64")]
                Level::Neon => neon::panels::<F, neon::Pairs>(&self),
                #[cfg(target_arch = "aarch64")]
                Level::NeonDot => neon::panels::<F, neon::Dots>(&self),
            }
        }
    }
}

/// Where the products of a tile go.
struct Target<'a> {
    out: &'a Output<'a>,
    /// Columns of the output.
    cols: usize,
    tile: Tile<'a>,
}

#[expect(unsafe_code, reason = "threads write parts of one output")]
impl Target<'_> {
    /// Stores consecutive products of row `m` of the tile, from output column `col` on; those behind the last column
    /// are dropped.
    ///
    /// # Safety
    /// No other thread writes these columns.
    #[inline]
    unsafe fn store(&self, m: usize, col: usize, products: &[f32]) {
        let count = products.len().min(self.cols - col);
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.part((self.tile.first + m) * self.cols + col, count) };
        out.copy_from_slice(&products[..count]);
    }

    /// Plain loops.
    ///
    /// # Safety
    /// No other thread writes these columns.
    unsafe fn plain(&self, weight: &Packed, range: Range<usize>) {
        for r in range {
            let tile = self.tile;
            plain::dot_tile((tile.words, tile.rows), (weight, r), |m, product| {
                // SAFETY: the caller's promise.
                unsafe { self.store(m, r, &[product]) };
            });
        }
    }
}
