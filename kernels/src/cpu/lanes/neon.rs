//! Eight lanes as two vectors of NEON, which every processor of this architecture has.
#![expect(unsafe_code, reason = "vector loads and stores take pointers")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::LANES;

/// Eight values: the first four, the others.
#[derive(Copy, Clone)]
pub(crate) struct F8(pub float32x4_t, pub float32x4_t);

/// All zero.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn zero() -> F8 {
    splat(0.0)
}

/// One value in every lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn splat(x: f32) -> F8 {
    F8(vdupq_n_f32(x), vdupq_n_f32(x))
}

/// The eight values at a place.
///
/// # Safety
/// Eight readable values.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn load_from(at: *const f32) -> F8 {
    // SAFETY: the caller's promise.
    unsafe { F8(vld1q_f32(at), vld1q_f32(at.add(LANES / 2))) }
}

/// The eight values from `at` on.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load(x: &[f32], at: usize) -> F8 {
    let x = &x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe { load_from(x.as_ptr()) }
}

/// Stores eight values from `at` on.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store(x: &mut [f32], at: usize, v: F8) {
    let x = &mut x[at..at + LANES];
    // SAFETY: the slice has eight values.
    unsafe {
        vst1q_f32(x.as_mut_ptr(), v.0);
        vst1q_f32(x.as_mut_ptr().add(LANES / 2), v.1);
    }
}

/// Asks for `len` bytes that will be read soon; a hint, which never faults, wherever it points to.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn fetch(at: *const u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: changes nothing that a program can see.
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) at.wrapping_add(done),
                options(nostack, readonly, preserves_flags));
        }
        done += 64;
    }
}

/// `a + b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn add(a: F8, b: F8) -> F8 {
    F8(vaddq_f32(a.0, b.0), vaddq_f32(a.1, b.1))
}

/// `a - b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn sub(a: F8, b: F8) -> F8 {
    F8(vsubq_f32(a.0, b.0), vsubq_f32(a.1, b.1))
}

/// `a b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn mul(a: F8, b: F8) -> F8 {
    F8(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1))
}

/// `a / b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn div(a: F8, b: F8) -> F8 {
    F8(vdivq_f32(a.0, b.0), vdivq_f32(a.1, b.1))
}

/// The larger of both; `b`, if that is no number.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn larger(a: F8, b: F8) -> F8 {
    F8(vmaxq_f32(a.0, b.0), vmaxq_f32(a.1, b.1))
}

/// The smaller of both; `b`, if that is no number.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn smaller(a: F8, b: F8) -> F8 {
    F8(vminq_f32(a.0, b.0), vminq_f32(a.1, b.1))
}

/// `a b + c`, rounded once.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn fma(a: F8, b: F8, c: F8) -> F8 {
    F8(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1))
}

/// `c - a b`, rounded once.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn less_product(a: F8, b: F8, c: F8) -> F8 {
    F8(vfmsq_f32(c.0, a.0, b.0), vfmsq_f32(c.1, a.1, b.1))
}

/// The nearest whole numbers, ties to even.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn whole(x: F8) -> F8 {
    F8(vrndnq_f32(x.0), vrndnq_f32(x.1))
}

/// Two to the power of whole numbers between -126 and 127.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn power(n: F8) -> F8 {
    let power = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vcvtq_s32_f32(n)));
    let n = add(n, splat(127.0));
    F8(power(n.0), power(n.1))
}

/// `v`, but zero where `x` is below `limit`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn zero_below(v: F8, x: F8, limit: F8) -> F8 {
    let keep = |v, x, limit| vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, limit)));
    F8(keep(v.0, x.0, limit.0), keep(v.1, x.1, limit.1))
}

/// The sums over the lanes of four vectors, each in the order
/// `((v0 + v1) + (v2 + v3)) + ((v4 + v5) + (v6 + v7))`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn sums(v: [F8; 4]) -> [f32; 4] {
    let pairs = |v: F8| vpaddq_f32(v.0, v.1);
    let (a, b) = (vpaddq_f32(pairs(v[0]), pairs(v[1])), vpaddq_f32(pairs(v[2]), pairs(v[3])));
    let mut out = [0.0; 4];
    // SAFETY: the array has four values.
    unsafe { vst1q_f32(out.as_mut_ptr(), vpaddq_f32(a, b)) };
    out
}

/// The largest lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn max(v: F8) -> f32 {
    vmaxvq_f32(vmaxq_f32(v.0, v.1))
}

/// The first lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn first(v: F8) -> f32 {
    vgetq_lane_f32::<0>(v.0)
}

/// The lanes without their signs.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn size(x: F8) -> F8 {
    F8(vabsq_f32(x.0), vabsq_f32(x.1))
}

/// `v`, which has no signs, with those of `of`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn signed_as(v: F8, of: F8) -> F8 {
    let sign = vdupq_n_u32(1 << 31);
    F8(vbslq_f32(sign, of.0, v.0), vbslq_f32(sign, of.1, v.1))
}

/// `a` where `x` is above `limit`, else `b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn where_above(x: F8, limit: F8, a: F8, b: F8) -> F8 {
    F8(vbslq_f32(vcgtq_f32(x.0, limit.0), a.0, b.0), vbslq_f32(vcgtq_f32(x.1, limit.1), a.1, b.1))
}
