//! Traces of Qwen on Bailian: a request a line, with the numbers of its blocks of 16 tokens. Each line has all of its prompt,
//! and comes when the trace says, whatever became of the turn before it.

use serde::Deserialize;

use super::mooncake::round;
use super::{Stamped, nanos};

/// Tokens in a block.
pub(super) const BLOCK: u32 = 16;

#[derive(Deserialize)]
struct Line {
    /// Seconds.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

pub(super) fn talk(line: &str) -> Result<Option<Stamped>, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let at = nanos("timestamp", line.timestamp, 1e9)?;
    round((line.input_length, line.output_length), (BLOCK, 0, line.hash_ids)).map(|round| Some((at, round)))
}
