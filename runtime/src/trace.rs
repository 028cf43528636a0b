//! The closed list of events, and where they are kept: bounded, and free when tracing is off.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use crate::time::{Clock, Time};

/// What can happen in a seat. Lanes are named as in the graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A turn is over in which so many messages were handled.
    Turn {
        /// Messages handled, at most [`TURN_MESSAGES_MAX`](crate::TURN_MESSAGES_MAX).
        messages: u32,
    },
    /// The seat put a message on the lane.
    Sent {
        /// The lane.
        lane: Arc<str>,
    },
    /// The seat took a message from the lane.
    Received {
        /// The lane.
        lane: Arc<str>,
    },
    /// An offer came back: the lane was full or its far end is dead.
    Refused {
        /// The lane.
        lane: Arc<str>,
    },
    /// A `put` took the place of a message that was not read.
    Overwritten {
        /// The lane.
        lane: Arc<str>,
    },
    /// A message was thrown away: by a fault, by a restart of either end, or because the far end is dead.
    Dropped {
        /// The lane.
        lane: Arc<str>,
    },
    /// A hold lane was full; the seat takes no turn until there is room.
    Waited {
        /// The lane.
        lane: Arc<str>,
    },
    /// The time asked for with `wake_at` has come.
    Woke,
    /// The seat was told that a neighbour died.
    Lost {
        /// The neighbour's seat.
        peer: Arc<str>,
    },
    /// The seat panicked or was killed.
    Crashed,
    /// The seat was built again.
    Restarted {
        /// Which restart of its unit this is, from 1.
        times: u32,
    },
    /// The seat has stopped for good.
    Stopped,
    /// An actor reports where a request is on its road.
    Stage {
        /// The request's number.
        request: u64,
        /// The stage's name.
        stage: &'static str,
        /// What the stage counts; its meaning belongs to the stage.
        value: u64,
    },
}

/// Events of one seat (live) or of all seats in order (sim). Bounded; what was overwritten is counted.
#[derive(Debug)]
pub(crate) struct Journal {
    clock: Arc<Clock>,
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    ring: VecDeque<Entry>,
    overwritten: u64,
    digest: Digest,
}

/// One event: when, in which seat (its place in the graph), what.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) at: Time,
    pub(crate) seat: usize,
    pub(crate) event: Event,
}

impl Journal {
    pub(crate) fn new(clock: Arc<Clock>, capacity: usize) -> Journal {
        Journal { clock, capacity, kept: Mutex::default() }
    }

    pub(crate) fn push(&self, seat: usize, event: Event) {
        let at = self.clock.now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (at, seat, &event).hash(&mut kept.digest);
        if kept.ring.len() >= self.capacity {
            kept.ring.pop_front();
            kept.overwritten += 1;
        }
        kept.ring.push_back(Entry { at, seat, event });
    }

    /// A digest of everything ever pushed, overwritten entries included.
    pub(crate) fn digest(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).digest.0
    }

    pub(crate) fn overwritten(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).overwritten
    }

    /// Appends copies of the kept entries to `to`.
    pub(crate) fn copy_to(&self, to: &mut Vec<Entry>) {
        to.extend(self.kept.lock().unwrap_or_else(PoisonError::into_inner).ring.iter().cloned());
    }

    /// Moves the kept entries to `to`.
    pub(crate) fn move_to(&self, to: &mut Vec<Entry>) {
        to.extend(self.kept.lock().unwrap_or_else(PoisonError::into_inner).ring.drain(..));
    }
}

/// FNV-1a over the bytes that `Hash` feeds it: small, and the same in every build of one version.
#[derive(Debug)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_journal_forgets_the_oldest_and_counts_it() {
        let journal = Journal::new(Arc::new(Clock::virtual_zero()), 2);
        for messages in 0..5 {
            journal.push(0, Event::Turn { messages });
        }
        let mut entries = Vec::new();
        journal.copy_to(&mut entries);
        let kept: Vec<_> = entries.into_iter().map(|entry| entry.event).collect();
        assert_eq!(kept, [Event::Turn { messages: 3 }, Event::Turn { messages: 4 }]);
        assert_eq!(journal.overwritten(), 3);
    }

    #[test]
    fn the_digest_depends_on_order() {
        let digest = |events: [Event; 2]| {
            let journal = Journal::new(Arc::new(Clock::virtual_zero()), 8);
            events.into_iter().for_each(|event| journal.push(0, event));
            journal.digest()
        };
        assert_ne!(digest([Event::Woke, Event::Crashed]), digest([Event::Crashed, Event::Woke]));
    }
}
