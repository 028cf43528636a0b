//! How much of the prompts of a trace is found by who keeps everything for some time after its last use: what any store could
//! find at best. Only traces that name blocks tell.

use std::collections::HashMap;
use std::path::Path;

use super::agentic::{Asked, Line};
use super::{Blocks, Format, Trace, TraceError, TraceOptions, open};

/// A prompt of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// When it came, in seconds.
    pub at_s: f64,
    /// Numbers of another scope mean other blocks.
    pub scope: u64,
    /// Runs of blocks, first and how many.
    pub runs: Vec<(u64, u64)>,
    /// Tokens of the prompt and of its answer.
    pub tokens: (u64, u64),
}

/// What is found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reuse {
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Those among them that are found, for each time.
    pub found: Vec<u64>,
    /// For how long blocks are there, all together, for each time, in seconds.
    pub there_s: Vec<f64>,
    /// From the first to the last use of a block, in the mean, in seconds.
    pub used_s: f64,
}

/// The prompts of a trace, in the order in which they came. Talks of agents, which do not say when they begin, begin a minute
/// after each other.
///
/// # Errors
/// It cannot be read, or names no blocks.
pub fn prompts(file: &Path) -> Result<Vec<Prompt>, TraceError> {
    let trace = Trace::open(file, TraceOptions::default())?;
    let mut prompts = match trace.format {
        Format::Agentic => agents(file)?,
        _ => others(trace)?,
    };
    if prompts.is_empty() {
        let file = file.display().to_string();
        let why = "names no blocks (hash_ids, hash_runs), so it does not tell what is found".to_owned();
        return Err(TraceError { file, line: None, why });
    }
    prompts.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(prompts)
}

fn others(trace: Trace) -> Result<Vec<Prompt>, TraceError> {
    let mut prompts = Vec::new();
    for talk in trace {
        let talk = talk?;
        for round in talk.rounds {
            if let Blocks::Known { scope, runs } = round.blocks {
                let tokens = (u64::from(round.input), u64::from(round.output));
                prompts.push(Prompt { at_s: talk.at.as_secs_f64(), scope, runs, tokens });
            }
        }
    }
    Ok(prompts)
}

fn agents(file: &Path) -> Result<Vec<Prompt>, TraceError> {
    let (mut lines, mut prompts, mut talk) = (open(file)?, Vec::new(), 0);
    while let Some(text) = lines.read()? {
        let line = Line::read(&text).map_err(|why| lines.wrong(why))?;
        collect(line.requests, talk, &mut prompts);
        talk += 1;
    }
    Ok(prompts)
}

/// Adds the prompts of a talk, those of agents that were asked for help among them.
pub fn collect(requests: Vec<Asked>, talk: u64, prompts: &mut Vec<Prompt>) {
    for asked in requests {
        collect(asked.requests, talk, prompts);
        let runs = match Blocks::of(talk, asked.hash_ids) {
            Blocks::Known { runs, .. } if asked.hash_runs.is_empty() => runs,
            _ => asked.hash_runs,
        };
        if !runs.is_empty() {
            let (at_s, tokens) = (asked.at_s + 60.0 * talk as f64, (asked.input, asked.output));
            prompts.push(Prompt { at_s, scope: talk, runs, tokens });
        }
    }
}

impl Prompt {
    /// Its blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|&(first, count)| first..first.saturating_add(count))
    }

    /// How many.
    pub fn block_count(&self) -> u64 {
        self.runs.iter().map(|&(_, count)| count).sum()
    }
}

impl Reuse {
    /// What is found of prompts that come in this order, by who keeps blocks for each of these times, in seconds. A block is
    /// found where all before it are, and each use keeps it for as long again.
    pub fn of(prompts: &[Prompt], kept_s: &[f64]) -> Self {
        let mut used: HashMap<(u64, u64), (f64, f64)> = HashMap::new();
        let (mut found, mut blocks) = (vec![0; kept_s.len()], 0);
        let mut there_s = vec![0.0; kept_s.len()];
        for prompt in prompts {
            blocks += prompt.block_count();
            let (mut whole, mut oldest) = (true, 0.0_f64);
            let (mut chain, mut gaps) = (Same::default(), Same::default());
            for block in prompt.blocks() {
                let at = prompt.at_s;
                let known = used.get_mut(&(prompt.scope, block));
                whole &= known.is_some();
                let Some((_, last)) = known else {
                    used.insert((prompt.scope, block), (at, at));
                    continue;
                };
                let unused = at - *last;
                *last = at;
                // Until it is used again, or goes; a block that stands twice in a prompt is used once.
                gaps.add(unused, |gap, count| add(&mut there_s, kept_s, |kept| count * gap.min(kept)));
                // Of those before it and itself, how long the one was unused that was so for longest.
                oldest = oldest.max(unused);
                if whole {
                    chain.add(oldest, |unused, count| found_by(&mut found, kept_s, (unused, count)));
                }
            }
            gaps.end(|gap, count| add(&mut there_s, kept_s, |kept| count * gap.min(kept)));
            chain.end(|unused, count| found_by(&mut found, kept_s, (unused, count)));
        }
        let distinct = used.len().max(1) as f64;
        there_s.iter_mut().zip(kept_s).for_each(|(there, kept)| *there += used.len() as f64 * kept);
        let used_s = used.into_values().map(|(first, last)| last - first).sum::<f64>() / distinct;
        Self { blocks, found, there_s, used_s }
    }

    /// The share of blocks that is found, for each time.
    pub fn shares(&self) -> Vec<f64> {
        self.found.iter().map(|found| *found as f64 / self.blocks.max(1) as f64).collect()
    }
}

/// The same time so many times in a row: neighbours were used together as a rule.
#[derive(Default)]
struct Same {
    time: f64,
    count: u32,
}

impl Same {
    /// One more; what was before it is told where it ends.
    fn add(&mut self, time: f64, told: impl FnOnce(f64, f64)) {
        if time != self.time {
            told(self.time, f64::from(self.count));
            *self = Self { time, count: 0 };
        }
        self.count += 1;
    }

    fn end(self, told: impl FnOnce(f64, f64)) {
        told(self.time, f64::from(self.count));
    }
}

fn add(sums: &mut [f64], kept_s: &[f64], of: impl Fn(f64) -> f64) {
    sums.iter_mut().zip(kept_s).for_each(|(sum, kept)| *sum += of(*kept));
}

fn found_by(found: &mut [u64], kept_s: &[f64], (unused, count): (f64, f64)) {
    let all = found.iter_mut().zip(kept_s);
    all.filter(|(_, kept)| unused <= **kept).for_each(|(found, _)| *found += count as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(at_s: f64, blocks: &[u64]) -> Prompt {
        Prompt { at_s, runs: blocks.iter().map(|&block| (block, 1)).collect(), ..Prompt::default() }
    }

    #[test]
    fn a_use_keeps_a_block_and_a_chain_ends_at_the_first_that_went() {
        let prompts = [
            prompt(0.0, &[1, 2, 3]),
            prompt(8.0, &[1, 2, 9]),
            prompt(16.0, &[1, 2, 3]),
            prompt(40.0, &[2, 1]),
        ];
        let reuse = Reuse::of(&prompts, &[5.0, 10.0, 16.0, 100.0]);
        // Nothing within 5 s; within 10 s 1 and 2 twice; within 16 s block 3 too; the last prompt's within 24 s.
        assert_eq!((reuse.blocks, reuse.found.as_slice()), (11, &[0, 4, 5, 7][..]));
        // 1 and 2 are unused for 8, 8 and 24 s, 3 for 16 s; each of four is there until it goes.
        assert_eq!(reuse.there_s, [35.0 + 20.0, 62.0 + 40.0, 80.0 + 64.0, 96.0 + 400.0]);
        // 1 and 2 for 40 s, 3 for 16, 9 for none.
        assert!((reuse.used_s - 24.0).abs() < 1e-12, "{}", reuse.used_s);
    }

    #[test]
    fn scopes_are_apart() {
        let other = Prompt { scope: 1, ..prompt(1.0, &[1]) };
        assert_eq!(Reuse::of(&[prompt(0.0, &[1]), other], &[9.0]).found, [0]);
    }
}
