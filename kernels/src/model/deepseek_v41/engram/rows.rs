//! The tables themselves. They may be far larger than memory, so nothing but the rows that a step needs is ever read, in
//! whatever format the file has them.

use crate::matrix::Matrix;

/// A layer's table, `[rows, width]`.
#[derive(Clone, Debug)]
pub(in crate::model) struct EngramRows {
    table: Matrix,
}

impl EngramRows {
    /// A table as it is stored.
    pub fn new(table: Matrix) -> EngramRows {
        EngramRows { table }
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.table.cols
    }

    /// Asks the system to read these rows, and comes back at once: what [`EngramRows::gather`] will find in memory then,
    /// it need not wait for. Worth calling as soon as the tokens are known; a table in memory already is not read again.
    pub fn fetch(&self, rows: &[usize]) {
        self.table.prefetch(rows);
    }

    /// The values of these rows, one after the other: `[rows.len(), width]`. Panics if a row is not there or `out` has
    /// another length.
    pub fn gather(&self, rows: &[usize], out: &mut [f32]) {
        assert_eq!(out.len(), rows.len() * self.width(), "room for {} rows", rows.len());
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.width().max(1))) {
            self.table.widen(row, out);
        }
    }
}
