//! Two small things that every role needs because lanes are bounded and messages cross: an [`Outbox`] keeps what an offer
//! lane had no room for, and [`Tombstones`] remember a cancel that came before the thing it cancels.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use millstream_runtime::{OfferOut, Time};

use crate::message::{Cancel, SequenceId};
use crate::request::RequestId;

/// How long a sender waits before it offers again.
pub const RETRY: Duration = Duration::from_millis(1);

/// Messages that must get through an offer lane, in order. Its owner bounds it: one entry for each thing it holds.
pub struct Outbox<T> {
    lane: OfferOut<T>,
    queue: VecDeque<T>,
}

impl<T: Send + 'static> Outbox<T> {
    /// Sends through `lane`.
    pub fn new(lane: OfferOut<T>) -> Self {
        Self { lane, queue: VecDeque::new() }
    }

    /// Sends now, or with the next [`Outbox::flush`].
    pub fn send(&mut self, message: T) {
        self.queue.push_back(message);
        self.flush();
    }

    /// Sends what fits; false when something is left.
    pub fn flush(&mut self) -> bool {
        while let Some(message) = self.queue.pop_front() {
            if let Err(message) = self.lane.offer(message) {
                self.queue.push_front(message);
                return false;
            }
        }
        true
    }

    /// Forgets what was not sent.
    pub fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Requests that were cancelled, up to which attempt. Bounded in number and in time.
#[derive(Default)]
pub struct Tombstones {
    until: BTreeMap<RequestId, (u32, Time)>,
    /// When one of them can be forgotten, as it was when it was last looked at.
    next: Option<Time>,
}

/// How long a cancel is remembered: longer than any message stays on its way.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many are remembered; the lowest request ids, the oldest, go first.
const REMEMBERED_MAX: usize = 4096;

impl Tombstones {
    /// Remembers a cancel.
    pub fn add(&mut self, cancel: Cancel, now: Time) {
        let SequenceId { request, attempt } = cancel.sequence;
        if self.next.is_none_or(|next| next <= now) {
            self.until.retain(|_, (_, until)| *until > now);
            self.next = self.until.values().map(|&(_, until)| until).min().or(Some(now + REMEMBERED));
        }
        let last = self.until.get(&request).map_or(attempt, |(last, _)| attempt.max(*last));
        self.until.insert(request, (last, now + REMEMBERED));
        if self.until.len() > REMEMBERED_MAX {
            self.until.pop_first();
        }
    }

    /// Whether the attempt was cancelled.
    pub fn covers(&self, sequence: SequenceId) -> bool {
        self.until.get(&sequence.request).is_some_and(|(last, _)| sequence.attempt <= *last)
    }
}
