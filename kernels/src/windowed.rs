//! Attention over the newest positions, whose keys lie in a ring in the sequence's state slot, and over entries that were
//! chosen for each token in blocks. One head of keys serves all heads of queries, and keys are the values.

use std::ops::Range;

use crate::kv::KvMemory;

/// A list of numbers for each token of a step; grows to the largest step once.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// `[tokens, most]`.
    numbers: Vec<u32>,
    /// Numbers of each token.
    counts: Vec<u32>,
    /// Room of each.
    most: usize,
}

impl Lists {
    /// Empty lists of at most `most` numbers for so many tokens.
    pub(crate) fn start(&mut self, tokens: usize, most: usize) {
        self.most = most;
        self.numbers.resize(tokens * most, 0);
        self.counts.clear();
        self.counts.resize(tokens, 0);
    }

    /// The list of a token, ascending.
    pub fn of(&self, token: usize) -> &[u32] {
        &self.numbers[token * self.most..][..self.counts[token] as usize]
    }

    /// Tokens.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// No tokens.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Room of each list, then how long it is, to be written.
    pub(crate) fn parts(&mut self) -> (&mut [u32], &mut [u32]) {
        (&mut self.numbers, &mut self.counts)
    }

    /// Most numbers of a list.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Leaves the lists of some runs of tokens. Lists of an earlier step, which nobody reads any more, may be fewer.
    pub(crate) fn keep(&mut self, runs: &[Range<usize>]) {
        let (len, most, mut at) = (self.len(), self.most, 0);
        for run in runs.iter().map(|run| run.start.min(len)..run.end.min(len)) {
            self.numbers.copy_within(run.start * most..run.end * most, at * most);
            self.counts.copy_within(run.clone(), at);
            at += run.len();
        }
        self.counts.truncate(at);
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        (self.numbers.capacity() + self.counts.capacity()) * size_of::<u32>()
    }
}

/// What the attention needs besides its data.
#[derive(Copy, Clone, Debug)]
pub struct Windowed<'a> {
    /// Heads of queries.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// A score for each head that takes part in the softmax and has no value.
    pub sinks: &'a [f32],
    /// Positions that a token sees, itself included.
    pub window: usize,
    /// Tokens of a row see each other all, and the `window` positions before the first.
    pub together: bool,
    /// Keys of the step's tokens `[tokens, dim]`.
    pub own: &'a [f32],
    /// Where the ring begins in a slot, and how many positions it holds: position `p` is at `p % len`.
    pub ring: (usize, usize),
    /// Layer of the blocks and, for each token, chosen entries in it.
    pub chosen: Option<(usize, &'a Lists)>,
    /// The sequences of the step, in the order of their tokens.
    pub rows: &'a [WindowRow<'a>],
}

/// One sequence's share.
#[derive(Copy, Clone, Debug)]
pub struct WindowRow<'a> {
    /// Position of its first token.
    pub start: u32,
    /// How many tokens, at consecutive positions.
    pub tokens: usize,
    /// No position before this one is seen in the window.
    pub from: u32,
    /// Its state slot.
    pub slot: u32,
    /// Its block table.
    pub blocks: &'a [u32],
}

/// A token of a call.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Place {
    /// Its row.
    pub row: usize,
    /// Its place in the row.
    pub token: usize,
    /// Its place among the tokens of all rows.
    pub place: usize,
}

impl Windowed<'_> {
    /// All tokens.
    pub(crate) fn places(&self) -> Vec<Place> {
        let rows = self.rows.iter().enumerate();
        let tokens = rows.flat_map(|(row, of)| (0..of.tokens).map(move |token| (row, token)));
        tokens.enumerate().map(|(place, (row, token))| Place { row, token, place }).collect()
    }

    /// Positions that a token sees in the ring, and tokens of the step.
    pub(crate) fn seen(&self, place: Place) -> (Range<usize>, Range<usize>) {
        let row = &self.rows[place.row];
        let (start, from) = (row.start as usize, row.from as usize);
        let (position, first) = (start + place.token, place.place - place.token);
        if self.together {
            return (start.saturating_sub(self.window).max(from)..start, first..first + row.tokens);
        }
        let low = (position + 1).saturating_sub(self.window).max(from);
        let end = place.place + 1;
        (low.min(start)..start, (first + low.saturating_sub(start)).min(end)..end)
    }

    /// Writes the keys that a token sees to `keys [seen, stride]` in a fixed order: window, then chosen. Values behind the
    /// end of a key are left as they are.
    pub(crate) fn gather(
        &self,
        place: Place,
        (kv, dim): (&KvMemory, usize),
        stride: usize,
        keys: &mut Vec<f32>,
    ) -> usize {
        let (ring, own) = self.seen(place);
        let row = &self.rows[place.row];
        let chosen = self.chosen.map(|(layer, lists)| (layer, lists.of(place.place)));
        let count = ring.len() + own.len() + chosen.map_or(0, |(_, list)| list.len());
        if keys.len() < count * stride {
            keys.resize(count * stride, 0.0);
        }
        let mut rows = keys.chunks_exact_mut(stride);
        let mut put = |key: &[f32]| {
            if let Some(row) = rows.next() {
                row[..dim].copy_from_slice(key);
            }
        };
        if !ring.is_empty() {
            let (first, len) = self.ring;
            let stored = &kv.slot(row.slot)[first..][..len * dim];
            ring.for_each(|position| put(&stored[position % len * dim..][..dim]));
        }
        self.own[own.start * dim..own.end * dim].chunks_exact(dim).for_each(&mut put);
        if let Some((layer, list)) = chosen {
            let values = kv.values(layer);
            for (&entry, into) in list.iter().zip(rows) {
                let (block, offset) = values.place(entry);
                values.widen(row.blocks[block], offset, &mut into[..dim]);
            }
        }
        count
    }
}

/// Checks the arguments; gives the size of a head.
pub(crate) fn check(args: &Windowed<'_>, q: &[f32], kv: &KvMemory, out: &[f32]) -> usize {
    let tokens: usize = args.rows.iter().map(|row| row.tokens).sum();
    let dim = args.own.len().checked_div(tokens).unwrap_or(0);
    assert!(args.heads > 0 && args.sinks.len() == args.heads, "windowed: a sink for each head");
    assert!(args.window > 0 && args.window <= args.ring.1, "windowed: a ring for the window");
    assert_eq!(args.own.len(), tokens * dim, "windowed: keys of {tokens} tokens");
    assert_eq!((q.len(), out.len()), (tokens * args.heads * dim, q.len()), "windowed: heads");
    let state = kv.layout().state;
    assert!(args.ring.0 + args.ring.1 * dim <= state, "windowed: a ring in a slot of {state}");
    assert!(args.rows.iter().all(|row| (row.slot as usize) < kv.slots()), "windowed: slots");
    if let Some((layer, lists)) = args.chosen {
        assert!(layer < kv.layout().layers, "windowed: layer {layer}");
        assert_eq!((lists.len(), kv.layout().value_dim), (tokens, dim), "windowed: entries");
    }
    dim
}

/// Attention of some heads of one token, which see these keys.
pub(crate) fn attend(
    scale: f32,
    (q, sinks): (&[f32], &[f32]),
    (keys, dim): (&[f32], usize),
    out: &mut [f32],
) {
    let heads = q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).zip(sinks);
    let mut scores = Vec::with_capacity(keys.len() / dim);
    for ((q, out), &sink) in heads {
        scores.clear();
        let dot = |key: &[f32]| q.iter().zip(key).fold(0.0, |sum, (q, k)| sum + q * k);
        scores.extend(keys.chunks_exact(dim).map(|key| scale * dot(key)));
        let max = scores.iter().fold(sink, |max, &score| max.max(score));
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let total = scores.iter().sum::<f32>() + (sink - max).exp();
        out.fill(0.0);
        for (key, weight) in keys.chunks_exact(dim).zip(&scores) {
            out.iter_mut().zip(key).for_each(|(out, k)| *out += weight / total * k);
        }
    }
}

/// The whole call with plain loops.
pub(crate) fn run(args: &Windowed<'_>, q: &[f32], kv: &KvMemory, out: &mut [f32]) {
    let dim = check(args, q, kv, out);
    let (mut keys, each) = (Vec::new(), args.heads * dim);
    for (place, out) in args.places().into_iter().zip(out.chunks_exact_mut(each.max(1))) {
        let count = args.gather(place, (kv, dim), dim, &mut keys);
        let q = &q[place.place * each..][..each];
        attend(args.scale, (q, args.sinks), (&keys[..count * dim], dim), out);
    }
}
