//! A weight matrix, as it lies in its file or packed. In the first form kernels read the stored bytes in place and multiply
//! in f32 (the few that no kernel could read so are copied); in the second the same numbers lie in the order in which they
//! are multiplied: quantised ones with integers, which activations become for that, floats with activations as they are.
//! Ranks of one process share either.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::dtype::{DType, dequantize};
use crate::error::Error;
use crate::packed::Packed;
use crate::packed::arena::Arena;
use crate::packed::floats::Floats;
use crate::weights::Mapped;

#[cfg(target_endian = "big")]
compile_error!("weights are read in place and are little-endian");

/// Row-major `[rows, cols]`, each row stored as whole blocks of `dtype`. Cheap to clone.
#[derive(Clone)]
pub struct Matrix {
    /// Format of the stored values.
    pub dtype: DType,
    /// Number of rows (outputs, where the matrix is multiplied with).
    pub rows: usize,
    /// Values per row (inputs).
    pub cols: usize,
    /// Bytes per row, from `dtype` and `cols`.
    stride: usize,
    /// Where the bytes are; written by the constructors only.
    store: Store,
    /// Offset of the first byte there.
    start: usize,
    /// Factors beside the stored values.
    scales: Option<Scales>,
}

/// Factors of the values in rectangles of a matrix: what FP8 checkpoints store beside their weights.
#[derive(Clone)]
struct Scales {
    /// One for each rectangle, row after row of them.
    grid: Arc<[f32]>,
    /// Rows and columns of a rectangle.
    block: (usize, usize),
    /// The row of the rectangles' matrix that is row 0 of this one.
    first: usize,
}

/// Bytes of a matrix.
#[derive(Clone)]
enum Store {
    /// Held in words, so that the bytes are aligned for f32.
    Owned(Arc<[u32]>),
    /// A mapped file.
    Mapped(Arc<Mapped>),
    /// Repacked, in memory of its own.
    Packed(Arc<Packed>),
    /// The same, of floats.
    Floats(Arc<Floats>),
    /// Nowhere.
    Outline,
}

impl Matrix {
    /// A matrix of f32 values. Panics unless `values` has `rows * cols` of them.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Matrix {
        assert_eq!(rows.checked_mul(cols), Some(values.len()), "values of a {rows} x {cols} matrix");
        let words: Arc<[u32]> = values.iter().map(|v| v.to_bits()).collect();
        let (stride, store) = (cols * 4, Store::Owned(words));
        Matrix { dtype: DType::F32, rows, cols, stride, store, start: 0, scales: None }
    }

    /// A matrix that has a shape and a format and nothing else: of a model that is only looked at. All its values are
    /// zeros. Panics if `cols` is no multiple of the block.
    pub(crate) fn outline(dtype: DType, rows: usize, cols: usize) -> Matrix {
        let stride = dtype.row_bytes(cols).expect("whole blocks");
        Matrix { dtype, rows, cols, stride, store: Store::Outline, start: 0, scales: None }
    }

    /// Whether it has no values.
    pub(crate) fn is_outline(&self) -> bool {
        matches!(self.store, Store::Outline)
    }

    /// A matrix of stored blocks.
    ///
    /// # Errors
    /// [`Error::Matrix`] if `cols` is no multiple of the block of `dtype`, or `bytes` has not the size that follows.
    pub fn from_bytes(dtype: DType, rows: usize, cols: usize, bytes: Vec<u8>) -> Result<Matrix, Error> {
        let stride = check(dtype, rows, cols, bytes.len())?;
        let store = Store::Owned(words(&bytes));
        Ok(Matrix { dtype, rows, cols, stride, store, start: 0, scales: None })
    }

    /// A matrix of stored blocks that `fill` writes, which are zeros before; panics if `cols` are no whole blocks.
    pub(crate) fn filled(dtype: DType, (rows, cols): (usize, usize), fill: impl FnOnce(&mut [u8])) -> Matrix {
        let stride = dtype.row_bytes(cols).expect("whole blocks");
        let mut words = vec![0_u32; (rows * stride).div_ceil(4)];
        fill(&mut bytemuck::cast_slice_mut(&mut words)[..rows * stride]);
        let store = Store::Owned(words.into());
        Matrix { dtype, rows, cols, stride, store, start: 0, scales: None }
    }

    /// The matrix at byte `start` of a mapped file. Read in place, unless a plain format lies where its values would be
    /// misaligned: then it is copied.
    ///
    /// # Errors
    /// [`Error::Matrix`] as for [`Matrix::from_bytes`], or if it ends behind the file.
    pub fn mapped(
        file: &Arc<Mapped>,
        start: usize,
        dtype: DType,
        (rows, cols): (usize, usize),
    ) -> Result<Matrix, Error> {
        let left = file.bytes().get(start..).map_or(0, <[u8]>::len);
        let size = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows));
        let stride = check(dtype, rows, cols, size.map_or(left, |size| size.min(left)))?;
        let size = stride * rows;
        let bytes = &file.bytes()[start..][..size];
        let unaligned = !dtype.is_quantised() && !bytes.as_ptr().addr().is_multiple_of(dtype.block_bytes());
        let (store, start) = if unaligned {
            (Store::Owned(words(bytes)), 0)
        } else {
            (Store::Mapped(Arc::clone(file)), start)
        };
        Ok(Matrix { dtype, rows, cols, stride, store, start, scales: None })
    }

    /// The same matrix with a factor for each rectangle of `block` (rows, columns): `grid` holds them row after row,
    /// those at the edges for the part that is there.
    ///
    /// # Errors
    /// [`Error::Scales`] if `grid` has not as many factors as there are rectangles.
    pub fn scaled(self, grid: Vec<f32>, block: (usize, usize)) -> Result<Matrix, Error> {
        let per_row = self.cols.checked_div(block.1).map(|_| self.cols.div_ceil(block.1));
        let rows = self.rows.checked_div(block.0).map(|_| self.rows.div_ceil(block.0));
        if per_row.zip(rows).map(|(cols, rows)| cols * rows) != Some(grid.len()) {
            return Err(Error::Scales { matrix: format!("{self:?}"), block, factors: grid.len() });
        }
        Ok(Matrix { scales: Some(Scales { grid: grid.into(), block, first: 0 }), ..self })
    }

    /// Rows `first` to `first + rows`, which stay where they are. Panics if they are not there, or packed.
    #[must_use]
    pub fn part(&self, first: usize, rows: usize) -> Matrix {
        let inside = first <= self.rows && rows <= self.rows - first;
        assert!(inside && !self.is_packed(), "{rows} rows from {first} on of {self:?}");
        let mut part = self.clone();
        part.rows = rows;
        part.start += first * self.stride;
        if let Some(scales) = &mut part.scales {
            scales.first += first;
        }
        part
    }

    /// The matrix packed; itself if that cannot be. Products with a quantised one then round activations to 8 bits.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not have it.
    pub fn pack(&self) -> Result<Matrix, Error> {
        self.pack_into(&mut Arena::new(self.packed_size().unwrap_or(0))?, 1)
    }

    /// Bytes that it takes packed; none if it cannot be.
    fn packed_size(&self) -> Option<usize> {
        let run = self.scales.as_ref().map_or(self.cols, |scales| scales.block.1);
        packed_size(self.dtype, (self.rows, self.cols), run)
    }

    /// [`Matrix::pack`] with memory from an arena and with so many threads. Pages of the file that only this matrix needed
    /// are given back.
    pub(crate) fn pack_into(&self, arena: &mut Arena, threads: usize) -> Result<Matrix, Error> {
        if self.is_packed() || self.is_outline() || self.packed_size().is_none() {
            return Ok(self.clone());
        }
        let store = if self.dtype.is_quantised() {
            Packed::new(self, arena, threads)?.map(|packed| Store::Packed(Arc::new(packed)))
        } else {
            Floats::new(self, arena, threads)?.map(|packed| Store::Floats(Arc::new(packed)))
        };
        let Some(store) = store else { return Ok(self.clone()) };
        self.forget(0..self.rows);
        Ok(Matrix { store, start: 0, scales: None, ..*self })
    }

    /// Gives back pages of the file that only these rows needed: they were copied.
    pub(crate) fn forget(&self, rows: Range<usize>) {
        if let Store::Mapped(file) = &self.store {
            let end = rows.end.min(self.rows);
            file.forget(self.start + rows.start * self.stride..self.start + end * self.stride);
        }
    }

    /// The packed form, if it is one of integers.
    pub(crate) fn packed(&self) -> Option<&Packed> {
        match &self.store {
            Store::Packed(packed) => Some(packed),
            Store::Owned(_) | Store::Mapped(_) | Store::Floats(_) | Store::Outline => None,
        }
    }

    /// The packed form, if it is one of floats.
    pub(crate) fn floats(&self) -> Option<&Floats> {
        match &self.store {
            Store::Floats(packed) => Some(packed),
            Store::Owned(_) | Store::Mapped(_) | Store::Packed(_) | Store::Outline => None,
        }
    }

    /// Whether it is packed.
    pub fn is_packed(&self) -> bool {
        self.packed().is_some() || self.floats().is_some()
    }

    /// Bytes it takes as stored.
    pub fn size(&self) -> usize {
        self.stride * self.rows
    }

    /// All stored bytes, row after row; a packed matrix has none, and panics. Aligned to the value size for F32, F16 and
    /// BF16; not aligned for block formats.
    pub fn bytes(&self) -> &[u8] {
        let size = self.stride * self.rows;
        match &self.store {
            Store::Owned(words) => &bytemuck::cast_slice(words)[self.start..][..size],
            Store::Mapped(file) => &file.bytes()[self.start..][..size],
            Store::Packed(_) | Store::Floats(_) => panic!("{self:?} is packed"),
            Store::Outline => panic!("{self:?} is an outline"),
        }
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.stride
    }

    /// The stored bytes of row `r`. Panics if there is none.
    pub fn row(&self, r: usize) -> &[u8] {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        &self.bytes()[r * self.stride..][..self.stride]
    }

    /// The factors of row `r`, and how many columns share one; none if the stored values are the values.
    pub fn scales(&self, r: usize) -> Option<(&[f32], usize)> {
        let Scales { grid, block, first } = self.scales.as_ref()?;
        let per_row = self.cols.div_ceil(block.1);
        Some((&grid[(first + r) / block.0 * per_row..][..per_row], block.1))
    }

    /// Row `r` as f32 values: the very values that products are made of. Panics if there is no such row or `out` has not
    /// its length.
    pub fn widen(&self, r: usize, out: &mut [f32]) {
        assert!(r < self.rows && out.len() == self.cols, "row {r} of {self:?}");
        match &self.store {
            Store::Packed(packed) => return packed.widen(r, out),
            Store::Floats(packed) => return packed.widen(r, out),
            Store::Outline => return out.fill(0.0),
            Store::Owned(_) | Store::Mapped(_) => {}
        }
        dequantize(self.dtype, self.row(r), out);
        if let Some((scales, columns)) = self.scales(r) {
            for (values, scale) in out.chunks_mut(columns).zip(scales) {
                values.iter_mut().for_each(|value| *value *= scale);
            }
        }
    }

    /// Asks the system to read these rows of a mapped file, without waiting for them; of any other matrix there is nothing
    /// to read. Rows that are not there are passed over.
    pub(crate) fn prefetch(&self, rows: &[usize]) {
        if let Store::Mapped(file) = &self.store {
            let there = rows.iter().filter(|&&row| row < self.rows);
            file.prefetch(
                there.map(|row| self.start + row * self.stride..self.start + (row + 1) * self.stride),
            );
        }
    }

    /// All values, widened.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        let rows = values.chunks_exact_mut(self.cols.max(1)).enumerate();
        rows.for_each(|(r, row)| self.widen(r, row));
        values
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packed = if self.is_packed() { "packed " } else { "" };
        write!(f, "Matrix({packed}{:?} {} x {})", self.dtype, self.rows, self.cols)
    }
}

/// Bytes that a matrix takes packed, if floats in `run` columns share a factor; none if it cannot be packed.
pub(crate) fn packed_size(dtype: DType, (rows, cols): (usize, usize), run: usize) -> Option<usize> {
    if dtype.is_quantised() {
        return Packed::size(dtype, rows, cols);
    }
    // Without vectors nothing is won.
    if crate::cpu::has_vectors() { Floats::size(dtype, (rows, cols), run.min(cols)) } else { None }
}

/// Bytes per row, if `size` bytes are what `rows` rows of `cols` values take.
fn check(dtype: DType, rows: usize, cols: usize, size: usize) -> Result<usize, Error> {
    let stride = dtype.row_bytes(cols);
    match stride {
        Some(stride) if stride.checked_mul(rows) == Some(size) => Ok(stride),
        _ => Err(Error::Matrix { dtype, rows, cols, size }),
    }
}

/// A copy of `bytes` in whole words, the last one filled up with zeros.
fn words(bytes: &[u8]) -> Arc<[u32]> {
    bytes
        .chunks(4)
        .map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_ne_bytes(word)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_belong_to_their_rectangles_whatever_part_is_taken() {
        let matrix =
            Matrix::from_f32(3, 5, &[1.0; 15]).scaled(vec![2.0, 3.0, 4.0, 5.0], (2, 4)).expect("fits");
        let upper = [2.0, 2.0, 2.0, 2.0, 3.0];
        let lower = [4.0, 4.0, 4.0, 4.0, 5.0];
        assert_eq!(matrix.to_f32(), [upper, upper, lower].concat());
        assert_eq!(matrix.part(1, 2).to_f32(), [upper, lower].concat());
        assert_eq!(matrix.part(1, 2).part(1, 1).to_f32(), lower);
        let error = Matrix::from_f32(3, 5, &[1.0; 15]).scaled(vec![1.0; 3], (2, 4)).expect_err("too few");
        assert_eq!(error.to_string(), "3 factors for rectangles of (2, 4) of Matrix(F32 3 x 5)");
    }
}
