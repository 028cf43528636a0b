//! Products of heads, each with a weight of its own, as one operation of the pool: rows are brought together by head,
//! multiplied, and the products put back.

use super::buffer::Buffer;
use super::matmul::{Matmul, Rows};
use crate::matrix::Matrix;

/// Memory for rows by head, and for their products.
#[derive(Default)]
pub(crate) struct Split {
    x: Buffer,
    products: Buffer,
}

/// `out [rows, heads, outputs]` = `x [rows, heads, cols]`, each head times its weight; the arguments have been checked.
pub(crate) fn run(
    mut matmul: Matmul<'_>,
    split: &mut Split,
    (x, rows): (&[f32], usize),
    weights: &[Matrix],
    out: &mut [f32],
) {
    let (heads, cols, outputs) = (weights.len(), weights[0].cols, weights[0].rows);
    let mut all = |x: &[f32], products: &mut [f32]| {
        let mut parts: Vec<_> =
            weights.iter().zip(products.chunks_exact_mut((rows * outputs).max(1))).collect();
        matmul.run(Rows { x, rows, own: true }, &mut parts);
    };
    if rows == 1 {
        return all(x, out);
    }
    let by_head = split.x.take(x.len());
    turn(x, (rows, heads), cols, by_head);
    let products = split.products.take(out.len());
    all(by_head, products);
    turn(products, (heads, rows), outputs, out);
}

/// `into [second, first, size]` = `from [first, second, size]`.
fn turn(from: &[f32], (first, second): (usize, usize), size: usize, into: &mut [f32]) {
    for (at, run) in from.chunks_exact(size.max(1)).enumerate() {
        let (a, b) = (at / second, at % second);
        into[(b * first + a) * size..][..size].copy_from_slice(run);
    }
}
