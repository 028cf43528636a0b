//! Attention of one item with vectors, without a matrix of scores. Each query goes through the blocks of its past in order,
//! and keeps three things: the largest score so far, the sum of `exp(score - largest)`, and the sum of the values weighted
//! so. When a block brings a larger score, both sums are scaled down first (online softmax).
//!
//! Blocks begin at multiples of the block size whatever a query sees of them; what it does not see counts zero. So a
//! query's sums are formed in the same order in every item, chunk and step.
#![expect(unsafe_code, reason = "the innermost loops read through pointers")]

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::Item;
use crate::cpu::lanes::{self, LANES, unrolled};
use crate::cpu::output::Output;
use crate::kv::{KvLayout, KvMemory, Widened};
use crate::op::Attention;

/// Queries that go through a block side by side.
const TILE: usize = 4;

thread_local! {
    /// State of the queries of an item; grows to the largest item once.
    static STATE: RefCell<State> = const { RefCell::new(State::new()) };
    /// Keys and values of a block in f32, where they are stored otherwise.
    static WIDE: Cell<Widened> = const { Cell::new(Widened::new()) };
}

/// The queries of an item and what they have so far.
struct State {
    /// `[queries, key_dim]`, times the scale of the scores.
    q: Vec<f32>,
    /// `[queries, value_stride]`: sum of weighted values.
    sum: Vec<f32>,
    /// `[queries, 8]`: sum of weights, in lanes.
    total: Vec<f32>,
    /// `[queries]`: largest score.
    largest: Vec<f32>,
    /// `[TILE, key_stride]`: scores of a block, then weights.
    weight: Vec<f32>,
}

impl State {
    /// No queries.
    const fn new() -> State {
        State { q: Vec::new(), sum: Vec::new(), total: Vec::new(), largest: Vec::new(), weight: Vec::new() }
    }

    /// Starts `queries` queries, which are still to be written to `q`, before any key.
    fn start(&mut self, queries: usize, layout: KvLayout) {
        let fill = |v: &mut Vec<f32>, len, value| {
            v.clear();
            v.resize(len, value);
        };
        self.q.clear();
        fill(&mut self.sum, queries * layout.value_stride(), 0.0);
        fill(&mut self.total, queries * LANES, 0.0);
        fill(&mut self.largest, queries, f32::NEG_INFINITY);
        fill(&mut self.weight, TILE * layout.key_stride(), 0.0);
    }

    /// Starts the queries with the sinks of their heads, which come round again with each token: their scores are the
    /// largest so far, and have weight but no value.
    fn sink(&mut self, sinks: &[f32]) {
        for (query, &sink) in (0..self.largest.len()).zip(sinks.iter().cycle()) {
            self.largest[query] = sink;
            self.total[query * LANES] = 1.0;
        }
    }
}

/// A block of one layer and head, and which of its tokens each query of a tile sees.
struct Block<'a> {
    /// `[key_dim, key_stride]`.
    keys: &'a [f32],
    /// `[block_size, value_stride]`.
    values: &'a [f32],
    /// Shape.
    layout: KvLayout,
    /// First query of the tile.
    first: usize,
    /// Of each query of the tile: the tokens it sees, counted within the block.
    seen: [Range<usize>; TILE],
    /// The tokens that any of them sees.
    any: Range<usize>,
}

/// Computes one item.
///
/// # Safety
/// The machine has the vectors; no other thread writes the outputs of the item.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn item(args: &Attention<'_>, item: Item, (q, kv): (&[f32], &KvMemory), out: &Output<'_>) {
    let layout = kv.layout();
    let group = item.heads;
    let (keys, values) = (layout.key_dim, layout.value_dim);
    // The first head of the item's token, counted over all tokens.
    let first = |token: usize| (item.place + token) * args.heads + item.head;
    STATE.with_borrow_mut(|state| {
        state.start(item.tokens * group, layout);
        for token in 0..item.tokens {
            state.q.extend(q[first(token) * keys..][..group * keys].iter().map(|q| q * args.scale));
        }
        if let Some(sinks) = args.sinks {
            state.sink(&sinks[item.head..][..group]);
        }
        blocks(args, item, kv, state);
        for token in 0..item.tokens {
            // SAFETY: the heads of this item's tokens, which no other thread writes.
            let out = unsafe { out.part(first(token) * values, group * values) };
            for (head, out) in out.chunks_exact_mut(values).enumerate() {
                let query = token * group + head;
                let total = lanes::sum(lanes::load(&state.total, query * LANES));
                let sum = &state.sum[query * layout.value_stride()..];
                out.iter_mut().zip(sum).for_each(|(out, sum)| *out = sum / total);
            }
        }
    });
}

/// Takes all queries of an item through all blocks that any of them sees.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
fn blocks(args: &Attention<'_>, item: Item, kv: &KvMemory, state: &mut State) {
    let (layout, row) = (kv.layout(), args.rows[item.row]);
    let (group, size) = (item.heads, layout.block_size);
    let start = row.start as usize + item.token;
    let queries = item.tokens * group;
    let mut wide = WIDE.take();
    let end = (start + item.tokens).div_ceil(size);
    for b in args.first_seen(&row, start) / size..end {
        if b + 1 < end {
            // Blocks lie anywhere, so the processor cannot know which is the next.
            let next = kv.stored(args.layer, row.blocks[b + 1], item.kv_head);
            lanes::fetch(next.as_ptr(), next.len());
        }
        let (keys, values) = kv.head(args.layer, row.blocks[b], item.kv_head, &mut wide);
        let seen = |query: usize| {
            let position = start + query / group;
            let within = |p: usize| p.saturating_sub(b * size).min(size);
            within(args.first_seen(&row, position))..within(position + 1)
        };
        for first in (0..queries).step_by(TILE) {
            let count = TILE.min(queries - first);
            let mut block =
                Block { keys, values, layout, first, seen: [0..0, 0..0, 0..0, 0..0], any: size..0 };
            for i in 0..count {
                let of = seen(first + i);
                if !of.is_empty() {
                    block.any = block.any.start.min(of.start)..block.any.end.max(of.end);
                    block.seen[i] = of;
                }
            }
            if block.any.is_empty() {
                continue;
            }
            match count {
                1 => block.run::<1>(state),
                2 => block.run::<2>(state),
                3 => block.run::<3>(state),
                _ => block.run::<TILE>(state),
            }
        }
    }
    WIDE.set(wide);
}

impl Block<'_> {
    /// Takes `Q` queries through this block.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn run<const Q: usize>(&self, state: &mut State) {
        let (keys, values) = (self.layout.key_stride(), self.layout.value_stride());
        let mut at = 0;
        while at + 2 * LANES <= keys {
            self.scores::<Q, 2>(state, at);
            at += 2 * LANES;
        }
        if at < keys {
            self.scores::<Q, 1>(state, at);
        }
        let mut shrink = [1.0; Q];
        unrolled!(i < Q, {
            shrink[i] = self.softmax(state, i);
        });
        let mut at = 0;
        while at + 2 * LANES <= values {
            self.sums::<Q, 2>(state, at, &shrink);
            at += 2 * LANES;
        }
        if at < values {
            self.sums::<Q, 1>(state, at, &shrink);
        }
    }

    /// Scores of `V` vectors of tokens from `at` on: each a sum over the head, first value to last.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn scores<const Q: usize, const V: usize>(&self, state: &mut State, at: usize) {
        let (key_dim, stride) = (self.layout.key_dim, self.layout.key_stride());
        assert!(self.keys.len() >= key_dim * stride && at + V * LANES <= stride);
        let q = &state.q[self.first * key_dim..][..Q * key_dim];
        let mut acc = [[lanes::zero(); V]; Q];
        for d in 0..key_dim {
            let mut k = [lanes::zero(); V];
            unrolled!(v < V, {
                // SAFETY: row d of the keys has `stride` values; the vectors end within it.
                k[v] = unsafe { lanes::load_from(self.keys.as_ptr().add(d * stride + at + v * LANES)) };
            });
            unrolled!(i < Q, {
                // SAFETY: `q` has Q rows of `key_dim`.
                let q = unsafe { lanes::splat(*q.as_ptr().add(i * key_dim + d)) };
                unrolled!(v < V, {
                    acc[i][v] = lanes::fma(q, k[v], acc[i][v]);
                });
            });
        }
        unrolled!(i < Q, {
            unrolled!(v < V, {
                lanes::store(&mut state.weight, i * stride + at + v * LANES, acc[i][v]);
            });
        });
    }

    /// Turns the scores of query `i` of the tile into weights, adds them to its total, and says by how much earlier sums
    /// shrink.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn softmax(&self, state: &mut State, i: usize) -> f32 {
        let weight = &mut state.weight[i * self.layout.key_stride()..][..self.layout.key_stride()];
        let (seen, query) = (&self.seen[i], self.first + i);
        if seen.is_empty() {
            weight.fill(0.0);
            return 1.0;
        }
        weight[..seen.start].fill(f32::NEG_INFINITY);
        weight[seen.end..].fill(f32::NEG_INFINITY);
        let mut top = lanes::load(weight, 0);
        let mut at = LANES;
        while at < weight.len() {
            top = lanes::larger(top, lanes::load(weight, at));
            at += LANES;
        }
        let before = state.largest[query];
        let largest = before.max(lanes::max(top));
        let mut total = lanes::load(&state.total, query * LANES);
        let mut shrink = 1.0;
        if largest > before {
            let factor = lanes::exp(lanes::splat(before - largest));
            shrink = lanes::first(factor);
            total = lanes::mul(total, factor);
            state.largest[query] = largest;
        }
        let largest = lanes::splat(largest);
        let mut at = 0;
        while at < weight.len() {
            let p = lanes::exp(lanes::sub(lanes::load(weight, at), largest));
            total = lanes::add(total, p);
            lanes::store(weight, at, p);
            at += LANES;
        }
        lanes::store(&mut state.total, query * LANES, total);
        shrink
    }

    /// Adds the weighted values, `V` vectors from `at` on, to the sums of the queries: token after token.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma"))]
    #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
    fn sums<const Q: usize, const V: usize>(&self, state: &mut State, at: usize, shrink: &[f32; Q]) {
        let (keys, values) = (self.layout.key_stride(), self.layout.value_stride());
        let weight = &state.weight[..Q * keys];
        assert!(self.any.end <= self.layout.block_size && at + V * LANES <= values);
        assert!(self.values.len() >= self.layout.block_size * values);
        let mut acc = [[lanes::zero(); V]; Q];
        unrolled!(i < Q, {
            unrolled!(v < V, {
                let sum = lanes::load(&state.sum, (self.first + i) * values + at + v * LANES);
                acc[i][v] = lanes::mul(sum, lanes::splat(shrink[i]));
            });
        });
        for token in self.any.clone() {
            let mut x = [lanes::zero(); V];
            unrolled!(v < V, {
                // SAFETY: the token is below `block_size`, the vectors end within its row.
                x[v] = unsafe { lanes::load_from(self.values.as_ptr().add(token * values + at + v * LANES)) };
            });
            unrolled!(i < Q, {
                // SAFETY: `weight` has Q rows of `key_stride`, which is no less than `block_size`.
                let p = unsafe { lanes::splat(*weight.as_ptr().add(i * keys + token)) };
                unrolled!(v < V, {
                    acc[i][v] = lanes::fma(p, x[v], acc[i][v]);
                });
            });
        }
        unrolled!(i < Q, {
            unrolled!(v < V, {
                lanes::store(&mut state.sum, (self.first + i) * values + at + v * LANES, acc[i][v]);
            });
        });
    }
}
