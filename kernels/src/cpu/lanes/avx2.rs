//! Eight lanes as one vector of AVX2.
#![expect(unsafe_code, reason = "vector loads and stores take pointers")]

use std::arch::x86_64::*;

use super::LANES;

/// Eight values.
pub(crate) type F8 = __m256;

/// All zero.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn zero() -> F8 {
    _mm256_setzero_ps()
}

/// One value in every lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn splat(x: f32) -> F8 {
    _mm256_set1_ps(x)
}

/// The eight values at a place.
///
/// # Safety
/// Eight readable values.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn load_from(at: *const f32) -> F8 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_ps(at) }
}

/// The eight values from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn load(x: &[f32], at: usize) -> F8 {
    let x = &x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe { load_from(x.as_ptr()) }
}

/// Stores eight values from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn store(x: &mut [f32], at: usize, v: F8) {
    let x = &mut x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
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

/// `a + b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn add(a: F8, b: F8) -> F8 {
    _mm256_add_ps(a, b)
}

/// `a - b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn sub(a: F8, b: F8) -> F8 {
    _mm256_sub_ps(a, b)
}

/// `a b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn mul(a: F8, b: F8) -> F8 {
    _mm256_mul_ps(a, b)
}

/// `a / b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn div(a: F8, b: F8) -> F8 {
    _mm256_div_ps(a, b)
}

/// The larger of both; `b`, if that is no number.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn larger(a: F8, b: F8) -> F8 {
    _mm256_max_ps(a, b)
}

/// The smaller of both; `b`, if that is no number.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn smaller(a: F8, b: F8) -> F8 {
    _mm256_min_ps(a, b)
}

/// `a b + c`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn fma(a: F8, b: F8, c: F8) -> F8 {
    _mm256_fmadd_ps(a, b, c)
}

/// `c - a b`, rounded once.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn less_product(a: F8, b: F8, c: F8) -> F8 {
    _mm256_fnmadd_ps(a, b, c)
}

/// The nearest whole numbers, ties to even.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn whole(x: F8) -> F8 {
    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
}

/// Two to the power of whole numbers between -126 and 127.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn power(n: F8) -> F8 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_cvtps_epi32(add(n, splat(127.0)))))
}

/// `v`, but zero where `x` is below `limit`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn zero_below(v: F8, x: F8, limit: F8) -> F8 {
    _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), v)
}

/// The sums over the lanes of four vectors, each in the order
/// `((v0 + v1) + (v2 + v3)) + ((v4 + v5) + (v6 + v7))`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn sums(v: [F8; 4]) -> [f32; 4] {
    let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
    let mut out = [0.0; 4];
    // SAFETY: the array has four values.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// The largest lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn max(v: F8) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// The first lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn first(v: F8) -> f32 {
    _mm256_cvtss_f32(v)
}

/// The lanes without their signs.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn size(x: F8) -> F8 {
    _mm256_andnot_ps(splat(-0.0), x)
}

/// `v`, which has no signs, with those of `of`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn signed_as(v: F8, of: F8) -> F8 {
    _mm256_or_ps(v, _mm256_and_ps(of, splat(-0.0)))
}

/// `a` where `x` is above `limit`, else `b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn where_above(x: F8, limit: F8, a: F8, b: F8) -> F8 {
    _mm256_blendv_ps(b, a, _mm256_cmp_ps::<_CMP_GT_OQ>(x, limit))
}
