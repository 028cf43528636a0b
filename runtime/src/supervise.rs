//! Units, their budgets, and the cut between two lives: the one place that says what a restart does to the lanes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::bell::ROOM;
use crate::graph::Wiring;
use crate::lane::{LaneState, Path};
use crate::seat::{Notice, SeatState};
use crate::time::Time;

/// How many restarts a unit has within a span of time; one more death and it stays dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Restarts within the span; 0: the first death is the last.
    pub restarts: u32,
    /// The span.
    pub within: Duration,
}

impl Default for Budget {
    /// 5 restarts in 60 seconds.
    fn default() -> Budget {
        Budget { restarts: 5, within: Duration::from_secs(60) }
    }
}

/// How a running graph ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to.
    Stopped,
    /// A unit spent its restart budget, or one of its seats could not be brought out of a turn.
    Failed {
        /// The unit.
        unit: String,
        /// The panic's text, or what else killed it the last time.
        cause: String,
    },
}

/// Seats that fail and restart together.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) name: String,
    /// Places in the graph.
    pub(crate) seats: Vec<usize>,
    pub(crate) budget: Budget,
}

/// The deaths of one unit, held against its budget.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// Oldest first; those outside the budget's span are forgotten.
    recent: VecDeque<Time>,
    total: u32,
}

impl Deaths {
    /// Counts one more; `Some(n)` when the unit may be built again, for the nth time.
    pub(crate) fn count(&mut self, budget: Budget, now: Time) -> Option<u32> {
        while self.recent.front().is_some_and(|at| now.saturating_since(*at) > budget.within) {
            self.recent.pop_front();
        }
        if self.recent.len() >= budget.restarts as usize {
            return None;
        }
        self.recent.push_back(now);
        self.total += 1;
        Some(self.total)
    }
}

/// What comes after a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Rebuild,
    StayDead,
}

/// Separates the lives of `unit`. No seat of the unit is in a turn, and none starts one until this has returned; other
/// seats may be in the middle of theirs.
///
/// On every lane that joins the unit to a seat, a new epoch begins: the unit's own seats know it at once, a neighbour
/// learns it with the notice of the loss. A message of an older epoch is thrown away by whoever meets it; one of a
/// newer epoch makes its receiver hear the notice first.
pub(crate) fn cut(wiring: &Wiring, unit: &Unit, after: After) {
    for seat in &unit.seats {
        let seat = &wiring.seats[*seat];
        seat.forget();
        if after == After::StayDead {
            seat.die();
        }
    }
    // By neighbour and lost seat.
    let mut notices: BTreeMap<(usize, usize), Notice> = BTreeMap::new();
    for lane in &wiring.lanes {
        if let Some((pair, epoch)) = part(unit, lane, after) {
            let peer = Arc::clone(&wiring.seats[pair.1].name);
            let notice = notices.entry(pair).or_insert(Notice { peer, lanes: Vec::new() });
            notice.lanes.push((Arc::clone(lane), epoch));
        }
    }
    for ((neighbour, _), notice) in notices {
        if !wiring.seats[neighbour].is_dead() {
            wiring.seats[neighbour].notify(notice);
        }
    }
}

/// Cuts one lane if it touches the unit. The neighbour and the lost seat it is joined to, if the neighbour lives on.
fn part(unit: &Unit, lane: &Arc<dyn Path>, after: After) -> Option<((usize, usize), u32)> {
    let core = lane.core();
    let inside = |seat: usize| unit.seats.contains(&seat);
    let from = core.facts.from.as_ref().map(|seat| seat.index);
    let to = core.facts.to.as_ref().map(|seat| seat.index);
    if !from.is_some_and(inside) && !to.is_some_and(inside) {
        return None;
    }
    if after == After::StayDead {
        core.close();
    }
    let (Some(from), Some(to)) = (from, to) else {
        return None;
    };
    let epoch = core.next_epoch();
    if inside(from) {
        core.sender_learns(epoch);
    }
    if inside(to) {
        core.receiver_learns(epoch);
    }
    lane.purge();
    core.ring_sender(ROOM);
    match (inside(from), inside(to)) {
        (true, false) => Some(((to, from), epoch)),
        (false, true) => Some(((from, to), epoch)),
        _ => None,
    }
}

impl Wiring {
    /// Notes which seats have moved since the last look.
    pub(crate) fn look(&self, now: Time) {
        for seat in &self.seats {
            seat.look(now);
        }
    }

    /// Every seat, as seen from outside.
    pub(crate) fn seat_states(&self, now: Time) -> Vec<SeatState> {
        let mut queued = vec![0; self.seats.len()];
        for core in self.lanes.iter().map(|lane| lane.core()) {
            if let Some(to) = &core.facts.to {
                queued[to.index] += usize::try_from(core.depth()).unwrap_or(usize::MAX);
            }
        }
        self.seats.iter().map(|seat| seat.state(now, queued[seat.index])).collect()
    }

    /// Every lane, as seen from outside.
    pub(crate) fn lane_states(&self) -> Vec<LaneState> {
        self.lanes.iter().map(|lane| lane.core().state()).collect()
    }

    /// The unit a seat belongs to, by its place in `units`.
    pub(crate) fn unit_of(&self, seat: usize) -> usize {
        let holds = |unit: &Unit| unit.seats.contains(&seat);
        self.units.iter().position(holds).expect("the graph gave every seat a unit")
    }

    /// The seat of that name, or the first seat of the unit of that name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let seat = self.seats.iter().position(|seat| *seat.name == *name);
        seat.or_else(|| {
            self.units.iter().find(|unit| unit.name == name).and_then(|unit| unit.seats.first().copied())
        })
    }
}

/// The text of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_within_its_span_only() {
        let budget = Budget { restarts: 2, within: Duration::from_secs(10) };
        let mut deaths = Deaths::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        assert_eq!(deaths.count(budget, at(0)), Some(1));
        assert_eq!(deaths.count(budget, at(1)), Some(2));
        assert_eq!(deaths.count(budget, at(2)), None);
        assert_eq!(deaths.count(budget, at(12)), Some(3));
    }

    #[test]
    fn no_restarts_means_the_first_death_is_the_last() {
        let budget = Budget { restarts: 0, within: Duration::from_secs(1) };
        assert_eq!(Deaths::default().count(budget, Time::ZERO), None);
    }
}
