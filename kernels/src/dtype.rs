//! Number formats of stored weights: how many bytes a row takes and which f32 values it stands for. The one definition
//! of each format; a fast kernel that unpacks blocks must give bit-identical values.
//!
//! The block formats are those of the GGML library. In each of them the product of scale and quantised integer is exact
//! in f32 (at most 24 significant bits), so a fused multiply-add gives the same value as a product and a sum.

use half::{bf16, f16};

/// How numbers are stored. The block formats keep the names of GGML, without its underscore before K.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum DType {
    /// IEEE single precision, little-endian.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Sign, 4 bits of exponent, 3 of mantissa; no infinities. A [`Matrix`](crate::Matrix) may hold factors for them.
    F8E4M3,
    /// 32 values: a power of two, 4-bit floating point (sign, 2 bits of exponent, 1 of mantissa).
    MXFP4,
    /// 32 values: f16 scale, 32 signed bytes.
    Q8_0,
    /// 32 values: f16 scale, 4-bit integers less 8.
    Q4_0,
    /// 32 values: f16 scale and minimum, 4-bit integers.
    Q4_1,
    /// 32 values: f16 scale, 5-bit integers less 16.
    Q5_0,
    /// 32 values: f16 scale and minimum, 5-bit integers.
    Q5_1,
    /// 256 values: 2-bit integers, 4-bit scales and minima per 16 values.
    Q2K,
    /// 256 values: 3-bit integers, 6-bit scales per 16 values.
    Q3K,
    /// 256 values: 4-bit integers, 6-bit scales and minima per 32 values.
    Q4K,
    /// 256 values: 5-bit integers, 6-bit scales and minima per 32 values.
    Q5K,
    /// 256 values: 6-bit integers, 8-bit scales per 16 values.
    Q6K,
}

impl DType {
    /// Every format, in the order of the declaration.
    pub const ALL: [DType; 15] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::MXFP4,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
    ];

    /// Values per block; 1 for the plain formats.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 => 1,
            DType::MXFP4 | DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => 32,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::F8E4M3 => 1,
            DType::MXFP4 => 17,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q2K => 84,
            DType::Q3K => 110,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` values; none if `cols` is no multiple of the block or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// True for the formats that store a scale per block.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }
}

/// Widens `src` (whole blocks of `dtype`) into `dst`; factors that a matrix holds beside them are not in it
/// ([`Matrix::widen`](crate::Matrix::widen) has them). Panics if the lengths do not match: a bug of the caller.
pub fn dequantize(dtype: DType, src: &[u8], dst: &mut [f32]) {
    assert_eq!(Some(src.len()), dtype.row_bytes(dst.len()), "{dtype:?}: bytes for {} values", dst.len());
    let block: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::F16 => |b, y| y[0] = f16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::F8E4M3 => |b, y| y[0] = f8_e4m3(b[0]),
        DType::MXFP4 => mxfp4,
        DType::Q8_0 => q8_0,
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q2K => q2k,
        DType::Q3K => q3k,
        DType::Q4K => q4k,
        DType::Q5K => q5k,
        DType::Q6K => q6k,
    };
    for (b, y) in src.chunks_exact(dtype.block_bytes()).zip(dst.chunks_exact_mut(dtype.block_len())) {
        block(b, y);
    }
}

/// The f16 at byte `at`.
fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Layout: sign, exponent of bias 7, mantissa. Exponent 0 holds the multiples of 1 / 512; all other bits set is no number.
fn f8_e4m3(byte: u8) -> f32 {
    let bits = u32::from(byte);
    if bits & 127 == 127 {
        return f32::NAN;
    }
    // The same bits as an f32 are too small by the difference of the two biases; small ones are subnormal there too.
    f32::from_bits((bits & 128) << 24 | (bits & 127) << 20) * f32::from_bits((127 + 120) << 23)
}

/// Twice the values of 4-bit floating point, whose smallest is a half.
pub(crate) const FP4_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that `exponent` (of bias 127) stands for: the factor of [`FP4_TWICE`].
pub(crate) fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Below the smallest power of two of whole precision.
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// Layout: exponent u8, q u8[16]; low nibbles are values 0 to 15, high ones 16 to 31. Value: fp4(q) 2^(exponent - 127).
fn mxfp4(b: &[u8], y: &mut [f32]) {
    let d = half_power(b[0]);
    for (j, &q) in b[1..].iter().enumerate() {
        y[j] = f32::from(FP4_TWICE[usize::from(q & 15)]) * d;
        y[j + 16] = f32::from(FP4_TWICE[usize::from(q >> 4)]) * d;
    }
}

/// Layout: d f16, q i8[32]. Value: q d.
fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

/// Layout: d f16, q u8[16]; low nibbles are values 0 to 15, high ones 16 to 31. Value: (q - 8) d.
fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (j, &q) in b[2..].iter().enumerate() {
        y[j] = (f32::from(q & 15) - 8.0) * d;
        y[j + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// Layout: d f16, m f16, q u8[16] as in Q4_0. Value: q d + m.
fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (j, &q) in b[4..].iter().enumerate() {
        y[j] = f32::from(q & 15) * d + m;
        y[j + 16] = f32::from(q >> 4) * d + m;
    }
}

/// Fifth bits of the two values in nibble byte `j`, moved to bit 4.
fn fifth_bits(high: &[u8], j: usize) -> (u8, u8) {
    let bits = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    (((bits >> j & 1) as u8) << 4, ((bits >> (j + 16) & 1) as u8) << 4)
}

/// Layout: d f16, fifth bits u32, q u8[16] as in Q4_0. Value: (q - 16) d.
fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (j, &q) in b[6..].iter().enumerate() {
        let (low, high) = fifth_bits(&b[2..6], j);
        y[j] = (f32::from(q & 15 | low) - 16.0) * d;
        y[j + 16] = (f32::from(q >> 4 | high) - 16.0) * d;
    }
}

/// Layout: d f16, m f16, fifth bits u32, q u8[16]. Value: q d + m.
fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (j, &q) in b[8..].iter().enumerate() {
        let (low, high) = fifth_bits(&b[4..8], j);
        y[j] = f32::from(q & 15 | low) * d + m;
        y[j + 16] = f32::from(q >> 4 | high) * d + m;
    }
}

/// Layout: scales u8[16] (low nibble scale, high nibble minimum), q u8[64], d f16, dmin f16.
/// Sixteens i = 0..16 in order: byte row 32 (i / 8) + 16 (i % 2), bit pair (i % 8) / 2. Value: (d s) q - dmin m.
fn q2k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(b[i] & 15), dmin * f32::from(b[i] >> 4));
        let (row, shift) = (16 + 32 * (i / 8) + 16 * (i % 2), 2 * (i % 8 / 2));
        for (y, &q) in y.iter_mut().zip(&b[row..row + 16]) {
            *y = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// Layout: third bits u8[32], q u8[64], scales u8[12] (6 bits each, less 32), d f16.
/// Sixteens as in Q2K; the third bit (set: nothing, clear: less 4) is bit i / 2 of byte 16 (i % 2) + l.
fn q3k(b: &[u8], y: &mut [f32]) {
    let (d, packed) = (half_at(b, 108), &b[96..108]);
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
        let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        let (row, shift) = (32 + 32 * (i / 8) + 16 * (i % 2), 2 * (i % 8 / 2));
        for (l, y) in y.iter_mut().enumerate() {
            let third = b[16 * (i % 2) + l] >> (i / 2) & 1;
            *y = scale * (f32::from(b[row + l] >> shift & 3 | third << 2) - 4.0);
        }
    }
}

/// 6-bit scale and minimum of the 32 values `i` of a Q4K or Q5K block, from its 12 packed bytes.
fn scale_min(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    }
}

/// Layout: d f16, dmin f16, scales u8[12], q u8[128]. Values 64 j + l are the low nibbles of bytes 32 j + l, the next 32
/// the high ones. Value: (d s) q - dmin m.
fn q4k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(&b[4..16], i);
        let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
        let row = 16 + 32 * (i / 2);
        for (y, &q) in y.iter_mut().zip(&b[row..row + 32]) {
            *y = scale * f32::from(q >> (4 * (i % 2)) & 15) - min;
        }
    }
}

/// Layout: d f16, dmin f16, scales u8[12], fifth bits u8[32], q u8[128] as in Q4K. The fifth bit of values 32 i + l is
/// bit i of byte l. Value: (d s) q - dmin m.
fn q5k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(&b[4..16], i);
        let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
        let row = 48 + 32 * (i / 2);
        for (l, y) in y.iter_mut().enumerate() {
            let q = b[row + l] >> (4 * (i % 2)) & 15 | (b[16 + l] >> i & 1) << 4;
            *y = scale * f32::from(q) - min;
        }
    }
}

/// Layout: low nibbles u8[128], upper bit pairs u8[64], scales i8[16], d f16. Within each half of 128 values, the 32
/// values g = 0..4 take nibble g / 2 of byte 32 (g % 2) + l and bit pair g of byte l. Value: (d s) (q - 32).
fn q6k(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 208);
    for (i, y) in y.chunks_exact_mut(16).enumerate() {
        let (half, g, first) = (i / 8, i % 8 / 2, 16 * (i % 2));
        let scale = d * f32::from(b[192 + i].cast_signed());
        let (low, high) = (64 * half + 32 * (g % 2) + first, 128 + 32 * half + first);
        for (l, y) in y.iter_mut().enumerate() {
            let q = b[low + l] >> (4 * (g / 2)) & 15 | (b[high + l] >> (2 * g) & 3) << 4;
            *y = scale * (f32::from(q) - 32.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_of_floating_point_are_those_of_their_definition() {
        for byte in 0..=255_u8 {
            let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
            let size = match exponent {
                0 => mantissa / 8.0 * 2_f32.powi(-6),
                15 if mantissa == 7.0 => f32::NAN,
                _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
            };
            let want = if byte > 127 { -size } else { size };
            let got = f8_e4m3(byte);
            assert!(got == want || got.is_nan() && want.is_nan(), "{byte:#x}: {got}, not {want}");
        }
        assert_eq!((f8_e4m3(0x38), f8_e4m3(0x7e), f8_e4m3(0x81)), (1.0, 448.0, -1.0 / 512.0));
    }

    #[test]
    fn four_bits_of_floating_point_are_those_of_their_definition() {
        let mut block = [0_u8; 17];
        block[0] = 128;
        for code in 0..16 {
            block[1 + usize::from(code)] = code | (15 - code) << 4;
        }
        let mut values = [0.0; 32];
        mxfp4(&block, &mut values);
        let half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].map(|value| 2.0 * value);
        for i in 0..8 {
            assert_eq!((values[i], values[i + 8]), (half[i], -half[i]));
            assert_eq!((values[31 - i], values[23 - i]), (half[i], -half[i]));
        }
        assert_eq!(
            (half_power(127), half_power(2), half_power(1)),
            (0.5, 2_f32.powi(-126), 2_f32.powi(-127))
        );
        assert_eq!((half_power(0), half_power(254)), (2_f32.powi(-128), 2_f32.powi(126)));
    }
}
