//! From stored rows to panels. It runs while a model is loaded and somebody waits, so it works on whole vectors of codes.

use super::arena::{Arena, Region};
use super::blocks::Block;
use super::form::{Form, Known, Run, Scales, with_form};
use super::{GROUP, PANEL, Packed, QUADS, VECTOR};
use crate::error::Error;
use crate::matrix::Matrix;

/// Bytes below which a matrix is packed by the calling thread alone.
const SMALL: usize = 1 << 18;

impl Packed {
    /// Packs a stored matrix into memory of `arena`, with `threads` threads; none if its format cannot be packed.
    ///
    /// # Errors
    /// As for [`Arena::take`].
    pub fn new(stored: &Matrix, arena: &mut Arena, threads: usize) -> Result<Option<Packed>, Error> {
        let size = Packed::size(stored.dtype, stored.rows, stored.cols);
        let (Some(form), Some(size)) = (Form::of(stored.dtype), size) else { return Ok(None) };
        let mut region = arena.take(size)?;
        let groups = stored.cols / GROUP;
        let panel_bytes = form.panel_bytes(groups);
        let panels = stored.rows.div_ceil(PANEL);
        fill_parts(region.bytes_mut(), (panel_bytes, panels), threads, &|panel, bytes| {
            with_form(stored.dtype, Fill { stored, panel, bytes });
            forget(stored, panel);
        });
        Ok(Some(Packed { dtype: stored.dtype, form, groups, region: Region::freeze(region) }))
    }
}

/// Gives back the stored rows of some panels, the last of which is `panel`, at times: a large matrix is never in memory
/// twice.
pub(super) fn forget(stored: &Matrix, panel: usize) {
    let step = (FORGET / (PANEL * stored.row_bytes()).max(1)).max(1);
    if (panel + 1).is_multiple_of(step) {
        stored.forget((panel + 1 - step) * PANEL..(panel + 1) * PANEL);
    }
}

/// Bytes of stored rows that are given back at once.
const FORGET: usize = 4 << 20;

/// Fills `panels` panels of so many bytes by `fill`, which gets the number of each, with `threads` threads.
pub(crate) fn fill_parts(
    bytes: &mut [u8],
    (panel_bytes, panels): (usize, usize),
    threads: usize,
    fill: &(dyn Fn(usize, &mut [u8]) + Sync),
) {
    let share = if bytes.len() < SMALL { panels } else { panels.div_ceil(threads.max(1)) }.max(1);
    let fill = |part: usize, bytes: &mut [u8]| {
        for (panel, bytes) in bytes.chunks_exact_mut(panel_bytes.max(1)).enumerate() {
            fill(part * share + panel, bytes);
        }
    };
    let mut parts = bytes.chunks_mut((share * panel_bytes).max(1)).enumerate();
    std::thread::scope(|scope| {
        let own = parts.next();
        for (part, bytes) in parts {
            scope.spawn(move || fill(part, bytes));
        }
        if let Some((part, bytes)) = own {
            fill(part, bytes);
        }
    });
}

/// Packs the rows of one panel. Rows behind the last are zeros.
struct Fill<'a> {
    stored: &'a Matrix,
    panel: usize,
    bytes: &'a mut [u8],
}

impl Run for Fill<'_> {
    fn run<F: Known>(self) {
        let Fill { stored, panel, bytes } = self;
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::has_avx2() {
            #[target_feature(enable = "avx2")]
            fn wide<F: Known>(stored: &Matrix, panel: usize, bytes: &mut [u8]) {
                use std::arch::x86_64::*;
                let gather = |codes: &[u8; VECTOR], bit: usize| {
                    let up = _mm_cvtsi32_si128(7 - bit as i32);
                    // SAFETY: both halves of the vector; the bit of each byte moves to its top, of which a mask is made.
                    #[expect(unsafe_code, reason = "vectors are read through pointers")]
                    let mask = |half: usize| unsafe {
                        let codes = _mm256_loadu_si256(codes.as_ptr().add(half * VECTOR / 2).cast());
                        _mm256_movemask_epi8(_mm256_sll_epi16(codes, up)).cast_unsigned()
                    };
                    u64::from(mask(0)) | u64::from(mask(1)) << 32
                };
                fill_panel::<F>(gather, stored, panel, bytes);
            }
            // SAFETY: the machine has AVX2.
            #[expect(unsafe_code, reason = "the same code, compiled for AVX2")]
            return unsafe { wide::<F>(stored, panel, bytes) };
        }
        fill_panel::<F>(gather, stored, panel, bytes);
    }
}

/// One bit of each code of a quad of all rows.
fn gather(codes: &[u8; VECTOR], bit: usize) -> u64 {
    let eight = |codes: &[u8; 8]| {
        // The product moves bit 8 i to bit 56 + i.
        let ones = u64::from_le_bytes(*codes) >> bit & 0x0101_0101_0101_0101;
        (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    };
    let (eights, _) = codes.as_chunks::<8>();
    u64::from_le_bytes(std::array::from_fn(|i| eight(&eights[i])))
}

/// [`Fill`], compiled into its callers, with a way to [`gather`].
#[inline(always)]
fn fill_panel<F: Known>(
    gather: impl Fn(&[u8; VECTOR], usize) -> u64 + Copy,
    stored: &Matrix,
    panel: usize,
    bytes: &mut [u8],
) {
    let (form, size) = (F::FORM, F::STORED.block_bytes());
    let groups = stored.cols / GROUP;
    let per_block = F::STORED.block_len() / GROUP;
    let (scales, codes) = bytes.split_at_mut(form.scale_bytes(groups));
    let first = panel * PANEL;
    let rows: Vec<&[u8]> = (first..stored.rows.min(first + PANEL)).map(|r| stored.row(r)).collect();
    let mut block = Block::new();
    let ahead = ahead(stored);
    let mut quads = vec![[0_u8; VECTOR]; per_block * QUADS];
    for b in 0..groups / per_block {
        for (row, stored_row) in rows.iter().enumerate() {
            // Sixteen rows are read side by side: more than processors follow by themselves.
            fetch(stored_row, b * size + ahead, size);
            block.read(F::STORED, &stored_row[b * size..][..size]);
            place_scales(form, &block, (b * per_block, per_block), row, scales);
            for (quad, code) in quads.iter_mut().zip(block.codes.chunks_exact(4)) {
                quad[4 * row..][..4].copy_from_slice(code);
            }
        }
        let group_bytes = form.group_bytes();
        let into = &mut codes[b * per_block * group_bytes..][..per_block * group_bytes];
        for (quads, into) in quads.chunks_exact(QUADS).zip(into.chunks_exact_mut(group_bytes)) {
            place_codes(form, gather, quads, into);
        }
    }
}

/// Asks for `len` bytes from `at` on, which will be read soon.
#[inline(always)]
pub(super) fn fetch(bytes: &[u8], at: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (at..at + len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which never faults, wherever it points to.
        #[expect(unsafe_code, reason = "takes a pointer")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at, len);
}

/// How far ahead of what is read now stored rows are asked for, in bytes: the same place of the next panel, unless it
/// would be long in the near caches before it is read.
fn ahead(stored: &Matrix) -> usize {
    let panel = PANEL * stored.row_bytes();
    if panel <= NEAR { panel } else { AHEAD }
}

/// Bytes of a panel that the near caches hold beside another one.
const NEAR: usize = 128 << 10;
/// Bytes ahead in the same row.
const AHEAD: usize = 320;

/// Writes the codes of a group.
#[inline(always)]
fn place_codes(
    form: Form,
    gather: impl Fn(&[u8; VECTOR], usize) -> u64,
    quads: &[[u8; VECTOR]],
    into: &mut [u8],
) {
    let (vectors, planes) = into.split_at_mut(form.bits * VECTOR);
    let mask = u8::MAX >> (8 - form.bits);
    for (v, vector) in vectors.as_chunks_mut::<VECTOR>().0.iter_mut().enumerate() {
        *vector = quads[v];
        if form.bits < 8 {
            *vector = vector.map(|code| code & mask);
            for (s, quad) in quads[v..].iter().step_by(form.bits).enumerate().skip(1) {
                let shift = form.bits * s;
                *vector = std::array::from_fn(|i| vector[i] | (quad[i] & mask) << shift);
            }
        }
    }
    for (p, plane) in planes.chunks_exact_mut(VECTOR).enumerate() {
        for (quad, bits) in quads.iter().zip(plane.as_chunks_mut::<8>().0) {
            *bits = gather(quad, form.bits + p).to_le_bytes();
        }
    }
}

/// Writes the scales of a block of one row: of groups `first` and the next ones, `count` in all.
#[inline(always)]
fn place_scales(form: Form, block: &Block, (first, count): (usize, usize), row: usize, scales: &mut [u8]) {
    let mut put = |at: usize, bits: u16| scales[at + 2 * row..][..2].copy_from_slice(&bits.to_le_bytes());
    match form.scales {
        Scales::Plain => {
            let start = first * form.group_scale_bytes();
            put(start, block.scale);
            if form.min {
                put(start + 2 * PANEL, block.min);
            }
        }
        Scales::Power => scales[first * form.group_scale_bytes() + row] = block.scales[0],
        Scales::Nested { .. } => {
            let (start, _) = form.nested_places(first);
            put(start, block.scale);
            if form.min {
                put(start + 2 * PANEL, block.min);
            }
            let parts = 1 + usize::from(form.fine);
            for g in 0..count {
                let (_, own) = form.nested_places(first + g);
                let own = &mut scales[own];
                for part in 0..parts {
                    own[part * PANEL + row] = block.scales[g * parts + part];
                    if form.min {
                        own[(parts + part) * PANEL + row] = block.mins[g * parts + part];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Sample;
    use crate::dtype::DType;

    #[test]
    fn packing_keeps_every_value_to_the_bit() {
        let mut sample = Sample::new(11);
        for dtype in DType::ALL.into_iter().filter(|&dtype| Form::of(dtype).is_some()) {
            for rows in [1, 16, 37, 700] {
                let stored = sample.matrix(dtype, rows, 512 + 32 * usize::from(dtype.block_len() == 32));
                let size = Packed::size(dtype, rows, stored.cols).expect("it can be packed");
                let mut arena = Arena::new(size).expect("little memory");
                let packed =
                    Packed::new(&stored, &mut arena, 3).expect("little memory").expect("it can be packed");
                let (mut got, wide) = (vec![f32::NAN; stored.cols], stored.to_f32());
                for (r, want) in wide.chunks_exact(stored.cols).enumerate() {
                    packed.widen(r, &mut got);
                    let same = got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits() || a == b);
                    assert!(same, "{dtype:?}, row {r} of {rows}:\n{got:?}\n{want:?}");
                }
            }
        }
    }
}
