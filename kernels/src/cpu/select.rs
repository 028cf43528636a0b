//! The choice of entries. Scores of some tokens with all entries they see are made first, in items of a few tokens and a
//! stretch of entries, so that a key that is in the nearest cache serves many queries; then the best are found, token by
//! token. A token that is bound to runs scores only those.

use std::cell::Cell;
use std::ops::Range;

use super::Level;
use super::output::Output;
use super::threads::Pool;
use crate::kv::KvMemory;
use crate::select::{self, Best, Select, Stage};
use crate::windowed::Lists;

/// Tokens of an item, all of one row.
const TOKENS: usize = 64;
/// Entries of an item, as far as whole blocks allow.
const STRETCH: usize = 2_048;
/// Scores that are held at a time, if a single token has not more.
const SCORES: usize = 1 << 21;

thread_local! {
    /// Scores; grows to the largest step once.
    static HELD: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// The best, and places and scores of those bound to runs.
    static BEST: Cell<(Best, Vec<f32>)> = Cell::default();
}

/// What all parts of a call see.
#[derive(Copy, Clone)]
struct Call<'a> {
    level: Level,
    args: &'a Select<'a>,
    q: &'a [f32],
    weights: &'a [f32],
    kv: &'a KvMemory,
    /// Row, and entries that are complete, of each token.
    seen: &'a [(usize, usize)],
}

/// Runs a call whose arguments have been checked.
pub(super) fn run(
    (pool, level): (&mut Pool, Level),
    args: &Select<'_>,
    (q, weights): (&[f32], &[f32]),
    kv: &KvMemory,
    (chosen, kept): (&mut Lists, &mut Lists),
) {
    let seen = args.seen(kv);
    let call = Call { level, args, q, weights, kv, seen: &seen };
    chosen.start(seen.len(), args.most);
    if let Some(stage) = args.bound() {
        return bound(pool, call, stage, (chosen, kept));
    }
    if let Some(stage) = args.stages() {
        kept.start(seen.len(), stage.kept);
    }
    let mut held = HELD.take();
    let mut first = 0;
    while first < seen.len() {
        // Entries grow along a row; the last token of a group sees no fewer than the others only within it.
        let mut most = 0;
        let group = seen[first..].iter().enumerate().take_while(|(i, (_, entries))| {
            most = most.max(*entries);
            *i == 0 || (i + 1) * width(most) <= SCORES
        });
        let count = group.count();
        let widest = seen[first..first + count].iter().map(|(_, entries)| *entries).max().unwrap_or(0);
        if held.len() < count * width(widest) {
            held.resize(count * width(widest), 0.0);
        }
        score(pool, call, (first, count), (width(widest), &mut held));
        choose(pool, call, (first, count), (width(widest), &held), (chosen, kept));
        first += count;
    }
    HELD.set(held);
}

/// Room for the scores of so many entries.
fn width(entries: usize) -> usize {
    entries.next_multiple_of(8)
}

impl Call<'_> {
    /// True if the token's choice needs no scores: all that it sees is chosen.
    fn is_all(&self, token: usize) -> bool {
        let entries = self.seen[token].1;
        let runs = self.args.stages().is_none_or(|stage| entries.div_ceil(stage.size) <= stage.kept);
        entries <= self.args.most && runs
    }

    /// Query and weights of a token.
    fn query(&self, token: usize) -> (&[f32], &[f32]) {
        let (heads, dim) = (self.args.heads, self.kv.layout().key_dim);
        (&self.q[token * heads * dim..][..heads * dim], &self.weights[token * heads..][..heads])
    }
}

/// Scores of `count` tokens from `first` on, in rows of `width`.
fn score(
    pool: &mut Pool,
    call: Call<'_>,
    (first, count): (usize, usize),
    (width, held): (usize, &mut [f32]),
) {
    let in_block = call.kv.layout().of_layer(call.args.layer).block_size;
    let step = (STRETCH / in_block).max(1) * in_block;
    let mut items = Vec::new();
    let mut token = first;
    while token < first + count {
        let row = call.seen[token].0;
        let same =
            call.seen[token..first + count].iter().take(TOKENS).take_while(|(of, _)| *of == row).count();
        let most = call.seen[token..token + same].iter().map(|(_, entries)| *entries).max().unwrap_or(0);
        if (token..token + same).any(|token| !call.is_all(token)) {
            items.extend((0..most).step_by(step).map(|entry| (token, same, entry..entry + step)));
        }
        token += same;
    }
    let held = Output::new(held);
    pool.run(items.len(), &|item| {
        let (token, tokens, entries) = items[item].clone();
        stretch(call, (token, tokens), entries, (first, width), &held);
    });
}

/// Scores of a few tokens with a stretch of entries.
fn stretch(
    call: Call<'_>,
    (token, tokens): (usize, usize),
    entries: Range<usize>,
    (first, width): (usize, usize),
    held: &Output<'_>,
) {
    let entry = entries.start;
    let end = |token: usize| call.seen[token].1.min(entries.end).max(entry);
    let rows = (token..token + tokens).map(|token| {
        let count = end(token) - entry;
        // SAFETY: no other item has this stretch of these tokens.
        #[expect(unsafe_code, reason = "threads write stretches of one output")]
        let row = unsafe { held.part((token - first) * width + if count > 0 { entry } else { 0 }, count) };
        row
    });
    let mut rows: Vec<&mut [f32]> = rows.collect();
    let blocks = call.args.rows[call.seen[token].0].blocks;
    #[cfg(target_arch = "x86_64")]
    if call.level != Level::Plain {
        let queries: Vec<(&[f32], &[f32])> = (token..token + tokens).map(|token| call.query(token)).collect();
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { vectors::stretch(call, &queries, blocks, entry, &mut rows) };
    }
    let mut scores = Vec::new();
    for (row, token) in rows.iter_mut().zip(token..) {
        let places: Vec<usize> = (entry..end(token)).collect();
        select::score(call.args, call.query(token), (call.kv, blocks), &places, &mut scores);
        row[..scores.len()].copy_from_slice(&scores);
    }
}

/// The best of scores, and of runs.
fn choose(
    pool: &mut Pool,
    call: Call<'_>,
    (first, count): (usize, usize),
    (width, held): (usize, &[f32]),
    (chosen, kept): (&mut Lists, &mut Lists),
) {
    let (most, runs) = (chosen.most(), kept.most());
    let ((chosen, chosen_counts), (kept, kept_counts)) = (chosen.parts(), kept.parts());
    let (chosen, chosen_counts) = (Output::new(chosen), Output::new(chosen_counts));
    let (kept, kept_counts) = (Output::new(kept), Output::new(kept_counts));
    pool.run(count, &|item| {
        let token = first + item;
        let entries = call.seen[token].1;
        // SAFETY: each token is one item.
        #[expect(unsafe_code, reason = "threads write lists of one output")]
        let (into, how_many) = unsafe { (chosen.part(token * most, most), chosen_counts.part(token, 1)) };
        let stage = call.args.stages().map(|stage| {
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "threads write lists of one output")]
            let parts = unsafe { (kept.part(token * runs, runs), kept_counts.part(token, 1)) };
            (stage, parts)
        });
        if call.is_all(token) {
            how_many[0] = all(into, entries);
            if let Some((stage, (into, how_many))) = stage {
                how_many[0] = all(into, entries.div_ceil(stage.size));
            }
            return;
        }
        let scores = &held[item * width..][..entries];
        let (mut best, room) = BEST.take();
        best.start(most);
        offer_all(call.level, &mut best, scores);
        how_many[0] = best.finish(into);
        if let Some((stage, (into, how_many))) = stage {
            how_many[0] = select::choose_runs(scores, stage, &mut best, into);
        }
        BEST.set((best, room));
    });
}

/// The first numbers; gives how many.
fn all(into: &mut [u32], count: usize) -> u32 {
    into.iter_mut().zip(0..count as u32).for_each(|(into, number)| *into = number);
    count as u32
}

/// Offers all scores, in their order.
fn offer_all(level: Level, best: &mut Best, scores: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if level != Level::Plain {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { vectors::offer_all(best, scores) };
    }
    let _ = level;
    scores.iter().zip(0..).for_each(|(&score, place)| best.offer(place, score));
}

/// Tokens that are bound to runs.
fn bound(pool: &mut Pool, call: Call<'_>, stage: Stage, (chosen, kept): (&mut Lists, &mut Lists)) {
    let most = chosen.most();
    let (chosen, counts) = chosen.parts();
    let (chosen, counts) = (Output::new(chosen), Output::new(counts));
    let kept = &*kept;
    pool.run(call.seen.len(), &|token| {
        // SAFETY: each token is one item.
        #[expect(unsafe_code, reason = "threads write lists of one output")]
        let (into, how_many) = unsafe { (chosen.part(token * most, most), counts.part(token, 1)) };
        let (row, entries) = call.seen[token];
        let places: Vec<usize> = select::entries_of(kept.of(token), stage.size, entries).collect();
        if places.len() <= most {
            into.iter_mut().zip(&places).for_each(|(into, &place)| *into = place as u32);
            how_many[0] = places.len() as u32;
            return;
        }
        let (mut best, mut scores) = BEST.take();
        let blocks = call.args.rows[row].blocks;
        some(call, call.query(token), blocks, &places, &mut scores);
        best.start(most);
        places.iter().zip(&scores).for_each(|(&place, &score)| best.offer(place as u32, score));
        how_many[0] = best.finish(into);
        BEST.set((best, scores));
    });
}

/// Scores of a token with some entries.
fn some(call: Call<'_>, query: (&[f32], &[f32]), blocks: &[u32], places: &[usize], scores: &mut Vec<f32>) {
    #[cfg(target_arch = "x86_64")]
    if call.level != Level::Plain {
        // SAFETY: the level says that the machine has the features.
        #[expect(unsafe_code, reason = "calls code for AVX2")]
        return unsafe { vectors::some(call, query, blocks, places, scores) };
    }
    select::score(call.args, query, (call.kv, blocks), places, scores);
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod vectors {
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
            let k =
                unsafe { [_mm512_loadu_ps(keys.as_ptr()), _mm512_loadu_ps(keys.as_ptr().add(WIDTH / 2))] };
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
}
