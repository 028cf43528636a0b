//! Quantised weights laid out for integer products. A stored row is a stream of blocks for one output; processors would
//! rather compute sixteen outputs at once from bytes that lie in the order they are used. So a matrix is repacked once,
//! when its model is loaded: the same integers and scales, bit for bit, in another order and in the same space.
//!
//! **Panel**: sixteen rows, all columns. **Group**: 32 columns of a panel. **Quad**: four neighbouring columns; a vector of
//! 64 bytes holds one quad of each of the sixteen rows, which is what one instruction multiplies with four activations.
//!
//! A panel is its scales, filled up to whole cache lines, then its codes, group after group. The codes of a group are
//! vectors of `bits` times 64 bytes, `bits` being 2, 4 or 8: quad `j` is in vector `j % bits`, shifted left by
//! `bits * (j / bits)`. Formats of 3, 5 and 6 bits have planes behind them, for the bits above: 64 bits per quad, bit
//! `4 row + column`. Code and scale give a weight as in [`dequantize`](crate::dequantize).

pub(crate) mod arena;
mod blocks;
pub(crate) mod floats;
pub(crate) mod form;
pub(crate) mod input;
mod pack;
pub(crate) mod plain;

use std::ops::Range;

use half::f16;

use crate::dtype::{DType, half_power};
use arena::Region;
use form::{FP4_CODES, Form, Scales};
pub(crate) use pack::fill_parts;

/// Rows of a panel.
pub(crate) const PANEL: usize = 16;
/// Columns of a group.
pub(crate) const GROUP: usize = 32;
/// Quads of a group.
pub(crate) const QUADS: usize = GROUP / 4;
/// Bytes of one quad of all rows of a panel.
pub(crate) const VECTOR: usize = 4 * PANEL;

/// A packed matrix; its shape is in the [`Matrix`](crate::Matrix) around it.
pub(crate) struct Packed {
    /// Format of the stored values.
    pub dtype: DType,
    /// What the bytes mean.
    pub form: Form,
    /// Groups per panel.
    pub groups: usize,
    /// All panels.
    region: Region,
}

/// Sixteen consecutive columns of a row: their scale and what is added to each weight.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Half {
    /// Factor of the codes, less the form's zero.
    pub scale: f32,
    /// Added to the product.
    pub min: f32,
}

impl Packed {
    /// Bytes that `rows` by `cols` values take packed; none if the format cannot be packed.
    pub fn size(dtype: DType, rows: usize, cols: usize) -> Option<usize> {
        let form = Form::of(dtype)?;
        if !cols.is_multiple_of(dtype.block_len()) {
            return None;
        }
        rows.div_ceil(PANEL).checked_mul(form.panel_bytes(cols / GROUP))
    }

    /// Scales of panel `panel`.
    pub fn scales(&self, panel: usize) -> &[u8] {
        &self.panel(panel)[..self.form.scale_bytes(self.groups)]
    }

    /// Codes of panel `panel`.
    pub fn codes(&self, panel: usize) -> &[u8] {
        &self.panel(panel)[self.form.scale_bytes(self.groups)..]
    }

    /// All bytes of a panel.
    pub fn panel(&self, panel: usize) -> &[u8] {
        let size = self.form.panel_bytes(self.groups);
        &self.region.bytes()[panel * size..][..size]
    }

    /// Widens row `r`: the values that its stored form stands for.
    pub fn widen(&self, r: usize, out: &mut [f32]) {
        let zero = self.form.zero as f32;
        for (g, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (codes, halves) = (self.group_codes(r, g), self.group_scales(r, g));
            for (i, (out, code)) in out.iter_mut().zip(codes).enumerate() {
                let Half { scale, min } = halves[i / 16];
                let product = scale * (f32::from(code) - zero);
                *out = if self.form.min { product + min } else { product };
            }
        }
    }

    /// Codes of group `g` of row `r`.
    pub fn group_codes(&self, r: usize, g: usize) -> [u8; GROUP] {
        let (panel, row) = (r / PANEL, r % PANEL);
        let size = self.form.group_bytes();
        let group = &self.codes(panel)[g * size..][..size];
        let (bits, mask) = (self.form.bits, u8::MAX >> (8 - self.form.bits));
        let planes = &group[bits * VECTOR..];
        std::array::from_fn(|i| {
            let (quad, column) = (i / 4, i % 4);
            let byte = group[quad % bits * VECTOR + 4 * row + column];
            let mut code = byte >> (bits * (quad / bits)) & mask;
            let bit = 4 * row + column;
            for (p, plane) in planes.chunks_exact(VECTOR).enumerate() {
                code |= (plane[8 * quad + bit / 8] >> (bit % 8) & 1) << (bits + p);
            }
            if self.form.scales == Scales::Power { FP4_CODES[usize::from(code)] } else { code }
        })
    }

    /// Scales of group `g` of row `r`, one for each half.
    pub fn group_scales(&self, r: usize, g: usize) -> [Half; 2] {
        let (scales, row) = (self.scales(r / PANEL), r % PANEL);
        let at = |start: usize| {
            let at = start + 2 * row;
            f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32()
        };
        match self.form.scales {
            Scales::Plain => {
                let start = self.form.group_scale_bytes() * g;
                let min = if self.form.min { at(start + 2 * PANEL) } else { 0.0 };
                [Half { scale: at(start), min }; 2]
            }
            Scales::Power => {
                let scale = half_power(scales[self.form.group_scale_bytes() * g + row]);
                [Half { scale, min: 0.0 }; 2]
            }
            Scales::Nested { signed } => {
                let (block, own) = self.form.nested_places(g);
                let fine = usize::from(self.form.fine);
                std::array::from_fn(|half| {
                    let own = own.start + fine * half * PANEL + row;
                    let byte = scales[own];
                    let scale = if signed { f32::from(byte.cast_signed()) } else { f32::from(byte) };
                    let least = || at(block + 2 * PANEL) * f32::from(scales[own + (1 + fine) * PANEL]);
                    Half { scale: at(block) * scale, min: if self.form.min { -least() } else { 0.0 } }
                })
            }
        }
    }
}

impl Form {
    /// Bytes of the codes of a group.
    pub const fn group_bytes(&self) -> usize {
        (self.bits + self.planes) * VECTOR
    }

    /// Bytes of the scales of a group, without what groups share.
    pub const fn group_scale_bytes(&self) -> usize {
        let values = if self.min { 2 } else { 1 };
        match self.scales {
            Scales::Plain => 2 * PANEL * values,
            Scales::Power => PANEL,
            Scales::Nested { .. } => (1 + self.fine as usize) * PANEL * values,
        }
    }

    /// Bytes that the scales of a block of eight groups take, those they share first.
    const fn block_scale_bytes(&self) -> usize {
        let values = if self.min { 2 } else { 1 };
        2 * PANEL * values + 8 * self.group_scale_bytes()
    }

    /// Where the scales of nested group `g` are: start of its block, and its own.
    pub const fn nested_places(&self, g: usize) -> (usize, Range<usize>) {
        let (size, own) = (self.block_scale_bytes(), self.group_scale_bytes());
        let block = g / 8 * size;
        let start = block + size - 8 * own + g % 8 * own;
        (block, start..start + own)
    }

    /// Bytes of the scales of a panel, in whole cache lines.
    pub const fn scale_bytes(&self, groups: usize) -> usize {
        let bytes = match self.scales {
            Scales::Plain | Scales::Power => groups * self.group_scale_bytes(),
            Scales::Nested { .. } => groups.div_ceil(8) * self.block_scale_bytes(),
        };
        bytes.next_multiple_of(64)
    }

    /// Bytes of a panel.
    pub const fn panel_bytes(&self, groups: usize) -> usize {
        self.scale_bytes(groups) + groups * self.group_bytes()
    }
}
