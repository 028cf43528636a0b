//! Attention over blocks of keys and values: how a call is cut into items for the threads. An item is one key head and some
//! consecutive tokens of one row; its queries are these tokens times the heads that share the key head (or some of them,
//! where they are many), so that a block of keys and values, once in the nearest cache, serves all of them.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod flash;
#[cfg(target_arch = "x86_64")]
mod whole;

use super::Level;
use super::buffer::Buffer;
use super::output::Output;
use super::threads::Pool;
use crate::kv::KvMemory;
use crate::op::{Attention, Whole};
use crate::reference::{self, Seen};

/// Queries of an item, as far as whole tokens allow.
const QUERIES: usize = 48;

/// Part of an attention call.
#[derive(Copy, Clone)]
pub(super) struct Item {
    /// Which row of the call.
    pub row: usize,
    /// Which head of keys and values.
    pub kv_head: usize,
    /// First head of queries.
    pub head: usize,
    /// How many heads.
    pub heads: usize,
    /// First token, counted within the row.
    pub token: usize,
    /// How many tokens.
    pub tokens: usize,
    /// Place of the first token among those of all rows.
    pub place: usize,
}

/// Runs a call whose arguments have been checked.
pub(crate) fn run(
    (pool, level): (&mut Pool, Level),
    args: &Attention<'_>,
    (q, kv): (&[f32], &KvMemory),
    out: &mut [f32],
) {
    match level {
        Level::Plain => plain(pool, args, (q, kv), out),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => {
            let items = items(args, kv.layout().kv_heads);
            let out = Output::new(out);
            // SAFETY: the level says that the machine has the features; no two items have a head of a token in common.
            #[expect(unsafe_code, reason = "calls code for vectors")]
            pool.run(items.len(), &|item| unsafe { flash::item(args, items[item], (q, kv), &out) });
        }
    }
}

/// Runs a call in which every token sees every other; its arguments have been checked.
pub(crate) fn whole(
    (pool, level, buffer): (&mut Pool, Level, &mut Buffer),
    args: &Whole<'_>,
    (tokens, head_dim): (usize, usize),
    out: &mut [f32],
) {
    let width = args.heads * head_dim;
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => whole::run((pool, level, buffer), args, (tokens, head_dim), out),
        _ => {
            let _ = (buffer, tokens);
            pool.run_parts(out, width, &|start, out| {
                reference::attend_whole(args, head_dim, start / width, out);
            });
        }
    }
}

/// The reference, a token at a time.
fn plain(pool: &mut Pool, args: &Attention<'_>, (q, kv): (&[f32], &KvMemory), out: &mut [f32]) {
    let tokens = items(args, 1);
    let (keys, values) = (args.heads * kv.layout().key_dim, args.heads * kv.layout().value_dim);
    let seen = |place: usize| {
        let item = tokens.iter().rfind(|item| item.place <= place).expect("items cover all tokens");
        Seen { row: item.row, token: item.token + place - item.place }
    };
    pool.run_parts(out, values, &|start, out| {
        let token = start / values;
        reference::attend(args, seen(token), &q[token * keys..][..keys], kv, out);
    });
}

/// All items of a call.
fn items(args: &Attention<'_>, kv_heads: usize) -> Vec<Item> {
    let group = args.heads / kv_heads;
    let heads_max = group.div_ceil(group.div_ceil(QUERIES));
    let tokens_max = (QUERIES / heads_max).max(1);
    let heads: Vec<(usize, usize, usize)> = (0..kv_heads)
        .flat_map(|kv_head| (0..group).step_by(heads_max).map(move |first| (kv_head, first)))
        .map(|(kv_head, first)| (kv_head, kv_head * group + first, heads_max.min(group - first)))
        .collect();
    let (mut items, mut place) = (Vec::new(), 0);
    for (r, row) in args.rows.iter().enumerate() {
        for token in (0..row.tokens).step_by(tokens_max) {
            let tokens = tokens_max.min(row.tokens - token);
            let item = |&(kv_head, head, heads)| {
                let place = place + token;
                Item { row: r, kv_head, head, heads, token, tokens, place }
            };
            items.extend(heads.iter().map(item));
        }
        place += row.tokens;
    }
    items
}
