//! Workloads that are drawn from a seed: requests that know nothing of each other, bursts of them, or agents that ask again
//! and again with a context that grows.

use std::time::Duration;

use super::{Blocks, Dice, Round, TOKENS_MAX, Talk};

/// Of the requests in bursts, half come in this part of each period.
const BURST: f64 = 0.1;

/// When talks begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At any moment as likely as at any other.
    Poisson,
    /// Half of them in the first tenth of each period of this length.
    Bursts(Duration),
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Everything random comes from it.
    pub seed: u64,
    /// When talks begin.
    pub arrivals: Arrivals,
    /// Talks that begin in a second, in the mean.
    pub rate: f64,
    /// For so long talks begin.
    pub lasts: Duration,
    /// Tokens of a first prompt, in the mean.
    pub input: u32,
    /// Tokens of an answer, in the mean.
    pub output: u32,
    /// Deviation of the logarithm of both; 0: all are as long as the mean.
    pub spread: f64,
    /// Tokens that all prompts begin with.
    pub shared: u32,
    /// Requests of a talk, in the mean; they are geometrically distributed.
    pub rounds: f64,
    /// From an answer to the next prompt, in the mean.
    pub think: Duration,
    /// Tokens that the next prompt has beside the last one and its answer, in the mean.
    pub growth: u32,
    /// Tokens in a block.
    pub block_size: u32,
}

impl Synthetic {
    /// The talks, in the order in which they begin.
    pub fn talks(self) -> impl Iterator<Item = Talk> {
        let (mut dice, mut mass, mut number) = (Dice::new(self.seed ^ 0x7379_6e74_6865), 0.0, 0_u64);
        std::iter::from_fn(move || {
            mass += dice.exponential(1.0);
            let at = self.moment(mass / self.rate.max(1e-9));
            if at >= self.lasts {
                return None;
            }
            number += 1;
            Some(Talk { at, rounds: self.rounds(number, &mut dice) })
        })
    }

    /// When what would come after `seconds` at an even rate comes.
    fn moment(&self, seconds: f64) -> Duration {
        let at = match self.arrivals {
            Arrivals::Poisson => seconds,
            Arrivals::Bursts(period) => {
                let period = period.as_secs_f64().max(1e-3);
                let (whole, part) = ((seconds / period).floor(), (seconds / period).fract());
                let bent =
                    if part < 0.5 { 2.0 * part * BURST } else { BURST + (2.0 * part - 1.0) * (1.0 - BURST) };
                (whole + bent) * period
            }
        };
        Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX)
    }

    fn rounds(&self, number: u64, dice: &mut Dice) -> Vec<Round> {
        let mut input = self.length(self.shared.max(self.input), dice).max(u64::from(self.shared) + 1);
        let mut rounds: Vec<Round> = Vec::new();
        loop {
            let output = self.length(self.output, dice);
            let think = if rounds.is_empty() { 0.0 } else { dice.exponential(self.think.as_secs_f64()) };
            rounds.push(Round {
                after: Duration::try_from_secs_f64(think).unwrap_or(Duration::ZERO),
                input: input as u32,
                output: output as u32,
                blocks: self.blocks(number, input as u32),
            });
            input += output + self.length(self.growth, dice);
            if dice.unit() >= 1.0 - 1.0 / self.rounds.max(1.0) || input > TOKENS_MAX {
                return rounds;
            }
        }
    }

    fn length(&self, mean: u32, dice: &mut Dice) -> u64 {
        (dice.length(f64::from(mean), self.spread).round() as u64).clamp(1, TOKENS_MAX)
    }

    /// Of a prompt: those that all begin with, then those of its talk.
    fn blocks(&self, talk: u64, input: u32) -> Blocks {
        let shared = u64::from(self.shared / self.block_size.max(1));
        let own = u64::from(input / self.block_size.max(1)).saturating_sub(shared);
        Blocks::Known { scope: 0, runs: vec![(0, shared), (talk << 32, own)] }
    }
}
