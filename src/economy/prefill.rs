//! How many groups of one size compute prompts in time.

use super::group::{Group, times};
use super::keep::Keep;
use super::model::Prompt;
use super::spec::Goal;
use super::wait::{Queue, least};

/// The most groups that are thought of.
pub(super) const GROUPS_MAX: u64 = 1 << 24;

/// Groups that compute prompts, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prefill {
    pub groups: u64,
    /// Milliseconds to the first token, as the goal counts them.
    pub first_token_ms: f64,
    /// The share of their time that they are busy.
    pub busy: f64,
}

/// What prompts ask of such groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompts<'a> {
    pub prompt: &'a Prompt,
    /// Bytes that each fetches, and that each hands over when it is computed.
    pub fetched: f64,
    pub handed: f64,
    pub keep: &'a Keep<'a>,
    /// Requests a second of the busiest hour.
    pub rate: f64,
    pub spread: f64,
    pub goal: &'a Goal,
    /// The largest share of their time that groups may be busy.
    pub busy: f64,
}

/// How long a prompt takes a group.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Seconds of the group's time, its share of steps that it has in common with others.
    takes: f64,
    /// Seconds from its first step to the end of its last.
    lasts: f64,
    /// Seconds of one step.
    step: f64,
}

impl Group<'_> {
    /// The fewest groups that are in time; the least that is possible, in milliseconds, where none are.
    pub(super) fn prefill(&self, of: &Prompts<'_>, chunk: u32) -> Result<Prefill, f64> {
        if self.room(of.prompt.computed + of.prompt.fetched) < 1.0 {
            return Err(f64::INFINITY);
        }
        let pace = self.pace(of.prompt, chunk);
        let fetch = of.keep.fetch_s(of.fetched, self.devices);
        let queue = Queue { rate: of.rate, takes_s: pace.takes, spread: of.spread };
        let first_ms = |groups: u64| {
            let groups = groups as f64;
            // Who comes to a group that is busy waits for half of the step that is under way.
            let under_way = queue.busy(groups).min(1.0) * pace.step / 2.0;
            1e3 * (queue.wait(groups, of.goal.share) + under_way + pace.lasts + fetch)
        };
        let reads = |groups: u64| {
            let devices = groups as f64 * f64::from(self.devices);
            let sent = of.rate * of.handed <= devices * self.of.spec.link_bytes_per_second;
            sent && of.keep.reads(of.rate * of.fetched, devices)
        };
        let calm = |groups: u64| queue.busy(groups as f64) <= of.busy;
        let in_time =
            |groups: u64| calm(groups) && reads(groups) && first_ms(groups) <= of.goal.first_token_ms;
        let groups = least(GROUPS_MAX, in_time).ok_or(1e3 * (pace.lasts + fetch))?;
        Ok(Prefill { groups, first_token_ms: first_ms(groups), busy: queue.busy(groups as f64) })
    }

    fn pace(&self, prompt: &Prompt, chunk: u32) -> Pace {
        let chunk = f64::from(chunk);
        if prompt.computed >= chunk {
            let steps = (prompt.computed / chunk).ceil();
            let takes = self.in_steps(&prompt.work, prompt.computed, steps as usize);
            return Pace { takes, lasts: takes, step: takes / steps };
        }
        let together = (chunk / prompt.computed).floor().max(1.0);
        let step = self.seconds(&times(&prompt.work, together), together * prompt.computed);
        Pace { takes: step / together, lasts: step, step }
    }
}
