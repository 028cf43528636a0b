//! Which entries of its past a token looks at: a light comparison with the keys of all entries, of which the best are
//! chosen. A choice is a discontinuity, so equal scores are decided by place, and zeros of both signs are equal.

use crate::kv::{KvMemory, Widened};
use crate::op::AttentionRow;
use crate::windowed::Lists;

/// What the choice needs besides its data.
#[derive(Copy, Clone, Debug)]
pub struct Select<'a> {
    /// Heads of queries.
    pub heads: usize,
    /// Layer of the blocks whose keys are compared with.
    pub layer: usize,
    /// Entries that are chosen.
    pub most: usize,
    /// A choice of where others look, or such a choice made before.
    pub stage: Option<Stage>,
    /// The sequences of the step, in the order of their tokens.
    pub rows: &'a [AttentionRow<'a>],
}

/// Runs of entries, of which only some are looked at.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Stage {
    /// Entries of a run.
    pub size: usize,
    /// Runs that are kept.
    pub kept: usize,
    /// They are chosen by this call, which itself looks at all entries; otherwise it looks at those chosen before.
    pub chooses: bool,
}

impl Select<'_> {
    /// For each token: its row, and entries that are complete at its position.
    pub(crate) fn seen(&self, kv: &KvMemory) -> Vec<(usize, usize)> {
        let ratio = kv.layout().ratio(self.layer);
        let rows = self.rows.iter().enumerate();
        let of = |(index, row): (usize, &AttentionRow<'_>)| {
            let start = row.start as usize;
            (start..start + row.tokens).map(move |position| (index, (position + 1) / ratio))
        };
        rows.flat_map(of).collect()
    }

    /// True if this call chooses runs.
    pub(crate) fn stages(&self) -> Option<Stage> {
        self.stage.filter(|stage| stage.chooses)
    }

    /// The runs that a call is bound to.
    pub(crate) fn bound(&self) -> Option<Stage> {
        self.stage.filter(|stage| !stage.chooses)
    }
}

/// Checks the arguments.
pub(crate) fn check(args: &Select<'_>, (q, weights): (&[f32], &[f32]), kv: &KvMemory, kept: &Lists) {
    let tokens: usize = args.rows.iter().map(|row| row.tokens).sum();
    let layout = kv.layout();
    assert!(args.layer < layout.layers && args.most > 0, "select: layer {}", args.layer);
    assert_eq!(weights.len(), tokens * args.heads, "select: weights of {tokens} tokens");
    assert_eq!(q.len(), weights.len() * layout.key_dim, "select: queries of {tokens} tokens");
    if let Some(stage) = args.stage {
        assert!(stage.size > 0 && stage.kept > 0, "select: runs of nothing");
        assert!(stage.chooses || kept.len() == tokens, "select: runs of {tokens} tokens");
    }
    for row in args.rows.iter().filter(|row| row.tokens > 0) {
        let end = row.start as usize + row.tokens;
        let blocks = row.blocks.get(..end.div_ceil(layout.block_size));
        let there = |&block: &u32| (block as usize) < kv.blocks();
        assert!(blocks.is_some_and(|blocks| blocks.iter().all(there)), "select: blocks up to {end}");
    }
}

/// The best of what is offered.
#[derive(Debug, Default)]
pub(crate) struct Best {
    /// Score and place, in one number each that sorts by both.
    kept: Vec<u64>,
    /// How many are wanted.
    most: usize,
    /// As many are known that are no worse than this.
    floor: f32,
    /// So many more than are wanted are kept before the rest is forgotten: few at first, for an early floor.
    spare: usize,
}

impl Best {
    /// Nothing so far.
    pub(crate) fn start(&mut self, most: usize) {
        self.kept.clear();
        self.most = most;
        self.floor = f32::NEG_INFINITY;
        self.spare = 16;
    }

    /// Scores up to here are of no use: for places offered in their order.
    pub(crate) fn floor(&self) -> f32 {
        self.floor
    }

    /// Offers a score; places must ascend. What is no number, or less than any, is not taken.
    #[inline]
    pub(crate) fn offer(&mut self, place: u32, score: f32) {
        if score > self.floor {
            self.kept.push(rank(score, place));
            if self.kept.len() >= self.most + self.spare {
                self.prune();
                self.spare = (2 * self.spare).min(32 + self.most / 2);
            }
        }
    }

    /// Takes what another has found, in any places.
    pub(crate) fn join(&mut self, other: &mut Best) {
        other.prune();
        self.kept.append(&mut other.kept);
        self.prune();
    }

    /// Forgets all but the best.
    fn prune(&mut self) {
        if self.kept.len() > self.most {
            let (_, worst, _) = self.kept.select_nth_unstable_by(self.most - 1, |a, b| b.cmp(a));
            self.floor = score_of(*worst);
            self.kept.truncate(self.most);
        }
    }

    /// Writes the places of the best to `into`, ascending; gives their number.
    pub(crate) fn finish(&mut self, into: &mut [u32]) -> u32 {
        self.prune();
        for (into, &rank) in into.iter_mut().zip(&self.kept) {
            *into = !(rank as u32);
        }
        into[..self.kept.len()].sort_unstable();
        self.kept.len() as u32
    }
}

/// Larger for larger scores, then for earlier places.
fn rank(score: f32, place: u32) -> u64 {
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!place)
}

/// The score of a rank.
fn score_of(rank: u64) -> f32 {
    let ordered = (rank >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered ^ 1 << 31 } else { !ordered })
}

/// Chooses the best runs by the best score in each; the last one always. `scores` are those of all entries seen.
pub(crate) fn choose_runs(scores: &[f32], stage: Stage, best: &mut Best, into: &mut [u32]) -> u32 {
    let runs = scores.len().div_ceil(stage.size);
    best.start(stage.kept);
    for (run, scores) in scores.chunks(stage.size).enumerate() {
        let top = scores.iter().fold(f32::NEG_INFINITY, |top, &score| top.max(score));
        best.offer(run as u32, if run + 1 == runs { f32::INFINITY } else { top });
    }
    best.finish(into)
}

/// The entries that a token looks at: those of the runs it is bound to, of `seen`.
pub(crate) fn entries_of<'a>(runs: &'a [u32], size: usize, seen: usize) -> impl Iterator<Item = usize> + 'a {
    runs.iter().flat_map(move |&run| {
        let first = run as usize * size;
        first.min(seen)..(first + size).min(seen)
    })
}

/// The whole call with plain loops.
pub(crate) fn run(
    args: &Select<'_>,
    (q, weights): (&[f32], &[f32]),
    kv: &KvMemory,
    (chosen, kept): (&mut Lists, &mut Lists),
) {
    check(args, (q, weights), kv, kept);
    let (seen, dim) = (args.seen(kv), kv.layout().key_dim);
    chosen.start(seen.len(), args.most);
    if let Some(stage) = args.stages() {
        kept.start(seen.len(), stage.kept);
    }
    let (mut scores, mut best) = (Vec::new(), Best::default());
    let queries = q.chunks_exact(args.heads * dim).zip(weights.chunks_exact(args.heads));
    for (token, ((row, seen), query)) in seen.into_iter().zip(queries).enumerate() {
        let blocks = args.rows[row].blocks;
        let places: Vec<usize> = match args.bound() {
            Some(stage) => entries_of(kept.of(token), stage.size, seen).collect(),
            None => (0..seen).collect(),
        };
        score(args, query, (kv, blocks), &places, &mut scores);
        best.start(args.most);
        places.iter().zip(&scores).for_each(|(&place, &score)| best.offer(place as u32, score));
        let (numbers, counts) = chosen.parts();
        counts[token] = best.finish(&mut numbers[token * args.most..][..args.most]);
        if let Some(stage) = args.stages() {
            let (numbers, counts) = kept.parts();
            let into = &mut numbers[token * stage.kept..][..stage.kept];
            counts[token] = choose_runs(&scores, stage, &mut best, into);
        }
    }
}

/// Scores of some entries for one token: the sum over heads of `weight * max(query . key, 0)`.
pub(crate) fn score(
    args: &Select<'_>,
    (q, weights): (&[f32], &[f32]),
    (kv, blocks): (&KvMemory, &[u32]),
    places: &[usize],
    scores: &mut Vec<f32>,
) {
    let layout = kv.layout().of_layer(args.layer);
    let mut wide = Widened::default();
    scores.clear();
    for same in places.chunk_by(|a, b| a / layout.block_size == b / layout.block_size) {
        let (keys, _) = kv.head(args.layer, blocks[same[0] / layout.block_size], 0, &mut wide);
        scores.extend(same.iter().map(|place| {
            let key = keys.chunks_exact(layout.key_stride()).map(|lanes| lanes[place % layout.block_size]);
            let heads = q.chunks_exact(layout.key_dim).zip(weights);
            heads.fold(0.0, |sum, (q, weight)| {
                let dot = q.iter().zip(key.clone()).fold(0.0, |sum, (q, k)| sum + q * k);
                sum + weight * f32::max(dot, 0.0)
            })
        }));
    }
}
