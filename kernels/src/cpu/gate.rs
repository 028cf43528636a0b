//! The gate of feed-forward layers.

use super::Level;
use crate::op::Activation;
use crate::reference;

/// `gate = activation(gate) * up`.
pub(crate) fn gated(level: Level, gate: &mut [f32], up: &[f32], activation: Activation) {
    match level {
        Level::Plain => reference::gated(gate, up, activation),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for AVX2")]
            unsafe {
                avx2::gated(gate, up, activation);
            }
        }
    }
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::cpu::lanes::{self, LANES};
    use crate::op::Activation;
    use crate::reference;
    use std::arch::x86_64::*;

    /// `gate = activation(gate) * up`; the last values go through a whole vector too, so that a value does not depend on
    /// its place.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn gated(gate: &mut [f32], up: &[f32], activation: Activation) {
        let whole = gate.len() / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let y = product(lanes::load(gate, at), lanes::load(up, at), activation);
            lanes::store(gate, at, y);
        }
        if whole < gate.len() {
            let y = product(lanes::load_part(gate, whole), lanes::load_part(up, whole), activation);
            lanes::store_part(gate, whole, y);
        }
    }

    /// Activations but for one are `x` times a sigmoid; `1/2 (1 + tanh(u))` is the sigmoid of `2 u`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn product(x: __m256, up: __m256, activation: Activation) -> __m256 {
        match activation {
            Activation::Silu => _mm256_mul_ps(swish(x, _mm256_sub_ps(_mm256_setzero_ps(), x)), up),
            Activation::GeluTanh => {
                let slope = -2.0 * (2.0 / std::f32::consts::PI).sqrt();
                let square = _mm256_mul_ps(x, x);
                let inner = _mm256_fmadd_ps(square, _mm256_set1_ps(slope * 0.044_715), _mm256_set1_ps(slope));
                _mm256_mul_ps(swish(x, _mm256_mul_ps(inner, x)), up)
            }
            Activation::Gelu => {
                let half = _mm256_mul_ps(_mm256_set1_ps(0.5), x);
                let erf = erf(_mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::FRAC_1_SQRT_2)));
                _mm256_mul_ps(_mm256_mul_ps(half, _mm256_add_ps(_mm256_set1_ps(1.0), erf)), up)
            }
            Activation::ClampedSwiglu { slope, limit } => {
                // Minimum and maximum give their second operand if one is not a number: it must be the value.
                let (low, high) = (_mm256_set1_ps(-limit), _mm256_set1_ps(limit));
                let (x, up) = (_mm256_min_ps(high, x), _mm256_max_ps(low, _mm256_min_ps(high, up)));
                let active = swish(x, _mm256_mul_ps(_mm256_set1_ps(-slope), x));
                _mm256_mul_ps(active, _mm256_add_ps(up, _mm256_set1_ps(1.0)))
            }
            Activation::ClampedSilu { limit } => {
                let (low, high) = (_mm256_set1_ps(-limit), _mm256_set1_ps(limit));
                let (x, up) = (_mm256_min_ps(high, x), _mm256_max_ps(low, _mm256_min_ps(high, up)));
                _mm256_mul_ps(swish(x, _mm256_sub_ps(_mm256_setzero_ps(), x)), up)
            }
        }
    }

    /// The error function, by the formula of the reference.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn erf(x: __m256) -> __m256 {
        let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
        let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        let small = powers(&reference::ERF_SMALL, _mm256_mul_ps(size, size));
        let small = _mm256_fmadd_ps(size, small, size);
        // The minimum gives its second operand if one is not a number.
        let large = powers(&reference::ERF_LARGE, _mm256_min_ps(_mm256_set1_ps(4.0), size));
        let one = _mm256_set1_ps(1.0);
        let large = _mm256_sub_ps(one, lanes::exp(_mm256_sub_ps(_mm256_setzero_ps(), large)));
        let is_large = _mm256_cmp_ps::<_CMP_GT_OQ>(size, one);
        _mm256_or_ps(sign, _mm256_blendv_ps(small, large, is_large))
    }

    /// A sum of powers of `x`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn powers(coefficients: &[f32], x: __m256) -> __m256 {
        let mut sum = _mm256_setzero_ps();
        for &coefficient in coefficients.iter().rev() {
            sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(coefficient));
        }
        sum
    }

    /// `x / (1 + exp(turned))`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn swish(x: __m256, turned: __m256) -> __m256 {
        _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0), lanes::exp(turned)))
    }
}
