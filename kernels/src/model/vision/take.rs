//! Weights of eyes on their way out of a model's files: whole names, biases beside matrices, matrices that lie in one.

use super::super::parts::{Linear, Norm};
use super::tower::LayerNorm;
use crate::error::Error;
use crate::matrix::Matrix;
use crate::weights::Weights;

/// Products with `name.weight [rows, cols]`, and `name.bias` added.
///
/// # Errors
/// As for [`Weights::matrix`].
pub(super) fn linear(weights: &mut Weights, name: &str, [rows, cols]: [usize; 2]) -> Result<Linear, Error> {
    let weight = weights.matrix(&format!("{name}.weight"), rows, cols)?;
    Ok(Linear { weight, bias: Some(weights.vector(&format!("{name}.bias"), rows)?) })
}

/// The same of a convolution whose kernel covers `shape` and steps by as much: a row for each output.
///
/// # Errors
/// As for [`Weights::matrix`].
pub(super) fn convolution(weights: &mut Weights, name: &str, shape: &[usize]) -> Result<Linear, Error> {
    let weight = weights.flat(&format!("{name}.weight"), shape)?;
    Ok(Linear { weight, bias: Some(weights.vector(&format!("{name}.bias"), shape[0])?) })
}

/// The equal parts of a matrix `name.weight [N * rows, cols]`.
///
/// # Errors
/// As for [`Weights::matrix`].
pub(super) fn parts<const N: usize>(
    weights: &mut Weights,
    name: &str,
    [rows, cols]: [usize; 2],
) -> Result<[Matrix; N], Error> {
    let all = weights.stored(&format!("{name}.weight"), N * rows, cols)?;
    let mut parts = std::array::from_fn(|part| all.part(part * rows, rows));
    for part in &mut parts {
        *part = weights.packed(part)?;
    }
    Ok(parts)
}

/// Queries, keys and values, `name.weight [3 * width, width]` and `name.bias`.
///
/// # Errors
/// As for [`Weights::matrix`].
pub(super) fn thirds(weights: &mut Weights, name: &str, width: usize) -> Result<[Linear; 3], Error> {
    let matrices = parts::<3>(weights, name, [width, width])?;
    let bias = weights.vector(&format!("{name}.bias"), 3 * width)?;
    let mut biases = bias.chunks_exact(width).map(<[f32]>::to_vec);
    Ok(matrices.map(|weight| Linear { weight, bias: biases.next() }))
}

/// The norm `name.weight`.
///
/// # Errors
/// As for [`Weights::vector`].
pub(super) fn norm(weights: &mut Weights, name: &str, width: usize, eps: f32) -> Result<Norm, Error> {
    Ok(Norm { weight: weights.vector(&format!("{name}.weight"), width)?, eps })
}

/// The norm `name.weight`, `name.bias`.
///
/// # Errors
/// As for [`Weights::vector`].
pub(super) fn layer_norm(
    weights: &mut Weights,
    name: &str,
    width: usize,
    eps: f32,
) -> Result<LayerNorm, Error> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    Ok(LayerNorm { weight: weights.vector(&weight, width)?, bias: weights.vector(&bias, width)?, eps })
}
