//! Layers whose keys and values lie in rings of the state: a step writes and reads them piece by piece, so that no more is
//! written at once than a ring has room for beside its window. Attention sums a query's past block by block, wherever those
//! blocks lie, so the results have the bits that they have with everything in blocks.

use super::Local;
use super::pass::store;
use crate::backend::Backend;
use crate::kv::{AHEAD, KvLayout, KvMemory};
use crate::op::{Attention, AttentionRow};

/// The rows of a step, and what each says of its state.
#[derive(Copy, Clone)]
pub(super) struct Rows<'a> {
    pub rows: &'a [AttentionRow<'a>],
    pub locals: &'a [Local<'a>],
    /// Where the positions of each row lie in rings, as [`tables`] says it.
    pub tables: &'a [u32],
}

/// Queries, keys and values of a step, and where the result goes.
pub(super) struct Tokens<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub out: &'a mut [f32],
}

/// Block tables of all rows in their rings, one behind the other; nothing where no layer has a ring.
pub(super) fn tables<'a>(
    layout: KvLayout,
    rows: impl Iterator<Item = (&'a AttentionRow<'a>, &'a Local<'a>)>,
    out: &mut Vec<u32>,
) {
    out.clear();
    let length = layout.ring_blocks() as u32;
    if length == 0 {
        return;
    }
    for (row, local) in rows {
        let blocks = blocks(row, layout.block_size) as u32;
        out.extend((0..blocks).map(|block| local.slot * length + block % length));
    }
}

/// Blocks that a row reaches.
fn blocks(row: &AttentionRow<'_>, block_size: usize) -> usize {
    (row.start as usize + row.tokens).div_ceil(block_size)
}

/// Attention of a step over rings; the rows are those of `step`.
pub(super) fn attend(
    kv: &mut KvMemory,
    backend: &mut dyn Backend,
    step: Rows<'_>,
    args: Attention<'_>,
    mut tokens: Tokens<'_>,
) {
    let size = kv.layout().block_size;
    let mut tables = step.tables;
    let mut rows = Vec::with_capacity(step.rows.len());
    for (row, local) in step.rows.iter().zip(step.locals) {
        let (own, rest) = tables.split_at(blocks(row, size));
        rows.push(AttentionRow { from: local.valid_from, blocks: own, ..*row });
        tables = rest;
    }
    // Without slots there are no rows.
    let Some(kv) = kv.rings_mut() else { return };
    let (mut first, mut index) = (0, 0);
    while index < rows.len() {
        // Short rows share a call; a long one has its own, piece by piece.
        let short = rows[index..].iter().take_while(|row| row.tokens <= AHEAD).count();
        let taken = &rows[index..index + short.max(1)];
        if short > 0 {
            first += piece(kv, backend, (taken, first), args, &mut tokens);
        } else {
            for start in (0..taken[0].tokens).step_by(AHEAD) {
                let count = AHEAD.min(taken[0].tokens - start);
                let row = AttentionRow { start: taken[0].start + start as u32, tokens: count, ..taken[0] };
                first += piece(kv, backend, (&[row], first), args, &mut tokens);
            }
        }
        index += taken.len();
    }
}

/// Writes and attends to the tokens of rows that follow each other, from token `first` of the step on; says how many.
fn piece(
    kv: &mut KvMemory,
    backend: &mut dyn Backend,
    (rows, first): (&[AttentionRow<'_>], usize),
    args: Attention<'_>,
    tokens: &mut Tokens<'_>,
) -> usize {
    let KvLayout { kv_heads, key_dim, value_dim, .. } = kv.layout();
    let args = Attention { rows, ..args };
    let count = args.tokens();
    let part = |width: usize| first * width..(first + count) * width;
    let (k, v) = (&tokens.k[part(kv_heads * key_dim)], &tokens.v[part(kv_heads * value_dim)]);
    store(kv, args.layer, rows.iter().map(|row| (row, 0)), (k, v));
    let q = &tokens.q[part(args.heads * key_dim)];
    backend.attention(&args, q, kv, &mut tokens.out[part(args.heads * value_dim)]);
    count
}
