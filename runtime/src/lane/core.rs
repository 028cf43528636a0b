//! The untyped half of a lane: its facts, its counters, and the two marks that keep lives apart.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{LaneState, Policy};
use crate::bell::ROOM;
use crate::live::End;
use crate::seat::SeatCore;
use crate::trace::Event;

/// What is known of a lane when it is built.
#[derive(Debug)]
pub(crate) struct LaneFacts {
    pub(crate) name: Arc<str>,
    pub(crate) policy: Policy,
    pub(crate) capacity: usize,
    pub(crate) urgent: bool,
    /// `None` is the shell.
    pub(crate) from: Option<Arc<SeatCore>>,
    /// `None` is the shell.
    pub(crate) to: Option<Arc<SeatCore>>,
    /// The bit in the receiver's bell.
    pub(crate) bit: u64,
}

/// Simulator: lanes in which something may be launched now, as their places in the graph, in the order in which that came up.
#[derive(Debug, Default)]
pub(crate) struct Stirred(Mutex<Vec<usize>>);

impl Stirred {
    fn add(&self, lane: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    /// Those since the last call, each once, in the order of the graph.
    pub(crate) fn take_into(&self, lanes: &mut Vec<usize>) {
        lanes.clear();
        std::mem::swap(lanes, &mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        lanes.sort_unstable();
        lanes.dedup();
    }
}

/// Read by both ends, written rarely: a cache line that stays shared.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flags {
    /// The simulator carries the messages; set before the first turn.
    staged: AtomicBool,
    /// The overflow is not empty; set by the sender under the lock of the overflow.
    waiting: AtomicBool,
    /// An end is dead for good; set by a driver, or by an outlet's drop.
    closed: AtomicBool,
    /// The epoch the sender writes on messages: set by the sender's seat when it is told of a loss, or by the driver
    /// while that seat is down.
    stamp: AtomicU32,
    /// The epoch the receiver takes: set like `stamp`, from the receiver's side.
    accept: AtomicU32,
    /// Restarts of either end so far; written by the driver only.
    epoch: AtomicU32,
}

/// Written by the sender.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Sender {
    sent: AtomicU64,
    /// `sent` when the stamp last changed: what is older is stale.
    sent_before: AtomicU64,
    /// Reply: how many had left the lane when the sender last looked.
    gone_before: AtomicU64,
    refused: AtomicU64,
    overwritten: AtomicU64,
    waited: AtomicU64,
    depth_max: AtomicU64,
}

/// Written by the receiver, and by the driver when it empties the lane.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Receiver {
    received: AtomicU64,
    dropped: AtomicU64,
}

/// The untyped half of a lane.
#[derive(Debug)]
pub(crate) struct LaneCore {
    pub(crate) facts: LaneFacts,
    pub(crate) end: End,
    flags: Flags,
    /// Set with `staged`: where the simulator hears of it, under which number.
    stirred: OnceLock<(usize, Arc<Stirred>)>,
    sender: Sender,
    receiver: Receiver,
}

impl LaneCore {
    pub(crate) fn new(facts: LaneFacts) -> LaneCore {
        LaneCore {
            facts,
            end: End::new(),
            flags: Flags::default(),
            stirred: OnceLock::new(),
            sender: Sender::default(),
            receiver: Receiver::default(),
        }
    }

    /// Both ends are seats: the lane is emptied when either restarts.
    pub(crate) fn is_inner(&self) -> bool {
        self.facts.from.is_some() && self.facts.to.is_some()
    }

    pub(crate) fn is_staged(&self) -> bool {
        self.flags.staged.load(Ordering::Relaxed)
    }

    /// From now on the simulator carries the messages of this lane, the graph's `lane`th, when it finds it in `stirred`.
    pub(crate) fn set_staged(&self, lane: usize, stirred: &Arc<Stirred>) {
        let fresh = self.stirred.set((lane, Arc::clone(stirred))).is_ok();
        debug_assert!(fresh, "a graph is started once");
        self.flags.staged.store(true, Ordering::Relaxed);
    }

    /// Something may be launched, or a sender that waited go on.
    pub(crate) fn stir(&self) {
        if let Some((lane, stirred)) = self.stirred.get() {
            stirred.add(*lane);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.flags.closed.load(Ordering::Relaxed)
    }

    /// From now on whatever is sent is dropped or refused; the shell's end sees the end after what is left.
    pub(crate) fn close(&self) {
        self.flags.closed.store(true, Ordering::SeqCst);
        self.end.come();
    }

    // Waiting.

    pub(crate) fn is_waiting(&self) -> bool {
        self.flags.waiting.load(Ordering::SeqCst)
    }

    /// Called under the lock of the overflow, when it is no longer empty.
    pub(crate) fn wait(&self) {
        if !self.flags.waiting.swap(true, Ordering::SeqCst) {
            self.sender.waited.fetch_add(1, Ordering::Relaxed);
            if let Some(from) = &self.facts.from {
                from.hold_more();
                from.record(|| Event::Waited { lane: Arc::clone(&self.facts.name) });
            }
        }
    }

    /// Called under the lock of the overflow, when it is empty.
    pub(crate) fn moved_on(&self) {
        if self.flags.waiting.swap(false, Ordering::SeqCst)
            && let Some(from) = &self.facts.from
        {
            from.hold_less();
        }
    }

    pub(crate) fn ring_sender(&self, bit: u64) {
        if let Some(from) = &self.facts.from {
            from.bell.raise(bit);
        }
    }

    pub(crate) fn ring_receiver(&self) {
        if let Some(to) = &self.facts.to {
            to.bell.raise(self.facts.bit);
        }
    }

    // Lives.

    pub(crate) fn stamp(&self) -> u32 {
        self.flags.stamp.load(Ordering::Relaxed)
    }

    pub(crate) fn accepted(&self) -> u32 {
        self.flags.accept.load(Ordering::Relaxed)
    }

    /// One end begins a new life. The number that separates messages before and after it.
    pub(crate) fn next_epoch(&self) -> u32 {
        self.flags.epoch.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The sender's seat knows that `epoch` has begun.
    pub(crate) fn sender_learns(&self, epoch: u32) {
        self.sender.sent_before.store(self.sender.sent.load(Ordering::Relaxed), Ordering::Relaxed);
        self.flags.stamp.store(epoch, Ordering::Relaxed);
    }

    /// The receiver's seat knows that `epoch` has begun.
    pub(crate) fn receiver_learns(&self, epoch: u32) {
        self.flags.accept.store(epoch, Ordering::Relaxed);
    }

    // Counting.

    /// A message is on its way or in the queue.
    pub(crate) fn count_sent(&self) {
        count_one(&self.sender.sent, self.facts.from.is_some());
        if let Some(from) = &self.facts.from {
            from.record(|| Event::Sent { lane: Arc::clone(&self.facts.name) });
        }
    }

    /// Kept by the sender after it has rung. It reads what the receiver writes, so a busy lane is only sampled.
    pub(crate) fn note_depth(&self) {
        let sent = self.sender.sent.load(Ordering::Relaxed);
        if sent > 64 && !sent.is_multiple_of(16) {
            return;
        }
        let depth = self.depth();
        if depth > self.sender.depth_max.load(Ordering::Relaxed) {
            self.sender.depth_max.store(depth, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_refused(&self) {
        self.sender.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(from) = &self.facts.from {
            from.record(|| Event::Refused { lane: Arc::clone(&self.facts.name) });
        }
    }

    pub(crate) fn count_overwritten(&self) {
        self.sender.overwritten.fetch_add(1, Ordering::Relaxed);
        if let Some(from) = &self.facts.from {
            from.record(|| Event::Overwritten { lane: Arc::clone(&self.facts.name) });
        }
    }

    /// A message has left the queue for its receiver; a sender that waits for the room is rung.
    pub(crate) fn count_received(&self) {
        count_one(&self.receiver.received, self.facts.to.is_some());
        if let Some(to) = &self.facts.to {
            to.record(|| Event::Received { lane: Arc::clone(&self.facts.name) });
        }
        self.made_room();
    }

    /// `count` messages of the lane are thrown away.
    pub(crate) fn count_dropped(&self, count: u64) {
        if count == 0 {
            return;
        }
        self.receiver.dropped.fetch_add(count, Ordering::Relaxed);
        if let Some(seat) = self.facts.to.as_ref().or(self.facts.from.as_ref()) {
            for _ in 0..count {
                seat.record(|| Event::Dropped { lane: Arc::clone(&self.facts.name) });
            }
        }
        self.made_room();
    }

    fn made_room(&self) {
        // A sender that waits has said so before its last push failed, which was before this room was made.
        if self.facts.policy == Policy::Hold && self.is_waiting() {
            self.ring_sender(ROOM);
            self.stir();
        }
    }

    /// Messages in the lane.
    pub(crate) fn depth(&self) -> u64 {
        // Those that left are read first: what is read later can only have grown, so the difference is never negative.
        let gone = self.receiver.received.load(Ordering::Relaxed)
            + self.receiver.dropped.load(Ordering::Relaxed)
            + self.sender.overwritten.load(Ordering::Relaxed);
        self.sender.sent.load(Ordering::Relaxed).saturating_sub(gone)
    }

    /// Reply: no more messages under way than the capacity, not counting those a restart has made stale. The receiver's
    /// numbers are looked at only when the last look is too old to tell.
    pub(crate) fn is_within_window(&self) -> bool {
        let window = self.facts.capacity as u64;
        let sent = self.sender.sent.load(Ordering::Relaxed);
        let before = self.sender.sent_before.load(Ordering::Relaxed);
        if sent - before.max(self.sender.gone_before.load(Ordering::Relaxed)) <= window {
            return true;
        }
        let gone = sent - self.depth();
        self.sender.gone_before.store(gone, Ordering::Relaxed);
        sent - before.max(gone) <= window
    }

    pub(crate) fn state(&self) -> LaneState {
        let name = |seat: &Option<Arc<SeatCore>>| seat.as_ref().map(|seat| seat.name.to_string());
        let depth = self.depth();
        LaneState {
            name: self.facts.name.to_string(),
            from: name(&self.facts.from),
            to: name(&self.facts.to),
            policy: self.facts.policy,
            capacity: self.facts.capacity,
            urgent: self.facts.urgent,
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
            depth_max: usize::try_from(self.sender.depth_max.load(Ordering::Relaxed).max(depth))
                .unwrap_or(usize::MAX),
            sent: self.sender.sent.load(Ordering::Relaxed),
            received: self.receiver.received.load(Ordering::Relaxed),
            refused: self.sender.refused.load(Ordering::Relaxed),
            overwritten: self.sender.overwritten.load(Ordering::Relaxed),
            dropped: self.receiver.dropped.load(Ordering::Relaxed),
            waited: self.sender.waited.load(Ordering::Relaxed),
            closed: self.is_closed(),
        }
    }
}

/// Counts one more. A seat is the only writer of its side and needs no locked instruction, the shell may be several.
fn count_one(counter: &AtomicU64, seat: bool) {
    if seat {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    } else {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
