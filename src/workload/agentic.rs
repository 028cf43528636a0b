//! Traces of coding agents: a talk a line, of requests that follow each other. Who asks for another agent's help waits for it
//! in truth; here the other one's requests are a talk of their own, which begins when the trace says.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;

use super::mooncake::round;
use super::{Blocks, Lines, Round, Talk, TraceError, nanos};

/// The most that is believed of a time in a talk: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// One line.
#[derive(Debug, Deserialize)]
pub struct Line {
    /// Tokens in a block.
    pub block_size: u32,
    /// What was asked, in order.
    pub requests: Vec<Asked>,
}

/// One request, or another agent's.
#[derive(Debug, Deserialize)]
pub struct Asked {
    /// Seconds from the beginning of the talk.
    #[serde(rename = "t")]
    pub at_s: f64,
    /// Tokens of the prompt.
    #[serde(rename = "in", default)]
    pub input: u64,
    /// Tokens of the answer.
    #[serde(rename = "out", default)]
    pub output: u64,
    /// Seconds between the answer before it and this.
    #[serde(default)]
    pub think_time: f64,
    /// Runs of block numbers, first and how many.
    #[serde(default)]
    pub hash_runs: Vec<(u64, u64)>,
    /// Or the numbers themselves.
    #[serde(default)]
    pub hash_ids: Vec<u64>,
    /// Those of another agent; then nothing else counts.
    #[serde(default)]
    pub requests: Vec<Asked>,
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(line: &str) -> Result<Self, String> {
        let line: Self = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if line.block_size == 0 { Err("block_size is 0".to_owned()) } else { Ok(line) }
    }
}

/// Tokens in a block, as a line says.
pub(super) fn block_size(line: &str) -> Result<u32, String> {
    Line::read(line).map(|line| line.block_size)
}

/// The talks of a trace, in the order in which they begin.
pub struct Talks {
    lines: Lines,
    gap: Duration,
    /// Talks so far; numbers of blocks mean nothing from one to another.
    number: u32,
    block_size: Option<u32>,
    /// Talks of agents that were asked for help, by when they begin.
    beside: VecDeque<Talk>,
    /// The next line's.
    next: Option<Talk>,
    ended: bool,
}

impl Talks {
    /// Those of these lines, each `gap` after the one before it.
    pub fn new(lines: Lines, gap: Duration) -> Self {
        Self { lines, gap, number: 0, block_size: None, beside: VecDeque::new(), next: None, ended: false }
    }

    fn fill(&mut self) -> Result<(), TraceError> {
        while self.next.is_none() && !self.ended {
            let Some(text) = self.lines.read()? else {
                self.ended = true;
                return Ok(());
            };
            let talk = self.talk(&text).map_err(|why| self.lines.wrong(why))?;
            self.number += 1;
            self.next = Some(talk).filter(|talk| !talk.rounds.is_empty());
        }
        Ok(())
    }

    fn talk(&mut self, text: &str) -> Result<Talk, String> {
        let line = Line::read(text)?;
        let size = *self.block_size.get_or_insert(line.block_size);
        if line.block_size != size {
            return Err(format!("its block_size is {}, and that of the lines above {size}", line.block_size));
        }
        let (at, scope) = (self.gap.saturating_mul(self.number), u64::from(self.number));
        let mut rounds = Vec::new();
        for asked in line.requests {
            if asked.requests.is_empty() {
                rounds.push(one(asked, size, scope)?);
                continue;
            }
            let begins = at.saturating_add(seconds("t", asked.at_s)?);
            let theirs = asked.requests.into_iter().map(|asked| one(asked, size, scope));
            let talk = Talk { at: begins, rounds: theirs.collect::<Result<_, _>>()? };
            let place = self.beside.partition_point(|other| other.at <= begins);
            self.beside.insert(place, talk);
        }
        if let Some(first) = rounds.first_mut() {
            first.after = Duration::ZERO;
        }
        Ok(Talk { at, rounds })
    }
}

fn one(asked: Asked, size: u32, scope: u64) -> Result<Round, String> {
    let after = seconds("think_time", asked.think_time)?;
    let lengths = (asked.input, asked.output);
    let round = round(lengths, (size, scope, asked.hash_ids))?;
    if asked.hash_runs.is_empty() {
        return Ok(Round { after, ..round });
    }
    let count = asked.hash_runs.iter().fold(0_u64, |count, run| count.saturating_add(run.1));
    if count > u64::from(round.input.div_ceil(size)) {
        return Err(format!("names {count} blocks of {size} tokens for a prompt of {}", round.input));
    }
    Ok(Round { after, blocks: Blocks::Known { scope, runs: asked.hash_runs }, ..round })
}

fn seconds(name: &str, seconds: f64) -> Result<Duration, String> {
    let nanos = nanos(name, seconds.clamp(0.0, SECONDS_MAX), 1e9)?;
    Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

impl Iterator for Talks {
    type Item = Result<Talk, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            (self.ended, self.beside) = (true, VecDeque::new());
            return Some(Err(error));
        }
        let beside = self.beside.front().map(|talk| talk.at);
        match (beside, self.next.as_ref().map(|talk| talk.at)) {
            (Some(beside), Some(next)) if beside < next => self.beside.pop_front(),
            (_, Some(_)) => self.next.take(),
            _ => self.beside.pop_front(),
        }
        .map(Ok)
    }
}
