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

/// Every second row, then the others.
pub(crate) fn halves(matrix: &Matrix) -> Matrix {
    if matrix.is_outline() {
        return matrix.clone();
    }
    let rows = (0..matrix.rows).step_by(2).chain((1..matrix.rows).step_by(2));
    let bytes: Vec<&[u8]> = rows.map(|r| matrix.row(r)).collect();
    owned(matrix.dtype, (matrix.rows, matrix.cols), bytes.concat())
}

/// A matrix of MXFP4 as two tensors: nibbles and exponents.
#[derive(Copy, Clone)]
pub(crate) struct Fp4<'a> {
    /// `[rows, cols / 32, 16]`: value `2 i` in the low half of byte `i`.
    pub nibbles: &'a [u8],
    /// `[rows, cols / 32]`.
    pub exponents: &'a [u8],
}

/// Row `r` of `per_row` blocks of MXFP4, as one stream of blocks.
pub(crate) fn mxfp4(fp4: Fp4<'_>, r: usize, per_row: usize, into: &mut [u8]) {
    let (blocks, _) = fp4.nibbles[r * per_row * NIBBLES..].as_chunks::<NIBBLES>();
    let (into, _) = into.as_chunks_mut::<{ 1 + NIBBLES }>();
    for ((block, &exponent), into) in blocks.iter().zip(&fp4.exponents[r * per_row..]).zip(into) {
        into[0] = exponent;
        for i in 0..NIBBLES / 2 {
            let (a, b) = (block[i], block[i + NIBBLES / 2]);
            into[1 + 2 * i] = a & 15 | b << 4;
            into[2 + 2 * i] = a >> 4 | b & 0xf0;
        }
    }
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
        let three = Matrix::from_f32(3, 1, &[1.0, 2.0, 3.0]);
        assert_eq!(halves(&three).to_f32(), [1.0, 3.0, 2.0]);
    }

    #[test]
    fn nibbles_of_neighbours_find_their_places() {
        // Value i has code i % 7, in pairs.
        let blocks: Vec<u8> = (0..16).map(|j| (2 * j % 7) | ((2 * j + 1) % 7) << 4).collect();
        let mut bytes = vec![0; 2 * 17];
        let two = Fp4 { nibbles: &[blocks.as_slice(), &blocks].concat(), exponents: &[127, 128] };
        mxfp4(two, 0, 1, &mut bytes[..17]);
        mxfp4(two, 1, 1, &mut bytes[17..]);
        let matrix = Matrix::from_bytes(DType::MXFP4, 2, 32, bytes).expect("fits");
        let codes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0];
        let want: Vec<f32> =
            (0..64).map(|i| if i < 32 { codes[i % 7] } else { 2.0 * codes[i % 32 % 7] }).collect();
        assert_eq!(matrix.to_f32(), want);
    }
}
