//! The typed half of a lane: where its messages are, and how each policy moves them.
//!
//! Live, a message goes straight into the queue, or into the overflow of a hold lane. In the simulator every message
//! goes into the overflow first; the simulator launches it into the air and lands it in the queue.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{LaneCore, LaneFacts, Policy};
use crate::live::Queue;

/// A message with the epoch its sender knew of.
#[derive(Debug)]
struct Envelope<T> {
    epoch: u32,
    message: T,
}

/// Messages that are not in the queue.
#[derive(Debug)]
struct Aside<T> {
    /// Live: what did not fit. Sim: what the simulator has not launched.
    overflow: VecDeque<Envelope<T>>,
    /// Sim: what is under way, by ticket.
    air: BTreeMap<u64, Envelope<T>>,
}

/// One lane.
pub(crate) struct Lane<T> {
    pub(crate) core: LaneCore,
    queue: Queue<Envelope<T>>,
    aside: Mutex<Aside<T>>,
    /// Bytes that a message stands for on a link; set while the graph is built, where it matters.
    weight: OnceLock<fn(&T) -> u64>,
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// What a look into a lane found.
pub(crate) enum Take<M> {
    Empty,
    Message(M),
    /// A message of a life that this seat has not been told of yet: the notice comes first.
    Early(M, u32),
}

impl<T: Send + 'static> Lane<T> {
    pub(crate) fn new(facts: LaneFacts) -> Lane<T> {
        let bound = (facts.policy != Policy::Reply).then_some(facts.capacity);
        let aside = Aside { overflow: VecDeque::new(), air: BTreeMap::new() };
        Lane {
            core: LaneCore::new(facts),
            queue: Queue::new(bound),
            aside: Mutex::new(aside),
            weight: OnceLock::new(),
        }
    }

    pub(crate) fn weigh(&self, weight: fn(&T) -> u64) {
        self.weight.get_or_init(|| weight);
    }

    fn aside(&self) -> MutexGuard<'_, Aside<T>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seal(&self, message: T) -> Envelope<T> {
        Envelope { epoch: self.core.stamp(), message }
    }

    /// After a message has entered the queue.
    fn entered(&self) {
        self.core.count_sent();
        self.core.ring_receiver();
        self.core.note_depth();
    }

    fn stage(&self, aside: &mut Aside<T>, envelope: Envelope<T>) {
        aside.overflow.push_back(envelope);
        self.core.count_sent();
        self.core.note_depth();
        self.core.stir();
    }

    pub(crate) fn hold(&self, message: T) {
        if self.core.is_closed() {
            self.core.count_sent();
            self.core.count_dropped(1);
            return;
        }
        let mut envelope = self.seal(message);
        if !self.core.is_staged() && !self.core.is_waiting() {
            match self.queue.push(envelope) {
                Ok(()) => return self.entered(),
                Err(back) => envelope = back,
            }
        }
        self.hold_aside(envelope);
    }

    #[cold]
    fn hold_aside(&self, mut envelope: Envelope<T>) {
        let mut aside = self.aside();
        let staged = self.core.is_staged();
        if !staged && aside.overflow.is_empty() {
            match self.queue.push(envelope) {
                Ok(()) => return self.entered(),
                Err(back) => envelope = back,
            }
        }
        self.stage(&mut aside, envelope);
        let full = self.queue.len() + aside.air.len() + aside.overflow.len() > self.core.facts.capacity;
        if !staged || full {
            self.core.wait();
        }
    }

    pub(crate) fn offer(&self, message: T) -> Result<(), T> {
        if self.core.is_closed() {
            self.core.count_refused();
            return Err(message);
        }
        if self.core.is_staged() {
            let mut aside = self.aside();
            if self.queue.len() + aside.air.len() + aside.overflow.len() >= self.core.facts.capacity {
                self.core.count_refused();
                return Err(message);
            }
            let envelope = self.seal(message);
            self.stage(&mut aside, envelope);
            return Ok(());
        }
        match self.queue.push(self.seal(message)) {
            Ok(()) => {
                self.entered();
                Ok(())
            }
            Err(envelope) => {
                self.core.count_refused();
                Err(envelope.message)
            }
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        let aside = if self.core.is_staged() {
            let aside = self.aside();
            aside.air.len() + aside.overflow.len()
        } else {
            0
        };
        !self.core.is_closed() && self.queue.len() + aside < self.core.facts.capacity
    }

    pub(crate) fn put(&self, message: T) {
        if self.core.is_closed() {
            self.core.count_sent();
            self.core.count_dropped(1);
            return;
        }
        let envelope = self.seal(message);
        if self.core.is_staged() {
            let mut aside = self.aside();
            if aside.overflow.len() >= self.core.facts.capacity {
                aside.overflow.pop_front();
                self.core.count_overwritten();
            }
            return self.stage(&mut aside, envelope);
        }
        self.overwrite(envelope);
        self.entered();
    }

    fn overwrite(&self, mut envelope: Envelope<T>) {
        while let Err(back) = self.queue.push(envelope) {
            envelope = back;
            if self.queue.pop().is_some() {
                self.core.count_overwritten();
            }
        }
    }

    pub(crate) fn reply(&self, message: T) {
        if self.core.is_closed() {
            self.core.count_sent();
            self.core.count_dropped(1);
            return;
        }
        let envelope = self.seal(message);
        if self.core.is_staged() {
            self.stage(&mut self.aside(), envelope);
        } else {
            let pushed = self.queue.push(envelope);
            debug_assert!(pushed.is_ok(), "the queue of a reply lane has no bound of its own");
            self.entered();
        }
        // Looked at last, off the road of a reply that is in its window.
        assert!(
            self.core.is_within_window(),
            "lane `{}`: a reply beyond its window of {}",
            self.core.facts.name,
            self.core.facts.capacity
        );
    }

    /// The next message that the receiver's life may see; stale ones are thrown away on the way.
    pub(crate) fn take(&self) -> Take<T> {
        let inner = self.core.is_inner();
        while let Some(envelope) = self.queue.pop() {
            let accepted = self.core.accepted();
            if inner && envelope.epoch < accepted {
                self.core.count_dropped(1);
                continue;
            }
            self.core.count_received();
            if inner && envelope.epoch > accepted {
                return Take::Early(envelope.message, envelope.epoch);
            }
            return Take::Message(envelope.message);
        }
        Take::Empty
    }

    /// The shell's end of an outlet waits here.
    pub(crate) async fn next(&self) -> Option<T> {
        let envelope = match self.queue.next(&self.core.end).await {
            Some(envelope) => envelope,
            // The end has come; what the seat's last turn left aside is still to be had.
            None => {
                self.settle();
                self.queue.pop()?
            }
        };
        self.core.count_received();
        Some(envelope.message)
    }
}

/// What drivers do with a lane without knowing what it carries.
pub(crate) trait Path: Send + Sync + fmt::Debug {
    fn core(&self) -> &LaneCore;
    /// Live: moves the overflow into the queue. True when none is left.
    fn flush(&self) -> bool;
    /// Throws away everything in the lane.
    fn purge(&self);
    /// Sim: the oldest unlaunched message goes into the air, if the lane has room for it. Says how many bytes it is.
    fn launch(&self, ticket: u64) -> Option<u64>;
    /// Sim: the message arrives. False when it is gone.
    fn land(&self, ticket: u64) -> bool;
    /// Sim: the message is lost on the way.
    fn lose(&self, ticket: u64);
    /// The graph stops: whatever is outside the queue goes into it as far as it fits.
    fn settle(&self);
}

impl<T: Send + 'static> Path for Lane<T> {
    fn core(&self) -> &LaneCore {
        &self.core
    }

    fn flush(&self) -> bool {
        if !self.core.is_waiting() {
            return true;
        }
        let mut aside = self.aside();
        let mut moved = false;
        while let Some(envelope) = aside.overflow.pop_front() {
            if let Err(back) = self.queue.push(envelope) {
                aside.overflow.push_front(back);
                break;
            }
            moved = true;
        }
        let empty = aside.overflow.is_empty();
        if empty {
            self.core.moved_on();
        }
        drop(aside);
        if moved {
            self.core.ring_receiver();
        }
        empty
    }

    fn purge(&self) {
        let mut aside = self.aside();
        let mut count = aside.overflow.len() + aside.air.len();
        aside.overflow.clear();
        aside.air.clear();
        while self.queue.pop().is_some() {
            count += 1;
        }
        self.core.moved_on();
        drop(aside);
        self.core.count_dropped(count as u64);
    }

    fn launch(&self, ticket: u64) -> Option<u64> {
        let mut aside = self.aside();
        let room = match self.core.facts.policy {
            Policy::Hold => self.queue.len() + aside.air.len() < self.core.facts.capacity,
            // Checked when it was sent, or settled when it lands.
            Policy::Offer | Policy::Reply | Policy::Latest => true,
        };
        if !room {
            return None;
        }
        let envelope = aside.overflow.pop_front()?;
        let bytes = self.weight.get().map_or(0, |weight| weight(&envelope.message));
        aside.air.insert(ticket, envelope);
        if aside.overflow.is_empty() {
            self.core.moved_on();
        }
        Some(bytes)
    }

    fn land(&self, ticket: u64) -> bool {
        let Some(envelope) = self.aside().air.remove(&ticket) else {
            return false;
        };
        self.overwrite(envelope);
        self.core.ring_receiver();
        true
    }

    fn settle(&self) {
        let mut aside = self.aside();
        let air = std::mem::take(&mut aside.air);
        let overflow = std::mem::take(&mut aside.overflow);
        aside.overflow = air.into_values().chain(overflow).collect();
        while let Some(envelope) = aside.overflow.pop_front() {
            if let Err(back) = self.queue.push(envelope) {
                aside.overflow.push_front(back);
                break;
            }
        }
    }

    fn lose(&self, ticket: u64) {
        if self.aside().air.remove(&ticket).is_some() {
            self.core.count_dropped(1);
        }
    }
}
