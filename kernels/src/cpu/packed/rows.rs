//! Where the numbers of some rows of a tile are, for kernels that take fewer rows at once than a tile has.

use crate::packed::QUADS;
use crate::packed::input::Side;

/// Rows of a tile.
#[derive(Copy, Clone)]
pub(super) struct Rows {
    /// The tile.
    pub tile: *const u32,
    /// Its rows.
    pub of: usize,
    /// First row of those meant.
    pub first: usize,
    /// Groups per row.
    pub groups: usize,
}

impl Rows {
    /// Where value `side` of group `g` is, for the first row.
    #[inline]
    pub fn side(self, side: Side, g: usize) -> *const u32 {
        self.tile.wrapping_add(side.start(self.groups, self.of) + g * self.of + self.first)
    }

    /// Where quad `j` of group `g` is, for the first row.
    #[inline]
    pub fn quad(self, g: usize, j: usize) -> *const u32 {
        self.tile.wrapping_add((g * QUADS + j) * self.of + self.first)
    }
}
