//! How messages travel in a simulation: when they leave, how long they are under way, which are lost or overtaken.

use std::sync::Arc;
use std::time::Duration;

use super::agenda::Action;
use super::{Sim, SimLink, SimOptions};
use crate::lane::{Path, Stirred};
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
    /// The link it crosses, by number.
    link: Option<usize>,
}

impl Road {
    /// Of the graph's `number`th lane.
    pub(super) fn new(
        (number, lane): (usize, &Arc<dyn Path>),
        options: &SimOptions,
        stirred: &Arc<Stirred>,
    ) -> Road {
        let core = lane.core();
        core.set_staged(number, stirred);
        let name = &core.facts.name;
        Road {
            last: Time::ZERO,
            faulty: core.is_inner() && !options.faults.is_lossless(name),
            from: core.facts.from.as_ref().map(|seat| seat.index),
            to: core.facts.to.as_ref().map(|seat| seat.index),
            link: options.links.iter().position(|link| name.contains(&link.lanes)),
        }
    }
}

impl Sim {
    /// Whatever waits at the beginning of lanes that were stirred, and has room, leaves: at `end` what the seat `of` sent,
    /// now all else; a sender that waited for it goes on.
    pub(super) fn launch_stirred(&mut self, of: Option<usize>, end: Time) {
        let mut lanes = std::mem::take(&mut self.stirring);
        self.stirred.take_into(&mut lanes);
        for &lane in &lanes {
            let sent = of.is_some() && self.roads[lane].from == of;
            self.launch(lane, if sent { end } else { self.now() });
        }
        self.stirring = lanes;
    }

    fn launch(&mut self, lane: usize, from: Time) {
        let path = Arc::clone(&self.wiring.lanes[lane]);
        let waited = path.core().is_waiting();
        while let Some(bytes) = path.launch(self.tickets) {
            let ticket = self.tickets;
            self.tickets += 1;
            let faults = &self.options.faults;
            if self.roads[lane].faulty && self.random.chance(faults.drop) {
                path.lose(ticket);
                continue;
            }
            let hop = self.options.hop.max(Duration::from_nanos(1));
            let over = self.cross(lane, from, bytes);
            let faults = &self.options.faults;
            let mut at = over + hop + self.random.span(faults.delay);
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

    /// When a message that leaves at `from` is over the lane's link. What one seat sends over a link goes one behind the
    /// other, whatever the lane.
    fn cross(&mut self, lane: usize, from: Time, bytes: u64) -> Time {
        let Road { link: Some(link), from: Some(seat), .. } = self.roads[lane] else { return from };
        let SimLink { latency, bytes_per_second, .. } = self.options.links[link];
        let takes =
            Duration::try_from_secs_f64(bytes as f64 / bytes_per_second.max(1.0)).unwrap_or(Duration::MAX);
        let free = self.crossing.entry((seat, link)).or_insert(Time::ZERO);
        *free = from.max(*free) + takes;
        *free + latency
    }

    pub(super) fn land(&mut self, lane: usize, ticket: u64) {
        let landed = self.wiring.lanes[lane].land(ticket);
        match self.roads[lane].to {
            Some(to) if landed => self.replan(to),
            None if landed => self.heard = true,
            _ => {}
        }
    }

    /// The shell may have offered to inlets and taken from outlets.
    pub(super) fn shell_moved(&mut self) {
        self.launch_stirred(None, self.now());
        for place in 0..self.outlets.len() {
            // An outlet that was dropped has set its sender free.
            if let Some(sender) = self.roads[self.outlets[place]].from {
                self.replan(sender);
            }
        }
    }
}
