//! Stored weights as vectors: each format of [`DType`](crate::DType) widens 32 values at a time in registers, to the very
//! f32 values of [`dequantize`](crate::dequantize), where the layouts are described. Products of scale and integer are
//! exact in every format, which is why a fused multiply-add with the minimum gives the same value as two operations.
#![expect(unsafe_code, reason = "blocks are read through pointers, without checks in the innermost loop")]

use std::arch::x86_64::*;

mod fp;
mod k;

pub(crate) use fp::Mxfp4;
pub(crate) use k::{Q2K, Q3K, Q4K, Q5K, Q6K};

/// 32 values. Vector `t`, lane `l` holds value `8 t + l` of the group; in a turned format, value `4 l + t`.
pub(crate) type Values = [__m256; 4];

/// One format. A row is a run of blocks of [`Format::LEN`] values, each some groups of 32.
///
/// The functions need AVX2, FMA and F16C, and a pointer to a whole block.
pub(crate) trait Format {
    /// Values per block.
    const LEN: usize = 32;
    /// Bytes per block.
    const BYTES: usize;
    /// Values come turned, which saves shuffles where bytes are widened: a word holds four of them, one for each vector.
    /// The activations are turned in the same way, once for all weights.
    const TURNED: bool = false;
    /// Scales of a block, unpacked once for all its groups.
    type Scales: Copy;

    /// Unpacks the scales.
    ///
    /// # Safety
    /// `block` points to [`Format::BYTES`] readable bytes; the machine has AVX2, FMA and F16C.
    unsafe fn scales(block: *const u8) -> Self::Scales;

    /// The values of group `g`, below `LEN / 32`.
    ///
    /// # Safety
    /// As for [`Format::scales`].
    unsafe fn group(block: *const u8, scales: &Self::Scales, g: usize) -> Values;
}

/// An f16 as f32.
///
/// # Safety
/// Two readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half(at: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    let bits = unsafe { at.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// An f16 as f32 in every lane.
///
/// # Safety
/// Two readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_all(at: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    let bits = unsafe { at.cast::<i16>().read_unaligned() };
    _mm256_cvtph_ps(_mm_set1_epi16(bits))
}

/// A little-endian word.
///
/// # Safety
/// Four readable bytes.
#[inline]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<u32>().read_unaligned() }
}

/// 32 bytes.
///
/// # Safety
/// 32 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn bytes(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// 16 bytes of nibbles as 32 bytes: the low nibbles, then the high ones.
///
/// # Safety
/// 16 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let low = unsafe { _mm_loadu_si128(at.cast()) };
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Bits `shift` and up of each byte, as far as `mask` reaches; `mask << shift` must stay within a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bits(bytes: __m256i, shift: usize, mask: i8) -> __m256i {
    _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(mask))
}

/// Each byte below `16` moved up by four bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn up4(bytes: __m256i) -> __m256i {
    _mm256_slli_epi16::<4>(bytes)
}

/// 32 unsigned bytes as f32, turned.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(bytes: __m256i) -> Values {
    let low = _mm256_set1_epi32(255);
    [
        _mm256_cvtepi32_ps(_mm256_and_si256(bytes, low)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<8>(bytes), low)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<16>(bytes), low)),
        _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(bytes)),
    ]
}

/// `q` less `zero`, times one scale. The product of scale and `zero` is exact, and so is the difference.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn centred(q: Values, zero: f32, scale: __m256) -> Values {
    shifted(q, scale, _mm256_mul_ps(_mm256_set1_ps(-zero), scale))
}

/// The first eight signed bytes as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen8(bytes: __m128i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}

/// `q` times one scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scaled(q: Values, scale: __m256) -> Values {
    [
        _mm256_mul_ps(q[0], scale),
        _mm256_mul_ps(q[1], scale),
        _mm256_mul_ps(q[2], scale),
        _mm256_mul_ps(q[3], scale),
    ]
}

/// `q` times one scale, plus one number.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shifted(q: Values, scale: __m256, add: __m256) -> Values {
    [
        _mm256_fmadd_ps(q[0], scale, add),
        _mm256_fmadd_ps(q[1], scale, add),
        _mm256_fmadd_ps(q[2], scale, add),
        _mm256_fmadd_ps(q[3], scale, add),
    ]
}

/// Single precision.
pub(crate) struct F32;
impl Format for F32 {
    const BYTES: usize = 128;
    type Scales = ();

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(_block: *const u8) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, (): &(), _g: usize) -> Values {
        let at = block.cast::<f32>();
        // SAFETY: a block is 32 values.
        unsafe {
            [
                _mm256_loadu_ps(at),
                _mm256_loadu_ps(at.add(8)),
                _mm256_loadu_ps(at.add(16)),
                _mm256_loadu_ps(at.add(24)),
            ]
        }
    }
}

/// Half precision.
pub(crate) struct F16;
impl Format for F16 {
    const BYTES: usize = 64;
    type Scales = ();

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(_block: *const u8) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, (): &(), _g: usize) -> Values {
        let at = block.cast::<__m128i>();
        // SAFETY: a block is 32 values of two bytes: four vectors of 16 bytes.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(at)),
                _mm256_cvtph_ps(_mm_loadu_si128(at.add(1))),
                _mm256_cvtph_ps(_mm_loadu_si128(at.add(2))),
                _mm256_cvtph_ps(_mm_loadu_si128(at.add(3))),
            ]
        }
    }
}

/// Upper half of single precision.
pub(crate) struct Bf16;
impl Format for Bf16 {
    const BYTES: usize = 64;
    type Scales = ();

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(_block: *const u8) {}

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, (): &(), _g: usize) -> Values {
        let at = block.cast::<__m128i>();
        // SAFETY: a block is 32 values of two bytes: four vectors of 16 bytes.
        let parts = unsafe {
            [
                _mm_loadu_si128(at),
                _mm_loadu_si128(at.add(1)),
                _mm_loadu_si128(at.add(2)),
                _mm_loadu_si128(at.add(3)),
            ]
        };
        [upper(parts[0]), upper(parts[1]), upper(parts[2]), upper(parts[3])]
    }
}

/// Eight upper halves as f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn upper(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

/// Scale, signed bytes.
pub(crate) struct Q8_0;
impl Format for Q8_0 {
    const BYTES: usize = 34;
    type Scales = __m256;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> __m256 {
        // SAFETY: the block starts with its scale.
        unsafe { half_all(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, d: &__m256, _g: usize) -> Values {
        // SAFETY: 32 bytes follow the scale.
        let q = unsafe {
            [
                widen8(_mm_loadl_epi64(block.add(2).cast())),
                widen8(_mm_loadl_epi64(block.add(10).cast())),
                widen8(_mm_loadl_epi64(block.add(18).cast())),
                widen8(_mm_loadl_epi64(block.add(26).cast())),
            ]
        };
        scaled(q, *d)
    }
}

/// Scale, nibbles less 8.
pub(crate) struct Q4_0;
impl Format for Q4_0 {
    const BYTES: usize = 18;
    const TURNED: bool = true;
    type Scales = __m256;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> __m256 {
        // SAFETY: the block starts with its scale.
        unsafe { half_all(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, d: &__m256, _g: usize) -> Values {
        // SAFETY: 16 bytes follow the scale.
        let q = unsafe { nibbles(block.add(2)) };
        centred(widen(q), 8.0, *d)
    }
}

/// Scale, minimum, nibbles.
pub(crate) struct Q4_1;
impl Format for Q4_1 {
    const BYTES: usize = 20;
    const TURNED: bool = true;
    type Scales = (__m256, __m256);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> (__m256, __m256) {
        // SAFETY: the block starts with scale and minimum.
        unsafe { (half_all(block), half_all(block.add(2))) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, &(d, m): &(__m256, __m256), _g: usize) -> Values {
        // SAFETY: 16 bytes follow the minimum.
        let q = unsafe { nibbles(block.add(4)) };
        shifted(widen(q), d, m)
    }
}

/// 32 values of five bits, from fifth bits at `high` and nibbles at `low`.
///
/// # Safety
/// Four readable bytes at `high`, 16 at `low`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fives(high: *const u8, low: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    let (fifth, low) = unsafe { (word(high), nibbles(low)) };
    // Byte j of the vector gets byte j / 8 of the word, and keeps its bit j % 8.
    let source = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let one_bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(fifth.cast_signed()), source);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, one_bit), one_bit);
    _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)))
}

/// Scale, five bits less 16.
pub(crate) struct Q5_0;
impl Format for Q5_0 {
    const BYTES: usize = 22;
    const TURNED: bool = true;
    type Scales = __m256;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> __m256 {
        // SAFETY: the block starts with its scale.
        unsafe { half_all(block) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, d: &__m256, _g: usize) -> Values {
        // SAFETY: four and 16 bytes follow the scale.
        let q = unsafe { fives(block.add(2), block.add(6)) };
        centred(widen(q), 16.0, *d)
    }
}

/// Scale, minimum, five bits.
pub(crate) struct Q5_1;
impl Format for Q5_1 {
    const BYTES: usize = 24;
    const TURNED: bool = true;
    type Scales = (__m256, __m256);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> (__m256, __m256) {
        // SAFETY: the block starts with scale and minimum.
        unsafe { (half_all(block), half_all(block.add(2))) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, &(d, m): &(__m256, __m256), _g: usize) -> Values {
        // SAFETY: four and 16 bytes follow the minimum.
        let q = unsafe { fives(block.add(4), block.add(8)) };
        shifted(widen(q), d, m)
    }
}
