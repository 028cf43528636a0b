//! Rows that *follow*: the only token of such a row is the one that the step before chose for its sequence. The group has
//! planned the row while that step ran (`sched/ahead.rs`), so the rank puts the token in. The row is left out where there is
//! none, or where it ends the answer: nothing behind an end is computed.
//!
//! This is all that a rank remembers from one step to the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::message::{SequenceId, StepDone, StepRow};

/// What the last step chose.
#[derive(Debug, Default)]
pub struct Follow {
    chosen: BTreeMap<SequenceId, u32>,
}

impl Follow {
    /// Runs `forward` on the rows that are to be run, each with its tokens. What comes back has an entry for every row.
    pub fn run(&mut self, rows: Vec<StepRow>, forward: impl FnOnce(&[StepRow]) -> StepDone) -> StepDone {
        let all = rows.len();
        let rows = (0..all).zip(rows).filter_map(|(place, row)| Some((place, self.lead(row)?)));
        let (places, rows): (Vec<usize>, Vec<StepRow>) = rows.unzip();
        let mut done = forward(&rows);
        let chosen = rows.iter().zip(&done.tokens);
        self.chosen = chosen.filter_map(|(row, token)| Some((row.sequence, token.as_ref()?.id))).collect();
        let mut tokens = vec![None; all];
        for (place, token) in places.into_iter().zip(done.tokens) {
            tokens[place] = token;
        }
        done.tokens = tokens;
        done
    }

    /// A row with its tokens, if it is to be run.
    fn lead(&self, mut row: StepRow) -> Option<StepRow> {
        let Some(ends) = &row.follows else { return Some(row) };
        let token = *self.chosen.get(&row.sequence)?;
        if ends.contains(&token) {
            return None;
        }
        row.tokens = vec![token];
        if let Some(sample) = &mut row.sample {
            Arc::make_mut(&mut sample.tally).add(token);
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Chosen, Sample};
    use crate::request::{RequestId, Sampling};
    use crate::sample::Tally;

    fn row(request: u64, follows: Option<Vec<u32>>) -> StepRow {
        let sampling = Sampling { presence: 1.0, ..Sampling::GREEDY };
        let tally = Arc::new(Tally::new(&sampling, &[], &[3]));
        let sampling = Arc::new(sampling);
        StepRow {
            sequence: SequenceId { request: RequestId(request), attempt: 0 },
            tokens: vec![0],
            start: 1,
            blocks: Vec::new(),
            images: Arc::from([]),
            state: None,
            sample: Some(Sample { sampling, position: 1, tally, banned: Vec::new(), logprobs: None }),
            observe: Vec::new(),
            follows,
        }
    }

    /// The token of a row is its request's number, and none for 9.
    fn choose(rows: &[StepRow]) -> StepDone {
        let token = |row: &StepRow| row.sequence.request.0 as u32;
        let tokens =
            rows.iter().map(|row| Some(Chosen { id: token(row), logprobs: None }).filter(|c| c.id != 9));
        StepDone { tokens: tokens.collect(), ..StepDone::default() }
    }

    #[test]
    fn a_row_follows_unless_the_answer_has_ended() {
        let mut follow = Follow::default();
        follow.run(vec![row(5, None), row(6, None), row(9, None)], choose);
        let behind = vec![
            row(6, Some(vec![1, 6])),
            row(5, Some(vec![1, 6])),
            row(7, None),
            row(9, Some(vec![])),
            row(8, Some(vec![])),
        ];
        let done = follow.run(behind, |rows| {
            let tokens: Vec<&[u32]> = rows.iter().map(|row| row.tokens.as_slice()).collect();
            assert_eq!(tokens, [[5], [0]], "6 ends its answer, 9 has no token, 8 was not there");
            let tally = &rows[0].sample.as_ref().expect("it chooses").tally;
            assert_eq!(**tally, Tally::new(&Sampling { presence: 1.0, ..Sampling::GREEDY }, &[], &[3, 5]));
            choose(rows)
        });
        let ids: Vec<Option<u32>> = done.tokens.iter().map(|token| token.as_ref().map(|t| t.id)).collect();
        assert_eq!(ids, [None, Some(5), Some(7), None, None]);
        follow.run(vec![row(6, Some(vec![]))], |rows| {
            assert!(rows.is_empty(), "it chose nothing in the step before");
            choose(rows)
        });
    }
}
