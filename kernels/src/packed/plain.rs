//! What a product with packed weights means, in plain loops: the order of the few operations on floats that every kernel
//! keeps to, so that all give the same bits.

use super::input::{self, Side, WORDS};
use super::{Half, Packed, QUADS};

/// Products of every row of `x` (of `cols` values) with row `r` of `weight`, given to `put` with the number of the row.
pub(crate) fn dot_row(x: &[f32], cols: usize, of: (&Packed, usize), mut put: impl FnMut(usize, f32)) {
    let mut tile = vec![0; WORDS * of.0.groups];
    for (row, x) in x.chunks_exact(cols.max(1)).enumerate() {
        input::quantise(x, cols, &mut tile);
        dot_tile((&tile, 1), of, |_, product| put(row, product));
    }
}

/// The same of a quantised tile of `rows` rows.
pub(crate) fn dot_tile(
    (tile, rows): (&[u32], usize),
    (weight, r): (&Packed, usize),
    mut put: impl FnMut(usize, f32),
) {
    for m in 0..rows {
        let add = |sum, g| add_group(sum, (tile, rows, m), (weight, r), g);
        put(m, (0..weight.groups).fold(0.0, add));
    }
}

/// Adds the products of a group to a sum, for row `m` of a tile.
fn add_group(
    sum: f32,
    (tile, rows, m): (&[u32], usize, usize),
    (weight, r): (&Packed, usize),
    g: usize,
) -> f32 {
    let side = |side: Side| tile[side.start(weight.groups, rows) + g * rows + m];
    let (codes, halves) = (weight.group_codes(r, g), weight.group_scales(r, g));
    let integer = |i: usize| {
        let word = tile[(g * QUADS + i / 4) * rows + m];
        i32::from(word.to_le_bytes()[i % 4].cast_signed())
    };
    let product = |half: usize| -> i32 {
        (16 * half..16 * half + 16).map(|i| (i32::from(codes[i]) - weight.form.zero) * integer(i)).sum()
    };
    let scale = f32::from_bits(side(Side::Scale));
    let (first, second) = (product(0), product(1));
    let [Half { scale: a, min: b }, Half { scale: c, min: d }] = halves;
    if !weight.form.fine {
        let sum = ((first + second) as f32 * scale).mul_add(a, sum);
        return if weight.form.min { f32::from_bits(side(Side::Scaled)).mul_add(b, sum) } else { sum };
    }
    let sum = (first as f32 * scale).mul_add(a, sum);
    let sum = (second as f32 * scale).mul_add(c, sum);
    if !weight.form.min {
        return sum;
    }
    let scaled = |of: Side| -side(of).cast_signed() as f32 * scale;
    let sum = scaled(Side::First).mul_add(b, sum);
    scaled(Side::Second).mul_add(d, sum)
}
