//! How the numbers of keys and values are stored: as they are, or in a half, a quarter or an eighth of the space. Attention computes
//! in f32 whatever the format; a block is widened when it is in the nearest cache anyway.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::{KvLayout, fp4};

/// How numbers are stored.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum KvFormat {
    /// As they are.
    #[default]
    F32,
    /// IEEE half precision, rounded to the nearest.
    F16,
    /// Eight bits, and an f32 scale for each 32 values of a token's head (or the rest of them).
    Q8,
    /// Four bits: keys with a power of two for each 32 values, values with an eight-bit scale for each 16, as DeepSeek-V4.1
    /// rounds its cache. Windows are rounded to eight bits then, where a model has some.
    Fp4,
}

impl KvFormat {
    /// Bytes that a number takes with its share of scales, about: heads are filled up to whole vectors besides.
    pub fn bytes_per_number(self) -> f64 {
        match self {
            KvFormat::F32 => 4.0,
            KvFormat::F16 => 2.0,
            KvFormat::Q8 => 1.0 + 4.0 / GROUP as f64,
            KvFormat::Fp4 => 0.5 + 0.5 / fp4::KEY_GROUP as f64 + 0.5 / fp4::VALUE_GROUP as f64,
        }
    }
}

/// Bytes of one block, layer and head: numbers and scales.
pub(super) fn bytes(layout: &KvLayout) -> usize {
    let (keys, values) = scales(layout);
    let numbers = layout.key_len() + layout.value_len();
    match layout.format {
        KvFormat::F32 => numbers * 4,
        KvFormat::F16 => numbers * 2,
        KvFormat::Q8 => numbers + (keys + values) * size_of::<f32>(),
        KvFormat::Fp4 => numbers / 2 + keys + values,
    }
}

/// Memory that keys and values are widened into; grows to the largest head once.
#[derive(Clone, Debug, Default)]
pub struct Widened {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Widened {
    /// Nothing yet.
    pub(crate) const fn new() -> Widened {
        Widened { keys: Vec::new(), values: Vec::new() }
    }
}

/// Values that share a scale.
const GROUP: usize = 32;

/// Scales of keys `[key_dim / GROUP, key_stride]` and of values `[block_size, value_dim / GROUP]` of one block and head.
fn scales(layout: &KvLayout) -> (usize, usize) {
    let (keys, values) = match layout.format {
        KvFormat::F32 | KvFormat::F16 => return (0, 0),
        KvFormat::Q8 => (GROUP, GROUP),
        KvFormat::Fp4 => (fp4::KEY_GROUP, fp4::VALUE_GROUP),
    };
    let keys = layout.key_dim.div_ceil(keys) * layout.key_stride();
    (keys, layout.block_size * layout.value_dim.div_ceil(values))
}

/// The parts of a head's bytes: codes and scales of keys and values.
fn parts(layout: &KvLayout) -> [std::ops::Range<usize>; 4] {
    let (keys, values) = (layout.key_len(), layout.key_len() + layout.value_len());
    let (key_scales, value_scales) = scales(layout);
    if layout.format == KvFormat::Fp4 {
        let (keys, values) = (keys / 2, values / 2);
        let second = values + key_scales;
        return [0..keys, keys..values, values..second, second..second + value_scales];
    }
    let second = values + 4 * key_scales;
    [0..keys, keys..values, values..second, second..second + 4 * value_scales]
}

/// Stores one token's key and value at place `offset` of a head.
pub(super) fn write(layout: &KvLayout, head: &mut [u8], offset: usize, (k, v): (&[f32], &[f32])) {
    let (keys, stride) = (layout.key_len(), layout.key_stride());
    let row = offset * layout.value_stride();
    match layout.format {
        KvFormat::F32 => {
            let (keys, values) = bytemuck::cast_slice_mut::<u8, f32>(head).split_at_mut(keys);
            keys[offset..].iter_mut().step_by(stride).zip(k).for_each(|(into, k)| *into = *k);
            values[row..][..v.len()].copy_from_slice(v);
        }
        KvFormat::F16 => {
            let (keys, values) = bytemuck::cast_slice_mut::<u8, u16>(head).split_at_mut(keys);
            let bits = |value: &f32| f16::from_f32(*value).to_bits();
            keys[offset..].iter_mut().step_by(stride).zip(k).for_each(|(into, k)| *into = bits(k));
            values[row..].iter_mut().zip(v).for_each(|(into, v)| *into = bits(v));
        }
        KvFormat::Q8 => {
            let [keys, values, key_scales, value_scales] = parts(layout);
            let groups = layout.value_dim.div_ceil(GROUP);
            for (g, k) in k.chunks(GROUP).enumerate() {
                let (scale, turns) = scale_of(k);
                let at = key_scales.start + 4 * (g * stride + offset);
                head[at..at + 4].copy_from_slice(&scale.to_le_bytes());
                let into = head[keys.clone()][g * GROUP * stride + offset..].iter_mut().step_by(stride);
                into.zip(k).for_each(|(into, k)| *into = code(k * turns));
            }
            for (g, v) in v.chunks(GROUP).enumerate() {
                let (scale, turns) = scale_of(v);
                let at = value_scales.start + 4 * (offset * groups + g);
                head[at..at + 4].copy_from_slice(&scale.to_le_bytes());
                let into = head[values.clone()][row + g * GROUP..].iter_mut();
                into.zip(v).for_each(|(into, v)| *into = code(v * turns));
            }
        }
        KvFormat::Fp4 => write_fp4(layout, head, offset, (k, v)),
    }
}

/// Stores one token's key and value in four bits a number.
fn write_fp4(layout: &KvLayout, head: &mut [u8], offset: usize, (k, v): (&[f32], &[f32])) {
    let [keys, values, key_scales, value_scales] = parts(layout);
    let stride = layout.key_stride();
    for (g, k) in k.chunks(fp4::KEY_GROUP).enumerate() {
        let exponent = fp4::key_scale(k);
        head[key_scales.start + g * stride + offset] = exponent;
        let scale = fp4::power(exponent);
        for (d, k) in (g * fp4::KEY_GROUP..).zip(k) {
            put_nibble(&mut head[keys.clone()], d * stride + offset, fp4::to_nibble(k / scale));
        }
    }
    let (row, groups) = (offset * layout.value_stride(), layout.value_dim.div_ceil(fp4::VALUE_GROUP));
    for (g, v) in v.chunks(fp4::VALUE_GROUP).enumerate() {
        let byte = fp4::value_scale(v);
        head[value_scales.start + offset * groups + g] = byte;
        let scale = fp4::from_e4m3(byte);
        for (d, v) in (row + g * fp4::VALUE_GROUP..).zip(v) {
            put_nibble(&mut head[values.clone()], d, fp4::value_nibble(*v, scale));
        }
    }
}

/// Stores four bits, of which two share a byte.
fn put_nibble(bytes: &mut [u8], at: usize, nibble: u8) {
    let byte = &mut bytes[at / 2];
    *byte = if at.is_multiple_of(2) { *byte & 0xf0 | nibble } else { *byte & 0x0f | nibble << 4 };
}

/// Four bits.
#[inline(always)]
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

/// What one unit stands for, and how many units there are to one. If a value is no number, neither is the first.
fn scale_of(values: &[f32]) -> (f32, f32) {
    let largest = values.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().map_or(0.0, f32::from_bits);
    // The reciprocal of less would leave the range of f32.
    if largest < 1e-30 { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) }
}

/// The integer nearest to a value, ties to even.
fn code(value: f32) -> u8 {
    (value.round_ties_even() as i8).cast_unsigned()
}

/// The keys and values of a head, in `wide` unless they are stored as f32.
pub(super) fn widen<'a>(layout: &KvLayout, head: &'a [u8], wide: &'a mut Widened) -> (&'a [f32], &'a [f32]) {
    let (keys, values) = (layout.key_len(), layout.value_len());
    if layout.format == KvFormat::F32 {
        let floats: &[f32] = bytemuck::cast_slice(head);
        return (&floats[..keys], &floats[keys..keys + values]);
    }
    wide.keys.resize(keys, 0.0);
    wide.values.resize(values, 0.0);
    if layout.format == KvFormat::F16 {
        let halves: &[f16] = bytemuck::cast_slice::<u8, u16>(head).reinterpret_cast();
        halves[..keys].convert_to_f32_slice(&mut wide.keys);
        halves[keys..keys + values].convert_to_f32_slice(&mut wide.values);
    } else if layout.format == KvFormat::Q8 {
        widen_q8(layout, head, wide);
    } else {
        widen_fp4(layout, head, wide);
    }
    (&wide.keys, &wide.values)
}

/// Widens four bits.
fn widen_fp4(layout: &KvLayout, head: &[u8], wide: &mut Widened) {
    let [keys, _, key_scales, _] = parts(layout).map(|part| &head[part]);
    let stride = layout.key_stride();
    for (d, into) in wide.keys.chunks_exact_mut(stride).enumerate() {
        let scales = &key_scales[d / fp4::KEY_GROUP * stride..][..stride];
        for (i, (into, &exponent)) in into.iter_mut().zip(scales).enumerate() {
            *into = fp4::from_nibble(nibble(keys, d * stride + i)) * fp4::power(exponent);
        }
    }
    let rows = wide.values.chunks_exact_mut(layout.value_stride());
    rows.enumerate()
        .for_each(|(offset, row)| widen_value(layout, head, offset, &mut row[..layout.value_dim]));
}

/// The value at place `offset` of a head, widened.
pub(super) fn widen_value(layout: &KvLayout, head: &[u8], offset: usize, out: &mut [f32]) {
    let row = layout.key_len() + offset * layout.value_stride();
    let row = row..row + layout.value_dim;
    match layout.format {
        KvFormat::F32 => out.copy_from_slice(&bytemuck::cast_slice::<u8, f32>(head)[row]),
        KvFormat::F16 => {
            let halves: &[f16] = bytemuck::cast_slice::<u8, u16>(head).reinterpret_cast();
            halves[row].convert_to_f32_slice(out);
        }
        KvFormat::Q8 => {
            let [.., scales] = parts(layout).map(|part| &head[part]);
            let scales: &[f32] = bytemuck::cast_slice(scales);
            let groups = layout.value_dim.div_ceil(GROUP);
            let groups = scales[offset * groups..][..groups].iter();
            for ((out, codes), scale) in out.chunks_mut(GROUP).zip(head[row].chunks(GROUP)).zip(groups) {
                let each = out.iter_mut().zip(codes);
                each.for_each(|(out, &code)| *out = f32::from(code.cast_signed()) * scale);
            }
        }
        KvFormat::Fp4 => {
            let [_, values, _, scales] = parts(layout).map(|part| &head[part]);
            let groups = layout.value_dim.div_ceil(fp4::VALUE_GROUP);
            let scales = &scales[offset * groups..][..groups];
            let row = offset * layout.value_stride();
            for (g, (out, &scale)) in out.chunks_mut(fp4::VALUE_GROUP).zip(scales).enumerate() {
                let scale = fp4::from_e4m3(scale);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = fp4::from_nibble(nibble(values, row + g * fp4::VALUE_GROUP + i)) * scale;
                }
            }
        }
    }
}

/// Widens eight bits, with vectors where the machine has them.
fn widen_q8(layout: &KvLayout, head: &[u8], wide: &mut Widened) {
    #[cfg(target_arch = "x86_64")]
    if crate::cpu::has_avx2() {
        #[target_feature(enable = "avx2")]
        fn vectors(layout: &KvLayout, head: &[u8], wide: &mut Widened) {
            multiply(layout, head, wide);
        }
        // SAFETY: the machine has AVX2.
        #[expect(unsafe_code, reason = "the same code, compiled for AVX2")]
        return unsafe { vectors(layout, head, wide) };
    }
    multiply(layout, head, wide);
}

/// Codes times their scales.
#[inline(always)]
fn multiply(layout: &KvLayout, head: &[u8], wide: &mut Widened) {
    let [keys, values, key_scales, value_scales] = parts(layout).map(|part| &head[part]);
    let key_scales: &[f32] = bytemuck::cast_slice(key_scales);
    let value_scales: &[f32] = bytemuck::cast_slice(value_scales);
    let (stride, groups) = (layout.key_stride(), layout.value_dim.div_ceil(GROUP));
    let rows = wide.keys.chunks_exact_mut(stride).zip(keys.chunks_exact(stride));
    for (d, (into, codes)) in rows.enumerate() {
        let scales = &key_scales[d / GROUP * stride..][..stride];
        for ((into, &code), scale) in into.iter_mut().zip(codes).zip(scales) {
            *into = f32::from(code.cast_signed()) * scale;
        }
    }
    let rows = wide.values.chunks_exact_mut(layout.value_stride());
    for ((into, codes), scales) in
        rows.zip(values.chunks_exact(layout.value_stride())).zip(value_scales.chunks_exact(groups))
    {
        for ((into, codes), scale) in into.chunks_mut(GROUP).zip(codes.chunks(GROUP)).zip(scales) {
            into.iter_mut()
                .zip(codes)
                .for_each(|(into, &code)| *into = f32::from(code.cast_signed()) * scale);
        }
    }
}
