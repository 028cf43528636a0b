//! What a row of a step asks of the arithmetic, in closed form: how many multiply-adds with weights, how many with keys
//! and values, how many bytes. Who plans steps knows what they will take before they run; nothing here runs anything.
//!
//! A model is a few *kinds* of layers, and what a row asks of a kind is a polynomial in where it begins and ends. So a row
//! costs a handful of operations whatever its length. Only a replay whose layers begin one after the other is counted
//! layer by layer.

mod families;
mod image;
mod sums;

use std::ops::{Add, AddAssign};
use std::path::Path;

pub(crate) use image::ImageWork;

use crate::error::Error;
use crate::kv::KvFormat;
use crate::model::{ExpertFacts, ImagePlan};
use sums::{entries, seen, spread};

/// What a step, or a part of it, asks. Parts add up: what all of them read together (weights) counts once.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Work {
    /// Rows.
    pub rows: f64,
    /// Tokens.
    pub tokens: f64,
    /// Multiply-adds with weights of layers; of experts, with those that compute a token.
    pub gemm: f64,
    /// Multiply-adds of attention: tokens with the keys and values that they see, in windows, everywhere, or in entries
    /// that were chosen.
    pub pairs: f64,
    /// Multiply-adds of choosing: tokens with the small keys of entries that they look at.
    pub scores: f64,
    /// Multiply-adds with the output matrix: of the tokens whose logits are wanted.
    pub head: f64,
    /// Rows of lookup tables that tokens name.
    pub lookups: f64,
    /// Bytes of weights that are read whatever the number of tokens, without experts.
    pub weights: f64,
    /// Bytes of all experts of all layers.
    pub experts: f64,
    /// The part of them that no token has chosen, if each token chooses by itself.
    pub untouched: f64,
    /// Bytes of keys and values that are read, each once a row.
    pub kv: f64,
    /// The same of the row that reads most: one row keeps few threads busy.
    pub longest: f64,
}

impl Default for Work {
    /// Nothing to do.
    fn default() -> Self {
        Work {
            rows: 0.0,
            tokens: 0.0,
            gemm: 0.0,
            pairs: 0.0,
            scores: 0.0,
            head: 0.0,
            lookups: 0.0,
            weights: 0.0,
            experts: 0.0,
            untouched: 1.0,
            kv: 0.0,
            longest: 0.0,
        }
    }
}

impl Work {
    /// Bytes of weights that are read, experts in expectation.
    pub fn weights_read(&self) -> f64 {
        self.weights + self.experts * (1.0 - self.untouched)
    }

    /// All multiply-adds.
    pub fn multiply_adds(&self) -> f64 {
        self.gemm + self.pairs + self.scores + self.head
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.rows += other.rows;
        self.tokens += other.tokens;
        self.gemm += other.gemm;
        self.pairs += other.pairs;
        self.scores += other.scores;
        self.head += other.head;
        self.lookups += other.lookups;
        self.weights = self.weights.max(other.weights);
        self.experts = self.experts.max(other.experts);
        self.untouched *= other.untouched;
        self.kv += other.kv;
        self.longest = self.longest.max(other.longest);
    }
}

impl Add for Work {
    type Output = Work;

    fn add(mut self, other: Work) -> Work {
        self += other;
        self
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Work>>(parts: I) -> Work {
        parts.fold(Work::default(), Add::add)
    }
}

/// A row as far as its work goes: what [`Row`](crate::Row) and [`Local`](crate::Local) say of it, without its tokens.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct RowShape {
    /// Position of its first token.
    pub start: u32,
    /// Its tokens.
    pub tokens: u32,
    /// Tokens whose logits are wanted.
    pub logits: u32,
    /// Windows of the state know positions from here on; 0 where a model keeps none.
    pub valid_from: u32,
    /// The blocks hold everything below this position: tokens before it are a replay.
    pub written: u32,
    /// Layers behind the last source of keys run from here on only.
    pub decoder_from: Option<u32>,
}

impl RowShape {
    /// A row that is no replay and leaves nothing out.
    pub fn plain(start: u32, tokens: u32, logits: u32) -> RowShape {
        RowShape { start, tokens, logits, ..RowShape::default() }
    }
}

/// What counting needs to know of a model, from its settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkFacts {
    /// Kinds of layers in the order of their first ones, and how many layers are of each.
    kinds: Vec<(LayerWork, usize)>,
    /// For each layer, its kind.
    layers: Vec<usize>,
    /// Multiply-adds of one token's logits.
    head: f64,
    /// Products of a token behind the last layer.
    behind: f64,
    /// Layers of an exact replay begin a window of so many tokens later than those before them; 0: all begin at once.
    pub(crate) narrows: u32,
    /// The share of its experts that a token leaves out.
    left_out: f64,
    /// Bytes of a weight, on average: of layers and output, and of experts.
    weight_bytes: (f64, f64),
    /// Bytes of a number of keys and values: in blocks, and in a state that every layer has a window in.
    kv_bytes: (f64, f64),
    /// How the model sees, where it has eyes.
    image: Option<ImageWork>,
}

/// What a layer asks; numbers are multiply-adds or weights of one token unless they say otherwise.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct LayerWork {
    /// Products with weights, experts left out.
    weights: f64,
    /// Those among them before tokens leave the layer that needs the newest of a prompt only.
    early: f64,
    /// Products with experts.
    experts: f64,
    /// Weights of all experts.
    experts_all: f64,
    /// Rows of a lookup table.
    lookups: f64,
    /// Positions that a token sees, itself included; none: all.
    window: Option<u32>,
    /// Of a token and one position that it sees.
    pair: f64,
    /// Numbers of keys and values that a position has.
    numbers: f64,
    /// Compressed entries, where it reads some.
    entries: Option<EntryWork>,
    /// Of an entry that it completes, which only sources do: how many tokens one has, and products.
    source: Option<(u32, f64)>,
    /// Where it stands to the layer from which on the newest tokens of a prompt are enough.
    side: Side,
}

/// Before, at or behind the first layer that needs the newest tokens of a prompt only.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
enum Side {
    #[default]
    Before,
    At,
    Behind,
}

/// What reading compressed entries asks.
#[derive(Copy, Clone, Debug, PartialEq)]
struct EntryWork {
    /// Tokens of one.
    ratio: u32,
    /// Entries that a token sees.
    chosen: u32,
    /// Entries that it looks at to choose; 0: another layer has chosen.
    looks: u32,
    /// Of a token and an entry that it looks at.
    score: f64,
    /// Numbers of an entry that are read to score it.
    numbers: f64,
}

impl WorkFacts {
    /// Counts from `config.json` alone, of a folder or by its own name. Weights are taken to have two bytes.
    ///
    /// # Errors
    /// Any of [`Error`] about settings.
    pub fn of_config(path: &Path) -> Result<WorkFacts, Error> {
        crate::model::work_of_config(path)
    }

    /// The same for blocks whose numbers are stored so. Numbers are f32 until this is said.
    #[must_use]
    pub fn with_kv(mut self, format: KvFormat) -> WorkFacts {
        self.kv_bytes.0 = format.bytes_per_number();
        self
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens of a window that every layer keeps in the state of a sequence; `None`: the model keeps none there.
    pub fn state_window(&self) -> Option<u32> {
        (self.narrows > 0).then_some(self.narrows)
    }

    /// What a row asks.
    pub fn row(&self, row: &RowShape) -> Work {
        if row.tokens == 0 {
            return Work::default();
        }
        let mut work = Work {
            rows: 1.0,
            tokens: f64::from(row.tokens),
            head: f64::from(row.logits) * self.head,
            untouched: self.left_out.powi(row.tokens.min(1 << 20) as i32),
            ..Work::default()
        };
        let replays = row.start < row.written && self.narrows > 0;
        let exact = row.written.saturating_sub(row.valid_from) >= self.layers.len() as u32 * self.narrows;
        if replays && exact {
            for (index, &kind) in self.layers.iter().enumerate() {
                let from = (row.valid_from + index as u32 * self.narrows).min(row.written - self.narrows);
                self.layer((&self.kinds[kind].0, 1.0), from, row, &mut work);
            }
        } else {
            for (kind, count) in &self.kinds {
                self.layer((kind, *count as f64), 0, row, &mut work);
            }
        }
        work.longest = work.kv;
        self.finish(row, &mut work);
        work
    }

    /// What looking at an image asks; nothing where the model has no eyes.
    pub fn image(&self, plan: &ImagePlan) -> Work {
        self.image.as_ref().map_or_else(Work::default, |image| image.of(plan, self.weight_bytes.0))
    }

    /// Adds what `count` layers of a kind ask, which begin at `from` or later.
    fn layer(&self, (kind, count): (&LayerWork, f64), from: u32, row: &RowShape, work: &mut Work) {
        let end = row.start + row.tokens;
        let decoder = row.decoder_from.unwrap_or(0);
        let all = if kind.side == Side::Behind { from.max(decoder) } else { from };
        let first = row.start.max(all).min(end);
        let from = if kind.side == Side::At { all.max(decoder) } else { all };
        let late = row.start.max(from).min(end);
        let (early, tokens) = (f64::from(end - first), f64::from(end - late));
        work.gemm += count * (early * kind.early + tokens * (kind.weights - kind.early + kind.experts));
        work.lookups += count * early * kind.lookups;
        if let Some((ratio, product)) = kind.source {
            let complete = end / ratio - (first.max(row.written) / ratio).min(end / ratio);
            work.gemm += count * f64::from(complete) * product;
        }
        if tokens == 0.0 {
            return;
        }
        let span = match kind.window {
            // Layers that see everything see it in blocks, whatever their windows know.
            None => (0, late, end),
            Some(_) => (row.valid_from.max(from), late, end),
        };
        work.pairs += count * kind.pair * seen(kind.window, span);
        let near = kind.window.map_or(f64::from(end), |window| spread(window, span));
        let entries = kind.entries.map_or(0.0, |of| self.entries(&of, (kind, count), (late, end), work));
        let near_bytes = if self.narrows > 0 { self.kv_bytes.1 } else { self.kv_bytes.0 };
        work.kv += count * kind.numbers * (near * near_bytes + entries * self.kv_bytes.0);
    }

    /// Adds what looking at entries asks; gives how many are read.
    fn entries(
        &self,
        of: &EntryWork,
        (kind, count): (&LayerWork, f64),
        (from, end): (u32, u32),
        work: &mut Work,
    ) -> f64 {
        let all = f64::from(end / of.ratio);
        let chosen = entries(of.ratio, of.chosen, end) - entries(of.ratio, of.chosen, from);
        work.pairs += count * kind.pair * chosen;
        if of.looks > 0 {
            let looked = entries(of.ratio, of.looks, end) - entries(of.ratio, of.looks, from);
            work.scores += count * of.score * looked;
            work.kv += count * of.numbers * self.kv_bytes.0 * looked.min(all);
        }
        chosen.min(all)
    }

    /// Adds what does not belong to one layer.
    fn finish(&self, row: &RowShape, work: &mut Work) {
        let from = self.last_from(row);
        let end = row.start + row.tokens;
        work.gemm += f64::from(end - row.start.max(from).min(end)) * self.behind;
        let of_kinds = |of: fn(&LayerWork) -> f64| {
            self.kinds.iter().map(|(kind, count)| of(kind) * *count as f64).sum::<f64>()
        };
        let head = if row.logits > 0 { self.head } else { 0.0 };
        work.weights = self.weight_bytes.0 * (of_kinds(|kind| kind.weights) + self.behind + head);
        work.experts = self.weight_bytes.1 * of_kinds(|kind| kind.experts_all);
    }

    /// Where the last layer begins.
    fn last_from(&self, row: &RowShape) -> u32 {
        let count = self.layers.len() as u32;
        let span = count * self.narrows;
        let exact = span > 0 && row.written.saturating_sub(row.valid_from) >= span;
        let replay = match exact {
            true => (row.valid_from + (count - 1) * self.narrows).min(row.written - self.narrows),
            false => 0,
        };
        let behind = self.layers.last().is_some_and(|&kind| self.kinds[kind].0.side != Side::Before);
        replay.max(row.decoder_from.filter(|_| behind).unwrap_or(0))
    }

    /// What the files say besides: rows of the output matrix, and bytes of weights, which are `(numbers, bytes)`.
    pub(crate) fn found(&mut self, output: usize, all: (u64, u64), experts: &ExpertFacts) {
        let per = |bytes: u64, numbers: u64| bytes as f64 / numbers.max(1) as f64;
        self.head = output as f64;
        self.weight_bytes.0 =
            per(all.1.saturating_sub(experts.bytes), all.0.saturating_sub(experts.parameters));
        self.weight_bytes.1 = per(experts.bytes, experts.parameters);
    }

    /// A model of these layers.
    fn of_layers(of: impl IntoIterator<Item = LayerWork>) -> WorkFacts {
        let mut facts = WorkFacts { weight_bytes: (2.0, 2.0), kv_bytes: (4.0, 4.0), ..WorkFacts::default() };
        for layer in of {
            let known = facts.kinds.iter().position(|(kind, _)| *kind == layer);
            let kind = known.unwrap_or(facts.kinds.len());
            if known.is_none() {
                facts.kinds.push((layer, 0));
            }
            facts.kinds[kind].1 += 1;
            facts.layers.push(kind);
        }
        facts
    }
}

#[cfg(test)]
mod tests;
