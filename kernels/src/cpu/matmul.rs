//! Matrix products: how the columns of one or several outputs are cut into chunks for the threads. Chunks follow the rows
//! of the stored weights, so each weight is read once, by one thread.

use std::ops::Range;
use std::sync::Mutex;

use super::buffer::Buffer;
#[cfg(target_arch = "x86_64")]
use super::dots::{columns as products, is_turned};
use super::output::Output;
use super::packed::{Tiles, columns};
#[cfg(target_arch = "aarch64")]
use super::strips::widened as products;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::strips::{GROUP, Input};
use super::threads::Pool;
use super::{Level, floats};
use crate::matrix::Matrix;
use crate::reference;

/// A product's work in multiply-adds below which the calling thread does it alone.
const SMALL: usize = 1 << 16;
/// Chunks per thread, so that a thread that loses its core for a while does not hold up the others.
const SHARES: usize = 8;
/// Weight rows of a chunk are a multiple of this (or the last of a matrix): what the kernels take at once.
const STEP: usize = 48;

/// Products of the same activations with several weights.
pub(crate) struct Matmul<'p> {
    /// Who computes.
    pub pool: &'p mut Pool,
    /// With which code.
    pub level: Level,
    /// For a copy of the activations.
    pub input: &'p mut Buffer,
}

/// Activations of a product.
#[derive(Copy, Clone)]
pub(crate) struct Rows<'a> {
    /// Row after row.
    pub x: &'a [f32],
    /// Rows that a part is multiplied with.
    pub rows: usize,
    /// Each part has rows of its own, one part's behind the other's; else all have the same.
    pub own: bool,
}

impl<'a> Rows<'a> {
    /// Those of part `part`, which has `cols` columns.
    fn of(self, part: usize, cols: usize) -> &'a [f32] {
        let each = self.rows * cols;
        &self.x[if self.own { part * each } else { 0 }..][..each]
    }
}

impl Matmul<'_> {
    /// Runs all products as one operation of the pool.
    pub(crate) fn run(&mut self, x: Rows<'_>, parts: &mut [(&Matrix, &mut [f32])]) {
        if x.rows == 0 {
            return;
        }
        let kind =
            |(weight, _): &(&Matrix, &mut [f32])| (weight.packed().is_some(), weight.floats().is_some());
        let Some(first) = parts.first().map(kind) else { return };
        if !parts.iter().all(|part| kind(part) == first) {
            for (part, (weight, out)) in parts.iter_mut().enumerate() {
                self.run(Rows { x: x.of(part, weight.cols), own: false, ..x }, &mut [(weight, out)]);
            }
            return;
        }
        let chunks = self.cut(x.rows, parts);
        match (first, self.level) {
            ((true, _), _) => self.packed(x, &chunks, parts),
            ((_, true), _) => self.floats(x, &chunks, parts),
            (_, Level::Plain) => self.plain(x, &chunks, parts),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            _ => self.vectors(x, &chunks, parts),
        }
    }

    /// Products with packed weights.
    fn packed(&mut self, x: Rows<'_>, chunks: &[(usize, Range<usize>)], parts: &mut [(&Matrix, &mut [f32])]) {
        let level = self.level;
        let tiles = Tiles::new((self.pool, level), (x.x, parts[0].0.cols), x.rows, self.input);
        let parts: Vec<_> = parts.iter_mut().map(|(weight, out)| (*weight, Output::new(out))).collect();
        self.pool.run(chunks.len(), &|chunk| {
            let (part, range) = &chunks[chunk];
            let (weight, out) = &parts[*part];
            let Some(panels) = weight.packed() else { return };
            let tiles = if x.own { tiles.part(*part, x.rows) } else { tiles };
            // SAFETY: no other chunk has these columns.
            #[expect(unsafe_code, reason = "threads write columns of one output")]
            unsafe {
                columns(level, tiles, (panels, weight.rows), range.clone(), out);
            }
        });
    }

    /// Products with packed floats.
    fn floats(&mut self, x: Rows<'_>, chunks: &[(usize, Range<usize>)], parts: &mut [(&Matrix, &mut [f32])]) {
        let level = self.level;
        let parts: Vec<_> = parts.iter_mut().map(|(weight, out)| (*weight, Output::new(out))).collect();
        self.pool.run(chunks.len(), &|chunk| {
            let (part, range) = &chunks[chunk];
            let (weight, out) = &parts[*part];
            let Some(panels) = weight.floats() else { return };
            // SAFETY: no other chunk has these columns.
            #[expect(unsafe_code, reason = "threads write columns of one output")]
            unsafe {
                floats::columns(
                    level,
                    (x.of(*part, weight.cols), x.rows),
                    (panels, weight.rows),
                    range.clone(),
                    out,
                );
            }
        });
    }

    /// Chunks of all parts: which part, which rows of its weight.
    fn cut(&self, rows: usize, parts: &[(&Matrix, &mut [f32])]) -> Vec<(usize, Range<usize>)> {
        let work = |weight: &Matrix| rows * weight.rows * weight.cols;
        let total: usize = parts.iter().map(|(weight, _)| work(weight)).sum();
        let share = if total < SMALL { total } else { total / (self.pool.threads() * SHARES) };
        let mut chunks = Vec::new();
        for (part, (weight, _)) in parts.iter().enumerate() {
            let step = (share / (rows * weight.cols).max(1)).max(1).next_multiple_of(STEP);
            let starts = (0..weight.rows).step_by(step);
            chunks.extend(starts.map(|start| (part, start..weight.rows.min(start + step))));
        }
        chunks
    }

    /// Plain loops.
    fn plain(&mut self, x: Rows<'_>, chunks: &[(usize, Range<usize>)], parts: &mut [(&Matrix, &mut [f32])]) {
        let parts: Vec<_> = parts.iter_mut().map(|(weight, out)| (*weight, Mutex::new(out))).collect();
        self.pool.run(chunks.len(), &|chunk| {
            let (part, range) = &chunks[chunk];
            let (weight, out) = &parts[*part];
            for r in range.clone() {
                let mut column = Vec::new();
                let x = x.of(*part, weight.cols);
                reference::dot_row(x, weight, r, |_, value| column.push(value));
                let mut out = out.lock().expect("no thread panics while it stores");
                for (row, value) in column.into_iter().enumerate() {
                    out[row * weight.rows + r] = value;
                }
            }
        });
    }

    /// Vectors.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[expect(unsafe_code, reason = "calls code for vectors")]
    fn vectors(
        &mut self,
        x: Rows<'_>,
        chunks: &[(usize, Range<usize>)],
        parts: &mut [(&Matrix, &mut [f32])],
    ) {
        let Some(cols) = parts.first().map(|(weight, _)| weight.cols) else { return };
        let stride = cols.next_multiple_of(GROUP);
        let turned = |(weight, _): &(&Matrix, &mut [f32])| is_turned(weight.dtype);
        let (some, all) = (parts.iter().any(turned), parts.iter().all(turned));
        let rows = x.x.len() / cols.max(1);
        let (plain, other) = self.input.take(2 * rows * stride).split_at_mut(rows * stride);
        if !all {
            fill_up(x.x, (cols, stride), plain, |group, into| *into = *group);
        }
        if some {
            fill_up(x.x, (cols, stride), other, turn);
        }
        let parts: Vec<_> = parts.iter_mut().map(|(weight, out)| (*weight, Output::new(out))).collect();
        self.pool.run(chunks.len(), &|chunk| {
            let (part, range) = &chunks[chunk];
            let (weight, out) = &parts[*part];
            let all = if is_turned(weight.dtype) { &*other } else { &*plain };
            let input = Input { x: Rows { x: all, ..x }.of(*part, stride), first: 0, rows: x.rows, stride };
            // SAFETY: the level says that the machine has the features; no other chunk has these columns.
            unsafe { products(input, weight, range.clone(), out) };
        });
    }
}

/// Whether weights of `dtype` want turned activations.
#[cfg(target_arch = "aarch64")]
fn is_turned(_dtype: crate::dtype::DType) -> bool {
    false
}

/// Copies rows of `cols` values into rows of `stride`, zeros behind them, each group by `copy`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn fill_up(
    x: &[f32],
    (cols, stride): (usize, usize),
    into: &mut [f32],
    copy: impl Fn(&[f32; GROUP], &mut [f32; GROUP]),
) {
    for (from, row) in x.chunks_exact(cols).zip(into.chunks_exact_mut(stride)) {
        let (whole, rest) = from.as_chunks();
        let (into, _) = row.as_chunks_mut();
        whole.iter().zip(into.iter_mut()).for_each(|(from, into)| copy(from, into));
        if !rest.is_empty() {
            let mut last = [0.0; GROUP];
            last[..rest.len()].copy_from_slice(rest);
            copy(&last, &mut into[whole.len()]);
        }
    }
}

/// Turns a group: value `4 l + t` goes to place `8 t + l`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn turn(group: &[f32; GROUP], into: &mut [f32; GROUP]) {
    for t in 0..4 {
        for l in 0..8 {
            into[8 * t + l] = group[4 * l + t];
        }
    }
}
