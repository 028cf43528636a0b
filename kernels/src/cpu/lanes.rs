//! Eight f32 at a time: the few functions on AVX2 vectors that several operations share. Each treats every lane alike,
//! so that a value does not depend on where in a vector it stands.
#![expect(unsafe_code, reason = "vector loads and stores take pointers")]

use std::arch::x86_64::*;

/// Repeats a block for each `$i` below the constant `$n`, at most 8. A loop would do the same, but arrays of accumulators
/// stay in registers only if their indices are constants before the compiler unrolls loops.
macro_rules! unrolled {
    ($i:ident < $n:expr, $body:block) => {
        const { assert!($n <= 8) };
        $crate::cpu::lanes::unrolled!(@ $i, $n, [0 1 2 3 4 5 6 7], $body)
    };
    (@ $i:ident, $n:expr, [$($value:literal)*], $body:block) => {
        $(if $value < $n {
            let $i: usize = $value;
            $body
        })*
    };
}
pub(crate) use unrolled;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// The eight values from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn load(x: &[f32], at: usize) -> __m256 {
    let x = &x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

/// Stores eight values from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn store(x: &mut [f32], at: usize, v: __m256) {
    let x = &mut x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}

/// Up to eight values from `at` on; lanes behind the end are zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn load_part(x: &[f32], at: usize) -> __m256 {
    let mut part = [0.0; LANES];
    let x = &x[at..];
    let count = x.len().min(LANES);
    part[..count].copy_from_slice(&x[..count]);
    load(&part, 0)
}

/// Stores as many of the eight values as there is room for from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn store_part(x: &mut [f32], at: usize, v: __m256) {
    let mut part = [0.0; LANES];
    store(&mut part, 0, v);
    let x = &mut x[at..];
    let count = x.len().min(LANES);
    x[..count].copy_from_slice(&part[..count]);
}

/// Asks for `len` bytes that will be read soon; a hint, which never faults, wherever it points to.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn fetch(at: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(done).cast());
        done += 64;
    }
}

/// The sums over the lanes of four vectors, each in the order
/// `((v0 + v1) + (v2 + v3)) + ((v4 + v5) + (v6 + v7))`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn sums(v: [__m256; 4]) -> [f32; 4] {
    let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
    let mut out = [0.0; 4];
    // SAFETY: the array has four values.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// The sum over the lanes of one vector, in the order of [`sums`].
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn sum(v: __m256) -> f32 {
    sums([v; 4])[0]
}

/// The largest lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn max(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// `exp(x)` of each lane, to about 1e-7 of its value; zero below -87, where f32 leaves its normal range.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and `exp(r)` by its Taylor series up to `r⁷ / 7!`, whose remainder is below
/// 6e-9. `ln 2` is split in two so that `n` times its upper part is exact (the reduction of Cody and Waite).
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp(x: __m256) -> __m256 {
    let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(-87.0));
    // Minimum and maximum give their second operand if one is not a number: it must be `x`.
    let x = _mm256_min_ps(_mm256_set1_ps(88.0), _mm256_max_ps(_mm256_set1_ps(-87.0), x));
    let turns = _mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(turns);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_HIGH), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_LOW), r);
    let mut series = _mm256_set1_ps(1.0 / 5_040.0);
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = _mm256_fmadd_ps(series, r, _mm256_set1_ps(term));
    }
    let power = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(_mm256_add_ps(n, _mm256_set1_ps(127.0))));
    _mm256_andnot_ps(tiny, _mm256_mul_ps(series, _mm256_castsi256_ps(power)))
}

/// Upper part of `ln 2`: 9 bits, so that its product with an exponent is exact.
pub(crate) const LN_2_HIGH: f32 = 355.0 / 512.0;
/// The rest of `ln 2`.
pub(crate) const LN_2_LOW: f32 = -2.121_944_4e-4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range() {
        if !crate::cpu::has_avx2() {
            return;
        }
        let mut worst = 0.0_f64;
        for i in -8_698..=8_800 {
            let x = i as f32 / 100.0 + (i % 7) as f32 * 1e-3;
            // SAFETY: the machine has AVX2 and FMA.
            let got = unsafe { max(exp(_mm256_set1_ps(x.min(88.0)))) };
            let want = f64::from(x.min(88.0)).exp();
            worst = worst.max((f64::from(got) - want).abs() / want);
        }
        assert!(worst < 1.5e-7, "relative error {worst:e}");
        // SAFETY: as above.
        let zero = unsafe { max(exp(_mm256_set1_ps(f32::NEG_INFINITY))) };
        assert_eq!(zero, 0.0);
    }
}
