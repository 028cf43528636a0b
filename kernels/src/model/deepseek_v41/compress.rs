//! Compressed entries: what a source makes of the tokens of a step, one entry for each or for each two. A pair may have
//! its first token in an earlier step: what that brings is kept in the state slot.

use super::super::Local;
use super::super::scratch::{Scratch, sized};
use super::parts::SourcePart;
use super::pass::Streams;
use super::scratch::StreamScratch;
use super::state::{HALVES, State};
use crate::kv::KvMemory;
use crate::op::{AttentionRow, turns_of};

/// An entry of a step.
#[derive(Copy, Clone)]
struct Entry {
    /// Its row.
    row: usize,
    /// Its place in the sequence.
    index: usize,
    /// Its last token, among those of the step.
    last: usize,
}

/// Writes the entries that the tokens of the step complete.
pub(super) fn entries(streams: &mut Streams<'_>, part: &SourcePart) {
    let count = streams.count();
    let (state, hidden) = (streams.model.state, streams.pass.hidden);
    let dim = state.dim;
    let Scratch { y, streams: own, .. } = &mut *streams.pass.scratch;
    let backend = &mut *streams.pass.backend;
    let StreamScratch { values, scores, entries, entry_keys, entry_turns, .. } = own;
    let (values, y) = (sized(values, count * dim), &y[..count * hidden]);
    let ratio = 1 + usize::from(part.gate.is_some());
    let list = completed(&streams.pass.rows, &streams.pass.locals, ratio);
    let entries = sized(entries, list.len() * dim);
    if let Some(gate) = &part.gate {
        let scores = sized(scores, count * dim);
        backend.matmul_many(y, count, &mut [(&part.value, &mut *values), (gate, &mut *scores)]);
        let halves = Halves { state, source: part.layer, values, scores };
        pair(&halves, &streams.pass.rows, (&list, &streams.pass.locals), streams.pass.kv, entries);
        halves.keep(&streams.pass.rows, &streams.pass.locals, streams.pass.kv);
    } else {
        backend.matmul(y, count, &part.value, values);
        for (entry, into) in list.iter().zip(entries.chunks_exact_mut(dim)) {
            into.copy_from_slice(&values[entry.last * dim..][..dim]);
        }
    }
    if list.is_empty() {
        return;
    }
    backend.rms_norm_in_place(entries, &part.norm.weight, part.norm.eps);
    let keys = sized(entry_keys, list.len() * part.key.rows);
    backend.matmul(entries, list.len(), &part.key, keys);
    backend.rms_norm_in_place(keys, &part.key_norm.weight, part.key_norm.eps);
    let positions = list.iter().map(|entry| (entry.index * ratio) as u32);
    turns_of(positions, &streams.model.frequencies[1], entry_turns);
    backend.turn(keys, (list.len(), 1), entry_turns, false);
    backend.turn(entries, (list.len(), 1), entry_turns, false);
    let in_block = streams.pass.kv.layout().of_layer(part.layer).block_size;
    let written = keys.chunks_exact(part.key.rows).zip(entries.chunks_exact(dim));
    for (entry, (key, value)) in list.iter().zip(written) {
        let block = streams.pass.rows[entry.row].blocks[entry.index / in_block];
        streams.pass.kv.write(part.layer, block, entry.index % in_block, key, value);
    }
}

/// Entries whose last tokens are in the step, but for those that are there already.
fn completed(rows: &[AttentionRow<'_>], locals: &[Local<'_>], ratio: usize) -> Vec<Entry> {
    let (mut entries, mut first) = (Vec::new(), 0);
    for (index, (row, local)) in rows.iter().zip(locals).enumerate() {
        let (start, end) = (row.start as usize, row.start as usize + row.tokens);
        let from = start.max(local.written as usize);
        // The first whose last token is no earlier than `from`.
        let complete = from / ratio..end / ratio;
        entries.extend(complete.map(|entry| {
            let last = entry * ratio + ratio - 1;
            Entry { row: index, index: entry, last: first + last - start }
        }));
        first += row.tokens;
    }
    entries
}

/// What tokens of a step bring to pairs.
struct Halves<'a> {
    state: State,
    /// Which source of pairs.
    source: usize,
    /// `[tokens, dim]`.
    values: &'a [f32],
    scores: &'a [f32],
}

/// `out [entries, dim]`: of each value of two tokens, so much as their scores say.
fn pair(
    halves: &Halves<'_>,
    rows: &[AttentionRow<'_>],
    (list, locals): (&[Entry], &[Local<'_>]),
    kv: &KvMemory,
    out: &mut [f32],
) {
    let dim = halves.state.dim;
    for (entry, out) in list.iter().zip(out.chunks_exact_mut(dim)) {
        let before = 2 * entry.index;
        let (score, value) = if before >= rows[entry.row].start as usize {
            halves.of(entry.last - 1)
        } else {
            let slot = kv.slot(locals[entry.row].slot);
            slot[halves.state.half(halves.source, before)..][..2 * dim].split_at(dim)
        };
        let (score_2, value_2) = halves.of(entry.last);
        for i in 0..dim {
            let max = score[i].max(score_2[i]);
            let (a, b) = ((score[i] - max).exp(), (score_2[i] - max).exp());
            out[i] = (a * value[i] + b * value_2[i]) / (a + b);
        }
    }
}

impl Halves<'_> {
    /// Score and value of a token of the step.
    fn of(&self, token: usize) -> (&[f32], &[f32]) {
        let dim = self.state.dim;
        (&self.scores[token * dim..][..dim], &self.values[token * dim..][..dim])
    }

    /// Keeps what the newest tokens bring.
    fn keep(&self, rows: &[AttentionRow<'_>], locals: &[Local<'_>], kv: &mut KvMemory) {
        let (dim, mut first) = (self.state.dim, 0);
        for (row, local) in rows.iter().zip(locals) {
            let slot = kv.slot_mut(local.slot);
            for token in row.tokens.saturating_sub(HALVES)..row.tokens {
                let half = self.state.half(self.source, row.start as usize + token);
                let (score, value) = self.of(first + token);
                slot[half..][..dim].copy_from_slice(score);
                slot[half + dim..][..dim].copy_from_slice(value);
            }
            first += row.tokens;
        }
    }
}
