//! The format whose values are floating point themselves: sixteen of them, found in a table.
#![expect(unsafe_code, reason = "blocks are read through pointers, without checks in the innermost loop")]

use std::arch::x86_64::*;

use super::{Format, Values, centred, nibbles, widen};
use crate::dtype::{FP4_TWICE, half_power};

/// Added to the table, so that its values are unsigned.
const ZERO: i8 = 12;

/// Power of two, nibbles of floating point.
pub(crate) struct Mxfp4;
impl Format for Mxfp4 {
    const BYTES: usize = 17;
    const TURNED: bool = true;
    type Scales = __m256;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(block: *const u8) -> __m256 {
        // SAFETY: the block starts with its exponent.
        _mm256_set1_ps(half_power(unsafe { block.read() }))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn group(block: *const u8, d: &__m256, _g: usize) -> Values {
        const TABLE: [i8; 16] = {
            let mut table = FP4_TWICE;
            let mut i = 0;
            while i < 16 {
                table[i] += ZERO;
                i += 1;
            }
            table
        };
        // SAFETY: the table has 16 bytes, and 16 follow the exponent.
        let (table, codes) = unsafe { (_mm_loadu_si128(TABLE.as_ptr().cast()), nibbles(block.add(1))) };
        let q = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
        centred(widen(q), f32::from(ZERO), *d)
    }
}
