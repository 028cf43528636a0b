//! The tables themselves. They may be far larger than memory, so nothing but the rows that a step needs is ever read, in
//! whatever format the file has them: numbers, or FP8 with an exponent for each run of a row.

use crate::error::Error;
use crate::matrix::Matrix;
use crate::weights::{Raw, Weights, power};

/// Bytes of a table from which on rows are asked for ahead.
const FAR: usize = 1 << 30;

/// A layer's table, `[rows, width]`.
pub(in crate::model) struct EngramRows {
    values: Matrix,
    /// Exponents of powers of two, so many for each row; the values of a run are multiplied by theirs.
    exponents: Option<(Raw, usize)>,
}

impl EngramRows {
    /// Takes a table as it is stored; none of it is read.
    ///
    /// # Errors
    /// [`Error::MissingTensor`]; [`Error::Tensor`] if it has another shape or a format that is not read.
    pub fn take(weights: &mut Weights, name: &str, rows: usize, width: usize) -> Result<EngramRows, Error> {
        let (values, exponents) = weights.table(name, rows, width)?;
        let per_row = |exponents: Raw| {
            let per_row = exponents.len() / rows.max(1);
            (exponents, per_row)
        };
        Ok(EngramRows { values, exponents: exponents.map(per_row) })
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.values.cols
    }

    /// Whether the table is so large that much of it will not be in memory when it is wanted: then it pays to ask for rows
    /// as soon as the tokens are known.
    pub fn is_far(&self) -> bool {
        self.values.size() >= FAR
    }

    /// Asks the system to read these rows, and comes back at once: what [`EngramRows::gather`] will find in memory then,
    /// it need not wait for. Rows that are in memory are not read again, but asking takes its time too.
    pub fn fetch(&self, rows: &[usize]) {
        self.values.prefetch(rows);
        if let Some((exponents, per_row)) = &self.exponents {
            let there = rows.iter().filter(|&&row| row < self.values.rows);
            exponents.prefetch(there.map(|row| row * per_row..(row + 1) * per_row));
        }
    }

    /// The values of these rows, one after the other: `[rows.len(), width]`. Panics if a row is not there or `out` has
    /// another length.
    pub fn gather(&self, rows: &[usize], out: &mut [f32]) {
        let width = self.width();
        assert_eq!(out.len(), rows.len() * width, "room for {} rows", rows.len());
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(width.max(1))) {
            self.values.widen(row, out);
            if let Some((exponents, per_row)) = &self.exponents {
                let exponents = &exponents.bytes()[row * per_row..][..*per_row];
                for (run, &exponent) in out.chunks_exact_mut(width / per_row).zip(exponents) {
                    run.iter_mut().for_each(|value| *value *= power(exponent));
                }
            }
        }
    }
}
