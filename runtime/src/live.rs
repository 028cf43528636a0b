//! The live driver: each seat is hosted and supervised by a ractor actor on tokio, lanes are flume channels, and a
//! compute seat owns a thread. The only place of this crate that spawns, awaits, or waits for real time.
//!
//! ```text
//! Running ──► keeper (ractor actor: units, budgets) ──supervises──► host (ractor actor, one per life of a seat)
//!                                                                     ├─ shared seat: turns run in the host itself
//!                                                                     └─ compute seat: turns run on a thread it owns
//! ```
//!
//! An idle seat costs nothing: its host awaits an empty mailbox, its thread is parked. A sender that finds it asleep
//! rings: one mailbox message, or one unpark. A seat that is up is never rung.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::{Actor as _, ActorRef};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::graph::{Graph, Wiring};
use crate::lane::LaneState;
use crate::seat::{Order, SeatState};
use crate::supervise::Exit;
use crate::time::{Clock, Time};
use crate::trace::{Event, Journal};

mod host;
mod keeper;
mod queue;
#[cfg(feature = "cloud")]
mod remote;
mod runner;
mod thread;

use self::keeper::{Keeper, KeeperArgs, KeeperMessage};
pub(crate) use self::queue::{End, Queue};
#[cfg(feature = "cloud")]
pub use self::remote::{open_store, ready_tls};

/// How a graph runs live.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Keep events, for [`Running::events`]. Off, an event costs one branch.
    pub events: bool,
    /// Events kept per seat; older ones are overwritten and counted.
    pub events_max: usize,
    /// How long a compute seat that ran dry looks for work before its thread parks.
    pub spin: Duration,
    /// How long a seat may take to leave its turn when its unit restarts or the graph stops. A unit that takes longer
    /// to fall is declared failed; a stop that takes longer leaves the seat behind.
    pub patience: Duration,
}

impl Default for LiveOptions {
    /// No events (4096 per seat when on), 20 µs of looking, 30 s of patience.
    fn default() -> LiveOptions {
        LiveOptions {
            events: false,
            events_max: 4096,
            spin: Duration::from_micros(20),
            patience: Duration::from_secs(30),
        }
    }
}

/// What the hosts, the keeper and `Running` share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) wiring: Wiring,
    pub(crate) clock: Arc<Clock>,
    pub(crate) options: LiveOptions,
    /// Set by the keeper when the last seat has gone.
    pub(crate) over: AtomicBool,
}

/// What the keeper tells those who wait for the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outlook {
    /// The first cause of the end.
    pub(crate) exit: Option<Exit>,
    /// Every seat has gone, or was left behind.
    pub(crate) over: bool,
}

/// A graph that runs. Dropping it stops the graph without waiting.
pub struct Running {
    shared: Arc<Shared>,
    keeper: ActorRef<KeeperMessage>,
    outlook: watch::Receiver<Outlook>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.wiring.fmt(f)
    }
}

/// Starts a graph on the current tokio runtime, and returns when every seat's actor has been made.
///
/// ```
/// use millstream_runtime::{Actor, Ctx, Exit, GraphBuilder, HoldOut, LiveOptions, live};
/// # struct Doubler { out: HoldOut<u64> }
/// # impl Actor for Doubler {
/// #     type Message = u64;
/// #     fn handle(&mut self, message: u64, _ctx: &mut Ctx<'_>) { self.out.send(message * 2); }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), millstream_runtime::Error> {
/// # let mut g = GraphBuilder::new();
/// # let doubler = g.seat::<u64>("doubler", "maths");
/// # let input = g.inlet("numbers", &doubler, 8, |n: u64| n);
/// # let (out, doubled) = g.outlet("doubled", &doubler, 8);
/// # g.actor(doubler, move || Doubler { out: out.clone() });
/// # let graph = g.finish()?;
/// let running = live::start(graph, LiveOptions::default()).await?;
/// input.offer(21).unwrap();
/// assert_eq!(doubled.recv().await, Some(42));
/// running.stop().await;
/// assert_eq!(running.exited().await, Exit::Stopped);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Start`] when a factory panics or a thread cannot be made; everything already started is stopped again.
pub async fn start(graph: Graph, options: LiveOptions) -> Result<Running, Error> {
    let clock = Arc::new(Clock::real());
    if options.events {
        for seat in &graph.wiring.seats {
            seat.set_journal(Arc::new(Journal::new(Arc::clone(&clock), options.events_max)));
        }
    }
    let shared = Arc::new(Shared { wiring: graph.wiring, clock, options, over: AtomicBool::new(false) });
    let (tell, outlook) = watch::channel(Outlook::default());
    let mut ready = Vec::new();
    let readies = graph.parts.iter().map(|part| {
        let (tell, told) = oneshot::channel();
        ready.push((Arc::clone(&part.core), told));
        tell
    });
    let readies = readies.collect();
    let args = KeeperArgs { shared: Arc::clone(&shared), parts: graph.parts, readies, outlook: tell };
    let spawned = Keeper::spawn(None, Keeper, args).await;
    let (keeper, _) = spawned.map_err(|error| failure("keeper", error))?;
    let running = Running { shared, keeper, outlook };
    for (seat, told) in ready {
        let made = told.await.unwrap_or_else(|_| Err("its host has gone".to_owned()));
        if let Err(cause) = made {
            running.stop().await;
            return Err(failure(&seat.name, cause));
        }
    }
    Ok(running)
}

fn failure(seat: &str, cause: impl ToString) -> Error {
    Error::Start { seat: seat.to_owned(), cause: cause.to_string() }
}

impl Running {
    /// Every seat, in the order of the graph.
    pub fn seats(&self) -> Vec<SeatState> {
        self.shared.wiring.look(self.now());
        self.shared.wiring.seat_states(self.now())
    }

    /// Every lane, in the order of the graph.
    pub fn lanes(&self) -> Vec<LaneState> {
        self.shared.wiring.lane_states()
    }

    /// Time since the start.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// A fault drill: the named seat (or the first seat of the named unit) dies at its next turn, as by a panic. A kill
    /// that meets a unit on its way down is absorbed. False: nobody alive has that name.
    pub fn kill(&self, name: &str) -> bool {
        let Some(seat) = self.shared.wiring.find(name) else {
            return false;
        };
        let seat = &self.shared.wiring.seats[seat];
        if seat.is_dead() {
            return false;
        }
        seat.order(Order::Kill);
        true
    }

    /// Waits until every lane and overflow is empty and no seat is in a turn, at most for `timeout`; then stops. False:
    /// the time was up first. Messages inside actors, and wake times they asked for, are not waited for.
    pub async fn drain(&self, timeout: Duration) -> bool {
        let until = self.now().saturating_add(timeout);
        let mut before = None;
        let drained = loop {
            let now = self.quiet();
            if now.is_some() && now == before {
                break true;
            }
            if self.now() >= until || self.outlook.borrow().over {
                break false;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        self.stop().await;
        drained
    }

    /// All is empty and asleep: a number that grows with every turn, so that two equal ones mean nothing moved between.
    fn quiet(&self) -> Option<u64> {
        let wiring = &self.shared.wiring;
        let empty =
            wiring.lanes.iter().map(|lane| lane.core()).all(|core| core.is_closed() || core.depth() == 0);
        let resting =
            |seat: &Arc<crate::seat::SeatCore>| seat.is_dead() || (seat.bell.is_asleep() && !seat.is_busy());
        (empty && wiring.seats.iter().all(resting))
            .then(|| wiring.seats.iter().map(|seat| seat.turns()).sum())
    }

    /// Stops now: seats leave after the turn they are in, each actor's `stop` is called, what is in lanes is thrown away
    /// (but outlets keep what they have). Bounded by [`LiveOptions::patience`].
    pub async fn stop(&self) {
        // A keeper that is gone has nothing left to stop.
        let _ = self.keeper.cast(KeeperMessage::Stop);
        let mut outlook = self.outlook.clone();
        // An error says that the keeper has gone: over as well.
        let _ = outlook.wait_for(|outlook| outlook.over).await;
    }

    /// Comes when the graph was stopped, or when a unit has spent its restart budget (the rest then still runs).
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut outlook = self.outlook.clone();
        async move {
            let seen = outlook.wait_for(|outlook| outlook.exit.is_some()).await;
            seen.ok().and_then(|outlook| outlook.exit.clone()).unwrap_or(Exit::Stopped)
        }
    }

    /// The events kept, merged by time; empty unless [`LiveOptions::events`] is on.
    pub fn events(&self) -> Vec<(Time, String, Event)> {
        let mut entries = Vec::new();
        for seat in &self.shared.wiring.seats {
            if let Some(journal) = seat.journal() {
                journal.copy_to(&mut entries);
            }
        }
        entries.sort_by_key(|entry| entry.at);
        let named = entries
            .into_iter()
            .map(|entry| (entry.at, self.shared.wiring.seats[entry.seat].name.to_string(), entry.event));
        named.collect()
    }

    /// Events that were overwritten because a ring was full.
    pub fn events_lost(&self) -> u64 {
        self.shared
            .wiring
            .seats
            .iter()
            .filter_map(|seat| seat.journal())
            .map(|journal| journal.overwritten())
            .sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.shared.over.load(Ordering::SeqCst) {
            // A keeper that is gone has nothing left to stop.
            let _ = self.keeper.cast(KeeperMessage::Stop);
        }
    }
}
