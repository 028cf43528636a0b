//! What groups did, told by the mocks that stand for their ranks: gaps between tokens, time that was busy, and over time how
//! full the groups were. Sums of whole numbers, so that it does not matter how steps were put together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_actors::gauges::GroupGauges;
use millstream_actors::rank::predicted::{Ran, RowCost, Watch};
use millstream_actors::request::{RequestId, Usage};
use millstream_runtime::Time;
use millstream_topology::{Plan, Settings};

use super::Histogram;

/// Spans of time that are told apart; when there are more, two become one.
const SPANS: usize = 256;
/// The first length of a span.
const SPAN: Duration = Duration::from_millis(250);

/// Which groups there are.
pub(super) struct Groups {
    /// Of each group: its actor, and whether it computes answers.
    pub of: Vec<(String, bool)>,
}

impl Groups {
    /// Those of a plan, in the order of their gauges.
    pub fn of(plan: &Plan, gauges: &[Arc<GroupGauges>]) -> Self {
        let of = |group: &Arc<GroupGauges>| {
            let name = &group.name;
            let actor = plan
                .actor(name)
                .or_else(|| plan.actor(name.rsplit_once('.').map_or(name, |(actor, _)| actor)));
            let answers = actor.is_some_and(|actor| matches!(actor.settings, Settings::Decode(_)));
            (actor.map_or_else(|| name.clone(), |actor| actor.name.to_string()), answers)
        };
        Self { of: gauges.iter().map(of).collect() }
    }

    pub fn count(&self) -> usize {
        self.of.len()
    }
}

/// What one group did, in all or in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    /// Nanoseconds of steps.
    pub busy: u64,
    pub steps: u64,
    /// Rows times nanoseconds.
    pub rows: u128,
    /// Tokens in KV memory times nanoseconds, of sequences that took part in steps.
    pub held: u128,
    /// Prompt tokens computed.
    pub computed: u64,
    /// Tokens of answers.
    pub answered: u64,
}

impl Done {
    fn add(&mut self, other: &Done) {
        self.busy += other.busy;
        self.steps += other.steps;
        self.rows += other.rows;
        self.held += other.held;
        self.computed += other.computed;
        self.answered += other.answered;
    }
}

/// What happened in a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub came: u64,
    pub prompt: u64,
    pub cached: u64,
    /// First tokens, and how long they took together, in nanoseconds.
    pub firsts: u64,
    pub first: u128,
    /// By group.
    pub groups: Vec<Done>,
}

impl Span {
    pub fn add(&mut self, other: &Span) {
        self.came += other.came;
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.firsts += other.firsts;
        self.first += other.first;
        if self.groups.len() < other.groups.len() {
            self.groups.resize(other.groups.len(), Done::default());
        }
        self.groups.iter_mut().zip(&other.groups).for_each(|(group, other)| group.add(other));
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Meter(Mutex<Counts>);

#[derive(Default)]
pub(super) struct Counts {
    pub groups: usize,
    /// From one token of an answer to the next, as groups make them.
    pub gaps: Histogram,
    /// When the last token of an answer came.
    last: BTreeMap<RequestId, Time>,
    /// Nanoseconds of a span.
    pub width: u64,
    pub spans: Vec<Span>,
}

impl Meter {
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_groups(&self, groups: usize) {
        let mut counts = self.counts();
        (counts.groups, counts.width) = (groups, SPAN.as_nanos() as u64);
    }

    /// A request has come.
    pub fn came(&self, at: Time) {
        self.counts().span(at).came += 1;
    }

    /// The first token of an answer is there.
    pub fn first(&self, at: Time, took: Duration) {
        let mut counts = self.counts();
        let span = counts.span(at);
        span.firsts += 1;
        span.first += took.as_nanos();
    }

    /// An answer is over.
    pub fn ended(&self, request: RequestId, at: Time, usage: Usage) {
        let mut counts = self.counts();
        counts.last.remove(&request);
        let span = counts.span(at);
        span.prompt += u64::from(usage.prompt_tokens);
        span.cached += u64::from(usage.cached_tokens);
    }
}

impl Watch for Meter {
    fn ran(&self, ran: &Ran<'_>) {
        let mut counts = self.counts();
        counts.count_gaps(ran);
        counts.count_work(ran);
    }
}

impl Counts {
    /// The span of a moment; spans are made twice as long until there is one.
    fn span(&mut self, at: Time) -> &mut Span {
        let mut place = (at.as_nanos() / self.width.max(1)) as usize;
        while place >= SPANS {
            self.width *= 2;
            place /= 2;
            let halves = std::mem::take(&mut self.spans);
            for pair in halves.chunks(2) {
                let mut span = pair[0].clone();
                pair[1..].iter().for_each(|other| span.add(other));
                self.spans.push(span);
            }
        }
        if self.spans.len() <= place {
            self.spans.resize(place + 1, Span::default());
        }
        &mut self.spans[place]
    }

    fn count_gaps(&mut self, ran: &Ran<'_>) {
        let (first, last) = (ran.ends[0], ran.ends[ran.ends.len() - 1]);
        let mut rows = 0;
        for row in ran.rows.iter().filter(|row| row.chooses) {
            if let Some(before) = self.last.insert(row.sequence.request, last) {
                self.gaps.add(first.saturating_since(before), 1);
            }
            rows += 1;
        }
        for pair in ran.ends.windows(2).filter(|_| rows > 0) {
            self.gaps.add(pair[1].saturating_since(pair[0]), rows);
        }
    }

    fn count_work(&mut self, ran: &Ran<'_>) {
        let (mut done, mut began) = (of_rows(ran.rows), ran.began);
        let rows = ran.rows.len() as u128;
        for (time, &end) in (0..).zip(ran.ends) {
            let busy = end.saturating_since(began).as_nanos() as u64;
            let held = (done.held + rows * time) * u128::from(busy);
            let step = Done { busy, rows: rows * u128::from(busy), held, ..done };
            let groups = self.groups;
            let span = self.span(end);
            span.groups.resize(groups.max(ran.group + 1), Done::default());
            span.groups[ran.group].add(&step);
            (began, done.computed) = (end, if time == 0 { 0 } else { done.computed });
        }
    }
}

/// What one step of these rows does; `held` are its tokens.
fn of_rows(rows: &[RowCost]) -> Done {
    let held = rows.iter().map(|row| u128::from(row.start + row.tokens)).sum();
    let answered = rows.iter().filter(|row| row.chooses).count() as u64;
    let computed =
        rows.iter().filter(|row| row.tokens > 1 || !row.chooses).map(|row| u64::from(row.tokens)).sum();
    Done { steps: 1, held, computed, answered, ..Done::default() }
}

#[cfg(test)]
mod tests {
    use millstream_actors::message::SequenceId;

    use super::*;

    fn row(request: u64, start: u32) -> RowCost {
        let sequence = SequenceId { request: RequestId(request), attempt: 0 };
        RowCost { sequence, start, tokens: 1, chooses: true, valid_from: 0, written: 0, decoder_from: None }
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_does_not_matter_how_steps_are_put_together() {
        let (one, each) = (Meter::default(), Meter::default());
        one.set_groups(2);
        each.set_groups(2);
        let ends: Vec<Time> = (1..=500).map(|n| at(n * 700)).collect();
        one.ran(&Ran { group: 1, rows: &[row(1, 10), row(2, 99)], began: at(0), ends: &ends });
        for (n, end) in ends.iter().enumerate() {
            let (rows, began) = ([row(1, 10 + n as u32), row(2, 99 + n as u32)], at(n as u64 * 700));
            each.ran(&Ran { group: 1, rows: &rows, began, ends: &[*end] });
        }
        let (one, each) = (one.counts(), each.counts());
        assert_eq!((&one.gaps, one.width, &one.spans), (&each.gaps, each.width, &each.spans));
        assert_eq!((one.gaps.count(), one.gaps.mean()), (998, 0.7));
        assert!(one.spans.len() <= SPANS && one.width > SPAN.as_nanos() as u64);
    }
}
