//! Panels with AVX2: eight outputs in a vector, up to four rows of activations at once. Products of bytes are summed in
//! 16 bits first, as many as codes of so few bits cannot overflow; codes of eight bits are made signed.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::arch::x86_64::*;

use super::Panels;
use super::rows::Rows;
use crate::cpu::lanes::{LANES, unrolled};
use crate::packed::form::{FP4_CODES, Form, Known, Scales};
use crate::packed::input::{self, Side};
use crate::packed::{PANEL, VECTOR};

/// How far ahead weights are fetched, in bytes.
const AHEAD: usize = 8192;

/// [`input::quantise`], compiled for AVX2.
#[target_feature(enable = "avx2")]
pub(super) fn quantise(x: &[f32], cols: usize, tile: &mut [u32]) {
    input::quantise(x, cols, tile);
}

/// Computes panels for a tile.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; no other thread writes these columns.
pub(super) unsafe fn panels<F: Known>(panels: &Panels<'_>) {
    let Panels { range, target, .. } = panels;
    for panel in range.clone().step_by(PANEL) {
        // SAFETY: the caller's promises; the rows are of the tile.
        unsafe {
            match target.tile.rows {
                // Memory sets the pace: each line of a panel is used as a whole when it comes.
                1 => run::<F, 1, 2>(panels, panel, 0),
                2 => run::<F, 2, 2>(panels, panel, 0),
                // Registers do: all rows take half a panel before the next half.
                rows => {
                    for col in (panel..range.end.min(panel + PANEL)).step_by(LANES) {
                        for first in (0..rows).step_by(4) {
                            run::<F, 4, 1>(panels, col, first);
                        }
                    }
                }
            }
        }
    }
}

/// Eight outputs from `col` on, or `H` times as many, with `M` rows of the tile from `first` on.
///
/// # Safety
/// As for [`panels`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<F: Known, const M: usize, const H: usize>(panels: &Panels<'_>, col: usize, first: usize) {
    let Panels { weight, target, .. } = panels;
    let tile = target.tile;
    assert!(tile.words.len() == input::WORDS * weight.groups * tile.rows && first + M <= tile.rows);
    let (panel, upper) = (weight.panel(col / PANEL), !col.is_multiple_of(PANEL));
    // SAFETY: a panel and a tile of so many groups; the caller's promise for the columns.
    unsafe {
        let rows = Rows { tile: tile.words.as_ptr(), of: tile.rows, first, groups: weight.groups };
        let sums = halves::<F, M, H>(panel, usize::from(upper), rows);
        unrolled!(h < H, {
            let col = col + h * LANES;
            if col < target.cols {
                unrolled!(m < M, {
                    let mut products = [0.0_f32; LANES];
                    _mm256_storeu_ps(products.as_mut_ptr(), sums[h][m]);
                    target.store(first + m, col, &products);
                });
            }
        });
    }
}

/// Products of `M` rows with the lower or upper eight outputs of a panel (`H` is 1), or with both (`H` is 2, `upper` 0).
///
/// # Safety
/// As for [`panels`]; the panel and the tile hold the groups and rows that `rows` says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves<F: Known, const M: usize, const H: usize>(
    panel: &[u8],
    upper: usize,
    rows: Rows,
) -> [[__m256; M]; H] {
    let form = const { F::FORM };
    let codes = panel.as_ptr().wrapping_add(form.scale_bytes(rows.groups));
    let mut sums = [[_mm256_setzero_ps(); M]; H];
    for g in 0..rows.groups {
        let codes = codes.wrapping_add(g * form.group_bytes());
        // SAFETY: group `g` of a panel and of a tile, the caller's promise. Prefetches may point anywhere.
        unsafe {
            if upper == 0 && rows.first == 0 {
                unrolled!(v < 8, {
                    if v < form.bits + form.planes {
                        _mm_prefetch::<_MM_HINT_T1>(codes.wrapping_add(AHEAD + v * VECTOR).cast());
                    }
                });
            }
            let mut parts = [[[_mm256_setzero_si256(); M]; 2]; H];
            let mut pairs = [[_mm256_setzero_si256(); M]; H];
            unrolled!(j < 8, {
                let (part, fit) = (if form.fine { j / 4 } else { 0 }, const { fit(F::FORM) });
                unrolled!(h < H, {
                    let code = quad(form, codes, j, upper + h);
                    unrolled!(m < M, {
                        let x = _mm256_set1_epi32((*rows.quad(g, j).add(m)).cast_signed());
                        let product = product(form, code, x);
                        pairs[h][m] = if j.is_multiple_of(fit) {
                            product
                        } else {
                            _mm256_add_epi16(pairs[h][m], product)
                        };
                        if (j + 1).is_multiple_of(fit) {
                            let wide = _mm256_madd_epi16(pairs[h][m], _mm256_set1_epi16(1));
                            parts[h][part][m] = _mm256_add_epi32(parts[h][part][m], wide);
                        }
                    });
                });
            });
            unrolled!(h < H, {
                let scales = scales(form, panel.as_ptr(), g, upper + h);
                unrolled!(m < M, {
                    sums[h][m] =
                        scaled(form, [parts[h][0][m], parts[h][1][m]], scales, (rows, g, m), sums[h][m]);
                });
            });
        }
    }
    sums
}

/// Adds to `sum` what the codes of group `g` gave with row `m`, by its scales and minima.
///
/// # Safety
/// The tile holds the row and the group.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn scaled(
    form: Form,
    parts: [__m256i; 2],
    (scales, mins): ([__m256; 2], [__m256; 2]),
    (rows, g, m): (Rows, usize, usize),
    mut sum: __m256,
) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = _mm256_set1_ps(f32::from_bits(*rows.side(Side::Scale, g).add(m)));
        let of = if form.fine { [Side::First, Side::Second] } else { [Side::Sum; 2] };
        let count = if form.fine { 2 } else { 1 };
        unrolled!(part < 2, {
            if part < count {
                let less = (*rows.side(of[part], g).add(m)).cast_signed();
                // Codes of eight bits are signed already.
                let zero = if form.bits == 8 { 0 } else { form.zero };
                let whole = _mm256_add_epi32(parts[part], _mm256_set1_epi32(zero * less));
                let whole = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scale);
                sum = _mm256_fmadd_ps(whole, scales[part], sum);
            }
        });
        if form.min {
            unrolled!(part < 2, {
                if part < count {
                    let less = (*rows.side(of[part], g).add(m)).cast_signed();
                    let scaled = _mm256_mul_ps(_mm256_set1_ps(-less as f32), scale);
                    sum = _mm256_fmadd_ps(scaled, mins[part], sum);
                }
            });
        }
        sum
    }
}

/// So many quads whose products fit into 16 bits together; a scale covers a multiple of that.
const fn fit(form: Form) -> usize {
    let most = match (form.scales, form.bits + form.planes) {
        (_, 8) => 128,
        (Scales::Power, _) => 24,
        (_, bits) => (1 << bits) - 1,
    };
    let scaled = if form.fine { 4 } else { 8 };
    let mut fit = scaled;
    while fit > 1 && fit * 2 * 127 * most > i16::MAX as usize {
        fit /= 2;
    }
    fit
}

/// Products of a quad with its activations, summed in pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn product(form: Form, code: __m256i, x: __m256i) -> __m256i {
    if form.bits == 8 {
        // The unsigned factor must not exceed 128: it is the code without its sign, which the activation takes.
        return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
    }
    _mm256_maddubs_epi16(code, x)
}

/// Codes of quad `j` of eight rows, a byte each; signed if they have eight bits.
///
/// # Safety
/// `codes` points to a group.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quad(form: Form, codes: *const u8, j: usize, upper: usize) -> __m256i {
    // SAFETY: vectors and planes of the group.
    unsafe {
        let vector = _mm256_loadu_si256(codes.add(j % form.bits * VECTOR + upper * VECTOR / 2).cast());
        if form.bits == 8 {
            return _mm256_xor_si256(vector, _mm256_set1_epi8(i8::MIN));
        }
        let shifted = match form.bits * (j / form.bits) {
            0 => vector,
            2 => _mm256_srli_epi16::<2>(vector),
            4 => _mm256_srli_epi16::<4>(vector),
            _ => _mm256_srli_epi16::<6>(vector),
        };
        let mut code = _mm256_and_si256(shifted, _mm256_set1_epi8((1 << form.bits) - 1));
        if matches!(form.scales, Scales::Power) {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            return _mm256_shuffle_epi8(table, code);
        }
        unrolled!(p < 2, {
            if p < form.planes {
                let plane = codes.add((form.bits + p) * VECTOR + 8 * j + 4 * upper).cast::<i32>();
                let bit = _mm256_set1_epi8(1 << (form.bits + p));
                code = _mm256_or_si256(code, _mm256_and_si256(spread(plane.read_unaligned()), bit));
            }
        });
        code
    }
}

/// 32 bits as 32 bytes of all ones or zeros.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(bits: i32) -> __m256i {
    let byte = |i: i64| 0x0101_0101_0101_0101 * i;
    let bytes =
        _mm256_shuffle_epi8(_mm256_set1_epi32(bits), _mm256_set_epi64x(byte(3), byte(2), byte(1), byte(0)));
    let select = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, select), select)
}

/// Scales and minima of both halves of group `g`, for eight rows.
///
/// # Safety
/// `panel` points to a panel with group `g`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn scales(form: Form, panel: *const u8, g: usize, upper: usize) -> ([__m256; 2], [__m256; 2]) {
    // SAFETY: the scales of that group.
    unsafe {
        let halves = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(panel.add(at + 2 * LANES * upper).cast()));
        match form.scales {
            Scales::Plain => {
                let start = form.group_scale_bytes() * g;
                let min = if form.min { halves(start + 2 * PANEL) } else { _mm256_setzero_ps() };
                ([halves(start); 2], [min; 2])
            }
            Scales::Power => {
                let bytes = _mm_loadl_epi64(panel.add(form.group_scale_bytes() * g + LANES * upper).cast());
                let (exponents, one) = (_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(1));
                let whole = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, one));
                // Below the smallest power of two of whole precision.
                let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
                let is_whole = _mm256_cmpgt_epi32(exponents, one);
                let scale = _mm256_castsi256_ps(_mm256_blendv_epi8(tiny, whole, is_whole));
                ([scale; 2], [_mm256_setzero_ps(); 2])
            }
            Scales::Nested { signed } => {
                let (block, own) = form.nested_places(g);
                let bytes = |part: usize| {
                    let at = panel.add(own.start + part * PANEL + LANES * upper);
                    let bytes = _mm_loadl_epi64(at.cast());
                    _mm256_cvtepi32_ps(if signed {
                        _mm256_cvtepi8_epi32(bytes)
                    } else {
                        _mm256_cvtepu8_epi32(bytes)
                    })
                };
                let (scale, parts) = (halves(block), 1 + form.fine as usize);
                let scales = [_mm256_mul_ps(scale, bytes(0)), _mm256_mul_ps(scale, bytes(parts - 1))];
                if !form.min {
                    return (scales, [_mm256_setzero_ps(); 2]);
                }
                let min = _mm256_sub_ps(_mm256_setzero_ps(), halves(block + 2 * PANEL));
                let mins = [bytes(parts), bytes(2 * parts - 1)];
                (scales, [_mm256_mul_ps(min, mins[0]), _mm256_mul_ps(min, mins[1])])
            }
        }
    }
}
