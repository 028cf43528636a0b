//! The gate of feed-forward layers.

use super::Level;
use crate::op::Activation;
use crate::reference;

/// `gate = activation(gate) * up`.
pub(crate) fn gated(level: Level, gate: &mut [f32], up: &[f32], activation: Activation) {
    match level {
        Level::Plain => reference::gated(gate, up, activation),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => {
            // SAFETY: the level says that the machine has the features.
            #[expect(unsafe_code, reason = "calls code for vectors")]
            unsafe {
                vectors::gated(gate, up, activation);
            }
        }
    }
}

/// Vectors.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vectors {
    use crate::cpu::lanes::{self, F8, LANES};
    use crate::op::Activation;
    use crate::reference;

    /// `gate = activation(gate) * up`; the last values go through a whole vector too, so that a value does not depend on
    /// its place.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
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
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn product(x: F8, up: F8, activation: Activation) -> F8 {
        match activation {
            Activation::Silu => lanes::mul(swish(x, lanes::sub(lanes::zero(), x)), up),
            Activation::GeluTanh => {
                let slope = -2.0 * (2.0 / std::f32::consts::PI).sqrt();
                let square = lanes::mul(x, x);
                let inner = lanes::fma(square, lanes::splat(slope * 0.044_715), lanes::splat(slope));
                lanes::mul(swish(x, lanes::mul(inner, x)), up)
            }
            Activation::Gelu => {
                let half = lanes::mul(lanes::splat(0.5), x);
                let erf = erf(lanes::mul(x, lanes::splat(std::f32::consts::FRAC_1_SQRT_2)));
                lanes::mul(lanes::mul(half, lanes::add(lanes::splat(1.0), erf)), up)
            }
            Activation::ClampedSwiglu { slope, limit } => {
                // Minimum and maximum give their second operand if one is not a number: it must be the value.
                let (low, high) = (lanes::splat(-limit), lanes::splat(limit));
                let (x, up) = (lanes::smaller(high, x), lanes::larger(low, lanes::smaller(high, up)));
                let active = swish(x, lanes::mul(lanes::splat(-slope), x));
                lanes::mul(active, lanes::add(up, lanes::splat(1.0)))
            }
            Activation::ClampedSilu { limit } => {
                let (low, high) = (lanes::splat(-limit), lanes::splat(limit));
                let (x, up) = (lanes::smaller(high, x), lanes::larger(low, lanes::smaller(high, up)));
                lanes::mul(swish(x, lanes::sub(lanes::zero(), x)), up)
            }
        }
    }

    /// The error function, by the formula of the reference.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn erf(x: F8) -> F8 {
        let size = lanes::size(x);
        let small = powers(&reference::ERF_SMALL, lanes::mul(size, size));
        let small = lanes::fma(size, small, size);
        // The minimum gives its second operand if one is not a number.
        let large = powers(&reference::ERF_LARGE, lanes::smaller(lanes::splat(4.0), size));
        let one = lanes::splat(1.0);
        let large = lanes::sub(one, lanes::exp(lanes::sub(lanes::zero(), large)));
        lanes::signed_as(lanes::where_above(size, one, large, small), x)
    }

    /// A sum of powers of `x`.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn powers(coefficients: &[f32], x: F8) -> F8 {
        let mut sum = lanes::zero();
        for &coefficient in coefficients.iter().rev() {
            sum = lanes::fma(sum, x, lanes::splat(coefficient));
        }
        sum
    }

    /// `x / (1 + exp(turned))`.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn swish(x: F8, turned: F8) -> F8 {
        lanes::div(x, lanes::add(lanes::splat(1.0), lanes::exp(turned)))
    }
}
