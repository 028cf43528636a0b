//! Dynamo's `dynamo.request.trace.v1`: a record a line, of which those of type `request_end` are requests. Hashes of blocks
//! are of a block and all before it.

use serde::Deserialize;

use super::mooncake::round;
use super::{Stamped, nanos};

const SCHEMA: &str = "dynamo.request.trace.v1";

#[derive(Deserialize)]
struct Line {
    schema: String,
    event_type: String,
    request: Option<Request>,
}

/// Some sinks put the record into another.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wrapped {
    Bare(Line),
    Event { event: Line },
}

#[derive(Deserialize)]
struct Request {
    request_received_ms: Option<u64>,
    output_tokens: Option<u64>,
    replay: Option<Replay>,
}

#[derive(Deserialize)]
struct Replay {
    trace_block_size: u32,
    input_length: u64,
    input_sequence_hashes: Vec<u64>,
}

/// Tokens in a block, as a line says; the same in all of them.
pub(super) fn block_size(line: &str) -> Result<u32, String> {
    match request(line)? {
        Some(Request { replay: Some(replay), .. }) if replay.trace_block_size > 0 => {
            Ok(replay.trace_block_size)
        }
        _ => Err("the first record must be of a request and have request.replay.trace_block_size".to_owned()),
    }
}

fn request(line: &str) -> Result<Option<Request>, String> {
    let (Wrapped::Bare(line) | Wrapped::Event { event: line }) =
        serde_json::from_str(line).map_err(|error| format!("is no record of {SCHEMA}: {error}"))?;
    if line.schema != SCHEMA {
        return Err(format!("is a record of {}, not of {SCHEMA}", line.schema));
    }
    Ok(line.request.filter(|_| line.event_type == "request_end"))
}

pub(super) fn talk(line: &str) -> Result<Option<Stamped>, String> {
    let Some(request) = request(line)? else { return Ok(None) };
    let missing = |name: &str| format!("the request has no {name}");
    let at = request.request_received_ms.ok_or_else(|| missing("request_received_ms"))?;
    let output = request.output_tokens.ok_or_else(|| missing("output_tokens"))?;
    let Replay { trace_block_size, input_length, input_sequence_hashes } =
        request.replay.ok_or_else(|| missing("replay"))?;
    let blocks = (trace_block_size.max(1), 0, input_sequence_hashes);
    Ok(Some((nanos("request_received_ms", at as f64, 1e6)?, round((input_length, output), blocks)?)))
}
