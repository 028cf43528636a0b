//! A seat: one actor with its lanes. What is shared of it while it runs, and what one turn does.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::bell::{ATTENTION, Bell};
use crate::lane::Path;
use crate::time::Time;
use crate::trace::{Event, Journal};

mod inbox;
mod life;

pub(crate) use self::inbox::{LaneIn, Source};
pub(crate) use self::life::{Life, Maker, maker};

/// The most messages one turn handles before it settles.
pub const TURN_MESSAGES_MAX: u32 = 64;

/// One seat as seen from outside; every number can be read at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatState {
    /// Unique in the graph.
    pub name: String,
    /// Seats of one unit fail and restart together.
    pub unit: String,
    /// Turns finished since the start, over all lives.
    pub turns: u64,
    /// Messages that wait in the lanes into it.
    pub queued: usize,
    /// How often its unit has been built again.
    pub restarts: u64,
    /// It has been in one turn for so long; `None` between turns. The live driver looks ten times a second rather than
    /// read the clock in every turn, so this may be up to 0.1 s short.
    pub busy_since: Option<Duration>,
    /// How long it has neither begun nor ended a turn; as exact as `busy_since`.
    pub since_turn: Duration,
    /// It waits for room on a hold lane.
    pub waiting: bool,
    /// Its unit has spent its budget, or the graph has stopped.
    pub dead: bool,
    /// Why its unit last died.
    pub last_cause: Option<String>,
}

/// What a driver wants of a seat; looked at between turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Order {
    /// Die as if the actor had panicked.
    Kill = 1,
    /// Leave without another call: the unit is being rebuilt.
    Halt = 2,
    /// Call `Actor::stop` and leave.
    Finish = 4,
}

/// A neighbour has died: told to the actor before any message of the neighbour's next life.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(crate) peer: Arc<str>,
    /// Lanes shared with the peer, and the epoch that has begun on each.
    pub(crate) lanes: Vec<(Arc<dyn Path>, u32)>,
}

/// What others may touch of a seat while it runs.
pub(crate) struct SeatCore {
    pub(crate) name: Arc<str>,
    pub(crate) unit: String,
    /// Its place in the graph.
    pub(crate) index: usize,
    pub(crate) bell: Bell,
    /// Hold lanes out of this seat that have an overflow.
    held: AtomicUsize,
    /// `Order` bits; raised by the driver, cleared by it between lives.
    orders: AtomicU8,
    notices: Mutex<Vec<Notice>>,
    /// Set by the driver before the first turn, if events are on.
    journal: OnceLock<Arc<Journal>>,
    turns: AtomicU64,
    /// Nanoseconds; when the seat was first seen as it is now (live: by whoever looks, sim: exactly).
    stirred: AtomicU64,
    /// What was seen then: twice the turns, plus one if it was in a turn.
    seen: AtomicU64,
    busy: AtomicBool,
    pub(crate) restarts: AtomicU64,
    dead: AtomicBool,
    cause: Mutex<Option<String>>,
}

impl fmt::Debug for SeatCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("name", &self.name).field("unit", &self.unit).finish_non_exhaustive()
    }
}

impl SeatCore {
    pub(crate) fn new(name: &str, unit: &str, index: usize, shared: bool) -> SeatCore {
        SeatCore {
            name: Arc::from(name),
            unit: unit.to_owned(),
            index,
            bell: Bell::new(shared),
            held: AtomicUsize::new(0),
            orders: AtomicU8::new(0),
            notices: Mutex::default(),
            journal: OnceLock::new(),
            turns: AtomicU64::new(0),
            stirred: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            cause: Mutex::default(),
        }
    }

    // Events.

    pub(crate) fn set_journal(&self, journal: Arc<Journal>) {
        let fresh = self.journal.set(journal).is_ok();
        debug_assert!(fresh, "a graph is started once");
    }

    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// The event is only made when tracing is on.
    #[inline]
    pub(crate) fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(journal) = self.journal.get() {
            journal.push(self.index, event());
        }
    }

    // Waiting for room.

    pub(crate) fn hold_more(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn hold_less(&self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    /// Some hold lane out of this seat has an overflow: no turn now.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
    }

    // Orders and notices.

    pub(crate) fn order(&self, order: Order) {
        self.orders.fetch_or(order as u8, Ordering::SeqCst);
        self.bell.raise(ATTENTION);
    }

    /// The order that counts most: a halt before a kill before a finish.
    pub(crate) fn ordered(&self) -> Option<Order> {
        let orders = self.orders.load(Ordering::SeqCst);
        [Order::Halt, Order::Kill, Order::Finish].into_iter().find(|order| orders & *order as u8 != 0)
    }

    /// Between two lives: what was meant for the old one is forgotten. A finish order stays.
    pub(crate) fn forget(&self) {
        self.orders.fetch_and(Order::Finish as u8, Ordering::SeqCst);
        self.take_notices();
        self.busy.store(false, Ordering::Relaxed);
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        self.bell.raise(ATTENTION);
    }

    pub(crate) fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // Health.

    /// A turn begins.
    pub(crate) fn begin(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// The turn is over.
    pub(crate) fn end(&self) {
        // Only the seat itself writes it. Who sees the seat idle after this sees the turn counted.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.busy.store(false, Ordering::Release);
    }

    /// Somebody looks at the seat: if it has moved since the last look, it moved now.
    pub(crate) fn look(&self, now: Time) {
        let seen = 2 * self.turns() + u64::from(self.is_busy());
        if self.seen.swap(seen, Ordering::Relaxed) != seen {
            self.stirred.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.busy.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(crate) fn set_cause(&self, cause: &str) {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause.to_owned());
    }

    /// `queued` is summed by the caller, who knows the lanes.
    pub(crate) fn state(&self, now: Time, queued: usize) -> SeatState {
        let since_turn = now.saturating_since(Time::from_nanos(self.stirred.load(Ordering::Relaxed)));
        SeatState {
            name: self.name.to_string(),
            unit: self.unit.clone(),
            turns: self.turns(),
            queued,
            restarts: self.restarts.load(Ordering::Relaxed),
            busy_since: self.is_busy().then_some(since_turn),
            since_turn,
            waiting: self.is_held(),
            dead: self.is_dead(),
            last_cause: self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
