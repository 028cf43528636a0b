//! Weights that are floats, laid out for products with activations as they are. The same bytes, sixteen rows side by side:
//! one vector then holds a column of sixteen outputs, and no sum ever goes across a vector. So an output is one chain of
//! multiply-adds, first column to last, each rounded once: every kernel gives the same bits.
//!
//! A panel is sixteen rows: their factors, where the format has some (`[runs of columns, 16]` f32), then the stored values
//! `[columns, 16]`. With factors, the chain is that of a run of columns; the runs are added up, each times its factor.
//!
//! Eight bits of floating point become f16 by a shift, which makes them 256 times too small; the factors hold that back.

use half::{bf16, f16};

use super::arena::{Arena, Region};
use super::pack::fill_parts;
use super::{PANEL, pack};
use crate::dtype::DType;
use crate::error::Error;
use crate::matrix::Matrix;

/// A matrix of floats, packed; its rows are in the [`Matrix`] around it.
pub(crate) struct Floats {
    /// Format of the stored values: F32, F16, BF16 or F8E4M3.
    pub dtype: DType,
    /// Values per row.
    pub cols: usize,
    /// Columns that share a factor; all of them where there are no factors.
    pub run: usize,
    /// All panels.
    region: Region,
}

/// What F8E4M3 values are too small by as f16.
const SMALLER: f32 = 256.0;

impl Floats {
    /// Bytes that `rows` by `cols` values take packed, `run` of which in a row share a factor; none if they cannot be.
    pub fn size(dtype: DType, (rows, cols): (usize, usize), run: usize) -> Option<usize> {
        if dtype.is_quantised() || cols == 0 || run == 0 {
            return None;
        }
        rows.div_ceil(PANEL).checked_mul(panel_bytes(dtype, cols, run))
    }

    /// Columns that share a factor, and bytes packed; none if it cannot be packed: it is quantised, or has eight-bit values
    /// that are no numbers.
    fn plan(stored: &Matrix) -> Option<(usize, usize)> {
        let Matrix { dtype, rows, cols, .. } = *stored;
        let run = if rows == 0 { None } else { stored.scales(0).map(|(_, run)| run) };
        let run = run.unwrap_or(cols).min(cols);
        let size = Floats::size(dtype, (rows, cols), run)?;
        if dtype == DType::F8E4M3 {
            let is_number = |byte: &u8| byte & 0x7f != 0x7f;
            let factors = |r: usize| stored.scales(r).map_or(&[][..], |(factors, _)| factors);
            let finite = |r: usize| factors(r).iter().all(|factor| (factor * SMALLER).is_finite());
            if !stored.bytes().iter().all(is_number) || !(0..rows).all(finite) {
                return None;
            }
        } else if rows > 0 && stored.scales(0).is_some() {
            return None;
        }
        Some((run, size))
    }

    /// Packs a stored matrix into memory of `arena`, with `threads` threads; none if it cannot be packed.
    ///
    /// # Errors
    /// As for [`Arena::take`].
    pub fn new(stored: &Matrix, arena: &mut Arena, threads: usize) -> Result<Option<Floats>, Error> {
        let Matrix { dtype, rows, cols, .. } = *stored;
        let Some((run, size)) = Floats::plan(stored) else { return Ok(None) };
        let mut region = arena.take(size)?;
        let sizes = (panel_bytes(dtype, cols, run), rows.div_ceil(PANEL));
        fill_parts(region.bytes_mut(), sizes, threads, &|panel, bytes| {
            fill(stored, run, panel, bytes);
            pack::forget(stored, panel);
        });
        Ok(Some(Floats { dtype, cols, run, region: Region::freeze(region) }))
    }

    /// All bytes of a panel.
    fn panel(&self, panel: usize) -> &[u8] {
        let size = panel_bytes(self.dtype, self.cols, self.run);
        &self.region.bytes()[panel * size..][..size]
    }

    /// Factors `[runs, 16]` of a panel; none where the values are as stored.
    pub fn factors(&self, panel: usize) -> &[f32] {
        bytemuck::cast_slice(&self.panel(panel)[..factor_bytes(self.dtype, self.cols, self.run)])
    }

    /// Stored values `[columns, 16]` of a panel.
    pub fn values(&self, panel: usize) -> &[u8] {
        let start = factor_bytes(self.dtype, self.cols, self.run);
        &self.panel(panel)[start..][..self.cols * PANEL * self.dtype.block_bytes()]
    }

    /// The values of row `r` that chains are made of, without factors.
    fn chain(&self, r: usize) -> impl Iterator<Item = f32> {
        let size = self.dtype.block_bytes();
        let column = self.values(r / PANEL).chunks_exact(PANEL * size);
        column.map(move |column| widen(self.dtype, &column[r % PANEL * size..][..size]))
    }

    /// Widens row `r`: the values that its stored form stands for.
    pub fn widen(&self, r: usize, out: &mut [f32]) {
        out.iter_mut().zip(self.chain(r)).for_each(|(out, value)| *out = value);
        let factors = self.factors(r / PANEL).iter().skip(r % PANEL).step_by(PANEL);
        for (out, factor) in out.chunks_mut(self.run).zip(factors) {
            out.iter_mut().for_each(|out| *out *= factor);
        }
    }

    /// Products of every row of `x` with row `r`, given to `put` with the number of the row: what every kernel computes.
    pub fn dot_row(&self, x: &[f32], r: usize, mut put: impl FnMut(usize, f32)) {
        let chain: Vec<f32> = self.chain(r).collect();
        for (row, x) in x.chunks_exact(self.cols).enumerate() {
            let runs = x.chunks(self.run).zip(chain.chunks(self.run));
            let mut sums =
                runs.map(|(x, w)| x.iter().zip(w).fold(0.0, |sum: f32, (x, w)| x.mul_add(*w, sum)));
            let mut factors = self.factors(r / PANEL).iter().skip(r % PANEL).step_by(PANEL).peekable();
            if factors.peek().is_none() {
                put(row, sums.next().unwrap_or_default());
            } else {
                put(row, sums.zip(factors).fold(0.0, |total, (sum, factor)| sum.mul_add(*factor, total)));
            }
        }
    }
}

/// A stored value as it takes part in chains.
fn widen(dtype: DType, value: &[u8]) -> f32 {
    match (dtype, value) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (DType::F8E4M3, &[byte]) => {
            let byte = u16::from(byte);
            f16::from_bits(byte >> 7 << 15 | (byte & 0x7f) << 7).to_f32()
        }
        _ => unreachable!("{dtype:?} is not packed as floats"),
    }
}

/// Bytes of the factors of a panel, whole cache lines.
fn factor_bytes(dtype: DType, cols: usize, run: usize) -> usize {
    if dtype == DType::F8E4M3 { cols.div_ceil(run.max(1)) * PANEL * size_of::<f32>() } else { 0 }
}

/// Bytes of a panel, whole cache lines.
fn panel_bytes(dtype: DType, cols: usize, run: usize) -> usize {
    let values = cols * PANEL * dtype.block_bytes();
    factor_bytes(dtype, cols, run) + values.next_multiple_of(64)
}

/// Packs the rows of one panel. Rows behind the last are zeros.
fn fill(stored: &Matrix, run: usize, panel: usize, bytes: &mut [u8]) {
    let cols = stored.cols;
    let (factors, values) = bytes.split_at_mut(factor_bytes(stored.dtype, cols, run));
    let first = panel * PANEL;
    let rows = first..stored.rows.min(first + PANEL);
    if !factors.is_empty() {
        for r in rows.clone() {
            let own = stored.scales(r).map_or(&[1.0][..], |(own, _)| own);
            for (b, factor) in own.iter().enumerate() {
                let at = (b * PANEL + r - first) * size_of::<f32>();
                factors[at..at + size_of::<f32>()].copy_from_slice(&(factor * SMALLER).to_le_bytes());
            }
        }
    }
    let rows: Vec<&[u8]> = rows.map(|r| stored.row(r)).collect();
    match stored.dtype.block_bytes() {
        1 => turn::<1>(&rows, values),
        2 => turn::<2>(&rows, values),
        _ => turn::<4>(&rows, values),
    }
}

/// Puts values of `N` bytes, row after row, side by side: column after column.
fn turn<const N: usize>(rows: &[&[u8]], into: &mut [u8]) {
    let (into, _) = into.as_chunks_mut::<N>();
    // So many columns at a time that the lines they go to stay in the nearest cache.
    const COLUMNS: usize = 64;
    for (block, into) in into.chunks_mut(COLUMNS * PANEL).enumerate() {
        for (r, row) in rows.iter().enumerate() {
            pack::fetch(row, (block + 2) * COLUMNS * N, COLUMNS * N);
            let (values, _) = row[(block * COLUMNS * N).min(row.len())..].as_chunks::<N>();
            into[r..].iter_mut().step_by(PANEL).zip(values).for_each(|(into, value)| *into = *value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Sample;

    fn packed(stored: &Matrix) -> Option<Floats> {
        Floats::new(stored, &mut Arena::new(1).expect("little memory"), 3).expect("little memory")
    }

    #[test]
    fn packing_keeps_every_value_to_the_bit() {
        let mut sample = Sample::new(12);
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_quantised()) {
            for (rows, cols) in [(1, 1), (16, 65), (37, 12), (700, 300)] {
                let stored = sample.matrix(dtype, rows, cols);
                let packed = packed(&stored).expect("it can be packed");
                let (mut got, wide) = (vec![f32::NAN; cols], stored.to_f32());
                for (r, want) in wide.chunks_exact(cols).enumerate() {
                    packed.widen(r, &mut got);
                    assert_eq!(got, want, "{dtype:?}, row {r} of {rows}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_as_it_is_stored() {
        let stored = Matrix::from_bytes(DType::F8E4M3, 1, 2, vec![0x38, 0xff]).expect("fits");
        assert!(packed(&stored).is_none());
        let stored = Matrix::from_bytes(DType::F8E4M3, 1, 2, vec![0x38, 0x7e]).expect("fits");
        let far = stored.clone().scaled(vec![1e37], (1, 2)).expect("fits");
        assert!(packed(&far).is_none());
        let packed = packed(&stored).expect("numbers");
        let mut got = [0.0; 2];
        packed.widen(0, &mut got);
        assert_eq!(got, [1.0, 448.0]);
    }
}
