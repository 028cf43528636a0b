//! Eight f32 at a time, whatever the processor: one vector of AVX2, or two of NEON. Operations on floats are written once,
//! over these few functions. Each treats every lane alike, so that a value does not depend on where in a vector it
//! stands, and gives the same bits on both.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::*;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::*;

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

/// Up to eight values from `at` on; lanes behind the end are zero.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(crate) fn load_part(x: &[f32], at: usize) -> F8 {
    let mut part = [0.0; LANES];
    let x = &x[at..];
    let count = x.len().min(LANES);
    part[..count].copy_from_slice(&x[..count]);
    load(&part, 0)
}

/// Stores as many of the eight values as there is room for from `at` on.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(crate) fn store_part(x: &mut [f32], at: usize, v: F8) {
    let mut part = [0.0; LANES];
    store(&mut part, 0, v);
    let x = &mut x[at..];
    let count = x.len().min(LANES);
    x[..count].copy_from_slice(&part[..count]);
}

/// The sum over the lanes of one vector, in the order of [`sums`].
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(crate) fn sum(v: F8) -> f32 {
    sums([v; 4])[0]
}

/// `exp(x)` of each lane, to about 1e-7 of its value; zero below -87, where f32 leaves its normal range.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and `exp(r)` by its Taylor series up to `r⁷ / 7!`, whose remainder is below
/// 6e-9. `ln 2` is split in two so that `n` times its upper part is exact (the reduction of Cody and Waite).
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(crate) fn exp(x: F8) -> F8 {
    // What is no number stays so: it must be the second operand.
    let within = smaller(splat(88.0), larger(splat(-87.0), x));
    let n = whole(mul(within, splat(std::f32::consts::LOG2_E)));
    let r = less_product(n, splat(LN_2_HIGH), within);
    let r = less_product(n, splat(LN_2_LOW), r);
    let mut series = splat(1.0 / 5_040.0);
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = fma(series, r, splat(term));
    }
    zero_below(mul(series, power(n)), x, splat(-87.0))
}

/// Upper part of `ln 2`: 9 bits, so that its product with an exponent is exact.
pub(crate) const LN_2_HIGH: f32 = 355.0 / 512.0;
/// The rest of `ln 2`.
pub(crate) const LN_2_LOW: f32 = -2.121_944_4e-4;

#[cfg(test)]
mod tests {
    use super::*;

    /// The first lane.
    #[expect(unsafe_code, reason = "calls code for vectors")]
    fn exp_of(x: f32) -> f32 {
        // SAFETY: the test runs where the machine has the vectors.
        unsafe { first(exp(splat(x))) }
    }

    #[test]
    fn exp_is_close_over_its_whole_range() {
        #[cfg(target_arch = "x86_64")]
        if !crate::cpu::has_avx2() {
            return;
        }
        let mut worst = 0.0_f64;
        for i in -8_698..=8_800 {
            let x = i as f32 / 100.0 + (i % 7) as f32 * 1e-3;
            let got = exp_of(x.min(88.0));
            let want = f64::from(x.min(88.0)).exp();
            worst = worst.max((f64::from(got) - want).abs() / want);
        }
        assert!(worst < 1.5e-7, "relative error {worst:e}");
        assert_eq!(exp_of(f32::NEG_INFINITY), 0.0);
        assert!(exp_of(f32::NAN).is_nan());
    }
}
