//! Mooncake's traces (FAST '25): a request a line, with the numbers of its blocks of 512 tokens. A number stands for a block
//! and all before it.

use serde::Deserialize;

use super::{Blocks, Round, Stamped, nanos, tokens};

/// Tokens in a block.
pub(super) const BLOCK: u32 = 512;

#[derive(Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

pub(super) fn talk(line: &str) -> Result<Option<Stamped>, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let at = nanos("timestamp", line.timestamp, 1e6)?;
    round((line.input_length, line.output_length), (BLOCK, 0, line.hash_ids)).map(|round| Some((at, round)))
}

/// A request with numbered blocks of this size; one without a token is taken for one of one.
pub(super) fn round(
    (input, output): (u64, u64),
    (size, scope, numbers): (u32, u64, Vec<u64>),
) -> Result<Round, String> {
    let (input, output) = (tokens("the prompt", input)?.max(1), tokens("the answer", output)?.max(1));
    let most = input.div_ceil(size) as usize;
    if numbers.len() > most {
        return Err(format!(
            "names {} blocks of {size} tokens for a prompt of {input}: {most} at most",
            numbers.len()
        ));
    }
    Ok(Round { input, output, blocks: Blocks::of(scope, numbers), ..Round::default() })
}
