//! Root-mean-square norm, a row at a time.

use super::Level;
use crate::reference;

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

    /// Sum of squares, in an order that depends on the length alone: four vectors in turn, then across them.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn squares(x: &[f32]) -> f32 {
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
