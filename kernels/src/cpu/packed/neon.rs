//! Panels with NEON: four outputs in a vector, up to four rows of activations at once. All codes are signed bytes here,
//! and [`Products`] of four of them with four activations are summed by one instruction or by a few.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::Panels;
use super::rows::Rows;
use crate::cpu::lanes::unrolled;
use crate::packed::form::{FP4_CODES, Form, Known, Scales};
use crate::packed::input::{self, Side};
use crate::packed::{PANEL, VECTOR};

/// Outputs of a vector.
const LANES: usize = 4;

/// A way to add up products of bytes.
pub(crate) trait Products {
    /// Adds to each lane the four products of the bytes of `a` and `b` in its place.
    ///
    /// # Safety
    /// The machine has the instructions; no sum of two products leaves 16 bits.
    unsafe fn add(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;
}

/// By the instruction for dot products.
pub(crate) struct Dots;

impl Products for Dots {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the machine has the instruction, the caller's promise; it works on registers alone.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                inout(vreg) sums, in(vreg) a, in(vreg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    }
}

/// By products of 16 bits, added up in pairs.
pub(crate) struct Pairs;

impl Products for Pairs {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

/// Computes panels for a tile.
///
/// # Safety
/// The machine has what `P` needs; no other thread writes these columns.
pub(super) unsafe fn panels<F: Known, P: Products>(panels: &Panels<'_>) {
    let rows = panels.target.tile.rows;
    for first in (0..rows).step_by(4) {
        // SAFETY: the caller's promises; the rows are of the tile.
        unsafe {
            match rows - first {
                1 => run::<F, P, 1, 4>(panels, first),
                2 => run::<F, P, 2, 4>(panels, first),
                _ => run::<F, P, 4, 2>(panels, first),
            }
        }
    }
}

/// All panels with `M` rows of the tile, from `first` on, `V` vectors of outputs at a time.
///
/// # Safety
/// As for [`panels`].
#[target_feature(enable = "neon")]
unsafe fn run<F: Known, P: Products, const M: usize, const V: usize>(panels: &Panels<'_>, first: usize) {
    let Panels { weight, range, target, .. } = panels;
    let tile = target.tile;
    assert!(tile.words.len() == input::WORDS * weight.groups * tile.rows && first + M <= tile.rows);
    for col in (range.start..range.end).step_by(V * LANES) {
        let (panel, vector) = (weight.panel(col / PANEL), col % PANEL / LANES);
        // SAFETY: a panel and a tile of so many groups; the caller's promise for the columns.
        unsafe {
            let rows = Rows { tile: tile.words.as_ptr(), of: tile.rows, first, groups: weight.groups };
            let sums = part::<F, P, M, V>(panel, vector, rows);
            unrolled!(m < M, {
                let mut products = [[0.0_f32; LANES]; V];
                unrolled!(v < V, {
                    vst1q_f32(products[v].as_mut_ptr(), sums[m][v]);
                });
                target.store(first + m, col, products.as_flattened());
            });
        }
    }
}

/// Products of `M` rows with `V` vectors of the outputs of a panel, from vector `vector` on.
///
/// # Safety
/// As for [`panels`]; the panel and the tile hold the groups and rows that `rows` says.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn part<F: Known, P: Products, const M: usize, const V: usize>(
    panel: &[u8],
    vector: usize,
    rows: Rows,
) -> [[float32x4_t; V]; M] {
    let form = const { F::FORM };
    let codes = panel.as_ptr().wrapping_add(form.scale_bytes(rows.groups));
    let mut sums = [[vdupq_n_f32(0.0); V]; M];
    for g in 0..rows.groups {
        let codes = codes.wrapping_add(g * form.group_bytes());
        // SAFETY: group `g` of a panel and of a tile, the caller's promise.
        unsafe {
            let mut halves = [[[vdupq_n_s32(0); V]; M]; 2];
            unrolled!(j < 8, {
                let half = if form.fine { j / 4 } else { 0 };
                let mut code = [vdupq_n_s8(0); V];
                unrolled!(v < V, {
                    code[v] = quad(form, codes, j, vector + v);
                });
                unrolled!(m < M, {
                    let x = vreinterpretq_s8_u32(vdupq_n_u32(*rows.quad(g, j).add(m)));
                    unrolled!(v < V, {
                        halves[half][m][v] = P::add(halves[half][m][v], code[v], x);
                    });
                });
            });
            unrolled!(v < V, {
                let (scales, mins) = scales(form, panel.as_ptr(), g, vector + v);
                unrolled!(m < M, {
                    let halves = [halves[0][m][v], halves[1][m][v]];
                    sums[m][v] = scaled(form, (rows, g, m), halves, (scales, mins), sums[m][v]);
                });
            });
        }
    }
    sums
}

/// Adds a group's sums of products of row `m`, times their scales, to `sum`.
///
/// # Safety
/// The tile of `rows` has group `g`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scaled(
    form: Form,
    (rows, g, m): (Rows, usize, usize),
    halves: [int32x4_t; 2],
    (scales, mins): ([float32x4_t; 2], [float32x4_t; 2]),
    mut sum: float32x4_t,
) -> float32x4_t {
    // SAFETY: the caller's promise.
    let side = |side: Side| unsafe { *rows.side(side, g).add(m) };
    let scale = vdupq_n_f32(f32::from_bits(side(Side::Scale)));
    let less = if form.fine { [side(Side::First), side(Side::Second)] } else { [side(Side::Sum); 2] };
    let less = less.map(u32::cast_signed);
    // Codes of eight bits are signed already.
    let zero = if form.bits == 8 { 0 } else { form.zero };
    let parts = if form.fine { 2 } else { 1 };
    unrolled!(half < 2, {
        if half < parts {
            let whole = vaddq_s32(halves[half], vdupq_n_s32(zero * less[half]));
            sum = vfmaq_f32(sum, vmulq_f32(vcvtq_f32_s32(whole), scale), scales[half]);
        }
    });
    if form.min {
        unrolled!(half < 2, {
            if half < parts {
                sum = vfmaq_f32(sum, vmulq_f32(vdupq_n_f32(-less[half] as f32), scale), mins[half]);
            }
        });
    }
    sum
}

/// Codes of quad `j` of the four rows of a vector, a byte each; signed if they have eight bits.
///
/// # Safety
/// `codes` points to a group.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn quad(form: Form, codes: *const u8, j: usize, vector: usize) -> int8x16_t {
    // SAFETY: vectors and planes of the group.
    unsafe {
        let bytes = vld1q_u8(codes.add(j % form.bits * VECTOR + 16 * vector));
        if form.bits == 8 {
            return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)));
        }
        let shifted = match form.bits * (j / form.bits) {
            0 => bytes,
            2 => vshrq_n_u8::<2>(bytes),
            4 => vshrq_n_u8::<4>(bytes),
            _ => vshrq_n_u8::<6>(bytes),
        };
        let mut code = vandq_u8(shifted, vdupq_n_u8((1 << form.bits) - 1));
        if matches!(form.scales, Scales::Power) {
            return vreinterpretq_s8_u8(vqtbl1q_u8(vld1q_u8(FP4_CODES.as_ptr()), code));
        }
        unrolled!(p < 2, {
            if p < form.planes {
                let plane = codes.add((form.bits + p) * VECTOR + 8 * j + 2 * vector);
                let bits = vcombine_u8(vdup_n_u8(*plane), vdup_n_u8(*plane.add(1)));
                let select = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
                let bit = vdupq_n_u8(1 << (form.bits + p));
                code = vorrq_u8(code, vandq_u8(vtstq_u8(bits, select), bit));
            }
        });
        vreinterpretq_s8_u8(code)
    }
}

/// Scales and minima of both halves of group `g`, for the four rows of a vector.
///
/// # Safety
/// `panel` points to a panel with group `g`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scales(
    form: Form,
    panel: *const u8,
    g: usize,
    vector: usize,
) -> ([float32x4_t; 2], [float32x4_t; 2]) {
    let none = vdupq_n_f32(0.0);
    // SAFETY: the scales of that group.
    unsafe {
        let halves = |at: usize| {
            let bits = panel.add(at + 2 * LANES * vector).cast::<u64>().read_unaligned();
            vcvt_f32_f16(vreinterpret_f16_u64(vdup_n_u64(bits)))
        };
        let bytes = |at: usize| {
            let bits = panel.add(at + LANES * vector).cast::<u32>().read_unaligned();
            vreinterpret_u8_u32(vdup_n_u32(bits))
        };
        match form.scales {
            Scales::Plain => {
                let start = form.group_scale_bytes() * g;
                let min = if form.min { halves(start + 2 * PANEL) } else { none };
                ([halves(start); 2], [min; 2])
            }
            Scales::Power => {
                let bytes = vget_low_u16(vmovl_u8(bytes(form.group_scale_bytes() * g)));
                let (exponents, one) = (vmovl_u16(bytes), vdupq_n_u32(1));
                let whole = vshlq_n_u32::<23>(vsubq_u32(exponents, one));
                // Below the smallest power of two of whole precision.
                let tiny = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(exponents));
                let scale = vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(exponents, one), whole, tiny));
                ([scale; 2], [none; 2])
            }
            Scales::Nested { signed } => {
                let (block, own) = form.nested_places(g);
                let bytes = |part: usize| {
                    let bytes = bytes(own.start + part * PANEL);
                    if signed {
                        let words = vmovl_s8(vreinterpret_s8_u8(bytes));
                        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
                    }
                    vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
                };
                let (scale, parts) = (halves(block), 1 + form.fine as usize);
                let scales = [vmulq_f32(scale, bytes(0)), vmulq_f32(scale, bytes(parts - 1))];
                if !form.min {
                    return (scales, [none; 2]);
                }
                let min = vnegq_f32(halves(block + 2 * PANEL));
                (scales, [vmulq_f32(min, bytes(parts)), vmulq_f32(min, bytes(2 * parts - 1))])
            }
        }
    }
}
