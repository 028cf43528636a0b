//! The backend that says what every operation means: plain loops over f32, in the order of the formula. It is slow, it
//! is right, and the fast backends are compared with it; on machines they do not know, they call its functions.

mod sight;

pub(crate) use sight::{ERF_LARGE, ERF_SMALL, attend_whole, layer_norm_rows, turn_axes};

use crate::backend::Backend;
use crate::kv::{KvMemory, Widened};
use crate::matrix::Matrix;
use crate::op::{self, Activation, Attention, AttentionRow, Pairing, RopeTable};
use crate::packed::plain;

/// Plain loops on the calling thread.
#[derive(Debug, Default)]
pub struct ReferenceBackend;

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut [f32]) {
        op::check_embed(table, tokens, out);
        embed(table, tokens, out);
    }

    fn matmul_many(&mut self, x: &[f32], rows: usize, parts: &mut [(&Matrix, &mut [f32])]) {
        op::check_matmul(x, rows, parts);
        for (weight, out) in parts {
            for r in 0..weight.rows {
                dot_row(x, weight, r, |row, value| out[row * weight.rows + r] = value);
            }
        }
    }

    fn rms_norm(&mut self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        op::check_norm(x, weight, out.len());
        out.copy_from_slice(x);
        norm_rows(out, weight, eps);
    }

    fn rms_norm_in_place(&mut self, x: &mut [f32], weight: &[f32], eps: f32) {
        op::check_norm(x, weight, x.len());
        norm_rows(x, weight, eps);
    }

    fn rope(&mut self, x: &mut [f32], heads: usize, positions: &[u32], table: &RopeTable, pairing: Pairing) {
        let head_dim = op::check_rope(x, heads, positions, table);
        let mut turn = vec![0.0; table.rotated()];
        for (&position, token) in positions.iter().zip(x.chunks_exact_mut((heads * head_dim).max(1))) {
            table.turn(position, &mut turn);
            token.chunks_exact_mut(head_dim).for_each(|head| turn_head(head, &turn, pairing));
        }
    }

    fn gated(&mut self, gate: &mut [f32], up: &[f32], activation: Activation) {
        op::check_pair("gated", gate, up);
        gated(gate, up, activation);
    }

    fn add(&mut self, x: &mut [f32], y: &[f32]) {
        op::check_pair("add", x, y);
        add(x, y);
    }

    fn scale(&mut self, x: &mut [f32], factor: f32) {
        scale(x, factor);
    }

    fn attention(&mut self, args: &Attention<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
        op::check_attention(args, q, kv, out);
        let (keys, values) = (args.heads * kv.layout().key_dim, args.heads * kv.layout().value_dim);
        let seen =
            |(r, row): (usize, &AttentionRow<'_>)| (0..row.tokens).map(move |token| Seen { row: r, token });
        let tokens = args.rows.iter().enumerate().flat_map(seen);
        for ((seen, q), out) in tokens.zip(q.chunks_exact(keys)).zip(out.chunks_exact_mut(values)) {
            attend(args, seen, q, kv, out);
        }
    }
}

/// Rows of a table.
pub(crate) fn embed(table: &Matrix, tokens: &[u32], out: &mut [f32]) {
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(table.cols.max(1))) {
        table.widen(token as usize, out);
    }
}

/// Products of every row of `x` with row `r` of `weight`, given to `put` with the number of the row.
pub(crate) fn dot_row(x: &[f32], weight: &Matrix, r: usize, mut put: impl FnMut(usize, f32)) {
    if let Some(packed) = weight.packed() {
        return plain::dot_row(x, weight.cols, (packed, r), put);
    }
    if let Some(packed) = weight.floats() {
        return packed.dot_row(x, r, put);
    }
    let mut w = vec![0.0; weight.cols];
    weight.widen(r, &mut w);
    for (row, x) in x.chunks_exact(weight.cols.max(1)).enumerate() {
        put(row, dot(x, &w));
    }
}

/// Sum of products, first to last.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y)
}

/// Norm of each row, in place.
pub(crate) fn norm_rows(x: &mut [f32], weight: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        let factor = 1.0 / (dot(x, x) / weight.len() as f32 + eps).sqrt();
        x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * factor * w);
    }
}

/// The factor of the norm of a row.
pub(crate) fn norm_factor(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Turns one head by the cosines and sines of its position.
pub(crate) fn turn_head(head: &mut [f32], turn: &[f32], pairing: Pairing) {
    let pairs = turn.len() / 2;
    for i in 0..pairs {
        let (a, b) = match pairing {
            Pairing::Half => (i, i + pairs),
            Pairing::Adjacent => (2 * i, 2 * i + 1),
        };
        let (x, y, cos, sin) = (head[a], head[b], turn[i], turn[pairs + i]);
        head[a] = x * cos - y * sin;
        head[b] = y * cos + x * sin;
    }
}

/// Turns the last values of the heads of one token, neighbours together, by its cosines and sines; `back`: the other way.
#[inline(always)]
pub(crate) fn turn_ends(x: &mut [f32], head_dim: usize, turn: &[f32], back: bool) {
    let (cos, sin) = turn.split_at(turn.len() / 2);
    let sign = if back { -1.0 } else { 1.0 };
    for head in x.chunks_exact_mut(head_dim) {
        let end = head[head_dim - turn.len()..].chunks_exact_mut(2);
        for ((pair, cos), sin) in end.zip(cos).zip(sin) {
            let (x, y, sin) = (pair[0], pair[1], sin * sign);
            pair[0] = x * cos - y * sin;
            pair[1] = y * cos + x * sin;
        }
    }
}

/// `gate = activation(gate) * up`.
pub(crate) fn gated(gate: &mut [f32], up: &[f32], activation: Activation) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        let x = *gate;
        *gate = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()) * up,
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh()) * up
            }
            Activation::Gelu => 0.5 * x * (1.0 + sight::erf(x * std::f32::consts::FRAC_1_SQRT_2)) * up,
            Activation::ClampedSwiglu { slope, limit } => {
                // What is no number stays so.
                let x = if x > limit { limit } else { x };
                x / (1.0 + (-slope * x).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
            Activation::ClampedSilu { limit } => {
                let x = if x > limit { limit } else { x };
                x / (1.0 + (-x).exp()) * up.clamp(-limit, limit)
            }
        };
    }
}

/// `x += y`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// `x *= factor`.
pub(crate) fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Which token of which row of an attention call.
#[derive(Copy, Clone)]
pub(crate) struct Seen {
    /// Index of the row.
    pub row: usize,
    /// Token of that row, from 0.
    pub token: usize,
}

/// Attention of one token, all heads: softmax of the scores, then the weighted sum of the values.
pub(crate) fn attend(args: &Attention<'_>, seen: Seen, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
    let (layout, row) = (kv.layout(), args.rows[seen.row]);
    let (key_dim, value_dim, group) = (layout.key_dim, layout.value_dim, args.heads / layout.kv_heads);
    let position = row.start as usize + seen.token;
    let (first, size) = (args.first_seen(&row, position), layout.block_size);
    // Of each block: which one, and which of its tokens are seen.
    let blocks = (first / size..=position / size).map(|b| {
        let within = |p: usize| p.saturating_sub(b * size).min(size);
        (row.blocks[b], within(first)..within(position + 1))
    });
    let (mut scores, mut wide) = (Vec::with_capacity(position + 1 - first), Widened::default());
    for (head, (q, out)) in q.chunks_exact(key_dim).zip(out.chunks_exact_mut(value_dim)).enumerate() {
        let kv_head = head / group;
        scores.clear();
        for (block, tokens) in blocks.clone() {
            let (keys, _) = kv.head(args.layer, block, kv_head, &mut wide);
            scores.extend(tokens.map(|offset| {
                let key = keys.chunks_exact(layout.key_stride()).map(|lanes| lanes[offset]);
                args.scale * q.iter().zip(key).fold(0.0, |sum, (q, k)| sum + q * k)
            }));
        }
        let sink = args.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        let max = scores.iter().fold(sink, |max, &score| max.max(score));
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let total = scores.iter().sum::<f32>() + (sink - max).exp();
        out.fill(0.0);
        let mut weights = scores.iter();
        for (block, tokens) in blocks.clone() {
            let (_, values) = kv.head(args.layer, block, kv_head, &mut wide);
            for (offset, weight) in tokens.zip(&mut weights) {
                let value = &values[offset * layout.value_stride()..][..value_dim];
                out.iter_mut().zip(value).for_each(|(out, v)| *out += weight / total * v);
            }
        }
    }
}
