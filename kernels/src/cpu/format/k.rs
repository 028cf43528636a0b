//! The formats of 256 values per block: their scales are packed themselves, and unpacked here once per block.
#![expect(unsafe_code, reason = "blocks are read through pointers, without checks in the innermost loop")]

use std::arch::x86_64::*;

use super::{Format, Values, bits, bytes, half, shifted, up4, widen, widen8, word};
use crate::cpu::lanes;

/// Stores eight unsigned bytes, times `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store8(bytes: u64, d: f32, out: &mut [f32]) {
    let q = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed())));
    lanes::store(out, 0, _mm256_mul_ps(q, _mm256_set1_ps(d)));
}

/// Scales of sixteen values each, and what is added to them.
#[derive(Copy, Clone)]
pub(crate) struct Sixteens {
    /// Scale of values `16 i` and on.
    scale: [f32; 16],
    /// Minus the minimum, or minus the scale times the integer that stands for zero.
    add: [f32; 16],
}

impl Sixteens {
    /// `q` times the scales of group `g`, plus what is added.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn apply(&self, q: Values, g: usize) -> Values {
        shifted(q, by_halves(&self.scale, g), by_halves(&self.add, g))
    }

    /// Signed bytes times `d` as scales, of integers that are zero at `zero`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn centred(bytes: __m128i, d: f32, zero: f32) -> Sixteens {
        Sixteens { scale: scale16(bytes, d), add: scale16(bytes, -zero * d) }
    }
}

/// The numbers of both halves of group `g`. In turned order the first sixteen values of a group are in the lower lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_halves(numbers: &[f32; 16], g: usize) -> __m256 {
    let pair = u64::from(numbers[2 * g].to_bits()) | u64::from(numbers[2 * g + 1].to_bits()) << 32;
    let pairs = _mm256_castsi256_ps(_mm256_set1_epi64x(pair.cast_signed()));
    _mm256_permutevar_ps(pairs, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
}

/// 16 signed bytes, times `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scale16(bytes: __m128i, d: f32) -> [f32; 16] {
    let mut scale = [0.0; 16];
    let d = _mm256_set1_ps(d);
    lanes::store(&mut scale, 0, _mm256_mul_ps(widen8(bytes), d));
    lanes::store(&mut scale, 8, _mm256_mul_ps(widen8(_mm_srli_si128::<8>(bytes)), d));
    scale
}

/// Two bits.
pub(crate) struct Q2K;
impl Format for Q2K {
    const LEN: usize = 256;
    const BYTES: usize = 84;
    const TURNED: bool = true;
    type Scales = Sixteens;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> Sixteens {
        // SAFETY: 16 bytes of scales come first, the two f16 last.
        let (packed, d, dmin) =
            unsafe { (_mm_loadu_si128(block.cast()), half(block.add(80)), half(block.add(82))) };
        let low = _mm_and_si128(packed, _mm_set1_epi8(15));
        let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), _mm_set1_epi8(15));
        Sixteens { scale: scale16(low, d), add: scale16(high, -dmin) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, scales: &Sixteens, g: usize) -> Values {
        // SAFETY: 64 bytes of values follow the scales; g is below 8.
        let row = unsafe { bytes(block.add(16 + 32 * (g / 4))) };
        scales.apply(widen(bits(row, 2 * (g % 4), 3)), g)
    }
}

/// Three bits less 4.
pub(crate) struct Q3K;
impl Format for Q3K {
    const LEN: usize = 256;
    const BYTES: usize = 110;
    const TURNED: bool = true;
    type Scales = Sixteens;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> Sixteens {
        // SAFETY: 12 bytes of scales at 96, the f16 behind them.
        let (a, b, c, d) = unsafe {
            (word(block.add(96)), word(block.add(100)), word(block.add(104)), half(block.add(108)))
        };
        let (low, high) = (0x0f0f_0f0f, 0x0303_0303);
        let words = [
            a & low | (c & high) << 4,
            b & low | (c >> 2 & high) << 4,
            a >> 4 & low | (c >> 4 & high) << 4,
            b >> 4 & low | (c >> 6 & high) << 4,
        ]
        .map(u32::cast_signed);
        let six_bits = _mm_setr_epi32(words[0], words[1], words[2], words[3]);
        Sixteens::centred(_mm_sub_epi8(six_bits, _mm_set1_epi8(32)), d, 4.0)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, scales: &Sixteens, g: usize) -> Values {
        // SAFETY: 32 bytes of third bits come first, then 64 of the others; g is below 8.
        let (third, row) = unsafe { (bytes(block), bytes(block.add(32 + 32 * (g / 4)))) };
        let third = _mm256_slli_epi16::<2>(bits(third, g, 1));
        let q = _mm256_or_si256(bits(row, 2 * (g % 4), 3), third);
        scales.apply(widen(q), g)
    }
}

/// Scales of 32 values each, and their minima, negated.
#[derive(Copy, Clone)]
pub(crate) struct Eights {
    /// Scale of values `32 i` and on.
    scale: [f32; 8],
    /// Added to them.
    add: [f32; 8],
}

/// The scales of a Q4K or Q5K block.
///
/// # Safety
/// 16 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eights(block: *const u8) -> Eights {
    // SAFETY: the caller's promise.
    let (d, dmin) = unsafe { (half(block), half(block.add(2))) };
    // SAFETY: the caller's promise.
    let (a, b, c) = unsafe { (word(block.add(4)), word(block.add(8)), word(block.add(12))) };
    let (low, six, top) = (0x0f0f_0f0f, 0x3f3f_3f3f, 0x3030_3030);
    let scale = u64::from(a & six) | u64::from(c & low | a >> 2 & top) << 32;
    let min = u64::from(b & six) | u64::from(c >> 4 & low | b >> 2 & top) << 32;
    let mut eights = Eights { scale: [0.0; 8], add: [0.0; 8] };
    store8(scale, d, &mut eights.scale);
    store8(min, -dmin, &mut eights.add);
    eights
}

/// Four bits.
pub(crate) struct Q4K;
impl Format for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const TURNED: bool = true;
    type Scales = Eights;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> Eights {
        // SAFETY: the block starts with its scales.
        unsafe { eights(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, scales: &Eights, g: usize) -> Values {
        // SAFETY: 128 bytes follow the scales; g is below 8.
        let row = unsafe { bytes(block.add(16 + 32 * (g / 2))) };
        shifted(
            widen(bits(row, 4 * (g % 2), 15)),
            _mm256_set1_ps(scales.scale[g]),
            _mm256_set1_ps(scales.add[g]),
        )
    }
}

/// Five bits.
pub(crate) struct Q5K;
impl Format for Q5K {
    const LEN: usize = 256;
    const BYTES: usize = 176;
    const TURNED: bool = true;
    type Scales = Eights;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> Eights {
        // SAFETY: the block starts with its scales.
        unsafe { eights(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, scales: &Eights, g: usize) -> Values {
        // SAFETY: 32 bytes of fifth bits follow the scales, then 128 of the others; g is below 8.
        let (fifth, row) = unsafe { (bytes(block.add(16)), bytes(block.add(48 + 32 * (g / 2)))) };
        let q = _mm256_or_si256(bits(row, 4 * (g % 2), 15), up4(bits(fifth, g, 1)));
        shifted(widen(q), _mm256_set1_ps(scales.scale[g]), _mm256_set1_ps(scales.add[g]))
    }
}

/// Six bits less 32.
pub(crate) struct Q6K;
impl Format for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const TURNED: bool = true;
    type Scales = Sixteens;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> Sixteens {
        // SAFETY: 16 bytes of scales at 192, the f16 behind them.
        let (packed, d) = unsafe { (_mm_loadu_si128(block.add(192).cast()), half(block.add(208))) };
        Sixteens::centred(packed, d, 32.0)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, scales: &Sixteens, g: usize) -> Values {
        let (side, g4) = (g / 4, g % 4);
        // SAFETY: 128 bytes of nibbles come first, then 64 of the upper bits; g is below 8.
        let (low, high) =
            unsafe { (bytes(block.add(64 * side + 32 * (g4 % 2))), bytes(block.add(128 + 32 * side))) };
        let q = _mm256_or_si256(bits(low, 4 * (g4 / 2), 15), up4(bits(high, 2 * g4, 3)));
        scales.apply(widen(q), g)
    }
}
