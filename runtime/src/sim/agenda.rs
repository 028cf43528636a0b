//! What is to happen when, in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;

use super::Sim;
use crate::time::Time;

/// A closure of the test, run at a virtual time.
pub(super) type Script = Box<dyn FnOnce(&mut Sim)>;

pub(super) enum Action {
    Script(Script),
    /// A message arrives.
    Land {
        lane: usize,
        ticket: u64,
    },
    /// A seat may take a turn.
    Turn {
        seat: usize,
    },
    /// A unit begins its next life.
    Rebuild {
        unit: usize,
        times: u32,
    },
}

/// Actions by time; those of one moment by a drawn number, scripts first; then in the order they were added.
#[derive(Default)]
pub(super) struct Agenda {
    actions: BinaryHeap<Entry>,
    added: u64,
}

/// One action: the earliest is the greatest.
struct Entry {
    key: Reverse<(Time, u64, u64)>,
    action: Action,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl fmt::Debug for Agenda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agenda").field("actions", &self.actions.len()).finish()
    }
}

impl Agenda {
    pub(super) fn add(&mut self, at: Time, tie: u64, action: Action) {
        self.added += 1;
        self.actions.push(Entry { key: Reverse((at, tie.max(1), self.added)), action });
    }

    pub(super) fn add_script(&mut self, at: Time, script: Script) {
        self.added += 1;
        self.actions.push(Entry { key: Reverse((at, 0, self.added)), action: Action::Script(script) });
    }

    /// Takes the next action that is not after `until`.
    pub(super) fn next(&mut self, until: Time) -> Option<(Time, Action)> {
        let Reverse((at, ..)) = self.actions.peek()?.key;
        let entry = if at > until { None } else { self.actions.pop() };
        Some((at, entry?.action))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}
