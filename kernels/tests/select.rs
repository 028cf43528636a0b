//! Choices among many entries: what is left out on the way must make no difference, whatever the keys are like.

use millstream_kernels::check::Sample;
use millstream_kernels::{
    AttentionRow, Backend, CpuBackend, KvFormat, KvLayout, KvMemory, Lists, Rings, Select, Stage,
};

/// Positions before the tokens that choose, and how many these are.
const PAST: usize = 8_900;
const TOKENS: usize = 70;

/// Memory of one sequence, and what its last tokens ask.
struct Case {
    kv: KvMemory,
    blocks: Vec<u32>,
    heads: usize,
    q: Vec<f32>,
    weights: Vec<f32>,
}

impl Case {
    /// Keys that differ little, or much, or not at all; a few that no estimate holds for.
    fn new(seed: u64, (heads, dim): (usize, usize), block_size: usize, odd: &[f32]) -> Case {
        let mut sample = Sample::new(seed);
        let layout = KvLayout {
            layers: 1,
            kv_heads: 1,
            key_dim: dim,
            value_dim: 8,
            block_size,
            format: KvFormat::F32,
            state: 0,
            paired: 0,
            rings: Rings::NONE,
        };
        let count = (PAST + TOKENS).div_ceil(block_size);
        let mut kv = KvMemory::new(layout, count);
        let blocks: Vec<u32> = (0..count as u32).rev().collect();
        let mut before = sample.values(dim);
        for position in 0..PAST + TOKENS {
            let mut key = match sample.below(4) {
                0 => before.clone(),
                1 => before.iter().zip(sample.values(dim)).map(|(k, x)| k * (1.0 + 1e-6 * x)).collect(),
                2 => before.iter().zip(sample.values(dim)).map(|(k, x)| k + 0.02 * x).collect(),
                _ => sample.values(dim),
            };
            if sample.below(9) == 0 && !odd.is_empty() {
                let factor = odd[sample.below(odd.len())];
                let some = sample.below(dim);
                key[some..].iter_mut().for_each(|k| *k *= factor);
            } else {
                before.clone_from(&key);
            }
            kv.write(0, blocks[position / block_size], position % block_size, &key, &[0.0; 8]);
        }
        let (mut q, mut weights) = (sample.values(TOKENS * heads * dim), sample.values(TOKENS * heads));
        for &factor in odd {
            q[sample.below(TOKENS * heads) * dim..][..dim].iter_mut().for_each(|q| *q *= factor);
            weights[sample.below(TOKENS * heads)] *= factor;
        }
        Case { kv, blocks, heads, q, weights }
    }

    /// What so many tokens at once choose: entries and runs of each.
    fn chosen(&self, backend: &mut CpuBackend, most: usize, at_once: usize) -> Vec<[Vec<u32>; 2]> {
        let (mut lists, mut runs, mut all) = (Lists::default(), Lists::default(), Vec::new());
        let dim = self.kv.layout().key_dim;
        for first in (0..TOKENS).step_by(at_once) {
            let tokens = at_once.min(TOKENS - first);
            let start = (PAST + first) as u32;
            let rows = [AttentionRow { start, tokens, from: 0, blocks: &self.blocks }];
            let stage = Some(Stage { size: 8, kept: most / 2, chooses: true });
            let args = Select { heads: self.heads, layer: 0, most, stage, rows: &rows };
            let q = &self.q[first * self.heads * dim..][..tokens * self.heads * dim];
            let weights = &self.weights[first * self.heads..][..tokens * self.heads];
            backend.select(&args, (q, weights), &self.kv, &mut lists, &mut runs);
            all.extend((0..tokens).map(|token| [lists.of(token).to_vec(), runs.of(token).to_vec()]));
        }
        all
    }
}

#[test]
fn what_is_left_out_would_not_have_been_chosen() {
    let odd = [0.0, -1e-30, 1e-12, 1e-7, 1e7, 1e12, 1e30, f32::INFINITY, f32::NAN];
    for (seed, shape) in (1..).zip([(4, 32), (1, 8), (9, 64), (2, 128), (3, 12), (2, 9)]) {
        for (block_size, odd) in [(16, &[][..]), (12, &odd[..4]), (32, &odd[..])] {
            let case = Case::new(seed, shape, block_size, odd);
            for most in [2, 60] {
                let mut first = None;
                for (threads, at_once) in [(1, 1), (1, TOKENS), (3, 1), (3, 24), (3, TOKENS)] {
                    // Plain loops round otherwise.
                    for mut backend in CpuBackend::all(threads).into_iter().skip(1) {
                        let chosen = case.chosen(&mut backend, most, at_once);
                        let what = format!("seed {seed}, {shape:?}, most {most}, odd {odd:?}");
                        let how = format!("{} with {threads} threads, {at_once} at once", backend.name());
                        assert!(first.get_or_insert_with(|| chosen.clone()) == &chosen, "{what}: {how}");
                    }
                }
            }
        }
    }
}
