//! Scores of a stretch of keys with vectors: eight or sixteen keys at a time, all heads of a query together.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Call, Level};
use crate::cpu::lanes::{self, LANES, unrolled};
use crate::kv::Widened;
use crate::select::Best;

/// Entries that are scored side by side.
const WIDTH: usize = 32;

/// Keys of entries, brought together from the blocks they are in.
struct Keys {
    /// `[dim, WIDTH]`: entries innermost. What is behind the last entry is of no meaning.
    values: Vec<f32>,
    wide: Widened,
}

impl Keys {
    fn new(call: Call<'_>) -> Keys {
        Keys { values: vec![0.0; call.kv.layout().key_dim * WIDTH], wide: Widened::default() }
    }

    /// Brings the keys of some runs of entries together, no more than `WIDTH` in all.
    fn collect(&mut self, call: Call<'_>, blocks: &[u32], runs: impl Iterator<Item = Range<usize>>) {
        let layer = call.args.layer;
        let layout = call.kv.layout().of_layer(layer);
        let (size, stride) = (layout.block_size, layout.key_stride());
        let mut at = 0;
        for mut run in runs {
            while !run.is_empty() {
                let (block, offset) = (run.start / size, run.start % size);
                let count = run.len().min(size - offset);
                let (keys, _) = call.kv.head(layer, blocks[block], 0, &mut self.wide);
                let into = self.values.chunks_exact_mut(WIDTH).zip(keys.chunks_exact(stride));
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
}

/// Copies so many values, which the compiler knows the number of.
#[inline(always)]
fn copy<const N: usize>(from: &[f32], into: &mut [f32]) {
    if let (Some(from), Some(into)) = (from.first_chunk::<N>(), into.first_chunk_mut::<N>()) {
        *into = *from;
    }
}

/// Scores of some queries of one row with entries from `entry` on, as many as each list has room for.
#[target_feature(enable = "avx2,fma")]
pub(super) fn stretch(
    call: Call<'_>,
    queries: &[(&[f32], &[f32])],
    blocks: &[u32],
    entry: usize,
    out: &mut [&mut [f32]],
) {
    let most = out.iter().map(|row| row.len()).max().unwrap_or(0);
    let mut keys = Keys::new(call);
    for at in (0..most).step_by(WIDTH) {
        let ahead = (entry + at + 2 * WIDTH) / call.kv.layout().of_layer(call.args.layer).block_size;
        if let Some(&block) = blocks.get(ahead) {
            // Blocks lie anywhere, so the processor cannot know which is the next.
            let stored = call.kv.stored(call.args.layer, block, 0);
            lanes::fetch(stored.as_ptr(), stored.len() / 2);
        }
        let run = entry + at..entry + most.min(at + WIDTH);
        keys.collect(call, blocks, std::iter::once(run));
        for (query, out) in queries.iter().zip(out.iter_mut()) {
            let Some(out) = out.get_mut(at..) else { continue };
            let mut scores = [0.0; WIDTH];
            score(call.level, *query, &keys.values, &mut scores);
            let count = out.len().min(WIDTH);
            if count == WIDTH {
                copy::<WIDTH>(&scores, out);
            } else {
                out[..count].copy_from_slice(&scores[..count]);
            }
        }
    }
}

/// Scores of one query with some entries, ascending.
#[target_feature(enable = "avx2,fma")]
pub(super) fn some(
    call: Call<'_>,
    query: (&[f32], &[f32]),
    blocks: &[u32],
    places: &[usize],
    out: &mut Vec<f32>,
) {
    let mut keys = Keys::new(call);
    out.clear();
    for places in places.chunks(WIDTH) {
        let runs = places.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len());
        keys.collect(call, blocks, runs);
        let mut scores = [0.0; WIDTH];
        score(call.level, query, &keys.values, &mut scores);
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
    let mut total = [_mm256_setzero_ps(); WIDTH / LANES];
    let heads = q.chunks_exact(2 * dim).zip(weights.chunks_exact(2));
    for (q, weights) in heads {
        heads_8::<2>((q, weights), keys, &mut total);
    }
    if weights.len() % 2 == 1 {
        let last = weights.len() - 1;
        heads_8::<1>((&q[last * dim..], &weights[last..]), keys, &mut total);
    }
    for (at, total) in total.into_iter().enumerate() {
        lanes::store(out, at * LANES, total);
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn heads_8<const H: usize>(
    (q, weights): (&[f32], &[f32]),
    keys: &[f32],
    total: &mut [__m256; WIDTH / LANES],
) {
    let dim = q.len() / H;
    let mut acc = [[_mm256_setzero_ps(); WIDTH / LANES]; H];
    for (d, keys) in keys.chunks_exact(WIDTH).enumerate().take(dim) {
        let mut k = [_mm256_setzero_ps(); WIDTH / LANES];
        unrolled!(v < WIDTH / LANES, {
            k[v] = lanes::load(keys, v * LANES);
        });
        unrolled!(h < H, {
            let q = _mm256_set1_ps(q[h * dim + d]);
            unrolled!(v < WIDTH / LANES, {
                acc[h][v] = _mm256_fmadd_ps(q, k[v], acc[h][v]);
            });
        });
    }
    unrolled!(h < H, {
        let weight = _mm256_set1_ps(weights[h]);
        unrolled!(v < WIDTH / LANES, {
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

/// Offers all scores, in their order, but for those that are of no use.
#[target_feature(enable = "avx2,fma")]
pub(super) fn offer_all(best: &mut Best, scores: &[f32]) {
    let whole = scores.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let above = _mm256_cmp_ps::<_CMP_GT_OQ>(lanes::load(scores, at), _mm256_set1_ps(best.floor()));
        let mut some = _mm256_movemask_ps(above).cast_unsigned();
        while some != 0 {
            let lane = some.trailing_zeros() as usize;
            best.offer((at + lane) as u32, scores[at + lane]);
            some &= some - 1;
        }
    }
    (whole..scores.len()).for_each(|at| best.offer(at as u32, scores[at]));
}
