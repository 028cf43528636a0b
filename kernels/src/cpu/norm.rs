//! Root-mean-square norm and layer norm, a row at a time.

use super::Level;
use crate::reference;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::squares as squares_of;

/// Norm of each row of `weight.len()` values, in place.
pub(crate) fn rows(level: Level, x: &mut [f32], weight: &[f32], eps: f32) {
    match level {
        Level::Plain => reference::norm_rows(x, weight, eps),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for AVX2")]
            unsafe {
                avx2::rows(x, weight, eps);
            }
        }
    }
}

/// Layer norm of each row, in place.
pub(crate) fn layer_rows(level: Level, x: &mut [f32], scale: (&[f32], &[f32]), eps: f32) {
    match level {
        Level::Plain => reference::layer_norm_rows(x, scale, eps),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for AVX2")]
            unsafe {
                avx2::layer_rows(x, scale, eps);
            }
        }
    }
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::cpu::lanes::{self, LANES};
    use std::arch::x86_64::*;

    /// Norm of each row, in place.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn rows(x: &mut [f32], weight: &[f32], eps: f32) {
        let cols = weight.len();
        let whole = cols / LANES * LANES;
        for x in x.chunks_exact_mut(cols) {
            let factor = 1.0 / (squares(x) / cols as f32 + eps).sqrt();
            let by = _mm256_set1_ps(factor);
            for at in (0..whole).step_by(LANES) {
                let scaled = _mm256_mul_ps(lanes::load(x, at), by);
                lanes::store(x, at, _mm256_mul_ps(scaled, lanes::load(weight, at)));
            }
            for (x, w) in x[whole..].iter_mut().zip(&weight[whole..]) {
                *x = *x * factor * w;
            }
        }
    }

    /// Layer norm of each row, in place.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn layer_rows(x: &mut [f32], (weight, bias): (&[f32], &[f32]), eps: f32) {
        let cols = weight.len();
        for x in x.chunks_exact_mut(cols) {
            let mean = total(x) / cols as f32;
            x.iter_mut().for_each(|x| *x -= mean);
            let factor = 1.0 / (squares(x) / cols as f32 + eps).sqrt();
            x.iter_mut().zip(weight).zip(bias).for_each(|((x, w), b)| *x = *x * factor * w + b);
        }
    }

    /// Sum, in the order of [`squares`].
    #[target_feature(enable = "avx2,fma")]
    fn total(x: &[f32]) -> f32 {
        let mut acc = [_mm256_setzero_ps(); 4];
        let whole = x.len() / (4 * LANES) * 4 * LANES;
        for at in (0..whole).step_by(4 * LANES) {
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = _mm256_add_ps(*acc, lanes::load(x, at + i * LANES));
            }
        }
        for at in (whole..x.len()).step_by(LANES) {
            acc[0] = _mm256_add_ps(acc[0], lanes::load_part(x, at));
        }
        lanes::sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
    }

    /// Sum of squares, in an order that depends on the length alone: four vectors in turn, then across them.
    #[target_feature(enable = "avx2,fma")]
    pub(in crate::cpu) fn squares(x: &[f32]) -> f32 {
        let mut acc = [_mm256_setzero_ps(); 4];
        let whole = x.len() / (4 * LANES) * 4 * LANES;
        for at in (0..whole).step_by(4 * LANES) {
            for (i, acc) in acc.iter_mut().enumerate() {
                let v = lanes::load(x, at + i * LANES);
                *acc = _mm256_fmadd_ps(v, v, *acc);
            }
        }
        for at in (whole..x.len()).step_by(LANES) {
            let v = lanes::load_part(x, at);
            acc[0] = _mm256_fmadd_ps(v, v, acc[0]);
        }
        let total = _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
        lanes::sum(total)
    }
}
