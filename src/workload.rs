//! Requests to be simulated: how many tokens they have, when they come, and which blocks their prompts begin with. They come
//! from a trace of a real system or are drawn from a seed; nothing here knows a word of them.
//!
//! A [`Talk`] is what one client asks, one round after the other; most traces have talks of one round. Traces are read line
//! by line, so that one of any length takes little memory, and what is wrong with one is said with its line:
//! `mooncake`, `bailian`, `table` (Azure, BurstGPT), `agentic`, `dynamo`. `synthetic` draws; `reuse` counts what is found.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::kv::BlockHash;

pub mod agentic;
mod bailian;
mod dice;
mod dynamo;
mod lines;
mod mooncake;
pub mod reuse;
mod sorted;
pub mod synthetic;
mod table;

pub use dice::Dice;
pub use lines::{Lines, open};
use sorted::Sorted;

/// Tokens of a prompt, and of an answer, that are believed.
const TOKENS_MAX: u64 = 1 << 24;

/// What one client asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Talk {
    /// When the first round comes, from the beginning of the workload.
    pub at: Duration,
    /// One after the other; none is no talk.
    pub rounds: Vec<Round>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// It comes so long after the answer before it; zero in the first.
    pub after: Duration,
    /// Tokens of the prompt; at least 1.
    pub input: u32,
    /// Tokens of the answer; at least 1.
    pub output: u32,
    /// Which blocks the prompt has.
    pub blocks: Blocks,
}

/// The blocks of a prompt, from its first token on.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Blocks {
    /// Nothing is known: no other prompt begins alike.
    #[default]
    Own,
    /// Runs of numbers, first and how many. Prompts of one scope that have the same numbers in the same places begin alike.
    Known {
        /// Numbers of another scope mean something else.
        scope: u64,
        /// In order.
        runs: Vec<(u64, u64)>,
    },
}

impl Blocks {
    /// Blocks with these numbers.
    pub fn of(scope: u64, numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((first, count)) if number.checked_sub(*first) == Some(*count) => *count += 1,
                _ => runs.push((number, 1)),
            }
        }
        Self::Known { scope, runs }
    }

    /// Their numbers, in order; none where nothing is known.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let runs = match self {
            Self::Own => &[][..],
            Self::Known { runs, .. } => runs,
        };
        runs.iter().flat_map(|&(first, count)| (0..count).map(move |place| first.wrapping_add(place)))
    }

    /// Names for the first `count` of them, which no block of another beginning has. `own` is a number that no other prompt
    /// has. Numbers that a trace does not give are the prompt's own.
    pub fn names(&self, count: usize, own: u64) -> Arc<[BlockHash]> {
        let scope = match self {
            Self::Own => None,
            Self::Known { scope, .. } => Some(*scope),
        };
        let mut chain = Chain::new(scope.unwrap_or(0));
        let mut names: Vec<BlockHash> = self.numbers().take(count).map(|number| chain.next(number)).collect();
        let mut chain = Chain { halves: chain.halves.map(|half| mix(half ^ own)) };
        names.extend((names.len()..count).map(|place| chain.next(place as u64)));
        names.into()
    }
}

/// Names of blocks, each made of the one before it and a number. Nobody chooses these numbers to deceive, so it need not be a
/// cryptographic hash.
struct Chain {
    halves: [u64; 2],
}

impl Chain {
    fn new(scope: u64) -> Self {
        Self { halves: [mix(scope), mix(scope ^ 0x6d69_6c6c)] }
    }

    fn next(&mut self, number: u64) -> BlockHash {
        let [a, b] = self.halves;
        self.halves = [mix(a ^ number), mix(b ^ number.rotate_left(32) ^ 0x7374_7265)];
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.halves[0].to_be_bytes());
        bytes[8..].copy_from_slice(&self.halves[1].to_be_bytes());
        BlockHash::from_bytes(bytes)
    }
}

/// The last step of SplitMix64, behind its increment.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Where a trace is wrong.
#[derive(Debug)]
pub struct TraceError {
    /// The file, as it was given.
    pub file: String,
    /// Its line, from 1; none where all of it is meant.
    pub line: Option<usize>,
    /// What is wrong, and what it should be.
    pub why: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.why),
            None => write!(f, "{}: {}", self.file, self.why),
        }
    }
}

impl std::error::Error for TraceError {}

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake: JSON a line with `timestamp` in milliseconds and `hash_ids` of 512 tokens.
    Mooncake,
    /// Bailian: JSON a line with `chat_id`, `timestamp` in seconds and `hash_ids` of 16 tokens.
    Bailian,
    /// Azure's tables: TIMESTAMP, ContextTokens, GeneratedTokens.
    Azure,
    /// BurstGPT's tables: Timestamp, Request tokens, Response tokens.
    BurstGpt,
    /// Agents: JSON a line for each talk, with `requests` and `hash_runs` or `hash_ids`.
    Agentic,
    /// `dynamo.request.trace.v1`.
    Dynamo,
}

impl Format {
    /// All of them, with the names that the command line has for them.
    pub const ALL: [(&'static str, Format); 6] = [
        ("mooncake", Format::Mooncake),
        ("bailian", Format::Bailian),
        ("azure", Format::Azure),
        ("burstgpt", Format::BurstGpt),
        ("agentic", Format::Agentic),
        ("dynamo", Format::Dynamo),
    ];

    /// What the first line of a trace looks like.
    fn of(line: &str) -> Option<Format> {
        if table::is_azure(line) {
            return Some(Format::Azure);
        }
        if table::is_burst(line) {
            return Some(Format::BurstGpt);
        }
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
        let has = |name: &str| fields.contains_key(name);
        match () {
            () if has("requests") => Some(Format::Agentic),
            () if has("chat_id") => Some(Format::Bailian),
            () if has("event_type") || has("event") => Some(Format::Dynamo),
            () if has("input_length") => Some(Format::Mooncake),
            () => None,
        }
    }
}

/// A trace that is being read.
pub struct Trace {
    /// Its format.
    pub format: Format,
    /// Tokens in a block, where it names blocks.
    pub block_size: Option<u32>,
    talks: Box<dyn Iterator<Item = Result<Talk, TraceError>>>,
}

/// How a trace is read where it leaves a choice.
#[derive(Clone, Copy, Debug)]
pub struct TraceOptions {
    /// Its format, where it is not to be told from its first line.
    pub format: Option<Format>,
    /// Talks whose trace does not say when they began begin so long after each other.
    pub gap: Duration,
}

impl Default for TraceOptions {
    /// Whatever its first line looks like; a minute.
    fn default() -> Self {
        Self { format: None, gap: Duration::from_secs(60) }
    }
}

impl Trace {
    /// Opens a trace: a file, compressed where its name ends in `.gz`, or `-`, the standard input.
    ///
    /// # Errors
    /// It cannot be read, or its first line is of no format that is known.
    pub fn open(file: &Path, options: TraceOptions) -> Result<Self, TraceError> {
        Self::read(open(file)?, options)
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// Its first line is of no format that is known, or wrong.
    pub fn read(mut lines: Lines, options: TraceOptions) -> Result<Self, TraceError> {
        let Some(first) = lines.first()? else {
            return Err(lines.wrong_file("it has no line: it should have one for each request"));
        };
        let Some(format) = options.format.or_else(|| Format::of(&first)) else {
            return Err(lines.wrong(unknown()));
        };
        let block_size = match format {
            Format::Mooncake => Some(mooncake::BLOCK),
            Format::Bailian => Some(bailian::BLOCK),
            Format::Azure | Format::BurstGpt => None,
            Format::Agentic => Some(agentic::block_size(&first).map_err(|why| lines.wrong(why))?),
            Format::Dynamo => Some(dynamo::block_size(&first).map_err(|why| lines.wrong(why))?),
        };
        let talks: Box<dyn Iterator<Item = Result<Talk, TraceError>>> = match format {
            Format::Mooncake => Box::new(Sorted::new(lines, mooncake::talk)),
            Format::Bailian => Box::new(Sorted::new(lines, bailian::talk)),
            Format::Azure | Format::BurstGpt => {
                let columns = table::Columns::read(&mut lines)?;
                Box::new(Sorted::new(lines, move |line| columns.talk(line)))
            }
            Format::Agentic => Box::new(agentic::Talks::new(lines, options.gap)),
            Format::Dynamo => Box::new(Sorted::new(lines, dynamo::talk)),
        };
        Ok(Self { format, block_size, talks })
    }
}

fn unknown() -> String {
    let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
    format!("this is no trace of a format that is known ({}): say which with --format", names.join(", "))
}

impl Iterator for Trace {
    type Item = Result<Talk, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.talks.next()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("format", &self.format)
            .field("block_size", &self.block_size)
            .finish_non_exhaustive()
    }
}

/// A talk of one round that came at a moment of the trace's own clock, in nanoseconds.
pub(crate) type Stamped = (i128, Round);

/// A number of tokens; none of nothing.
pub(crate) fn tokens(name: &str, count: u64) -> Result<u32, String> {
    match u32::try_from(count) {
        Ok(tokens) if count <= TOKENS_MAX => Ok(tokens),
        _ => Err(format!("{name} is {count}: no request has more than {TOKENS_MAX} tokens")),
    }
}

/// A time in this unit, in nanoseconds.
pub(crate) fn nanos(name: &str, value: f64, unit: f64) -> Result<i128, String> {
    let nanos = value * unit;
    if nanos.is_finite() && nanos.abs() < 4e18 {
        return Ok(nanos.round() as i128);
    }
    Err(format!("{name} is {value}: that is no time"))
}

#[cfg(test)]
mod tests;
