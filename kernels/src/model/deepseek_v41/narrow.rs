//! Not every layer needs every token: here tokens leave the step.
//!
//! - Layers behind the last source of keys need only the newest tokens of a prompt.
//! - A replay is there for the windows. A layer's are as if nothing had been found once it has seen a window of tokens
//!   whose own were, so each layer of an exact replay begins a window later than the one before it: what it would make
//!   of the tokens before would be of no use to anybody. That is nearly half of the work of a replay.

use super::super::Local;
use super::super::scratch::Scratch;
use super::DeepSeekV41;
use super::pass::Streams;

/// Where a layer begins to see what an exact replay brings; 0 where nothing is replayed, or not enough for that.
pub(super) fn replay_from(model: &DeepSeekV41, layer: usize, local: &Local<'_>) -> u32 {
    let (valid_from, written, window) = (local.valid_from, local.written, model.state.window as u32);
    let layers = model.layers.len() as u32;
    match written.saturating_sub(valid_from) >= layers * window {
        true => (valid_from + layer as u32 * window).min(written - window),
        false => 0,
    }
}

impl Streams<'_> {
    /// The tokens of a replay that only the layers before this one need leave.
    pub fn leave_replay(&mut self, layer: usize) {
        let model = self.model;
        self.narrow(|local| replay_from(model, layer, local));
    }

    /// The tokens that only the layers before the last source of keys need leave.
    pub fn leave_decoder(&mut self) {
        self.narrow(|local| local.decoder_from.unwrap_or(0));
    }

    /// From here on, rows are about positions `from` on, and see none before in their windows.
    fn narrow(&mut self, from: impl Fn(&Local<'_>) -> u32) {
        #[cfg(test)]
        if self.model.masks {
            for (window, local) in self.windows.iter_mut().zip(&self.pass.locals) {
                window.from = window.from.max(from(local));
            }
            return;
        }
        let (mut kept, mut first) = (Vec::new(), 0);
        for ((row, window), local) in self.pass.rows.iter_mut().zip(&mut self.windows).zip(&self.pass.locals)
        {
            let from = from(local);
            let gone = (from.saturating_sub(row.start) as usize).min(row.tokens);
            kept.push(first + gone..first + row.tokens);
            first += row.tokens;
            row.start += gone as u32;
            row.tokens -= gone;
            (window.start, window.tokens) = (row.start, row.tokens);
            window.from = window.from.max(from);
        }
        let left: usize = kept.iter().map(ExactSizeIterator::len).sum();
        if left == first {
            return;
        }
        let config = &self.model.config;
        let (streams, hidden, turning) = (config.streams, self.pass.hidden, config.turning);
        let features = self.model.drafts.as_ref().map_or(0, |drafts| drafts.entry.cols);
        let longest = self.model.engram.as_ref().map_or(0, |engram| engram.shape.longest);
        let Scratch { tokens, positions, wanted, x, y, mixture, streams: own, .. } = &mut *self.pass.scratch;
        keep(x, streams * hidden, &kept);
        keep(y, hidden, &kept);
        keep(&mut own.mixes.read, streams, &kept);
        keep(&mut own.features, features, &kept);
        keep(&mut own.ngrams, longest, &kept);
        own.chosen.keep(&kept);
        own.runs.keep(&kept);
        keep(tokens, 1, &kept);
        keep(positions, 1, &kept);
        keep(&mut mixture.marked, 1, &kept);
        own.turns.iter_mut().for_each(|turns| {
            keep(turns, turning, &kept);
            turns.truncate(left * turning);
        });
        tokens.truncate(left);
        positions.truncate(left);
        mixture.marked.truncate(left);
        own.ngrams.truncate(left * longest);
        own.mixes.size(left, streams);
        let mut gone = 0;
        let mut rows = kept.iter().scan(0, |end, kept| {
            gone += kept.start - *end;
            *end = kept.end;
            Some((kept.end, gone))
        });
        let mut row = rows.next();
        for token in wanted {
            while row.is_some_and(|(end, _)| end <= *token) {
                row = rows.next();
            }
            *token -= row.map_or(0, |(_, gone)| gone);
        }
    }
}

/// Moves runs of rows of `width` values to the front.
fn keep<T: Copy>(values: &mut [T], width: usize, runs: &[std::ops::Range<usize>]) {
    let mut at = 0;
    for run in runs {
        values.copy_within(run.start * width..run.end * width, at);
        at += run.len() * width;
    }
}
