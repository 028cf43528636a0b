//! Scores of keys with vectors: eight or sixteen keys at a time, all heads of a query together. Where the machine has
//! integer products, a light comparison goes first, and only keys that may matter are scored.

use std::arch::x86_64::*;
use std::ops::Range;

use super::light::{Asked, Light};
use super::{Call, Found, Level};
use crate::cpu::lanes::{self, LANES, unrolled};
use crate::kv::Widened;

/// Entries that are scored side by side.
pub(super) const WIDTH: usize = 32;
/// Entries whose keys are brought together at a time.
const STRETCH: usize = 16 * WIDTH;
/// So many tokens are worth the light comparison, which must look at the keys itself first.
const MANY: usize = 8;

/// Keys of entries, brought together from the blocks they are in.
#[derive(Default)]
pub(super) struct Keys {
    /// `[tiles, dim, WIDTH]`: entries innermost. What is behind the last entry is of no meaning.
    values: Vec<f32>,
    wide: Widened,
    light: Light,
    asked: Asked,
}

impl Keys {
    /// Brings the keys of some runs of entries together in a tile, no more than `WIDTH` in all.
    fn collect(
        &mut self,
        (call, blocks): (Call<'_>, &[u32]),
        tile: usize,
        runs: impl Iterator<Item = Range<usize>>,
    ) {
        let layer = call.args.layer;
        let layout = call.kv.layout().of_layer(layer);
        let (size, stride, each) = (layout.block_size, layout.key_stride(), layout.key_dim * WIDTH);
        self.values.resize(self.values.len().max((tile + 1) * each), 0.0);
        let values = &mut self.values[tile * each..][..each];
        let mut at = 0;
        for mut run in runs {
            while !run.is_empty() {
                let (block, offset) = (run.start / size, run.start % size);
                let count = run.len().min(size - offset);
                let (keys, _) = call.kv.head(layer, blocks[block], 0, &mut self.wide);
                let into = values.chunks_exact_mut(WIDTH).zip(keys.chunks_exact(stride));
                match count {
                    8 => into.for_each(|(into, keys)| copy::<8>(&keys[offset..], &mut into[at..])),
                    16 => into.for_each(|(into, keys)| copy::<16>(&keys[offset..], &mut into[at..])),
                    _ => into.for_each(|(into, keys)| {
                        into[at..at + count].copy_from_slice(&keys[offset..offset + count]);
                    }),
                }
                at += count;
                run.start += count;
            }
        }
    }

    /// Brings the keys of a stretch together.
    #[target_feature(enable = "avx2,fma")]
    fn fill(&mut self, (call, blocks): (Call<'_>, &[u32]), stretch: Range<usize>) {
        let in_block = call.kv.layout().of_layer(call.args.layer).block_size;
        for (tile, entry) in stretch.clone().step_by(WIDTH).enumerate() {
            let ahead = entry + 2 * WIDTH..stretch.end.min(entry + 3 * WIDTH);
            ahead.step_by(in_block).for_each(|entry| fetch(call, blocks[entry / in_block]));
            let run = entry..stretch.end.min(entry + WIDTH);
            self.collect((call, blocks), tile, std::iter::once(run));
        }
    }

    /// A tile.
    fn tile(&self, tile: usize, dim: usize) -> &[f32] {
        &self.values[tile * dim * WIDTH..][..dim * WIDTH]
    }
}

/// Asks for the keys of a block. Blocks lie anywhere, so the processor cannot know which is the next.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn fetch(call: Call<'_>, block: u32) {
    let stored = call.kv.stored(call.args.layer, block, 0);
    lanes::fetch(stored.as_ptr(), stored.len() / 2);
}

/// Copies so many values, which the compiler knows the number of.
#[inline(always)]
fn copy<const N: usize>(from: &[f32], into: &mut [f32]) {
    if let (Some(from), Some(into)) = (from.first_chunk::<N>(), into.first_chunk_mut::<N>()) {
        *into = *from;
    }
}

/// Has each token of a group find its best in some entries.
#[target_feature(enable = "avx2,fma")]
pub(super) fn scan(
    call: Call<'_>,
    group: Range<usize>,
    entries: Range<usize>,
    (found, keys): (&mut [Found], &mut Keys),
) {
    let most = group.clone().map(|token| call.seen[token].1).max().unwrap_or(0).min(entries.end);
    let (blocks, dim) = (call.blocks(group.start), call.kv.layout().key_dim);
    let light = call.level == Level::Avx512 && group.len() >= MANY && Light::serves(dim, call.args.heads);
    if light {
        let queries = group.clone().map(|token| call.query(token));
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX-512")]
        unsafe {
            keys.asked.start(queries, dim);
        };
    }
    for first in (entries.start..most).step_by(STRETCH) {
        let stretch = first..most.min(first + STRETCH);
        keys.fill((call, blocks), stretch.clone());
        if light {
            let tiles = keys.values.chunks_exact(dim * WIDTH).take(stretch.len().div_ceil(WIDTH));
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "calls code for AVX-512")]
            unsafe {
                keys.light.start(tiles);
            };
        }
        for (index, found) in found.iter_mut().enumerate() {
            let token = group.start + index;
            if !call.is_all(token) {
                let end = stretch.end.min(call.seen[token].1);
                offer((call, token), (&*keys, light.then_some(index)), first..end, found);
            }
        }
    }
    found.iter_mut().for_each(Found::close);
}

/// Offers a token what is of use of a stretch of entries, in their order.
#[target_feature(enable = "avx2,fma")]
fn offer(
    (call, token): (Call<'_>, usize),
    (keys, light): (&Keys, Option<usize>),
    stretch: Range<usize>,
    found: &mut Found,
) {
    let (query, dim) = (call.query(token), call.kv.layout().key_dim);
    let mut tiles = stretch.clone().step_by(WIDTH).enumerate();
    let there = |entry: usize| u32::MAX >> (WIDTH - (stretch.end - entry).min(WIDTH));
    while light.is_none() || found.floor() == f32::NEG_INFINITY {
        let Some((tile, entry)) = tiles.next() else { return };
        let mut scores = [0.0; WIDTH];
        score(call.level, query, keys.tile(tile, dim), &mut scores);
        offer_some(found, entry, there(entry) & above(&scores, found.floor()), &scores);
    }
    let Some(index) = light else { return };
    let (mut parts, mut count) = ([(0, 0); STRETCH / LANES], 0);
    for (tile, entry) in tiles {
        // SAFETY: only the level with AVX-512 asks for it.
        #[expect(unsafe_code, reason = "calls code for AVX-512")]
        let some = unsafe { keys.light.above(tile, (&keys.asked, index), found.floor()) } & there(entry);
        for part in (0..WIDTH).step_by(LANES).filter(|part| some >> part & 0xff != 0) {
            parts[count] = (tile * WIDTH + part, some >> part & 0xff);
            count += 1;
        }
    }
    for parts in parts[..count].chunks(2) {
        // An odd one goes with itself.
        let both = [parts[0].0, parts[parts.len() - 1].0];
        let scores = score_few(query, both.map(|at| &keys.tile(at / WIDTH, dim)[at % WIDTH..]));
        for (&(at, some), scores) in parts.iter().zip(&scores) {
            offer_some(found, stretch.start + at, some, scores);
        }
    }
}

/// Offers some of a few scores, in their order.
#[inline]
fn offer_some(found: &mut Found, entry: usize, mut some: u32, scores: &[f32]) {
    while some != 0 {
        let lane = some.trailing_zeros() as usize;
        found.offer((entry + lane) as u32, scores[lane]);
        some &= some - 1;
    }
}

/// Which scores are above a floor.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn above(scores: &[f32; WIDTH], floor: f32) -> u32 {
    let mut some = 0;
    unrolled!(v < WIDTH / LANES, {
        let above = _mm256_cmp_ps::<_CMP_GT_OQ>(lanes::load(scores, v * LANES), _mm256_set1_ps(floor));
        some |= _mm256_movemask_ps(above).cast_unsigned() << (v * LANES);
    });
    some
}

/// Scores of one query with some entries, ascending.
#[target_feature(enable = "avx2,fma")]
pub(super) fn some(
    call: Call<'_>,
    (query, blocks): ((&[f32], &[f32]), &[u32]),
    places: &[usize],
    (keys, out): (&mut Keys, &mut Vec<f32>),
) {
    out.clear();
    let in_block = call.kv.layout().of_layer(call.args.layer).block_size;
    let next = places.chunks(WIDTH).skip(1).chain([&[][..]]);
    for (places, next) in places.chunks(WIDTH).zip(next) {
        let next = next.chunk_by(|a, b| a / in_block == b / in_block);
        next.for_each(|same| fetch(call, blocks[same[0] / in_block]));
        let runs = places.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len());
        keys.collect((call, blocks), 0, runs);
        let mut scores = [0.0; WIDTH];
        score(call.level, query, keys.tile(0, call.kv.layout().key_dim), &mut scores);
        out.extend_from_slice(&scores[..places.len()]);
    }
}

/// Scores of a query with the keys side by side. Each score is formed in one order, whatever the vectors.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn score(level: Level, query: (&[f32], &[f32]), keys: &[f32], out: &mut [f32; WIDTH]) {
    if level == Level::Avx512 {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX-512")]
        return unsafe { score_16(query, keys, out) };
    }
    score_8(query, keys, out);
}

/// Eight entries in a vector, two heads at a time.
#[target_feature(enable = "avx2,fma")]
fn score_8((q, weights): (&[f32], &[f32]), keys: &[f32], out: &mut [f32; WIDTH]) {
    let dim = q.len() / weights.len();
    let keys = [0, 1, 2, 3].map(|v| &keys[v * LANES..]);
    let mut total = [_mm256_setzero_ps(); WIDTH / LANES];
    for (q, weights) in q.chunks(2 * dim).zip(weights.chunks(2)) {
        if weights.len() == 2 {
            heads_8::<2, _>((q, weights), keys, &mut total);
        } else {
            heads_8::<1, _>((q, weights), keys, &mut total);
        }
    }
    for (at, total) in total.into_iter().enumerate() {
        lanes::store(out, at * LANES, total);
    }
}

/// Two times eight entries, which may be in different tiles, four heads at a time.
#[target_feature(enable = "avx2,fma")]
fn score_few((q, weights): (&[f32], &[f32]), keys: [&[f32]; 2]) -> [[f32; LANES]; 2] {
    let dim = q.len() / weights.len();
    let mut total = [_mm256_setzero_ps(); 2];
    let fours = weights.len() / 4 * 4;
    for four in q.chunks_exact(4 * dim).zip(weights.chunks_exact(4)) {
        heads_8::<4, 2>(four, keys, &mut total);
    }
    for one in q[fours * dim..].chunks_exact(dim).zip(weights[fours..].chunks_exact(1)) {
        heads_8::<1, 2>(one, keys, &mut total);
    }
    let mut out = [[0.0; LANES]; 2];
    out.iter_mut().zip(total).for_each(|(out, total)| lanes::store(out, 0, total));
    out
}

/// `V` times eight entries, each from where its keys begin in a tile, and `H` heads.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn heads_8<const H: usize, const V: usize>(
    (q, weights): (&[f32], &[f32]),
    keys: [&[f32]; V],
    total: &mut [__m256; V],
) {
    let dim = q.len() / H;
    assert!(keys.iter().all(|keys| keys.len() + WIDTH >= dim * WIDTH + LANES), "keys of {dim} values");
    let q: [&[f32]; H] = std::array::from_fn(|h| &q[h * dim..][..dim]);
    let mut acc = [[_mm256_setzero_ps(); V]; H];
    for d in 0..dim {
        let mut k = [_mm256_setzero_ps(); V];
        unrolled!(v < V, {
            // SAFETY: eight values from there on were found to be in the slice.
            #[expect(unsafe_code, reason = "a check for each load would cost as much as the products")]
            let keys = unsafe { lanes::load_from(keys[v].as_ptr().add(d * WIDTH)) };
            k[v] = keys;
        });
        unrolled!(h < H, {
            let q = _mm256_set1_ps(q[h][d]);
            unrolled!(v < V, {
                acc[h][v] = _mm256_fmadd_ps(q, k[v], acc[h][v]);
            });
        });
    }
    unrolled!(h < H, {
        let weight = _mm256_set1_ps(weights[h]);
        unrolled!(v < V, {
            let kept = _mm256_max_ps(acc[h][v], _mm256_setzero_ps());
            total[v] = _mm256_fmadd_ps(weight, kept, total[v]);
        });
    });
}

/// Sixteen entries in a vector, four heads at a time.
#[target_feature(enable = "avx512f")]
fn score_16((q, weights): (&[f32], &[f32]), keys: &[f32], out: &mut [f32; WIDTH]) {
    let dim = q.len() / weights.len();
    let mut total = [_mm512_setzero_ps(); 2];
    let heads = q.chunks_exact(4 * dim).zip(weights.chunks_exact(4));
    for (q, weights) in heads {
        heads_16::<4>((q, weights), keys, &mut total);
    }
    let done = weights.len() / 4 * 4;
    for (q, weight) in q[done * dim..].chunks_exact(dim).zip(weights[done..].chunks_exact(1)) {
        heads_16::<1>((q, weight), keys, &mut total);
    }
    let [low, high] = total;
    // SAFETY: the list has room for two vectors.
    #[expect(unsafe_code, reason = "vector stores take pointers")]
    unsafe {
        _mm512_storeu_ps(out.as_mut_ptr(), low);
        _mm512_storeu_ps(out.as_mut_ptr().add(WIDTH / 2), high);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn heads_16<const H: usize>((q, weights): (&[f32], &[f32]), keys: &[f32], total: &mut [__m512; 2]) {
    let dim = q.len() / H;
    let mut acc = [[_mm512_setzero_ps(); 2]; H];
    for (d, keys) in keys.as_chunks::<WIDTH>().0.iter().enumerate().take(dim) {
        // SAFETY: a row of keys has room for two vectors.
        #[expect(unsafe_code, reason = "vector loads take pointers")]
        let k = unsafe { [_mm512_loadu_ps(keys.as_ptr()), _mm512_loadu_ps(keys.as_ptr().add(WIDTH / 2))] };
        unrolled!(h < H, {
            let q = _mm512_set1_ps(q[h * dim + d]);
            acc[h][0] = _mm512_fmadd_ps(q, k[0], acc[h][0]);
            acc[h][1] = _mm512_fmadd_ps(q, k[1], acc[h][1]);
        });
    }
    unrolled!(h < H, {
        let weight = _mm512_set1_ps(weights[h]);
        for v in 0..2 {
            let kept = _mm512_max_ps(acc[h][v], _mm512_setzero_ps());
            total[v] = _mm512_fmadd_ps(weight, kept, total[v]);
        }
    });
}
