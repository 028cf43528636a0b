//! Activations as 8-bit integers, in the order in which panels are multiplied with them.
//!
//! Each 32 values of a row share a scale: the largest magnitude is 127 (symmetric, as in Q8_0). A row's integers depend on
//! that row alone, and sums of products of integers are exact in any order, so that every kernel gives the same bits.
//!
//! Rows lie in tiles. A tile of `m` rows over `groups` groups is, in words of 32 bits: the integers
//! `[groups, QUADS, m]`, four columns a word; then `[groups, m]` each of [`Side`]'s values, in its order.

use super::{GROUP, QUADS};

/// Words that one group of one row takes.
pub(crate) const WORDS: usize = QUADS + Side::COUNT;

/// What is kept beside the integers of a group.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Side {
    /// f32: what one unit stands for.
    Scale,
    /// f32: scale times sum; minima are multiplied with it.
    Scaled,
    /// i32: sum of the integers, negated, as what a code of zero takes away.
    Sum,
    /// i32: sum of the first sixteen, negated.
    First,
    /// i32: sum of the others, negated.
    Second,
}

impl Side {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// Index of the first word of this value in a tile of `rows` rows.
    pub const fn start(self, groups: usize, rows: usize) -> usize {
        (QUADS + self as usize) * groups * rows
    }
}

/// Quantises a tile: rows of `cols` values, a multiple of the group, into `WORDS` words per group and row.
#[inline(always)]
pub(crate) fn quantise(x: &[f32], cols: usize, tile: &mut [u32]) {
    let (rows, groups) = (x.len() / cols, cols / GROUP);
    assert_eq!(tile.len(), WORDS * groups * rows, "words of a tile");
    let mut integers = [0_i32; GROUP];
    for (m, row) in x.chunks_exact(cols).enumerate() {
        for (g, values) in row.as_chunks::<GROUP>().0.iter().enumerate() {
            let scale = integers_of(values, &mut integers);
            let first = -integers[..16].iter().sum::<i32>();
            let second = -integers[16..].iter().sum::<i32>();
            for (j, quad) in integers.as_chunks::<4>().0.iter().enumerate() {
                tile[(g * QUADS + j) * rows + m] = u32::from_le_bytes(quad.map(|q| q as u8));
            }
            let scaled = scale * -(first + second) as f32;
            let sides = [
                scale.to_bits(),
                scaled.to_bits(),
                (first + second).cast_unsigned(),
                first.cast_unsigned(),
                second.cast_unsigned(),
            ];
            for (side, word) in sides.into_iter().enumerate() {
                tile[(QUADS + side) * groups * rows + g * rows + m] = word;
            }
        }
    }
}

/// The integers of a group, and what one unit stands for. If a value is no number, neither is the scale.
#[inline(always)]
fn integers_of(values: &[f32; GROUP], integers: &mut [i32; GROUP]) -> f32 {
    // Of the bits without the sign, the largest are those of the largest magnitude, and of no number above all.
    let largest = values.iter().fold(0, |max, x| max.max((x.to_bits() & 0x7fff_ffff).cast_signed()));
    let largest = f32::from_bits(largest.cast_unsigned());
    let turns = if largest < SMALLEST { 0.0 } else { 127.0 / largest };
    for (integer, x) in integers.iter_mut().zip(values) {
        // Rounds to the nearest, ties to even.
        let rounded = (x * turns + ROUND) - ROUND;
        *integer = rounded as i32;
    }
    if largest < SMALLEST { 0.0 } else { largest / 127.0 }
}

/// Groups below this are zero: their reciprocals would leave the range of f32.
const SMALLEST: f32 = 1e-30;
/// Adding this leaves no bits behind the point: 3 * 2^22.
const ROUND: f32 = 12_582_912.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_lies_as_said() {
        let x: Vec<f32> = (0..192).map(|i| (i as f32 - 70.0) / 9.0).collect();
        let mut tile = vec![0; WORDS * 2 * 3];
        quantise(&x, 64, &mut tile);
        for (m, g) in [(0, 0), (0, 1), (1, 0), (2, 1)] {
            let values = &x[64 * m + 32 * g..][..32];
            let scale = values.iter().fold(0.0_f32, |max, x| max.max(x.abs())) / 127.0;
            let side = |side: Side| tile[side.start(2, 3) + 3 * g + m];
            assert_eq!(f32::from_bits(side(Side::Scale)), scale);
            let mut sums = [0, 0];
            for (k, value) in values.iter().enumerate() {
                let word = tile[(8 * g + k / 4) * 3 + m];
                let integer = i32::from(word.to_le_bytes()[k % 4].cast_signed());
                assert!((integer as f32 * scale - value).abs() <= 0.5001 * scale, "{integer} for {value}");
                sums[k / 16] -= integer;
            }
            assert_eq!([side(Side::First), side(Side::Second)].map(u32::cast_signed), sums);
            assert_eq!(side(Side::Sum).cast_signed(), sums[0] + sums[1]);
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[40] = bad;
            let mut tile = vec![0; WORDS * 2];
            quantise(&x, 64, &mut tile);
            let scales = [0, 1].map(|g| f32::from_bits(tile[Side::Scale.start(2, 1) + g]));
            assert!(scales[0].is_finite() && !scales[1].is_finite());
        }
        let mut tile = vec![0; WORDS];
        quantise(&[1e-38; 32], 32, &mut tile);
        assert!(tile.iter().all(|&word| word == 0));
    }
}
