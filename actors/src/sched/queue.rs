//! Who comes first. Sequences have rights in this order:
//! 1. who has waited for `wait_steps_max` steps since it came, whatever its priority: nobody waits for ever, and of these
//!    too tenants take turns;
//! 2. by priority, the lowest number first;
//! 3. of one priority: who has begun before and lost its blocks; and then tenants by turns, by *deficit round robin*: a
//!    tenant begins prompts as long as it has credit for their tokens, and when nobody has enough, all who wait get more;
//! 4. of one tenant, in order of arrival.
//!
//! Who runs is served in the same order, without the turns; who comes last in it gives its blocks back first, which is the
//! youngest of the lowest priority.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Duration;

use millstream_kernels::work::RowShape;

use super::{Scheduler, Stored};
use crate::kv::BlockHash;
use crate::request::Request;
use crate::sequence::{Phase, Sequence};
use crate::store::Tenant;

/// Prompt tokens that a tenant gets at a time.
const QUANTUM: u64 = 1_024;

/// The first thing that rights go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// It has waited for so long that nobody overtakes it.
    Due,
    /// Of this priority.
    Of(i32),
}

/// What begins: how often, and with how many tokens. Of those that come later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Sequences.
    pub sequences: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// The turns of tenants in one class.
#[derive(Debug, Default)]
struct Turns {
    /// Tokens that each may still begin.
    credits: BTreeMap<Tenant, u64>,
    /// Whose turn it is.
    at: Tenant,
    /// Its turn is over.
    over: bool,
}

/// What the queue remembers from step to step, of those who wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    turns: BTreeMap<Class, Turns>,
    begun: Amount,
}

/// Those of a class who wait, as a step sees them.
#[derive(Debug, Default)]
struct Waiting {
    /// By arrival, with what they have to begin with: who comes before all turns.
    first: VecDeque<(u64, u64)>,
    /// By arrival, with their tokens.
    tenants: BTreeMap<Tenant, VecDeque<(u64, u64)>>,
}

/// All who wait, as a step takes them off one by one.
#[derive(Debug, Default)]
pub(super) struct Line(BTreeMap<Class, Waiting>);

impl Turns {
    /// Whose turn it is among those with a next prompt of so many tokens.
    fn pick(&mut self, next: &BTreeMap<Tenant, u64>) -> Option<Tenant> {
        let credit = |credits: &BTreeMap<Tenant, u64>, tenant| credits.get(tenant).copied().unwrap_or(0);
        loop {
            let start = if self.over { Excluded(self.at) } else { Included(self.at) };
            let ring = next.range((start, Unbounded)).chain(next.range(..=self.at));
            let able = ring.into_iter().find(|(tenant, tokens)| credit(&self.credits, tenant) >= **tokens);
            if let Some((&tenant, _)) = able {
                (self.at, self.over) = (tenant, false);
                return Some(tenant);
            }
            let missing = next.iter().map(|(tenant, tokens)| tokens - credit(&self.credits, tenant));
            let rounds = missing.min()?.div_ceil(QUANTUM);
            for tenant in next.keys() {
                *self.credits.entry(*tenant).or_default() += rounds * QUANTUM;
            }
            self.over = true;
        }
    }
}

impl Queue {
    /// The next of the line, left in it.
    pub(super) fn next(&mut self, line: &mut Line) -> Option<u64> {
        while let Some(entry) = line.0.first_entry() {
            let (class, waiting) = (*entry.key(), entry.get());
            if let Some(&(arrival, _)) = waiting.first.front() {
                return Some(arrival);
            }
            if waiting.tenants.is_empty() {
                entry.remove();
                continue;
            }
            let heads = waiting.tenants.iter().filter_map(|(tenant, line)| Some((*tenant, line.front()?.1)));
            let tenant = self.turns.entry(class).or_default().pick(&heads.collect())?;
            return waiting.tenants.get(&tenant)?.front().map(|(arrival, _)| *arrival);
        }
        None
    }

    /// It has begun.
    pub(super) fn charge(&mut self, line: &Line) {
        let Some((class, waiting)) = line.0.first_key_value() else { return };
        let mut tokens = waiting.first.front().map(|(_, tokens)| *tokens);
        if let (None, Some(turns)) = (tokens, self.turns.get_mut(class)) {
            tokens = waiting.tenants.get(&turns.at).and_then(VecDeque::front).map(|(_, tokens)| *tokens);
            if let Some(credit) = turns.credits.get_mut(&turns.at) {
                *credit = credit.saturating_sub(tokens.unwrap_or(0));
            }
        }
        let tokens = tokens.unwrap_or(0);
        self.begun.sequences += u64::from(tokens > 0);
        self.begun.tokens += tokens;
    }

    /// Takes the next one off the line.
    pub(super) fn pass(&self, line: &mut Line) {
        let Some(mut entry) = line.0.first_entry() else { return };
        let class = *entry.key();
        let waiting = entry.get_mut();
        if waiting.first.pop_front().is_some() {
            return;
        }
        let Some(at) = self.turns.get(&class).map(|turns| turns.at) else { return };
        let left = waiting.tenants.get_mut(&at).map_or(0, |line| {
            line.pop_front();
            line.len()
        });
        if left == 0 {
            waiting.tenants.remove(&at);
        }
    }
}

impl Scheduler {
    /// All who wait. Who has nothing to wait for has no credit.
    pub(super) fn line(&mut self) -> Line {
        let mut line = Line::default();
        for (&arrival, sequence) in self.sequences.iter().filter(|(_, s)| s.phase == Phase::Waiting) {
            let class = self.class(sequence);
            let waiting = line.0.entry(class).or_default();
            let tokens = sequence.pending() as u64;
            if sequence.has_begun() {
                waiting.first.push_back((arrival, 0));
            } else {
                let tenant = waiting.tenants.entry(sequence.request.keeping.tenant).or_default();
                tenant.push_back((arrival, tokens));
            }
        }
        self.queue.turns.retain(|class, turns| {
            let waiting = line.0.get(class);
            turns
                .credits
                .retain(|tenant, _| waiting.is_some_and(|waiting| waiting.tenants.contains_key(tenant)));
            waiting.is_some()
        });
        line
    }

    /// Running sequences, who comes first first.
    pub(super) fn by_right(&self) -> Vec<u64> {
        let running = self.sequences.iter().filter(|(_, sequence)| sequence.phase == Phase::Running);
        let mut running: Vec<_> =
            running.map(|(&arrival, sequence)| (self.class(sequence), arrival)).collect();
        running.sort_unstable();
        running.into_iter().map(|(_, arrival)| arrival).collect()
    }

    fn class(&self, sequence: &Sequence) -> Class {
        let waited = self.steps - sequence.since;
        if waited >= self.bounds.wait_steps_max { Class::Due } else { Class::Of(sequence.request.priority) }
    }

    /// What waits for a place.
    pub fn waiting(&self) -> Amount {
        let waiting = self.sequences.values().filter(|sequence| sequence.phase == Phase::Waiting);
        waiting.fold(Amount::default(), |sum, sequence| Amount {
            sequences: sum.sequences + 1,
            tokens: sum.tokens + sequence.pending() as u64,
        })
    }

    /// What has begun since the start of the group.
    pub fn begun(&self) -> Amount {
        self.queue.begun
    }

    /// How long it will be, at least, until the prompt of a request would be computed that came now: what is there before
    /// it, and itself. Nothing counts that is found, or that a store may have. `None` where steps are not predicted.
    pub fn prompt_in(&self, request: &Request) -> Option<Duration> {
        let class = Class::Of(request.priority);
        let counts = |sequence: &&Sequence| match sequence.phase {
            // Of its own priority others have turns too, and may come after it.
            Phase::Waiting => {
                let theirs = self.class(sequence);
                theirs < class || theirs == class && sequence.request.keeping.tenant == request.keeping.tenant
            }
            Phase::Running => sequence.uncomputed() > 1 && self.class(sequence) <= class,
            Phase::Arriving | Phase::Doomed => false,
        };
        let spared = |sequence: &Sequence| match (self.bounds.store, sequence.stored) {
            (Some(_), Stored::Blocks(blocks)) => blocks.max(self.found(sequence)),
            (None, _) => self.found(sequence),
            (Some(_), _) => sequence.reusable(self.bounds.block_size),
        };
        let size = self.bounds.block_size as usize;
        let before = self.sequences.values().filter(counts).map(|sequence| {
            let from = sequence.computed.max(spared(sequence) * size).min(sequence.tokens.len() - 1);
            self.prompt_seconds(from, sequence.tokens.len())
        });
        let tokens = request.tokens();
        let known = |hash: &BlockHash| self.bounds.store.is_some() || self.pool().find(hash).is_some();
        let own = request.hashes.partition_point(known) * size;
        let seconds = before.sum::<Option<f64>>()? + self.prompt_seconds(own.min(tokens - 1), tokens)?;
        Some(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
    }

    /// Predicted seconds of the tokens of a prompt from one place to another.
    fn prompt_seconds(&self, from: usize, to: usize) -> Option<f64> {
        let timing = self.bounds.timing.as_ref()?;
        let work = timing.work.row(&RowShape::plain(from as u32, (to - from) as u32, 1));
        let steps = (to - from).div_ceil(self.bounds.chunk_tokens.max(1));
        Some(timing.coefficients.in_chunks(&work, steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_by_tokens() {
        let (a, b) = (Tenant([1; 16]), Tenant([2; 16]));
        let mut turns = Turns::default();
        let next = BTreeMap::from([(a, 300), (b, 3_000)]);
        let mut tokens = BTreeMap::from([(a, 0), (b, 0)]);
        for _ in 0..110 {
            let tenant = turns.pick(&next).expect("two wait");
            assert_eq!(turns.pick(&next), Some(tenant), "asked again, the same");
            *turns.credits.get_mut(&tenant).expect("it has credit") -= next[&tenant];
            *tokens.get_mut(&tenant).expect("it waits") += next[&tenant];
        }
        assert!(tokens[&a].abs_diff(tokens[&b]) <= 3_000 + QUANTUM, "{tokens:?}");
        assert!(tokens[&b] >= 27_000, "{tokens:?}");
    }
}
