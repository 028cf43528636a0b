//! Packed floats with AVX-512: the sixteen outputs of a panel in a vector, up to eight rows of activations at once.
//!
//! The instruction for products of BF16 (`VDPBF16PS`) is not used: it would round activations to eight bits of mantissa,
//! and on the processors measured it does no more multiply-adds a cycle than those of F32.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Products, SIDE, Strip};
use crate::cpu::lanes::unrolled;
use crate::dtype::DType;
use crate::packed::PANEL;

/// How far ahead of the values being used the next ones are asked for, in bytes.
const AHEAD: usize = 4096;

/// A format of values.
trait Values {
    /// Bytes of a value.
    const BYTES: usize;

    /// Sixteen values as they take part in chains.
    ///
    /// # Safety
    /// So many readable bytes; the machine has AVX-512.
    unsafe fn load(at: *const u8) -> __m512;
}

/// Declares a format.
macro_rules! values {
    ($name:ident, $bytes:literal, $at:ident, $load:expr) => {
        /// The format of that name.
        struct $name;
        impl Values for $name {
            const BYTES: usize = $bytes;
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
            unsafe fn load($at: *const u8) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { $load }
            }
        }
    };
}

values!(F32, 4, at, _mm512_loadu_ps(at.cast()));
values!(F16, 2, at, _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())));
values!(Bf16, 2, at, {
    let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
});
values!(F8, 1, at, {
    let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast())));
    _mm512_cvtph_ps(_mm256_and_si256(bits, _mm256_set1_epi16(0xbf80_u16.cast_signed())))
});

/// Widens the values of a panel.
///
/// # Safety
/// The machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn widen(dtype: DType, values: &[u8], into: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => all::<F16>(values, into),
            DType::BF16 => all::<Bf16>(values, into),
            DType::F8E4M3 => all::<F8>(values, into),
            other => unreachable!("{other:?} is not widened"),
        }
    }
}

/// [`widen`] of one format.
///
/// # Safety
/// As for [`widen`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn all<V: Values>(values: &[u8], into: &mut [f32]) {
    for (values, into) in values.chunks_exact(PANEL * V::BYTES).zip(into.as_chunks_mut::<PANEL>().0) {
        // SAFETY: sixteen values each.
        unsafe { _mm512_storeu_ps(into.as_mut_ptr(), V::load(values.as_ptr())) };
    }
}

/// Products of a tile of rows: a power of two, at most eight.
///
/// # Safety
/// The machine has AVX-512; no other thread writes the columns of the strip.
pub(super) unsafe fn tile(products: &Products<'_>, strip: Strip<'_>, rows: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe {
        match strip.dtype {
            DType::F32 if strip.factors[0].is_empty() => sized::<F32, false>(products, strip, rows),
            DType::F32 => sized::<F32, true>(products, strip, rows),
            DType::F16 => sized::<F16, false>(products, strip, rows),
            DType::BF16 => sized::<Bf16, false>(products, strip, rows),
            DType::F8E4M3 => sized::<F8, true>(products, strip, rows),
            other => unreachable!("{other:?} is not packed as floats"),
        }
    }
}

/// [`tile`] of one format, with or without factors.
///
/// # Safety
/// As for [`tile`].
unsafe fn sized<V: Values, const FACTORS: bool>(
    products: &Products<'_>,
    strip: Strip<'_>,
    rows: Range<usize>,
) {
    // SAFETY: the caller's promises.
    unsafe {
        match (rows.len(), strip.side) {
            (1, SIDE) => run::<V, FACTORS, 1, SIDE>(products, strip, rows.start),
            (2, SIDE) => run::<V, FACTORS, 2, SIDE>(products, strip, rows.start),
            (4, SIDE) => run::<V, FACTORS, 4, SIDE>(products, strip, rows.start),
            (_, SIDE) => run::<V, FACTORS, 8, SIDE>(products, strip, rows.start),
            (1, _) => run::<V, FACTORS, 1, 1>(products, strip, rows.start),
            (2, _) => run::<V, FACTORS, 2, 1>(products, strip, rows.start),
            (4, _) => run::<V, FACTORS, 4, 1>(products, strip, rows.start),
            _ => run::<V, FACTORS, 8, 1>(products, strip, rows.start),
        }
    }
}

/// `M` rows from `first` on with `P` panels.
///
/// # Safety
/// As for [`tile`]; the rows are there, and the strip has the panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn run<V: Values, const FACTORS: bool, const M: usize, const P: usize>(
    products: &Products<'_>,
    strip: Strip<'_>,
    first: usize,
) {
    let Strip { cols, run, .. } = strip;
    let (values, factors) = (&strip.values[..P], &strip.factors[..P]);
    assert!(values.iter().all(|values| values.len() == cols * PANEL * V::BYTES));
    assert!(!FACTORS || factors.iter().all(|factors| factors.len() == cols.div_ceil(run) * PANEL));
    let x = products.x[first * cols..][..M * cols].as_ptr();
    let mut totals = [[_mm512_setzero_ps(); P]; M];
    for (b, start) in (0..cols).step_by(run).enumerate() {
        let mut sums = [[_mm512_setzero_ps(); P]; M];
        for k in start..cols.min(start + run) {
            // SAFETY: column k of the panels and of the rows. Prefetches may point anywhere.
            unsafe {
                let mut w = [_mm512_setzero_ps(); P];
                unrolled!(p < P, {
                    let at = values[p].as_ptr().wrapping_add(k * PANEL * V::BYTES);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                    w[p] = V::load(at);
                });
                unrolled!(m < M, {
                    let x = _mm512_set1_ps(*x.add(m * cols + k));
                    unrolled!(p < P, {
                        sums[m][p] = _mm512_fmadd_ps(x, w[p], sums[m][p]);
                    });
                });
            }
        }
        unrolled!(m < M, {
            unrolled!(p < P, {
                totals[m][p] = if FACTORS {
                    // SAFETY: the factors of run b.
                    let factor = unsafe { _mm512_loadu_ps(factors[p].as_ptr().add(b * PANEL)) };
                    _mm512_fmadd_ps(sums[m][p], factor, totals[m][p])
                } else {
                    sums[m][p]
                };
            });
        });
    }
    unrolled!(m < M, {
        unrolled!(p < P, {
            let mut row = [0.0_f32; PANEL];
            // SAFETY: sixteen values; the caller's promise for the columns.
            unsafe {
                _mm512_storeu_ps(row.as_mut_ptr(), totals[m][p]);
                products.store(first + m, p * PANEL, &row);
            }
        });
    });
}
