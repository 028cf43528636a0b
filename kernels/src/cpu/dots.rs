//! Matrix products with AVX2. Every output element is one accumulator of eight lanes, fed along `k` in order with the
//! widened weights, and summed across its lanes at the end in one fixed order. Which elements are computed side by side
//! changes speed, never a bit of the result.
//!
//! Few rows of activations (a decode step): the time goes into reading weights, so they are widened in registers, several
//! weight rows at once to keep the multiply-add units busy. Many rows (a prompt): see [`strips`].
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::buffer::Buffer;
use super::format::{Bf16, F16, F32, Format, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::lanes::{self, LANES, unrolled};
use super::output::Output;
use super::strips::{GROUP, Input, Place, SCRATCH, keep_order, strips, widened};
use crate::dtype::DType;
use crate::matrix::Matrix;

impl<'a> Input<'a> {
    /// The first `rows` rows, and the others.
    fn split(self, rows: usize) -> (Input<'a>, Input<'a>) {
        let (head, tail) = self.x.split_at(rows * self.stride);
        let others = Input { x: tail, first: self.first + rows, rows: self.rows - rows, ..self };
        (Input { x: head, rows, ..self }, others)
    }
}

/// Whether weights of `dtype` want turned activations: value `4 l + t` of each group at place `8 t + l`.
pub(crate) fn is_turned(dtype: DType) -> bool {
    match dtype {
        DType::F32 => F32::TURNED,
        DType::F16 => F16::TURNED,
        DType::BF16 => Bf16::TURNED,
        DType::F8E4M3 => false,
        DType::MXFP4 => Mxfp4::TURNED,
        DType::Q8_0 => Q8_0::TURNED,
        DType::Q4_0 => Q4_0::TURNED,
        DType::Q4_1 => Q4_1::TURNED,
        DType::Q5_0 => Q5_0::TURNED,
        DType::Q5_1 => Q5_1::TURNED,
        DType::Q2K => Q2K::TURNED,
        DType::Q3K => Q3K::TURNED,
        DType::Q4K => Q4K::TURNED,
        DType::Q5K => Q5K::TURNED,
        DType::Q6K => Q6K::TURNED,
    }
}

/// Computes the columns `range` of `out`: the products of all rows of `input` with those rows of `weight`.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes these columns.
pub(crate) unsafe fn columns(input: Input<'_>, weight: &Matrix, range: Range<usize>, out: &Output<'_>) {
    assert!(range.end <= weight.rows && input.stride == weight.cols.next_multiple_of(GROUP));
    assert!(input.x.len() >= input.rows * input.stride);
    // SAFETY: the caller's promises; the lengths were just checked, and a matrix has `rows` rows of whole blocks.
    unsafe {
        match weight.dtype {
            DType::F32 => rows::<F32>(input, weight, range, out),
            DType::F16 => rows::<F16>(input, weight, range, out),
            DType::BF16 => rows::<Bf16>(input, weight, range, out),
            DType::F8E4M3 => widened(input, weight, range, out),
            DType::MXFP4 => rows::<Mxfp4>(input, weight, range, out),
            DType::Q8_0 => rows::<Q8_0>(input, weight, range, out),
            DType::Q4_0 => rows::<Q4_0>(input, weight, range, out),
            DType::Q4_1 => rows::<Q4_1>(input, weight, range, out),
            DType::Q5_0 => rows::<Q5_0>(input, weight, range, out),
            DType::Q5_1 => rows::<Q5_1>(input, weight, range, out),
            DType::Q2K => rows::<Q2K>(input, weight, range, out),
            DType::Q3K => rows::<Q3K>(input, weight, range, out),
            DType::Q4K => rows::<Q4K>(input, weight, range, out),
            DType::Q5K => rows::<Q5K>(input, weight, range, out),
            DType::Q6K => rows::<Q6K>(input, weight, range, out),
        }
    }
}

/// [`columns`] of one format.
///
/// # Safety
/// As for [`columns`], with the lengths checked.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Format>(input: Input<'_>, weight: &Matrix, range: Range<usize>, out: &Output<'_>) {
    // SAFETY: the caller's promises.
    unsafe {
        match input.rows {
            0 => {}
            1 => few::<F, 8, 1>(input, weight, range, out),
            2 => few::<F, 4, 2>(input, weight, range, out),
            3 => few::<F, 4, 3>(input, weight, range, out),
            4 => few::<F, 3, 4>(input, weight, range, out),
            5 => few::<F, 2, 5>(input, weight, range, out),
            6 => few::<F, 2, 6>(input, weight, range, out),
            7 | 8 => {
                let (head, tail) = input.split(4);
                few::<F, 3, 4>(head, weight, range.clone(), out);
                rows::<F>(tail, weight, range, out);
            }
            _ => SCRATCH.with_borrow_mut(|scratch| many::<F>(input, weight, range, (out, scratch))),
        }
    }
}

/// All of `M` rows of activations with weight rows, `R` at a time.
///
/// # Safety
/// As for [`rows`]; `input` has `M` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few<F: Format, const R: usize, const M: usize>(
    input: Input<'_>,
    weight: &Matrix,
    range: Range<usize>,
    out: &Output<'_>,
) {
    let place = Place { row: input.first, col: range.start, cols: weight.rows };
    if range.len() < R {
        for m in 0..M {
            let x = Input { x: &input.x[m * input.stride..], ..input };
            for col in range.clone() {
                // SAFETY: the caller's promises.
                unsafe { dots::<F, 1, 1>(x, weight, Place { row: input.first + m, col, ..place }, out) };
            }
        }
        return;
    }
    let mut col = range.start;
    while col < range.end {
        // The last ones overlap those before, which come to the same values once more.
        let col_last = col.min(range.end - R);
        // SAFETY: the caller's promises; R rows from there on exist.
        unsafe { dots::<F, R, M>(input, weight, Place { col: col_last, ..place }, out) };
        col += R;
    }
}

/// Products of `M` rows of activations with `R` weight rows from column `place.col` on, widened in registers.
///
/// # Safety
/// As for [`few`]; the weight rows exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<F: Format, const R: usize, const M: usize>(
    input: Input<'_>,
    weight: &Matrix,
    place: Place,
    out: &Output<'_>,
) {
    let (stride, blocks) = (weight.row_bytes(), weight.cols / F::LEN);
    let (w, x) = (weight.bytes()[place.col * stride..][..R * stride].as_ptr(), input.x.as_ptr());
    let mut acc = [[_mm256_setzero_ps(); M]; R];
    for b in 0..blocks {
        // SAFETY: block b of R rows, and M rows of activations that are as long.
        unsafe {
            // The next rows follow those being read, but rows are too short, and too many are read at once, for the
            // processor to see that by itself.
            lanes::fetch(w.wrapping_add(R * (stride + b * F::BYTES)), R * F::BYTES);
            let (w, x) = (w.add(b * F::BYTES), x.add(b * F::LEN));
            if F::LEN == GROUP {
                unrolled!(r < R, {
                    let scales = F::scales(w.add(r * stride));
                    let values = F::group(w.add(r * stride), &scales, 0);
                    accumulate(&values, x, input.stride, &mut acc[r]);
                    keep_order();
                });
                continue;
            }
            let mut scales = [F::scales(w); R];
            unrolled!(r < R, { scales[r] = F::scales(w.add(r * stride)) });
            for g in 0..F::LEN / GROUP {
                unrolled!(r < R, {
                    let values = F::group(w.add(r * stride), &scales[r], g);
                    accumulate(&values, x.add(g * GROUP), input.stride, &mut acc[r]);
                    keep_order();
                });
            }
        }
    }
    if !weight.cols.is_multiple_of(F::LEN) {
        unrolled!(r < R, {
            let values = last::<F>(weight.row(place.col + r));
            // SAFETY: the activations are filled up to whole groups.
            unsafe { accumulate(&values, x.add(blocks * F::LEN), input.stride, &mut acc[r]) };
        });
    }
    unrolled!(r < R, {
        unrolled!(m < M, {
            // SAFETY: this thread alone writes these columns.
            unsafe { out.put(place.at(m, r), lanes::sum(acc[r][m])) };
        });
    });
}

/// Adds one group of weights times the same of `M` rows of activations to their accumulators.
///
/// # Safety
/// `x` points to a group of each of `M` rows, `stride` apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn accumulate<const M: usize>(w: &[__m256; 4], x: *const f32, stride: usize, acc: &mut [__m256; M]) {
    unrolled!(@ i, 4, [0 1 2 3], {
        unrolled!(m < M, {
            // SAFETY: the caller's promise.
            let x = unsafe { _mm256_loadu_ps(x.add(m * stride + i * LANES)) };
            acc[m] = _mm256_fmadd_ps(x, w[i], acc[m]);
        });
    });
}

/// The last values of a row of a plain format that do not fill a group, then zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn last<F: Format>(row: &[u8]) -> [__m256; 4] {
    let mut block = [0; 4 * GROUP];
    let rest = &row[row.len() / F::BYTES * F::BYTES..];
    block[..rest.len()].copy_from_slice(rest);
    // SAFETY: plain formats, the only ones with a rest, have blocks of at most four bytes a value; features as declared.
    unsafe { F::group(block.as_ptr(), &F::scales(block.as_ptr()), 0) }
}

/// Any number of rows of activations with the weight rows of `range`.
///
/// # Safety
/// As for [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn many<F: Format>(
    input: Input<'_>,
    weight: &Matrix,
    range: Range<usize>,
    to: (&Output<'_>, &mut Buffer),
) {
    // SAFETY: the caller's promises; `wide` is as long as a row of activations.
    let widen = |r: usize, wide: &mut [f32]| unsafe { widen_row::<F>(weight.row(r), wide) };
    // SAFETY: the caller's promises.
    unsafe { strips(input, (weight.rows, range), widen, to) };
}

/// Widens one row, filled up with zeros to whole groups.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_row<F: Format>(row: &[u8], wide: &mut [f32]) {
    let blocks = row.len() / F::BYTES;
    assert!(blocks * F::LEN <= wide.len());
    for b in 0..blocks {
        // SAFETY: block b of the row.
        let (block, scales) =
            unsafe { (row.as_ptr().add(b * F::BYTES), F::scales(row.as_ptr().add(b * F::BYTES))) };
        for g in 0..F::LEN / GROUP {
            // SAFETY: as above.
            let values = unsafe { F::group(block, &scales, g) };
            unrolled!(@ i, 4, [0 1 2 3], {
                lanes::store(wide, b * F::LEN + g * GROUP + i * LANES, values[i]);
            });
        }
    }
    if !row.len().is_multiple_of(F::BYTES) {
        for (i, &v) in last::<F>(row).iter().enumerate() {
            lanes::store(wide, blocks * F::LEN + i * LANES, v);
        }
    }
}
