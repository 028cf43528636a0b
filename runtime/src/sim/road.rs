//! How messages travel in a simulation: when they leave, how long they are under way, which are lost or overtaken.

use std::sync::Arc;
use std::time::Duration;

use super::agenda::Action;
use super::{Faults, Sim};
use crate::lane::Path;
use crate::time::Time;

/// What the simulator keeps of one lane.
#[derive(Debug)]
pub(super) struct Road {
    /// The latest arrival of a message that keeps its order.
    last: Time,
    /// Messages may be lost and overtaken on it.
    faulty: bool,
    /// Places of its two ends among the seats; `None` is the shell.
    from: Option<usize>,
    to: Option<usize>,
}

impl Road {
    pub(super) fn new(lane: &Arc<dyn Path>, faults: &Faults) -> Road {
        let core = lane.core();
        core.set_staged();
        Road {
            last: Time::ZERO,
            faulty: core.is_inner() && !faults.is_lossless(&core.facts.name),
            from: core.facts.from.as_ref().map(|seat| seat.index),
            to: core.facts.to.as_ref().map(|seat| seat.index),
        }
    }
}

impl Sim {
    /// Whatever waits at the lane's beginning and has room leaves at `from`; a sender that waited for it goes on.
    pub(super) fn launch(&mut self, lane: usize, from: Time) {
        let path = Arc::clone(&self.wiring.lanes[lane]);
        let waited = path.core().is_waiting();
        while path.launch(self.tickets) {
            let ticket = self.tickets;
            self.tickets += 1;
            let faults = &self.options.faults;
            if self.roads[lane].faulty && self.random.chance(faults.drop) {
                path.lose(ticket);
                continue;
            }
            let hop = self.options.hop.max(Duration::from_nanos(1));
            let mut at = from + hop + self.random.span(faults.delay);
            if self.roads[lane].faulty && self.random.chance(faults.reorder) {
                at = at + self.random.span(4 * (hop + faults.delay));
            } else {
                at = at.max(self.roads[lane].last + Duration::from_nanos(1));
                self.roads[lane].last = at;
            }
            let tie = self.random.next();
            self.agenda.add(at, tie, Action::Land { lane, ticket });
        }
        if waited
            && !path.core().is_waiting()
            && let Some(sender) = self.roads[lane].from
        {
            self.plan(sender, self.now());
        }
    }

    pub(super) fn land(&mut self, lane: usize, ticket: u64) {
        let landed = self.wiring.lanes[lane].land(ticket);
        if landed && let Some(to) = self.roads[lane].to {
            self.replan(to);
        }
    }

    /// The shell may have offered to inlets and taken from outlets.
    pub(super) fn shell_moved(&mut self) {
        for lane in 0..self.roads.len() {
            if self.roads[lane].from.is_none() || self.roads[lane].to.is_none() {
                self.launch(lane, self.now());
            }
            // An outlet that was dropped has set its sender free.
            if self.roads[lane].to.is_none()
                && let Some(sender) = self.roads[lane].from
            {
                self.replan(sender);
            }
        }
    }
}
