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
mod vectors;
