//! Plain loops of what only eyes compute.

use super::{dot, turn_head};
use crate::op::{Pairing, RopeAxes, Whole};

/// Layer norm of each row, in place.
pub(crate) fn layer_norm_rows(x: &mut [f32], (weight, bias): (&[f32], &[f32]), eps: f32) {
    let len = weight.len() as f32;
    for x in x.chunks_exact_mut(weight.len()) {
        let mean = x.iter().sum::<f32>() / len;
        x.iter_mut().for_each(|x| *x -= mean);
        let factor = 1.0 / (dot(x, x) / len + eps).sqrt();
        x.iter_mut().zip(weight).zip(bias).for_each(|((x, w), b)| *x = *x * factor * w + b);
    }
}

/// Turns the heads of tokens by their places.
pub(crate) fn turn_axes(
    x: &mut [f32],
    (heads, head_dim): (usize, usize),
    places: &[[u32; 3]],
    rope: &RopeAxes,
) {
    let mut turn = vec![0.0; rope.rotated()];
    for (&place, token) in places.iter().zip(x.chunks_exact_mut((heads * head_dim).max(1))) {
        rope.turn(place, &mut turn);
        token.chunks_exact_mut(head_dim).for_each(|head| turn_head(head, &turn, Pairing::Half));
    }
}

/// Attention of one token over all, all heads.
pub(crate) fn attend_whole(args: &Whole<'_>, head_dim: usize, token: usize, out: &mut [f32]) {
    let width = args.heads * head_dim;
    for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let start = head * head_dim;
        let q = &args.q[token * width + start..][..head_dim];
        let score = |k: &[f32]| args.scale * dot(q, &k[start..][..head_dim]);
        let mut scores: Vec<f32> = args.k.chunks_exact(width).map(score).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let total = scores.iter().sum::<f32>();
        out.fill(0.0);
        for (weight, v) in scores.iter().zip(args.v.chunks_exact(width)) {
            out.iter_mut().zip(&v[start..]).for_each(|(out, v)| *out += weight / total * v);
        }
    }
}

/// Of the error function up to 1: coefficients of `erf(x) / x - 1` in powers of `x²`.
pub(crate) const ERF_SMALL: [f32; 7] = [
    0.128_379_17,
    -0.376_126_26,
    0.112_835_974,
    -0.026_854_33,
    0.005_189_312,
    -0.000_801_885_5,
    7.882_497_4e-5,
];
/// Of the error function from 1 to 4: coefficients of `-ln(1 - erf(x))` in powers of `x`.
pub(crate) const ERF_LARGE: [f32; 9] = [
    -0.000_303_213,
    1.130_166_6,
    0.631_937_1,
    0.109_978_24,
    -0.026_364_718,
    0.004_740_222_4,
    -0.000_592_769_53,
    4.559_062_3e-5,
    -1.614_061_6e-6,
];

/// The error function, to 1e-7.
pub(crate) fn erf(x: f32) -> f32 {
    let powers = |coefficients: &[f32], x: f32| coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    let size = x.abs();
    let y = if size <= 1.0 {
        size + size * powers(&ERF_SMALL, size * size)
    } else {
        1.0 - (-powers(&ERF_LARGE, size.min(4.0))).exp()
    };
    y.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_close() {
        // Its series, in f64; all terms have one sign.
        let series = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= 2.0 * x * x / f64::from(2 * n + 1);
                sum += term;
            }
            sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
        };
        for i in -600..=600 {
            let x = i as f32 / 100.0;
            let error = (f64::from(erf(x)) - series(f64::from(x))).abs();
            assert!(error < 1.5e-7, "erf({x}) is off by {error:e}");
        }
        assert_eq!((erf(40.0), erf(-40.0), erf(0.0)), (1.0, -1.0, 0.0));
    }
}
