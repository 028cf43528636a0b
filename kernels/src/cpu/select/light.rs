//! A light comparison with AVX-512: what the score of an entry is at most, from products of 8-bit integers, which the
//! machine does four times as many of. An entry that is at most what is of no use anyway need not be scored; any other
//! is, as exactly as without this, so that no choice depends on it.
//!
//! A key is `scale * (codes + e)` with each `|e| <= 1/2`, and so is a query, with `f`. Their product, in units of both
//! scales, is then that of the codes, give or take `|codes of the query| / 2 + |codes of the key| / 2 + dim / 4`. A margin
//! on top covers what the scores and this bound lose by rounding. Heads that add to a score count at most so much, those
//! that take from it at least so little. Numbers too small or too large for these estimates make the bound no number,
//! and what is not at most the floor is scored.
#![expect(unsafe_code, reason = "vector loads and stores take pointers")]

use std::arch::x86_64::*;

use super::vectors::WIDTH;
use crate::cpu::lanes::unrolled;

/// Values of a vector.
const LANES: usize = WIDTH / 2;
/// Heads that go through the keys side by side.
const HEADS: usize = 4;
/// Bytes that a tile takes of four values of its keys.
const QUAD: usize = 4 * WIDTH;
/// Sizes that the estimates hold for, of keys, queries and weights.
const SIZES: std::ops::RangeInclusive<f32> = 1e-8..=1e8;

/// Keys as integers, in tiles.
#[derive(Default)]
pub(super) struct Light {
    /// `[tiles, dim / 4, WIDTH, 4]`: codes, each with 128 added.
    codes: Vec<[u8; QUAD]>,
    /// `[tiles, WIDTH]`.
    scales: Vec<[f32; WIDTH]>,
    /// `[tiles, 2, WIDTH]`: half the sum of the codes' sizes, and that below zero.
    slacks: Vec<[i32; WIDTH]>,
    /// Quads of a key.
    quads: usize,
}

/// Queries as integers; heads are filled up to whole fours.
#[derive(Default)]
pub(super) struct Asked {
    /// `[tokens, heads / 4, dim / 4, 4 heads]`: four codes each.
    codes: Vec<[i32; HEADS]>,
    /// `[tokens, heads / 4]` of four heads.
    heads: Vec<Heads>,
    /// Fours of a token.
    fours: usize,
}

/// What four heads need besides their codes.
#[derive(Copy, Clone, Default)]
struct Heads {
    /// Scale, times the weight of the head.
    factors: [f32; HEADS],
    /// Where sums begin.
    bases: [i32; HEADS],
    /// Which slack of a key counts: 1 where the weight is below zero.
    below: [usize; HEADS],
}

impl Asked {
    /// Takes the queries and weights of some tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn start<'a>(&mut self, queries: impl Iterator<Item = (&'a [f32], &'a [f32])>, dim: usize) {
        self.codes.clear();
        self.heads.clear();
        for (q, weights) in queries {
            let margin = margin(dim, weights.len());
            self.fours = weights.len().div_ceil(HEADS);
            for fours in q.chunks(HEADS * dim).zip(weights.chunks(HEADS)) {
                self.add(fours, dim, margin);
            }
        }
    }

    /// Up to four heads of a token.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    fn add(&mut self, (q, weights): (&[f32], &[f32]), dim: usize, margin: i32) {
        let (first, mut heads) = (self.codes.len(), Heads::default());
        self.codes.resize(first + dim / 4, [0; HEADS]);
        for (head, (q, &weight)) in q.chunks_exact(dim).zip(weights).enumerate() {
            let largest = q.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().map_or(0.0, f32::from_bits);
            let fits = |size: f32| size == 0.0 || SIZES.contains(&size);
            let turns = if largest > 0.0 && fits(largest) { 127.0 / largest } else { 0.0 };
            let (mut sum, mut size) = (0, 0);
            for (quad, q) in self.codes[first..].iter_mut().zip(q.chunks_exact(4)) {
                let codes = [0, 1, 2, 3].map(|i| (q[i] * turns).round_ties_even() as i8);
                sum += codes.iter().map(|&code| i32::from(code)).sum::<i32>();
                size += codes.iter().map(|&code| i32::from(code).abs()).sum::<i32>();
                quad[head] = i32::from_le_bytes(codes.map(i8::cast_unsigned));
            }
            let slack = (size + 1) / 2 + margin;
            let below = weight < 0.0;
            heads.below[head] = usize::from(below);
            heads.bases[head] = if below { -slack } else { slack } - 128 * sum;
            let usable = fits(largest) && fits(weight.abs());
            heads.factors[head] = if usable { largest * (1.0 / 127.0) * weight } else { f32::NAN };
        }
        self.heads.push(heads);
    }
}

/// What no rounding exceeds, in units of both scales. In one, a product is at most `127.5² dim`; the chain of a score
/// rounds `dim` times for each head, then once a head, and so does the bound. Codes may be off by `1e-4` more than a half.
fn margin(dim: usize, heads: usize) -> i32 {
    let (dim, heads) = (dim as f32, heads as f32);
    (0.3 * dim + 0.001 * dim * (dim + 2.0 * heads + 16.0)).ceil() as i32 + 2
}

impl Light {
    /// True if the estimates hold for such keys.
    pub(super) fn serves(dim: usize, heads: usize) -> bool {
        dim.is_multiple_of(4) && dim <= 512 && heads <= 512
    }

    /// Takes tiles of keys, each `[dim, WIDTH]`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn start<'a>(&mut self, tiles: impl Iterator<Item = &'a [f32]>) {
        self.codes.clear();
        self.scales.clear();
        self.slacks.clear();
        for tile in tiles {
            let rows = tile.as_chunks::<WIDTH>().0;
            self.quads = rows.len() / 4;
            let first = self.codes.len();
            self.codes.resize(first + self.quads, [0; QUAD]);
            let mut scales = [0.0; WIDTH];
            let mut slacks = [0; WIDTH];
            for half in 0..2 {
                narrow(rows, half, &mut self.codes[first..], (&mut scales, &mut slacks));
            }
            self.scales.push(scales);
            self.slacks.extend([slacks, slacks.map(|slack| -slack)]);
        }
    }

    /// Which entries of a tile may have a score above a floor.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn above(&self, tile: usize, (asked, token): (&Asked, usize), floor: f32) -> u32 {
        let (quads, fours) = (self.quads, asked.fours);
        let keys = &self.codes[tile * quads..][..quads];
        let slacks = &self.slacks[2 * tile..][..2];
        let heads = &asked.heads[token * fours..][..fours];
        let queries = asked.codes[token * fours * quads..][..fours * quads].chunks_exact(quads);
        let mut total = [_mm512_setzero_ps(); 2];
        for (heads, query) in heads.iter().zip(queries) {
            let mut sums = [[_mm512_setzero_si512(); 2]; HEADS];
            unrolled!(h < HEADS, {
                let (base, slack) = (_mm512_set1_epi32(heads.bases[h]), &slacks[heads.below[h]]);
                unrolled!(v < 2, {
                    sums[h][v] = _mm512_add_epi32(base, integers(slack, v));
                });
            });
            for (keys, query) in keys.iter().zip(query) {
                let keys = [bytes(keys, 0), bytes(keys, 1)];
                unrolled!(h < HEADS, {
                    let query = _mm512_set1_epi32(query[h]);
                    unrolled!(v < 2, {
                        sums[h][v] = _mm512_dpbusd_epi32(sums[h][v], keys[v], query);
                    });
                });
            }
            unrolled!(h < HEADS, {
                let factor = _mm512_set1_ps(heads.factors[h]);
                unrolled!(v < 2, {
                    let most = _mm512_max_epi32(sums[h][v], _mm512_setzero_si512());
                    total[v] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(most), total[v]);
                });
            });
        }
        let mut some = 0;
        unrolled!(v < 2, {
            let most = _mm512_mul_ps(total[v], floats(&self.scales[tile], v));
            let above = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(most, _mm512_set1_ps(floor));
            some |= u32::from(above) << (v * LANES);
        });
        some
    }
}

/// Makes one half of a tile of keys integers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn narrow(
    rows: &[[f32; WIDTH]],
    half: usize,
    codes: &mut [[u8; QUAD]],
    (scales, slacks): (&mut [f32; WIDTH], &mut [i32; WIDTH]),
) {
    // As integers, sizes sort as they do as numbers, and what is no number is the largest.
    let mut largest = _mm512_setzero_si512();
    for row in rows {
        let size = _mm512_and_si512(_mm512_castps_si512(floats(row, half)), _mm512_set1_epi32(0x7fff_ffff));
        largest = _mm512_max_epi32(largest, size);
    }
    let largest = _mm512_castsi512_ps(largest);
    let fits = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, _mm512_set1_ps(*SIZES.start()))
        & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(largest, _mm512_set1_ps(*SIZES.end()));
    let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(largest, _mm512_setzero_ps());
    let turns = _mm512_maskz_div_ps(fits, _mm512_set1_ps(127.0), largest);
    let scale = _mm512_mul_ps(largest, _mm512_set1_ps(1.0 / 127.0));
    let scale = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), fits | zero, scale);
    let mut size = _mm512_set1_epi32(1);
    for (rows, codes) in rows.chunks_exact(4).zip(codes) {
        let mut quad = _mm512_setzero_si512();
        unrolled!(i < 4, {
            let code = _mm512_cvtps_epi32(_mm512_mul_ps(floats(&rows[i], half), turns));
            size = _mm512_add_epi32(size, _mm512_abs_epi32(code));
            let byte =
                _mm512_and_si512(_mm512_add_epi32(code, _mm512_set1_epi32(128)), _mm512_set1_epi32(255));
            quad = _mm512_or_si512(quad, _mm512_sllv_epi32(byte, _mm512_set1_epi32(8 * i as i32)));
        });
        store(&mut codes[half * 4 * LANES..], quad);
    }
    store(bytemuck::cast_slice_mut(&mut scales[half * LANES..]), _mm512_castps_si512(scale));
    store(bytemuck::cast_slice_mut(&mut slacks[half * LANES..]), _mm512_srai_epi32::<1>(size));
}

/// Half of a row of floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn floats(row: &[f32; WIDTH], half: usize) -> __m512 {
    let row = &row[half * LANES..][..LANES];
    // SAFETY: the slice has sixteen values.
    unsafe { _mm512_loadu_ps(row.as_ptr()) }
}

/// Half of a row of integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn integers(row: &[i32; WIDTH], half: usize) -> __m512i {
    let row = &row[half * LANES..][..LANES];
    // SAFETY: the slice has sixteen values.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

/// Half of a quad of codes.
#[inline]
#[target_feature(enable = "avx512f")]
fn bytes(quad: &[u8; QUAD], half: usize) -> __m512i {
    let quad = &quad[half * 4 * LANES..][..4 * LANES];
    // SAFETY: the slice has 64 bytes.
    unsafe { _mm512_loadu_si512(quad.as_ptr().cast()) }
}

/// Stores 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn store(into: &mut [u8], bytes: __m512i) {
    let into = &mut into[..4 * LANES];
    // SAFETY: the slice has 64 bytes.
    unsafe {
        _mm512_storeu_si512(into.as_mut_ptr().cast(), bytes);
    }
}
