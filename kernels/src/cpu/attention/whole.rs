//! Attention in which every token sees every other, without a matrix of scores. Keys and values are first copied block by
//! block into the order in which they are read; then an item, some queries of one head, goes through the blocks and keeps
//! of each query the largest score so far, the sum of its weights and the sum of its weighted values (online softmax).
//!
//! A query meets the blocks in one order and by itself, so its sums do not depend on the others nor on the threads.
#![expect(unsafe_code, reason = "calls code for vectors, and threads write heads of one output")]

use std::cell::RefCell;

use crate::cpu::Level;
use crate::cpu::buffer::Buffer;
use crate::cpu::output::Output;
use crate::cpu::threads::Pool;
use crate::cpu::vectors::{BLOCK, Block, ROUND, State, TILE};
use crate::op::Whole;

/// Queries of an item: whole tiles.
const QUERIES: usize = 8 * TILE;

thread_local! {
    /// State of the queries of an item; grows to the largest item once.
    static STATE: RefCell<State> = const { RefCell::new(State::new()) };
}

impl State {
    /// No queries.
    const fn new() -> State {
        State { q: Vec::new(), sum: Vec::new(), total: Vec::new(), largest: Vec::new(), weight: Vec::new() }
    }

    /// Starts an item of these queries, before any key. Queries that fill up the last tile are zero.
    fn start<'a>(&mut self, queries: impl Iterator<Item = &'a [f32]>, scale: f32, sizes: Sizes) {
        let fill = |v: &mut Vec<f32>, len, value| {
            v.clear();
            v.resize(len, value);
        };
        self.q.clear();
        queries.for_each(|query| self.q.extend(query.iter().map(|q| q * scale)));
        self.q.resize(QUERIES * sizes.head_dim, 0.0);
        fill(&mut self.sum, QUERIES * sizes.stride, 0.0);
        fill(&mut self.total, QUERIES * ROUND, 0.0);
        fill(&mut self.largest, QUERIES, f32::NEG_INFINITY);
        fill(&mut self.weight, TILE * BLOCK, 0.0);
    }
}

/// Sizes of a call.
#[derive(Copy, Clone)]
struct Sizes {
    tokens: usize,
    heads: usize,
    head_dim: usize,
    /// Values from one token's to the next in a packed block.
    stride: usize,
}

impl Sizes {
    /// Blocks of a head.
    fn blocks(self) -> usize {
        self.tokens.div_ceil(BLOCK)
    }

    /// Values of a token.
    fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of a packed block: keys, then values.
    fn block_len(self) -> usize {
        BLOCK * (self.head_dim + self.stride)
    }

    /// Where a head of a token starts.
    fn at(self, token: usize, head: usize) -> usize {
        token * self.width() + head * self.head_dim
    }
}

/// Runs a call whose arguments have been checked, on a machine that has what `level` names; that is not [`Level::Plain`].
pub(super) fn run(
    (pool, level, buffer): (&mut Pool, Level, &mut Buffer),
    args: &Whole<'_>,
    (tokens, head_dim): (usize, usize),
    out: &mut [f32],
) {
    let sizes = Sizes { tokens, heads: args.heads, head_dim, stride: head_dim.next_multiple_of(ROUND) };
    if out.is_empty() {
        return;
    }
    let (blocks, len) = (sizes.blocks(), sizes.block_len());
    let packed = buffer.take(args.heads * blocks * len);
    pool.run_parts(packed, len, &|start, block| {
        pack(args, sizes, (start / len / blocks, start / len % blocks), block);
    });
    let packed = &*packed;
    let groups = tokens.div_ceil(QUERIES);
    let out = Output::new(out);
    pool.run(args.heads * groups, &|item| {
        let (head, first) = (item / groups, item % groups * QUERIES);
        let blocks = &packed[head * blocks * len..][..blocks * len];
        // SAFETY: no two items have a head of a token in common.
        unsafe { run_item((args, level), sizes, (head, first), blocks, &out) };
    });
}

/// Copies the keys `[head_dim, BLOCK]` and values `[BLOCK, stride]` of a block of a head; what is not there is zero.
fn pack(args: &Whole<'_>, sizes: Sizes, (head, block): (usize, usize), packed: &mut [f32]) {
    packed.fill(0.0);
    let (keys, values) = packed.split_at_mut(BLOCK * sizes.head_dim);
    let first = block * BLOCK;
    for token in first..sizes.tokens.min(first + BLOCK) {
        let at = sizes.at(token, head);
        let (k, v) = (&args.k[at..][..sizes.head_dim], &args.v[at..][..sizes.head_dim]);
        keys.iter_mut().skip(token - first).step_by(BLOCK).zip(k).for_each(|(to, k)| *to = *k);
        values[(token - first) * sizes.stride..][..sizes.head_dim].copy_from_slice(v);
    }
}

/// Computes some queries of a head, from `first` on.
///
/// # Safety
/// The machine has what `level` names; no other thread writes this head of these tokens.
unsafe fn run_item(
    (args, level): (&Whole<'_>, Level),
    sizes: Sizes,
    (head, first): (usize, usize),
    blocks: &[f32],
    out: &Output<'_>,
) {
    let tokens = first..sizes.tokens.min(first + QUERIES);
    STATE.with_borrow_mut(|state| {
        let queries = tokens.clone().map(|token| &args.q[sizes.at(token, head)..][..sizes.head_dim]);
        state.start(queries, args.scale, sizes);
        let tiles = tokens.len().div_ceil(TILE);
        for (block, packed) in blocks.chunks_exact(sizes.block_len()).enumerate() {
            let (keys, values) = packed.split_at(BLOCK * sizes.head_dim);
            let Sizes { head_dim, stride, .. } = sizes;
            let seen = BLOCK.min(sizes.tokens - block * BLOCK);
            let block = Block { keys, values, head_dim, stride, seen };
            // SAFETY: the level says what the machine has.
            unsafe { block.run(level, state, tiles) };
        }
        for (query, token) in tokens.enumerate() {
            // SAFETY: a head of a token of this item, which no other thread writes.
            let out = unsafe { out.part(sizes.at(token, head), sizes.head_dim) };
            let total = state.total[query * ROUND..][..ROUND].iter().sum::<f32>();
            let sum = &state.sum[query * sizes.stride..];
            out.iter_mut().zip(sum).for_each(|(out, sum)| *out = sum / total);
        }
    });
}
