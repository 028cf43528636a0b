//! From logits to the next token: greedy, or drawn with a counter-based generator, so that an answer depends on the
//! request, its seed and the token's place in the answer, and on nothing else.
//!
//! The order of a choice, of which each part is left out where the request does not ask for it:
//!
//! 1. [`Logprobs`] are read off the raw logits: they are the model's own, whatever the client wishes.
//! 2. Banned tokens (ends, before the answer is as long as it must be) become impossible.
//! 3. `bias` is added.
//! 4. Penalties: `repetition`, then `frequency` and `presence` ([`Tally`]).
//! 5. Temperature 0 takes the best now, the lowest id among equals.
//! 6. The others are divided by the temperature; `top_k`, then `top_p` of what that left, then `min_p` keep the best.
//! 7. One of those left is drawn in proportion to its weight.
//!
//! Nothing sorts a vocabulary: `softmax` adds up weights, `candidates` finds the best, `random` draws, `tally` counts.

use std::sync::Arc;

use crate::message::{Chosen, Sample};
use crate::request::{Logprobs, Sampling};
use softmax::{BLOCK, Scale, peak};

mod candidates;
mod random;
mod softmax;
mod tally;

pub use random::{choice_seed, uniform};
pub use tally::Tally;

/// Below this temperature the best token is taken.
const COLDEST: f32 = 1e-5;
/// A nucleus is looked for among so many best tokens first.
const FEW: usize = 1024;
/// More candidates than this are not listed.
const MANY: usize = 4096;

/// Where the candidates end.
enum Kept {
    /// They are listed.
    Listed,
    /// They are those with a better logit, and those with this logit up to this id.
    Down((f32, u32)),
}

/// Chooses tokens. Holds room that is used again, nothing else.
///
/// ```
/// use millstream_actors::message::Sample;
/// use millstream_actors::request::Sampling;
/// use millstream_actors::sample::{Sampler, Tally};
/// let greedy = Sample {
///     sampling: Sampling::GREEDY.into(),
///     position: 0,
///     tally: Tally::default().into(),
///     banned: Vec::new(),
///     logprobs: Some(2),
/// };
/// let chosen = Sampler::default().choose(&[0.1, 2.0, 2.0], &greedy).unwrap();
/// assert_eq!(chosen.id, 1);
/// assert_eq!(chosen.logprobs.unwrap().best.len(), 2);
/// assert!(Sampler::default().choose(&[0.1, f32::NAN, 2.0], &greedy).is_none());
/// ```
#[derive(Debug, Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    keys: Vec<u64>,
    blocks: Vec<f32>,
    table: candidates::Table,
}

impl Sampler {
    /// The next token after `logits` (one a token of the vocabulary); `None` when one of them is not a number, or the
    /// best of them is not finite.
    pub fn choose(&mut self, logits: &[f32], choice: &Sample) -> Option<Chosen> {
        let peak = peak(logits)?;
        let id = match choice.adjusts() {
            false => self.pick(logits, peak, choice),
            true => {
                let mut adjusted = std::mem::take(&mut self.adjusted);
                choice.adjust(logits, &mut adjusted);
                // All that is left may be impossible: then the ban gives way.
                let id = match softmax::peak(&adjusted) {
                    Some(peak) => self.pick(&adjusted, peak, choice),
                    None => self.pick(logits, peak, choice),
                };
                self.adjusted = adjusted;
                id
            }
        };
        let logprobs = choice.logprobs.map(|count| Arc::new(self.logprobs(logits, peak, (id, count))));
        Some(Chosen { id, logprobs })
    }

    fn pick(&mut self, logits: &[f32], peak: f32, choice: &Sample) -> u32 {
        let sampling = &choice.sampling;
        if sampling.temperature < COLDEST || sampling.top_k == 1 {
            return first(logits, peak);
        }
        let scale = Scale::new(peak, sampling.temperature);
        let uniform = uniform(sampling.seed, choice.position);
        let drawn = match self.keep(logits, sampling, scale) {
            Kept::Listed => self.draw_listed(scale, uniform),
            Kept::Down(last) => self.draw_down(logits, last, scale, uniform),
        };
        drawn.unwrap_or_else(|| first(logits, peak))
    }

    /// The candidates.
    fn keep(&mut self, logits: &[f32], sampling: &Sampling, scale: Scale) -> Kept {
        let keys = &mut self.keys;
        let floor = if sampling.min_p > 0.0 { scale.logit(sampling.min_p) } else { f32::NEG_INFINITY };
        let few = sampling.top_k > 0 && (sampling.top_k as usize) < logits.len();
        if few {
            candidates::best(logits, sampling.top_k as usize, keys);
        }
        if sampling.top_p < 1.0 {
            let total = if few { candidates::mass(keys, scale) } else { scale.mass(logits) };
            let wanted = f64::from(sampling.top_p) * total;
            if !few {
                candidates::best(logits, FEW, keys);
                if candidates::mass(keys, scale) < wanted {
                    let last = candidates::border(logits, scale, wanted, &mut self.table);
                    let last = last.map(|key| (candidates::logit(key), candidates::id(key)));
                    return Kept::Down(last.filter(|last| last.0 >= floor).unwrap_or((floor, u32::MAX)));
                }
            }
            candidates::nucleus(keys, scale, wanted);
        } else if !few && (sampling.min_p == 0.0 || !candidates::within(logits, floor..=f32::MAX, MANY, keys))
        {
            return Kept::Down((floor, u32::MAX));
        }
        keys.retain(|&key| candidates::logit(key) >= floor);
        Kept::Listed
    }

    /// Draws one of the candidates, in order of id whatever order they were found in.
    fn draw_listed(&mut self, scale: Scale, uniform: f64) -> Option<u32> {
        let keys = &mut self.keys;
        keys.sort_unstable_by_key(|&key| candidates::id(key));
        let mut rest = uniform * candidates::mass(keys, scale);
        let found = keys.iter().find(|&&key| {
            rest -= f64::from(scale.weight(candidates::logit(key)));
            rest < 0.0
        });
        found.or(keys.last()).map(|&key| candidates::id(key))
    }

    /// Draws one of the tokens down to `last`: the block first, then the token in it.
    fn draw_down(&mut self, logits: &[f32], last: (f32, u32), scale: Scale, uniform: f64) -> Option<u32> {
        // Behind the last token its logit does not suffice.
        let (floor, end) = (last.0, last.1 as usize);
        let kept = |id: usize, logit: f32| if id <= end { logit >= floor } else { logit > floor };
        let weight = |id: usize, logit: f32| if kept(id, logit) { scale.weight(logit) } else { 0.0 };
        let numbered = |number: usize, block: &[f32]| -> f32 {
            let start = number * BLOCK;
            match (start + block.len() <= end, start > end) {
                (true, _) => scale.block(block, floor),
                (_, true) => scale.block(block, floor.next_up()),
                _ => (start..).zip(block).map(|(id, &logit)| weight(id, logit)).sum(),
            }
        };
        self.blocks.clear();
        self.blocks.extend(logits.chunks(BLOCK).enumerate().map(|(number, block)| numbered(number, block)));
        let mut rest = uniform * self.blocks.iter().copied().map(f64::from).sum::<f64>();
        let number = self.blocks.iter().position(|&block| {
            let here = rest < f64::from(block);
            rest -= if here { 0.0 } else { f64::from(block) };
            here
        })?;
        let block = logits.chunks(BLOCK).nth(number)?;
        let mut found = None;
        for (id, &logit) in (number * BLOCK..).zip(block) {
            let weight = f64::from(weight(id, logit));
            found = if weight > 0.0 { Some(id as u32) } else { found };
            rest -= weight;
            if rest < 0.0 {
                break;
            }
        }
        found
    }

    /// Of the token `id` and the `count` likeliest, over the raw logits.
    fn logprobs(&mut self, logits: &[f32], peak: f32, (id, count): (u32, u32)) -> Logprobs {
        let total = Scale::new(peak, 1.0).mass(logits).ln();
        let logprob = |logit: f32| (f64::from(logit) - f64::from(peak) - total) as f32;
        let keys = &mut self.keys;
        keys.clear();
        if count > 0 {
            candidates::best(logits, count as usize, keys);
            keys.sort_unstable_by(|a, b| b.cmp(a));
        }
        let best = keys.iter().map(|&key| (candidates::id(key), logprob(candidates::logit(key))));
        Logprobs { chosen: logprob(logits[id as usize]), best: best.collect(), start: 0 }
    }
}

/// The lowest id whose logit is the best.
fn first(logits: &[f32], peak: f32) -> u32 {
    logits.iter().position(|&logit| logit == peak).unwrap_or(0) as u32
}

impl Sample {
    fn adjusts(&self) -> bool {
        !self.banned.is_empty() || !self.sampling.bias.is_empty() || !self.tally.is_empty()
    }

    /// The logits with bans, bias and penalties.
    fn adjust(&self, logits: &[f32], adjusted: &mut Vec<f32>) {
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        let change = |id: u32, with: &dyn Fn(f32) -> f32, logits: &mut Vec<f32>| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = with(*logit);
            }
        };
        for &id in &self.banned {
            change(id, &|_| f32::NEG_INFINITY, adjusted);
        }
        for &(id, bias) in &self.sampling.bias {
            change(id, &|logit| logit + bias, adjusted);
        }
        self.tally.apply(&self.sampling, adjusted);
    }
}

#[cfg(test)]
mod tests;
