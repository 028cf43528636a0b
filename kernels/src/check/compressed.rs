//! Attention over windows and chosen entries, and the choice. Choices are checked on small whole numbers: their scores are
//! exact in any order, so every backend must choose the same, and many are equal, so that the order decides.

use super::Check;
use crate::backend::Backend;
use crate::kv::{KvFormat, KvLayout, KvMemory, Rings};
use crate::op::AttentionRow;
use crate::select::{Select, Stage};
use crate::windowed::{Lists, WindowRow, Windowed};

/// Positions of each sequence.
const POSITIONS: usize = 150;
/// Tokens of the rows of a step: first position, how many.
const ROWS: [(u32, usize); 3] = [(0, 30), (149, 1), (70, 41)];

/// A layout: one source of pairs, one of single tokens.
fn layout(dim: usize, index_dim: usize, block_size: usize) -> KvLayout {
    let (key_dim, value_dim) = (index_dim, dim);
    let state = 2 * 30 * dim;
    KvLayout {
        layers: 2,
        kv_heads: 1,
        key_dim,
        value_dim,
        block_size,
        format: KvFormat::F32,
        state,
        paired: 1,
        rings: Rings::NONE,
    }
}

/// Memory of a few sequences, filled.
struct Filled {
    kv: KvMemory,
    tables: Vec<Vec<u32>>,
}

impl Check<'_> {
    /// Choices, then attention.
    pub(super) fn compressed(&mut self) {
        for (heads, dim, block_size) in [(4, 32, 16), (8, 16, 32), (5, 12, 8), (1, 8, 20), (6, 9, 2)] {
            for format in [KvFormat::F32, KvFormat::F16] {
                let layout = KvLayout { format, ..layout(dim, dim, block_size) };
                let filled = self.filled(layout);
                for layer in 0..2 {
                    self.choices(&filled, (heads, layer));
                    self.windows(&filled, (heads, layer));
                }
            }
        }
    }

    /// Entries, and rings, of small whole numbers.
    fn filled(&mut self, layout: KvLayout) -> Filled {
        let needed = POSITIONS.div_ceil(layout.block_size);
        let mut kv = KvMemory::new(layout, 3 * needed).with_slots(3);
        let tables: Vec<Vec<u32>> =
            (0..3).map(|s| (0..needed).map(|b| ((b * 3 + s) % (3 * needed)) as u32).collect()).collect();
        for layer in 0..2 {
            let in_block = layout.of_layer(layer).block_size;
            for (blocks, entry) in tables.iter().flat_map(|t| (0..POSITIONS).map(move |e| (t, e))) {
                if entry < POSITIONS / layout.ratio(layer) {
                    let (k, v) = (self.small(layout.key_dim), self.sample.values(layout.value_dim));
                    kv.write(layer, blocks[entry / in_block], entry % in_block, &k, &v);
                }
            }
        }
        for slot in 0..3 {
            let numbers = self.sample.values(layout.state);
            kv.slot_mut(slot).copy_from_slice(&numbers);
        }
        Filled { kv, tables }
    }

    /// Numbers from -2 to 2.
    fn small(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.sample.below(5) as f32 - 2.0).collect()
    }

    /// Choices with and without a stage, at once and row by row.
    fn choices(&mut self, filled: &Filled, (heads, layer): (usize, usize)) {
        let layout = filled.kv.layout();
        let tokens: usize = ROWS.iter().map(|row| row.1).sum();
        let (q, weights) = (self.small(tokens * heads * layout.key_dim), self.small(tokens * heads));
        let rows: Vec<AttentionRow<'_>> = ROWS
            .iter()
            .zip(&filled.tables)
            .map(|(&(start, tokens), blocks)| AttentionRow { start, tokens, from: 0, blocks })
            .collect();
        for (most, size, kept) in [(1, 8, 2), (7, 8, 5), (16, 4, 9), (40, 3, 3), (200, 8, 40)] {
            let args = Select { heads, layer, most, stage: None, rows: &rows };
            let mut lists = [Lists::default(), Lists::default(), Lists::default(), Lists::default()];
            let case = format!("select {most}, {kept} runs of {size}, layer {layer} of {layout:?}");
            for chooses in [None, Some(true), Some(false)] {
                let stage = chooses.map(|chooses| Stage { size, kept, chooses });
                let args = Select { stage, ..args };
                let [got, got_runs, want, want_runs] = &mut lists;
                self.backend.select(&args, (&q, &weights), &filled.kv, got, got_runs);
                self.reference.select(&args, (&q, &weights), &filled.kv, want, want_runs);
                let same = |a: &Lists, b: &Lists| (0..tokens).all(|token| a.of(token) == b.of(token));
                let runs = chooses.is_none() || same(got_runs, want_runs);
                if !same(got, want) || !runs {
                    self.same(format!("{case}, stage {stage:?}"), &[0.0], &[1.0]);
                }
            }
        }
    }

    /// Attention over windows and entries, at once and token by token.
    fn windows(&mut self, filled: &Filled, (heads, layer): (usize, usize)) {
        let dim = filled.kv.layout().value_dim;
        let tokens: usize = ROWS.iter().map(|row| row.1).sum();
        let sinks = self.sample.values(heads);
        let (q, own) = (self.sample.values(tokens * heads * dim), self.sample.values(tokens * dim));
        let rows: Vec<WindowRow<'_>> = ROWS
            .iter()
            .zip(&filled.tables)
            .zip(0..)
            .map(|((&(start, tokens), blocks), slot)| WindowRow {
                start,
                tokens,
                from: start / 2,
                slot,
                blocks,
            })
            .collect();
        let mut lists = Lists::default();
        lists.start(tokens, 11);
        let positions = ROWS.iter().flat_map(|&(start, tokens)| start as usize..start as usize + tokens);
        for (token, position) in positions.enumerate() {
            let (numbers, counts) = lists.parts();
            let complete = (position + 1) / filled.kv.layout().ratio(layer);
            let chosen = (0..complete).step_by(1 + complete / 11).take(11);
            for (into, entry) in numbers[token * 11..].iter_mut().zip(chosen) {
                *into = entry as u32;
                counts[token] += 1;
            }
        }
        for (chosen, together) in [(None, false), (Some((layer, &lists)), false), (None, true)] {
            let args = Windowed {
                heads,
                scale: 2.0,
                sinks: &sinks,
                window: 24,
                together,
                own: &own,
                ring: (30 * dim, 30),
                chosen,
                rows: &rows,
            };
            let (mut got, mut want) = (vec![f32::NAN; q.len()], vec![0.0; q.len()]);
            self.backend.windowed(&args, &q, &filled.kv, &mut got);
            self.reference.windowed(&args, &q, &filled.kv, &mut want);
            let chosen = args.chosen.is_some();
            let case = format!("windowed {heads} x {dim}, entries {chosen}, together {together}");
            self.close(case, &got, &want, (1.0, 1e-5));
            if chosen {
                self.rows_apart(&args, &q, (&filled.kv, &lists), &got);
            }
        }
    }

    /// The last row by itself.
    fn rows_apart(&mut self, args: &Windowed<'_>, q: &[f32], (kv, lists): (&KvMemory, &Lists), got: &[f32]) {
        let Some((layer, _)) = args.chosen else { return };
        let (first, rows) = (ROWS[0].1 + ROWS[1].1, &args.rows[2..]);
        let dim = kv.layout().value_dim;
        let each = args.heads * dim;
        let mut own = Lists::default();
        own.start(ROWS[2].1, lists.most());
        for token in 0..ROWS[2].1 {
            let list = lists.of(first + token);
            let (numbers, counts) = own.parts();
            numbers[token * 11..][..list.len()].copy_from_slice(list);
            counts[token] = list.len() as u32;
        }
        let alone = Windowed { rows, own: &args.own[first * dim..], chosen: Some((layer, &own)), ..*args };
        let mut out = vec![f32::NAN; got.len() - first * each];
        self.backend.windowed(&alone, &q[first * each..], kv, &mut out);
        self.same(format!("windowed {} x {dim}, a row alone", args.heads), &out, &got[first * each..]);
    }
}
