//! What this family alone refuses of a row: a state that cannot be, images that do not fit, logits that nobody computes.

use super::super::{Local, Row, Want};
use super::DeepSeekV41;
use super::narrow::replay_from;

/// What is wrong with what a row says of its state and its images, if anything is.
pub(super) fn problem(model: &DeepSeekV41, row: &Row<'_>) -> Option<String> {
    let Local { valid_from, written, before, decoder_from, .. } = row.local;
    let needed = model.engram.as_ref().map_or(0, |engram| engram.shape.longest - 1).min(row.start as usize);
    if before.len() < needed {
        return Some(format!("names {} tokens before it, needed: {needed}", before.len()));
    }
    let half = row.start % 2 == 1 && valid_from == row.start && written <= row.start;
    if half && model.state.paired > 0 && !row.tokens.is_empty() {
        return Some(format!("starts within a pair at {} that is still to be written", row.start));
    }
    let hidden = model.config.shape.hidden;
    let mut at = 0;
    for span in row.spans {
        let tokens = span.embeddings.len() / hidden;
        let fits = span.width == hidden && span.embeddings.len() == tokens * hidden;
        let end = span.first as usize + tokens;
        if !fits || (span.first as usize) < at || end > row.tokens.len() {
            return Some(format!("has a span of {tokens} tokens of {} at {}", span.width, span.first));
        }
        at = end;
    }
    let first = match row.logits {
        Want::Nothing => None,
        Want::Last => row.tokens.len().checked_sub(1),
        Want::At(places) => places.first().map(|&place| place as usize),
        Want::All => (!row.tokens.is_empty()).then_some(0),
    };
    let from = decoder_from.filter(|_| model.first_decoder.is_some()).unwrap_or(0);
    let from = from.max(replay_from(model, model.layers.len().saturating_sub(1), &row.local));
    let early = first.is_some_and(|first| row.start as usize + first < from as usize);
    early.then(|| format!("wants logits {:?}, its last layers run from {from} on", row.logits))
}
