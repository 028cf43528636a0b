//! A weight matrix as it lies in its file: kernels read the stored bytes in place, so loading a model copies nothing and
//! several ranks of one process share the same mapped file.

use std::fmt;
use std::sync::Arc;

use crate::dtype::{DType, dequantize};
use crate::error::Error;
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
}

/// Bytes of a matrix.
#[derive(Clone)]
enum Store {
    /// Held in words, so that the bytes are aligned for f32.
    Owned(Arc<[u32]>),
    /// A range of a mapped file.
    Mapped { file: Arc<Mapped>, start: usize },
}

impl Matrix {
    /// A matrix of f32 values. Panics unless `values` has `rows * cols` of them.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Matrix {
        assert_eq!(rows.checked_mul(cols), Some(values.len()), "values of a {rows} x {cols} matrix");
        let words: Arc<[u32]> = values.iter().map(|v| v.to_bits()).collect();
        Matrix { dtype: DType::F32, rows, cols, stride: cols * 4, store: Store::Owned(words) }
    }

    /// A matrix of stored blocks.
    ///
    /// # Errors
    /// [`Error::Matrix`] if `cols` is no multiple of the block of `dtype`, or `bytes` has not the size that follows.
    pub fn from_bytes(dtype: DType, rows: usize, cols: usize, bytes: Vec<u8>) -> Result<Matrix, Error> {
        let stride = check(dtype, rows, cols, bytes.len())?;
        Ok(Matrix { dtype, rows, cols, stride, store: Store::Owned(words(&bytes)) })
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
        let store = if unaligned {
            Store::Owned(words(bytes))
        } else {
            Store::Mapped { file: Arc::clone(file), start }
        };
        Ok(Matrix { dtype, rows, cols, stride, store })
    }

    /// All stored bytes, row after row. Aligned to the value size for F32, F16 and BF16; not aligned for block formats.
    pub fn bytes(&self) -> &[u8] {
        let size = self.stride * self.rows;
        match &self.store {
            Store::Owned(words) => &bytemuck::cast_slice(words)[..size],
            Store::Mapped { file, start } => &file.bytes()[*start..][..size],
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

    /// All values, widened.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        dequantize(self.dtype, self.bytes(), &mut values);
        values
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matrix({:?} {} x {})", self.dtype, self.rows, self.cols)
    }
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
