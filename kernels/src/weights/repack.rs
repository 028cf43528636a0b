//! Matrices that files hold in another order than any kernel reads: turned over, gate and up row by row, 4-bit floating
//! point in two tensors. They are the only weights that are copied, once, when a model is loaded.

use crate::dtype::DType;
use crate::matrix::Matrix;

/// Bytes of 32 values in the tensors `*_blocks` of released files; their exponents are in `*_scales`.
pub(crate) const NIBBLES: usize = 16;

/// The matrix turned over its diagonal: in its own format where that is a plain one, else in F32.
pub(crate) fn transposed(matrix: &Matrix) -> Matrix {
    let (rows, cols) = (matrix.rows, matrix.cols);
    if matrix.is_outline() {
        return Matrix::outline(DType::F32, cols, rows);
    }
    let plain = !matrix.dtype.is_quantised() && (rows == 0 || matrix.scales(0).is_none());
    let (dtype, size, wide);
    let bytes = if plain {
        (dtype, size) = (matrix.dtype, matrix.dtype.block_bytes());
        matrix.bytes()
    } else {
        (dtype, size) = (DType::F32, size_of::<f32>());
        wide = matrix.to_f32();
        bytemuck::cast_slice(&wide)
    };
    let mut turned = vec![0; rows * cols * size];
    for (r, row) in bytes.chunks_exact((cols * size).max(1)).enumerate() {
        for (c, value) in row.chunks_exact(size).enumerate() {
            turned[(c * rows + r) * size..][..size].copy_from_slice(value);
        }
    }
    owned(dtype, (cols, rows), turned)
}

/// Every second row, from `first` on.
pub(crate) fn every_second(matrix: &Matrix, first: usize) -> Matrix {
    let picked = (first..matrix.rows).step_by(2);
    let rows = picked.len();
    if matrix.is_outline() {
        return Matrix::outline(matrix.dtype, rows, matrix.cols);
    }
    owned(matrix.dtype, (rows, matrix.cols), picked.flat_map(|r| matrix.row(r)).copied().collect())
}

/// The rows of MXFP4 whose nibbles are in `blocks [rows, cols / 32, 16]`, value `2 i` in the low half of byte `i`, and
/// whose exponents are in `exponents [rows, cols / 32]`.
pub(crate) fn mxfp4(blocks: &[u8], exponents: &[u8], (rows, cols): (usize, usize)) -> Matrix {
    let mut bytes = Vec::with_capacity(exponents.len() * (1 + NIBBLES));
    let (blocks, _) = blocks.as_chunks::<NIBBLES>();
    for (block, &exponent) in blocks.iter().zip(exponents) {
        let (low, high) = block.split_at(NIBBLES / 2);
        bytes.push(exponent);
        bytes.extend(low.iter().zip(high).flat_map(|(a, b)| [a & 15 | b << 4, a >> 4 | b & 0xf0]));
    }
    owned(DType::MXFP4, (rows, cols), bytes)
}

/// A matrix of bytes that are as many as it takes.
fn owned(dtype: DType, (rows, cols): (usize, usize), bytes: Vec<u8>) -> Matrix {
    Matrix::from_bytes(dtype, rows, cols, bytes).expect("as many bytes as the shape takes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_over_keeps_every_value() {
        let matrix = Matrix::from_f32(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let turned = transposed(&matrix);
        assert_eq!((turned.rows, turned.cols, turned.to_f32()), (3, 2, vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        let bytes = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|x: f32| half::bf16::from_f32(x).to_le_bytes());
        let narrow = Matrix::from_bytes(DType::BF16, 3, 2, bytes.concat()).expect("fits");
        let turned = transposed(&narrow);
        assert_eq!((turned.dtype, turned.to_f32()), (DType::BF16, vec![1.0, 3.0, 5.0, 2.0, 4.0, 6.0]));
        let scaled = narrow.scaled(vec![2.0, 10.0], (2, 2)).expect("fits");
        let turned = transposed(&scaled);
        assert_eq!((turned.dtype, turned.to_f32()), (DType::F32, vec![2.0, 6.0, 50.0, 4.0, 8.0, 60.0]));
        assert_eq!(every_second(&matrix, 1).to_f32(), [4.0, 5.0, 6.0]);
    }

    #[test]
    fn nibbles_of_neighbours_find_their_places() {
        // Value i has code i % 7, in pairs.
        let blocks: Vec<u8> = (0..16).map(|j| (2 * j % 7) | ((2 * j + 1) % 7) << 4).collect();
        let matrix = mxfp4(&blocks, &[127], (1, 32));
        let codes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0];
        let want: Vec<f32> = (0..32).map(|i| codes[i % 7]).collect();
        assert_eq!(matrix.to_f32(), want);
    }
}
