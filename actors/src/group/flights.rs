//! The steps of a group that are on their way: when each was sent and what it holds, so that what it took can be told when
//! it is done, and how long the rank waited for it.
//!
//! The **gap** before a step is the time from the end of the computation of the one before it to the beginning of its own,
//! as the rank measures it. It counts where the group had work to do all that time: the step was sent while another one was
//! on its way, or in the very turn in which that one came back. Otherwise the group had nothing to do, and that is no gap.

use std::collections::VecDeque;
use std::time::Duration;

use millstream_runtime::Time;

struct Flight {
    sent: Time,
    tokens: usize,
    follows: bool,
}

/// What is known of a step that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landed {
    /// Tokens of its rows.
    pub tokens: usize,
    /// From when it could begin until it was back.
    pub time: Duration,
    /// The group had work to do ever since the end of the one before it.
    pub follows: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Flights {
    /// The first is the one that runs.
    steps: VecDeque<Flight>,
    /// When the last one was back.
    landed: Time,
    /// That was in this turn.
    in_turn: bool,
}

impl Flights {
    /// A step of so many tokens goes out.
    pub fn send(&mut self, now: Time, tokens: usize) {
        let follows = self.in_turn || !self.steps.is_empty();
        self.steps.push_back(Flight { sent: now, tokens, follows });
    }

    /// When the one that runs was sent.
    pub fn since(&self) -> Option<Time> {
        self.steps.front().map(|flight| flight.sent)
    }

    /// Tokens of the one that runs; 0 when none does.
    pub fn tokens(&self) -> usize {
        self.steps.front().map_or(0, |flight| flight.tokens)
    }

    /// The one that runs is back. Panics when none does.
    pub fn land(&mut self, now: Time) -> Landed {
        let Flight { sent, tokens, follows } = self.steps.pop_front().expect("a step is back that was sent");
        let time = now.saturating_since(sent.max(self.landed));
        (self.landed, self.in_turn) = (now, true);
        Landed { tokens, time, follows }
    }

    /// Of a run that stood for several steps, so many are on their way, of so many tokens each.
    pub fn go_on(&mut self, now: Time, tokens: usize, flying: usize) {
        self.steps.truncate(flying);
        while self.steps.len() < flying {
            self.send(now, tokens);
        }
    }

    /// The turn is over: what is sent later does not follow what was back in it.
    pub fn settle(&mut self) {
        self.in_turn = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_was_sent_in_time() {
        let at = |micros: u64| Time::from_nanos(micros * 1000);
        let mut flights = Flights::default();
        let mut times = Vec::new();
        flights.send(at(10), 1);
        flights.settle();
        flights.send(at(15), 2); // behind it
        times.push(flights.land(at(20)));
        flights.settle();
        assert_eq!((flights.since(), flights.tokens()), (Some(at(15)), 2));
        times.push(flights.land(at(32)));
        flights.send(at(33), 3); // in the same turn
        flights.settle();
        times.push(flights.land(at(40)));
        flights.settle();
        flights.send(at(50), 4); // something came
        times.push(flights.land(at(51)));
        let said = |landed: &Landed| (landed.tokens, landed.time.as_micros(), landed.follows);
        let said: Vec<_> = times.iter().map(said).collect();
        assert_eq!(said, [(1, 10, false), (2, 12, true), (3, 7, true), (4, 1, false)]);
        assert_eq!(flights.since(), None);
    }
}
