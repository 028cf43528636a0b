//! What a step may take, for schedulers that cut prompts by time.

use millstream_actors::message::{Step, StepRow};
use millstream_kernels::work::RowShape;

use super::World;

impl World {
    /// A step is not predicted to take longer than it may, but by the smallest chunk, or by one token.
    pub(super) fn check_time(&self, step: &Step) {
        let Some(timing) = &self.bounds.timing else { return };
        let Some(time) = timing.step_time else { return };
        let work = |row: &StepRow| {
            let (state, last) = (row.state.as_ref(), row.sample.is_some() || !row.observe.is_empty());
            timing.work.row(&RowShape {
                start: row.start,
                tokens: row.tokens.len() as u32,
                logits: u32::from(last),
                valid_from: state.map_or(0, |state| state.valid_from),
                written: state.map_or(0, |state| state.written),
                decoder_from: state.and_then(|state| state.decoder_from),
            })
        };
        let within = |rows: &[StepRow]| timing.coefficients.time(&rows.iter().map(work).sum()) <= time;
        let prompts: usize = step.rows.iter().map(|row| row.tokens.len()).filter(|&count| count > 1).sum();
        let but_one = match step.rows.split_last() {
            Some((last, others)) => last.tokens.len() == 1 && within(others),
            None => true,
        };
        let least = prompts <= self.bounds.block_size as usize;
        assert!(within(&step.rows) || least || but_one, "a step of {prompts} prompt tokens is too long");
    }
}
