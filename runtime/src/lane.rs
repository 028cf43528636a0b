//! Lanes: typed one-way queues between two seats, or between a seat and the shell.
//!
//! | policy | sender | when the lane is full |
//! |---|---|---|
//! | hold | [`HoldOut::send`] | the message waits, and the sender's seat takes no turn until it has moved on |
//! | offer | [`OfferOut::offer`] | the message comes back |
//! | latest | [`LatestOut::put`] | the oldest message is overwritten |
//! | reply | [`ReplyOut::reply`] | a bug: the window bounds it; the seat panics |
//!
//! Senders are cheap to clone, so a factory keeps one and gives a clone to each life of its actor. A lane joins exactly
//! two ends and keeps order.

use std::fmt;
use std::sync::Arc;

use crate::bell::ROOM;

mod core;
#[cfg(test)]
mod model;
mod path;

pub(crate) use self::core::{LaneCore, LaneFacts, Stirred};
pub(crate) use self::path::{Lane, Path, Take};

/// What happens when a lane is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// The sender's seat waits.
    Hold,
    /// The message comes back to the sender.
    Offer,
    /// The oldest message is overwritten.
    Latest,
    /// The protocol's window bounds the lane; more is a bug.
    Reply,
}

/// One lane as seen from outside; every number can be read at any time and they are not read at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// Unique in the graph.
    pub name: String,
    /// The sending seat; `None` is the shell.
    pub from: Option<String>,
    /// The receiving seat; `None` is the shell.
    pub to: Option<String>,
    /// What happens when it is full.
    pub policy: Policy,
    /// Messages it holds at most (a hold lane's overflow is on top of it).
    pub capacity: usize,
    /// Served before other lanes of the receiver.
    pub urgent: bool,
    /// Messages in it now, overflow and (in the simulator) those under way included.
    pub depth: usize,
    /// The largest depth seen (every 16th message is looked at once 64 have passed).
    pub depth_max: usize,
    /// Messages that entered it.
    pub sent: u64,
    /// Messages that the receiver took.
    pub received: u64,
    /// Offers that came back.
    pub refused: u64,
    /// Messages that a newer one replaced.
    pub overwritten: u64,
    /// Messages thrown away by a restart of either end, a dead end, or a fault.
    pub dropped: u64,
    /// How often the sender's seat had to wait for room.
    pub waited: u64,
    /// Either end is dead for good, or the graph has stopped: whatever is sent is dropped or refused.
    pub closed: bool,
}

macro_rules! sender {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name<T>(pub(crate) Arc<Lane<T>>);

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                $name(Arc::clone(&self.0))
            }
        }

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.core.facts.name)
            }
        }
    };
}

sender!(
    /// The sending end of a hold lane: it never fails. What is beyond the capacity waits in the lane's overflow, and
    /// the sender's seat takes no further turn until that has moved on; so the overflow is bounded by what one turn sends.
    HoldOut
);
sender!(
    /// The sending end of an offer lane: what does not fit comes back.
    OfferOut
);
sender!(
    /// The sending end of a latest lane: what was not read is overwritten, oldest first.
    LatestOut
);
sender!(
    /// The sending end of a reply lane, which the protocol bounds: never more replies under way than were asked for.
    ReplyOut
);
sender!(
    /// The way from the shell into a seat. Any number of threads may offer.
    Inlet
);

impl<T: Send + 'static> HoldOut<T> {
    /// Sends, come what may. To a seat that is dead for good the message is dropped (and counted).
    pub fn send(&self, message: T) {
        self.0.hold(message);
    }
}

impl<T: Send + 'static> OfferOut<T> {
    /// Sends if there is room.
    ///
    /// # Errors
    /// The message itself, when the lane is full or its far end is dead for good.
    pub fn offer(&self, message: T) -> Result<(), T> {
        self.0.offer(message)
    }

    /// Whether an offer would be taken now. Only this end adds messages, so a `true` stays true until the next offer.
    pub fn has_room(&self) -> bool {
        self.0.has_room()
    }
}

impl<T: Send + 'static> LatestOut<T> {
    /// Sends, overwriting the oldest unread message when the lane is full.
    pub fn put(&self, message: T) {
        self.0.put(message);
    }
}

impl<T: Send + 'static> ReplyOut<T> {
    /// Sends one answer.
    ///
    /// # Panics
    /// When more answers are under way than the window allows: the protocol is broken, so the seat dies.
    pub fn reply(&self, message: T) {
        self.0.reply(message);
    }
}

impl<T: Send + 'static> Inlet<T> {
    /// Hands a message to the seat if there is room.
    ///
    /// # Errors
    /// The message itself, when the lane is full, its seat is dead for good, or the graph has stopped.
    pub fn offer(&self, message: T) -> Result<(), T> {
        self.0.offer(message)
    }
}

/// The way from a seat to the shell: the seat holds a [`HoldOut`], the shell this. Dropping it closes the lane, so that
/// the seat never waits for a reader that has gone.
pub struct Outlet<T: Send + 'static>(pub(crate) Arc<Lane<T>>);

impl<T: Send + 'static> fmt::Debug for Outlet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outlet({})", self.0.core.facts.name)
    }
}

impl<T: Send + 'static> Outlet<T> {
    /// The next message (live driver); `None` once the seat has gone for good and nothing is left. Safe to abandon
    /// while it waits: no message is lost.
    pub async fn recv(&self) -> Option<T> {
        self.0.next().await
    }

    /// The next message if there is one (both drivers).
    pub fn try_recv(&self) -> Option<T> {
        match self.0.take() {
            Take::Message(message) | Take::Early(message, _) => Some(message),
            Take::Empty => None,
        }
    }
}

impl<T: Send + 'static> Drop for Outlet<T> {
    fn drop(&mut self) {
        self.0.core.close();
        self.0.purge();
        self.0.core.ring_sender(ROOM);
    }
}
