//! Root-mean-square norm and layer norm, a row at a time.

use super::Level;
use crate::reference;

#[cfg(target_arch = "x86_64")]
pub(super) use vectors::squares as squares_of;

/// Norm of each row of `weight.len()` values, in place.
pub(crate) fn rows(level: Level, x: &mut [f32], weight: &[f32], eps: f32) {
    match level {
        Level::Plain => reference::norm_rows(x, weight, eps),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for vectors")]
            unsafe {
                vectors::rows(x, weight, eps);
            }
        }
    }
}

/// Layer norm of each row, in place.
pub(crate) fn layer_rows(level: Level, x: &mut [f32], scale: (&[f32], &[f32]), eps: f32) {
    match level {
        Level::Plain => reference::layer_norm_rows(x, scale, eps),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for vectors")]
            unsafe {
                vectors::layer_rows(x, scale, eps);
            }
        }
    }
}

/// Vectors.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vectors {
    use crate::cpu::lanes::{self, LANES};

    /// Norm of each row, in place.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    pub(super) fn rows(x: &mut [f32], weight: &[f32], eps: f32) {
        let cols = weight.len();
        let whole = cols / LANES * LANES;
        for x in x.chunks_exact_mut(cols) {
            let factor = 1.0 / (squares(x) / cols as f32 + eps).sqrt();
            let by = lanes::splat(factor);
            for at in (0..whole).step_by(LANES) {
                let scaled = lanes::mul(lanes::load(x, at), by);
                lanes::store(x, at, lanes::mul(scaled, lanes::load(weight, at)));
            }
            for (x, w) in x[whole..].iter_mut().zip(&weight[whole..]) {
                *x = *x * factor * w;
            }
        }
    }

    /// Layer norm of each row, in place.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
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
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn total(x: &[f32]) -> f32 {
        let mut acc = [lanes::zero(); 4];
        let whole = x.len() / (4 * LANES) * 4 * LANES;
        for at in (0..whole).step_by(4 * LANES) {
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = lanes::add(*acc, lanes::load(x, at + i * LANES));
            }
        }
        for at in (whole..x.len()).step_by(LANES) {
            acc[0] = lanes::add(acc[0], lanes::load_part(x, at));
        }
        lanes::sum(lanes::add(lanes::add(acc[0], acc[1]), lanes::add(acc[2], acc[3])))
    }

    /// Sum of squares, in an order that depends on the length alone: four vectors in turn, then across them.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    pub(in crate::cpu) fn squares(x: &[f32]) -> f32 {
        let mut acc = [lanes::zero(); 4];
        let whole = x.len() / (4 * LANES) * 4 * LANES;
        for at in (0..whole).step_by(4 * LANES) {
            for (i, acc) in acc.iter_mut().enumerate() {
                let v = lanes::load(x, at + i * LANES);
                *acc = lanes::fma(v, v, *acc);
            }
        }
        for at in (whole..x.len()).step_by(LANES) {
            let v = lanes::load_part(x, at);
            acc[0] = lanes::fma(v, v, acc[0]);
        }
        let total = lanes::add(lanes::add(acc[0], acc[1]), lanes::add(acc[2], acc[3]));
        lanes::sum(total)
    }
}
