//! Requests in the order of their time. Some systems write a request down when it ends; so a few thousand lines are held
//! back, and a line that is older than all that may be held is an error.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Lines, Round, Stamped, Talk, TraceError};

/// Requests that are held back.
const AHEAD: usize = 16_384;

/// What a line of a trace is: a request at a time, or nothing of interest.
pub(super) struct Sorted<R> {
    lines: Lines,
    read: R,
    /// By time and line.
    held: BTreeMap<(i128, u64), Round>,
    read_so_far: u64,
    /// When the first request came.
    began: Option<i128>,
    last: i128,
    ended: bool,
}

impl<R: FnMut(&str) -> Result<Option<Stamped>, String>> Sorted<R> {
    pub(super) fn new(lines: Lines, read: R) -> Self {
        Self {
            lines,
            read,
            held: BTreeMap::new(),
            read_so_far: 0,
            began: None,
            last: i128::MIN,
            ended: false,
        }
    }

    fn fill(&mut self) -> Result<(), TraceError> {
        while !self.ended && self.held.len() < AHEAD {
            let Some(line) = self.lines.read()? else {
                self.ended = true;
                break;
            };
            let Some((at, round)) = (self.read)(&line).map_err(|why| self.lines.wrong(why))? else {
                continue;
            };
            if at < self.last {
                let why = format!(
                    "comes before a request that is more than {AHEAD} lines above: sort the trace by time"
                );
                return Err(self.lines.wrong(why));
            }
            self.read_so_far += 1;
            self.held.insert((at, self.read_so_far), round);
        }
        Ok(())
    }
}

impl<R: FnMut(&str) -> Result<Option<Stamped>, String>> Iterator for Sorted<R> {
    type Item = Result<Talk, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            (self.ended, self.held) = (true, BTreeMap::new());
            return Some(Err(error));
        }
        let ((at, _), round) = self.held.pop_first()?;
        self.last = at;
        let began = *self.began.get_or_insert(at);
        let at = Duration::from_nanos(u64::try_from(at - began).unwrap_or(u64::MAX));
        Some(Ok(Talk { at, rounds: vec![round] }))
    }
}
