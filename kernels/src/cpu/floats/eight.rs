//! Packed floats with eight lanes: two vectors for the sixteen outputs of a panel, up to four rows of activations at once
//! where they are widened already, two where memory is waited for.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

use super::{Products, SIDE, Strip};
use crate::cpu::lanes::{self, F8, LANES, unrolled};
use crate::dtype::DType;
use crate::packed::PANEL;

/// How far ahead of the values being used the next ones are asked for, in bytes.
const AHEAD: usize = 4096;

/// A format of values.
trait Values {
    /// Bytes of a value.
    const BYTES: usize;

    /// Eight values as they take part in chains.
    ///
    /// # Safety
    /// So many readable bytes; the machine has the vectors.
    unsafe fn load(at: *const u8) -> F8;
}

/// Declares a format, for both architectures.
macro_rules! values {
    ($name:ident, $bytes:literal, $at:ident, $x86:expr, $arm:expr) => {
        /// The format of that name.
        struct $name;
        impl Values for $name {
            const BYTES: usize = $bytes;
            #[cfg(target_arch = "x86_64")]
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn load($at: *const u8) -> F8 {
                // SAFETY: the caller's promise.
                unsafe { $x86 }
            }
            #[cfg(target_arch = "aarch64")]
            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn load($at: *const u8) -> F8 {
                // SAFETY: the caller's promise.
                unsafe { $arm }
            }
        }
    };
}

values!(F32, 4, at, lanes::load_from(at.cast()), lanes::load_from(at.cast()));
values!(F16, 2, at, _mm256_cvtph_ps(_mm_loadu_si128(at.cast())), {
    let halves = vreinterpretq_f16_u16(vld1q_u16(at.cast()));
    F8(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
});
values!(
    Bf16,
    2,
    at,
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))),
    {
        let halves = vld1q_u16(at.cast());
        let low = vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(halves)));
        F8(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_high_u16(halves))))
    }
);
values!(
    Bits,
    1,
    at,
    {
        let bits = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(at.cast())));
        _mm256_cvtph_ps(_mm_and_si128(bits, _mm_set1_epi16(0xbf80_u16.cast_signed())))
    },
    {
        let bits = vshlq_n_s16::<7>(vmovl_s8(vld1_s8(at.cast())));
        let halves = vandq_u16(vreinterpretq_u16_s16(bits), vdupq_n_u16(0xbf80));
        let halves = vreinterpretq_f16_u16(halves);
        F8(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
    }
);

/// Widens the values of a panel.
///
/// # Safety
/// The machine has the vectors.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn widen(dtype: DType, values: &[u8], into: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => all::<F16>(values, into),
            DType::BF16 => all::<Bf16>(values, into),
            DType::F8E4M3 => all::<Bits>(values, into),
            other => unreachable!("{other:?} is not widened"),
        }
    }
}

/// [`widen`] of one format.
///
/// # Safety
/// As for [`widen`].
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn all<V: Values>(values: &[u8], into: &mut [f32]) {
    for (values, into) in values.chunks_exact(LANES * V::BYTES).zip(into.chunks_exact_mut(LANES)) {
        // SAFETY: eight values.
        lanes::store(into, 0, unsafe { V::load(values.as_ptr()) });
    }
}

/// Products of a tile of rows: a power of two, at most eight.
///
/// # Safety
/// The machine has the vectors; no other thread writes the columns of the strip.
pub(super) unsafe fn tile(products: &Products<'_>, strip: Strip<'_>, rows: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe {
        match strip.dtype {
            DType::F32 if strip.factors[0].is_empty() => sized::<F32, false>(products, strip, rows),
            DType::F32 => sized::<F32, true>(products, strip, rows),
            DType::F16 => sized::<F16, false>(products, strip, rows),
            DType::BF16 => sized::<Bf16, false>(products, strip, rows),
            DType::F8E4M3 => sized::<Bits, true>(products, strip, rows),
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
        match (rows.len().min(if strip.wide { 4 } else { 2 }), strip.side) {
            (1, SIDE) => run::<V, FACTORS, 1, SIDE>(products, strip, (rows.start, 0)),
            (2, SIDE) => {
                for first in rows.step_by(2) {
                    run::<V, FACTORS, 2, SIDE>(products, strip, (first, 0));
                }
            }
            (1, _) => run::<V, FACTORS, 1, 1>(products, strip, (rows.start, 0)),
            (2, _) => {
                for first in rows.step_by(2) {
                    run::<V, FACTORS, 2, 1>(products, strip, (first, 0));
                }
            }
            _ => {
                for first in rows.step_by(4) {
                    for panel in 0..strip.side {
                        run::<V, FACTORS, 4, 1>(products, strip, (first, panel));
                    }
                }
            }
        }
    }
}

/// `M` rows from `first` on with `P` panels from `panel` on.
///
/// # Safety
/// As for [`tile`]; the rows are there, and the strip has the panels.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
unsafe fn run<V: Values, const FACTORS: bool, const M: usize, const P: usize>(
    products: &Products<'_>,
    strip: Strip<'_>,
    (first, panel): (usize, usize),
) {
    let Strip { cols, run, .. } = strip;
    let (values, factors) = (&strip.values[panel..][..P], &strip.factors[panel..][..P]);
    assert!(values.iter().all(|values| values.len() == cols * PANEL * V::BYTES));
    assert!(!FACTORS || factors.iter().all(|factors| factors.len() == cols.div_ceil(run) * PANEL));
    let x = products.x[first * cols..][..M * cols].as_ptr();
    let mut totals = [[[lanes::zero(); 2]; P]; M];
    for (b, start) in (0..cols).step_by(run).enumerate() {
        let mut sums = [[[lanes::zero(); 2]; P]; M];
        for k in start..cols.min(start + run) {
            unrolled!(p < P, {
                let at = values[p].as_ptr().wrapping_add(k * PANEL * V::BYTES);
                if M < 4 {
                    lanes::fetch(at.wrapping_add(AHEAD), 1);
                }
                // SAFETY: column k of the panel.
                let w = unsafe { [V::load(at), V::load(at.add(LANES * V::BYTES))] };
                unrolled!(m < M, {
                    // SAFETY: column k of the row.
                    let x = lanes::splat(unsafe { *x.add(m * cols + k) });
                    sums[m][p] = [lanes::fma(x, w[0], sums[m][p][0]), lanes::fma(x, w[1], sums[m][p][1])];
                });
            });
        }
        unrolled!(m < M, {
            unrolled!(p < P, {
                totals[m][p] = if FACTORS {
                    let of = |half: usize| lanes::load(factors[p], b * PANEL + half * LANES);
                    let ([low, high], [a, b]) = (sums[m][p], totals[m][p]);
                    [lanes::fma(low, of(0), a), lanes::fma(high, of(1), b)]
                } else {
                    sums[m][p]
                };
            });
        });
    }
    unrolled!(m < M, {
        unrolled!(p < P, {
            let mut row = [0.0_f32; PANEL];
            lanes::store(&mut row, 0, totals[m][p][0]);
            lanes::store(&mut row, LANES, totals[m][p][1]);
            // SAFETY: the caller's promise for the columns.
            unsafe { products.store(first + m, (panel + p) * PANEL, &row) };
        });
    });
}
