//! Four bits a number, as DeepSeek-V4.1 keeps its cache: keys of choosers by powers of two, values by eight-bit scales;
//! and eight bits for windows, which are rounded where they stay f32. Rounding is to the nearest, ties to even; what is
//! too large becomes the largest there is.

/// Numbers of a key that share a scale; the same for what windows hold.
pub(crate) const KEY_GROUP: usize = 32;
/// Numbers of a value that share a scale.
pub(crate) const VALUE_GROUP: usize = 16;

/// What four bits stand for, without their sign.
const NIBBLES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The number that four bits stand for.
#[inline]
pub(super) fn from_nibble(nibble: u8) -> f32 {
    let size = NIBBLES[usize::from(nibble & 7)];
    if nibble & 8 == 0 { size } else { -size }
}

/// The four bits nearest to a number.
#[inline]
pub(super) fn to_nibble(x: f32) -> u8 {
    let size = x.abs();
    // Half way to the next; where that is the even one, it goes up.
    let up =
        [(0.25, false), (0.75, true), (1.25, false), (1.75, true), (2.5, false), (3.5, true), (5.0, false)];
    let above = |&(half, even): &(f32, bool)| if even { size >= half } else { size > half };
    let code = up.iter().filter(|half| above(half)).count() as u8;
    // Nothing has no sign.
    if code > 0 && x < 0.0 { code | 8 } else { code }
}

/// The largest of some numbers, by size.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, x| f32::max(max, x.abs()))
}

/// The power of two that is no less than a positive number: its exponent, as f32 stores it.
fn exponent(x: f32) -> u8 {
    ((x.to_bits() + 0x007f_ffff) >> 23) as u8
}

/// The power of two of an exponent.
#[inline]
pub(super) fn power(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}

/// The scale of a group of a key.
pub(super) fn key_scale(values: &[f32]) -> u8 {
    exponent(largest(values).max(6.0 * f32::MIN_POSITIVE) / 6.0)
}

/// The scale of a group of a value, in eight bits.
pub(super) fn value_scale(values: &[f32]) -> u8 {
    let largest = largest(values).max(6.0 / 512.0);
    to_e4m3((largest * (1.0 / 6.0)).min(448.0))
}

/// The eight bits (four of exponent, three of mantissa) nearest to a number.
pub(super) fn to_e4m3(x: f32) -> u8 {
    let size = x.abs().min(448.0);
    let steps = if size < 1.0 / 64.0 {
        // Multiples of 2^-9.
        (size * 512.0).round_ties_even() as u32
    } else {
        let exponent = (size.to_bits() >> 23) as i32 - 127;
        let mantissa = (size * 2.0_f32.powi(3 - exponent)).round_ties_even() as u32;
        (((exponent + 7) as u32) << 3) + mantissa - 8
    };
    steps as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// The number that eight bits stand for.
#[inline]
pub(super) fn from_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size =
        if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * power((exponent + 120) as u8) };
    if byte & 0x80 == 0 { size } else { -size }
}

/// Rounds what a window holds: eight bits, by powers of two.
pub(crate) fn round_window(values: &mut [f32]) {
    for group in values.chunks_mut(KEY_GROUP) {
        let scale = power(exponent(largest(group).max(1e-4) / 448.0));
        group.iter_mut().for_each(|x| *x = from_e4m3(to_e4m3(*x / scale)) * scale);
    }
}

/// Rounds a key of a chooser, or a query that is compared with such: four bits, by powers of two.
pub(crate) fn round_key(values: &mut [f32]) {
    for group in values.chunks_mut(KEY_GROUP) {
        let scale = power(key_scale(group));
        group.iter_mut().for_each(|x| *x = from_nibble(to_nibble(*x / scale)) * scale);
    }
}

/// The four bits of the numbers of a value whose scale is known.
#[inline]
pub(super) fn value_nibble(x: f32, scale: f32) -> u8 {
    to_nibble(x * (1.0 / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds a value, as writing and reading it do.
    fn round_value(values: &mut [f32]) {
        for group in values.chunks_mut(VALUE_GROUP) {
            let scale = from_e4m3(value_scale(group));
            group.iter_mut().for_each(|x| *x = from_nibble(value_nibble(*x, scale)) * scale);
        }
    }

    #[test]
    fn eight_bits_come_back() {
        for byte in (0..=0x7e).chain(0x80..=0xfe) {
            assert_eq!(to_e4m3(from_e4m3(byte)), byte, "{byte:#x}");
        }
        assert_eq!((from_e4m3(to_e4m3(1e9)), from_e4m3(to_e4m3(1.0625))), (448.0, 1.0));
        assert_eq!((from_e4m3(to_e4m3(1.1875)), from_e4m3(to_e4m3(0.0009))), (1.25, 0.0));
    }

    #[test]
    fn numbers_are_rounded_as_the_oracle_rounds_them() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/tiny-deepseek-v41");
        for window in ["w16", "w128"] {
            let bytes = std::fs::read(folder.join(format!("vectors-{window}.safetensors"))).expect("vectors");
            let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
            let of = |name: &str| -> Vec<f32> {
                let data = tensors.tensor(&format!("unit.qdq.{name}")).expect(name).data().to_vec();
                data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            };
            for (name, round) in
                [("window", round_window as fn(&mut [f32])), ("index", round_key), ("global", round_value)]
            {
                let mut got = of("in");
                got.chunks_exact_mut(32).for_each(round);
                assert_eq!(got, of(name), "{window}: {name}");
            }
        }
    }
}
