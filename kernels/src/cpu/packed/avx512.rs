//! Panels with AVX-512 and its integer dot products (VNNI): sixteen outputs in a vector, up to eight rows of activations
//! at once. Codes are unpacked in registers, once for all rows of a tile.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::arch::x86_64::*;

use super::Panels;
use crate::cpu::lanes::unrolled;
use crate::packed::form::{FP4_CODES, Form, Known, Scales};
use crate::packed::input::Side;
use crate::packed::{PANEL, QUADS, VECTOR};

/// How far ahead of the codes being used the next ones are asked for, in bytes: so many that memory is always busy, few
/// enough for the second cache, which they go to.
const AHEAD: usize = 8192;

/// Computes panels for a tile.
///
/// # Safety
/// The machine has what [`Level::Avx512`](crate::cpu::Level::Avx512) says; no other thread writes these columns.
pub(super) unsafe fn panels<F: Known>(panels: &Panels<'_>) {
    // SAFETY: the caller's promises; the tile has as many rows as the kernel is told.
    unsafe {
        match panels.target.tile.rows {
            1 => run::<F, 1>(panels),
            2 => run::<F, 2>(panels),
            4 => run::<F, 4>(panels),
            _ => run::<F, 8>(panels),
        }
    }
}

/// All panels with a tile of `M` rows.
///
/// # Safety
/// As for [`panels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run<F: Known, const M: usize>(panels: &Panels<'_>) {
    let Panels { weight, range, target, .. } = panels;
    assert!(target.tile.words.len() == crate::packed::input::WORDS * weight.groups * M);
    for panel in range.start / PANEL..range.end.div_ceil(PANEL) {
        // SAFETY: a panel and a tile of so many groups; the caller's promise for the columns.
        unsafe {
            let sums = self::panel::<F, M>(weight.panel(panel), weight.groups, target.tile.words.as_ptr());
            unrolled!(m < M, {
                let mut products = [0.0_f32; PANEL];
                _mm512_storeu_ps(products.as_mut_ptr(), sums[m]);
                target.store(m, panel * PANEL, &products);
            });
        }
    }
}

/// Products of `M` rows with one panel.
///
/// # Safety
/// As for [`panels`]; `panel` and `tile` hold `groups` groups, the tile of `M` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn panel<F: Known, const M: usize>(panel: &[u8], groups: usize, tile: *const u32) -> [__m512; M] {
    let form = const { F::FORM };
    // Few rows leave multipliers idle while sums wait for each other; then each half has sums of its own.
    let split = form.fine || M < 4;
    let codes = panel.as_ptr().wrapping_add(form.scale_bytes(groups));
    let side = |side: Side, g: usize| tile.wrapping_add(side.start(groups, M) + g * M);
    let mut sums = [_mm512_setzero_ps(); M];
    for g in 0..groups {
        let codes = codes.wrapping_add(g * form.group_bytes());
        // SAFETY: group `g` of a panel and of a tile, the caller's promise. Prefetches may point anywhere.
        unsafe {
            unrolled!(v < 8, {
                if v < form.bits + form.planes {
                    _mm_prefetch::<_MM_HINT_T1>(codes.wrapping_add(AHEAD + v * VECTOR).cast());
                }
            });
            let mut halves = [[_mm512_setzero_si512(); M]; 2];
            if form.zero != 0 {
                let of = if form.fine { [Side::First, Side::Second] } else { [Side::Sum; 2] };
                unrolled!(m < M, {
                    halves[0][m] = less_zero(form, *side(of[0], g).add(m));
                    if form.fine {
                        halves[1][m] = less_zero(form, *side(of[1], g).add(m));
                    }
                });
            }
            unrolled!(j < 8, {
                let code = quad(form, codes, j);
                let half = if split { j / 4 } else { 0 };
                unrolled!(m < M, {
                    let x = _mm512_set1_epi32((*tile.add((g * QUADS + j) * M + m)).cast_signed());
                    halves[half][m] = _mm512_dpbusd_epi32(halves[half][m], code, x);
                });
            });
            let (scales, mins) = scales(form, panel.as_ptr(), g);
            unrolled!(m < M, {
                let scale = _mm512_set1_ps(f32::from_bits(*side(Side::Scale, g).add(m)));
                if form.fine {
                    let first = _mm512_mul_ps(_mm512_cvtepi32_ps(halves[0][m]), scale);
                    sums[m] = _mm512_fmadd_ps(first, scales[0], sums[m]);
                    let second = _mm512_mul_ps(_mm512_cvtepi32_ps(halves[1][m]), scale);
                    sums[m] = _mm512_fmadd_ps(second, scales[1], sums[m]);
                    if form.min {
                        let less = |of: Side| {
                            let sum = -(*side(of, g).add(m)).cast_signed() as f32;
                            _mm512_mul_ps(_mm512_set1_ps(sum), scale)
                        };
                        sums[m] = _mm512_fmadd_ps(less(Side::First), mins[0], sums[m]);
                        sums[m] = _mm512_fmadd_ps(less(Side::Second), mins[1], sums[m]);
                    }
                } else {
                    let whole =
                        if split { _mm512_add_epi32(halves[0][m], halves[1][m]) } else { halves[0][m] };
                    let whole = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
                    sums[m] = _mm512_fmadd_ps(whole, scales[0], sums[m]);
                    if form.min {
                        let scaled = _mm512_set1_ps(f32::from_bits(*side(Side::Scaled, g).add(m)));
                        sums[m] = _mm512_fmadd_ps(scaled, mins[0], sums[m]);
                    }
                }
            });
        }
    }
    sums
}

/// What the codes' zero takes away, from a negated sum.
#[inline]
#[target_feature(enable = "avx512f")]
fn less_zero(form: Form, sum: u32) -> __m512i {
    let sum = _mm512_set1_epi32(sum.cast_signed());
    match form.zero {
        4 => _mm512_slli_epi32::<2>(sum),
        8 => _mm512_slli_epi32::<3>(sum),
        12 => _mm512_add_epi32(_mm512_slli_epi32::<3>(sum), _mm512_slli_epi32::<2>(sum)),
        16 => _mm512_slli_epi32::<4>(sum),
        32 => _mm512_slli_epi32::<5>(sum),
        128 => _mm512_slli_epi32::<7>(sum),
        zero => _mm512_mullo_epi32(sum, _mm512_set1_epi32(zero)),
    }
}

/// Codes of quad `j`, a byte each.
///
/// # Safety
/// `codes` points to a group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn quad(form: Form, codes: *const u8, j: usize) -> __m512i {
    // SAFETY: vectors and planes of the group.
    unsafe {
        let vector = _mm512_loadu_si512(codes.add(j % form.bits * VECTOR).cast());
        if form.bits == 8 {
            return vector;
        }
        let shifted = match form.bits * (j / form.bits) {
            0 => vector,
            2 => _mm512_srli_epi16::<2>(vector),
            4 => _mm512_srli_epi16::<4>(vector),
            _ => _mm512_srli_epi16::<6>(vector),
        };
        let mut code = _mm512_and_si512(shifted, _mm512_set1_epi8((1 << form.bits) - 1));
        if matches!(form.scales, Scales::Power) {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            return _mm512_shuffle_epi8(table, code);
        }
        unrolled!(p < 2, {
            if p < form.planes {
                let plane = codes.add((form.bits + p) * VECTOR + 8 * j).cast::<u64>().read_unaligned();
                code = _mm512_mask_add_epi8(code, plane, code, _mm512_set1_epi8(1 << (form.bits + p)));
            }
        });
        code
    }
}

/// Scales and minima of both halves of group `g`; the second ones only where the form is fine.
///
/// # Safety
/// `panel` points to a panel with group `g`.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn scales(form: Form, panel: *const u8, g: usize) -> ([__m512; 2], [__m512; 2]) {
    // SAFETY: the scales of that group.
    unsafe {
        let halves = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(panel.add(at).cast()));
        match form.scales {
            Scales::Plain => {
                let start = form.group_scale_bytes() * g;
                let min = if form.min { halves(start + 2 * PANEL) } else { _mm512_setzero_ps() };
                ([halves(start); 2], [min; 2])
            }
            Scales::Power => {
                let bytes = _mm_loadu_si128(panel.add(form.group_scale_bytes() * g).cast());
                let (exponents, one) = (_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(1));
                let whole = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, one));
                // Below the smallest power of two of whole precision.
                let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
                let is_tiny = _mm512_cmple_epi32_mask(exponents, one);
                let scale = _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_tiny, whole, tiny));
                ([scale; 2], [_mm512_setzero_ps(); 2])
            }
            Scales::Nested { signed } => {
                let (block, own) = form.nested_places(g);
                let bytes = |part: usize| {
                    let bytes = _mm_loadu_si128(panel.add(own.start + part * PANEL).cast());
                    _mm512_cvtepi32_ps(if signed {
                        _mm512_cvtepi8_epi32(bytes)
                    } else {
                        _mm512_cvtepu8_epi32(bytes)
                    })
                };
                let (scale, parts) = (halves(block), 1 + form.fine as usize);
                let scales = [_mm512_mul_ps(scale, bytes(0)), _mm512_mul_ps(scale, bytes(parts - 1))];
                if !form.min {
                    return (scales, [_mm512_setzero_ps(); 2]);
                }
                let min = _mm512_sub_ps(_mm512_setzero_ps(), halves(block + 2 * PANEL));
                let mins = [bytes(parts), bytes(2 * parts - 1)];
                (scales, [_mm512_mul_ps(min, mins[0]), _mm512_mul_ps(min, mins[1])])
            }
        }
    }
}
