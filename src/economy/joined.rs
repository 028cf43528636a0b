//! How many groups of one size do both: each step has the rows of answers that run, and as many tokens of prompts as fit into
//! the time that the pace of answers leaves.

use super::decode::Answers;
use super::group::{Group, times};
use super::prefill::{GROUPS_MAX, Prompts};
use super::wait::{Queue, least};

/// Groups that compute prompts and give answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Joined {
    pub groups: u64,
    /// Sequences that a group has at most.
    pub batch: u64,
    /// Tokens of prompts that fit into a step.
    pub chunk: u64,
    /// Milliseconds to the first token, as the goal counts them.
    pub first_token_ms: f64,
    /// The share of its room for prompts that is used.
    pub busy: f64,
}

impl Group<'_> {
    /// The fewest groups that are in time; `None` where none are.
    pub(super) fn joined(
        &self,
        prompts: &Prompts<'_>,
        answers: &Answers<'_>,
        chunk_most: u32,
    ) -> Option<Joined> {
        let of = |groups: u64| self.of_joined((prompts, answers), groups, chunk_most);
        let in_time =
            |groups: u64| of(groups).is_some_and(|of| of.first_token_ms <= prompts.goal.first_token_ms);
        least(GROUPS_MAX, in_time).and_then(of)
    }

    /// So many groups; `None` where they have no room.
    fn of_joined(
        &self,
        (prompts, answers): (&Prompts<'_>, &Answers<'_>),
        groups: u64,
        chunk_most: u32,
    ) -> Option<Joined> {
        let (model, count) = (self.of.model, groups as f64);
        let (prompt, answer) = answers.lengths;
        let step = answers.goal.between_tokens_ms / 1e3 * model.tokens_a_step();
        let batch = (answers.slots(answer / model.tokens_a_step() * step) / count).ceil();
        if batch > self.room(prompt + answer) {
            return None;
        }
        let running = times(&model.answer(prompt + answer / 2.0), batch);
        let seconds = |chunk: u64| {
            let (tokens, computed) = (chunk as f64, prompts.prompt.computed);
            // A part of a prompt has that part of its products, and reads all of its keys.
            let part = times(&prompts.prompt.work, tokens / computed);
            let kv = prompts.prompt.work.kv * (tokens / computed).max(1.0);
            let part = millstream_kernels::work::Work { kv, ..part };
            self.seconds(&(running + part), tokens + batch * model.rows_a_step())
        };
        let most = u64::from(chunk_most);
        let beyond = |chunk: u64| chunk > most || seconds(chunk) > step;
        let chunk = least(most + 1, beyond).map_or(most, |first| first - 1);
        if chunk == 0 {
            return None;
        }
        let takes = prompts.prompt.computed * step / chunk as f64;
        let queue = Queue { rate: prompts.rate, takes_s: takes, spread: prompts.spread };
        let under_way = queue.busy(count).min(1.0) * step / 2.0;
        let fetch = prompts.keep.fetch_s(prompts.fetched, self.devices);
        let first = queue.wait(count, prompts.goal.share) + under_way + takes.max(step) + fetch;
        let reads = prompts.keep.reads(prompts.rate * prompts.fetched, count * f64::from(self.devices));
        (reads && queue.busy(count) <= prompts.busy).then(|| Joined {
            groups,
            batch: batch as u64,
            chunk,
            first_token_ms: 1e3 * first,
            busy: queue.busy(count),
        })
    }
}
