//! The ractor actor that hosts one life of a seat: its one message begins the life and is handled until the life ends,
//! so a panic, an order or a lost thread is the actor's own ending and reaches the keeper as such.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::Shared;
use super::runner::{Ending, Runner, Step};
use super::thread::{Start, spawn};
use crate::bell::LANES;
use crate::graph::{Cores, Ground, Part};
use crate::seat::{Order, SeatCore};
use crate::supervise::panic_text;
use crate::time::{Clock, Time};

/// A shared seat lets others run after so much time in its own turns...
const SHARE: Duration = Duration::from_micros(50);
/// ...which it measures after so many turns.
const TURNS: u32 = 4;

/// Told once, when the actor of a seat's first life is made.
pub(crate) type Ready = oneshot::Sender<Result<(), String>>;

/// The actor; everything it knows is in its state.
pub(crate) struct Host;

/// Begin the life.
pub(crate) struct Begin;

pub(crate) struct HostState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) part: Part,
    /// Only in the first life.
    pub(crate) ready: Option<Ready>,
}

impl ractor::Actor for Host {
    type Msg = Begin;
    type State = HostState;
    type Arguments = HostState;

    async fn pre_start(
        &self,
        myself: ActorRef<Begin>,
        state: HostState,
    ) -> Result<HostState, ActorProcessingErr> {
        myself.cast(Begin)?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Begin>,
        Begin: Begin,
        state: &mut HostState,
    ) -> Result<(), ActorProcessingErr> {
        state.part.core.bell.awake();
        let ending = match state.part.ground.clone() {
            Ground::Shared => state.live_here().await,
            Ground::Own(cores) => state.live_apart(cores).await,
        };
        match ending {
            Ending::Left => myself.stop(None),
            Ending::Crashed(cause) => return Err(cause.into()),
        }
        Ok(())
    }
}

impl HostState {
    /// A shared seat: turns in this very future.
    async fn live_here(&mut self) -> Ending {
        let mut runner = match make(&self.shared, &self.part, self.ready.take()) {
            Ok(runner) => runner,
            Err(ending) => return ending,
        };
        let ending = run(&mut runner).await;
        // The actor is gone before the keeper hears of it.
        runner.bury();
        ending
    }

    /// A compute seat: turns on a thread of its own, while this waits for it to leave.
    async fn live_apart(&mut self, cores: Cores) -> Ending {
        let (leave, left) = oneshot::channel();
        let start = Start {
            shared: Arc::clone(&self.shared),
            part: self.part.clone(),
            core: cores.0.first().copied(),
            ready: self.ready.take(),
            leave,
        };
        if let Err(error) = spawn(start) {
            return Ending::Crashed(format!("no thread: {error}"));
        }
        // The runtime may go down without asking anybody: the thread must not outlive this future for long.
        let mut watch = ThreadWatch(Some(Arc::clone(&self.part.core)));
        let ending = left.await.unwrap_or_else(|_| Ending::Crashed("its thread has gone".to_owned()));
        watch.0 = None;
        ending
    }
}

/// Tells a thread to leave, unless it has left.
struct ThreadWatch(Option<Arc<SeatCore>>);

impl Drop for ThreadWatch {
    fn drop(&mut self) {
        if let Some(core) = &self.0 {
            core.order(Order::Halt);
        }
    }
}

/// Turns and sleeps until the life ends.
async fn run(runner: &mut Runner) -> Ending {
    let mut share_from = runner.clock.now();
    let mut turns = 0;
    let mut waker = None;
    loop {
        match runner.step() {
            Step::Over(ending) => return ending,
            Step::Rest(unless) if rest(runner, unless, &mut waker).await => turns = 0,
            Step::Worked | Step::Rest(_) => {
                turns += 1;
                if turns % TURNS == 1 {
                    share_from = share(share_from, &runner.clock).await;
                }
            }
        }
    }
}

/// Lets others run if it is time to. When the present share began.
async fn share(from: Time, clock: &Clock) -> Time {
    let now = clock.now();
    if now.saturating_since(from) < SHARE {
        return from;
    }
    tokio::task::yield_now().await;
    clock.now()
}

/// Until one of `unless` is raised, or the wake time comes. False: it was so already, others had no chance to run.
async fn rest(runner: &mut Runner, unless: u64, waker: &mut Option<Waker>) -> bool {
    let bell = &runner.core.bell;
    // While it waits for room, time does not wake it: the wake is late rather than out of order.
    let wake_at = if unless & LANES != 0 { runner.wake_at() } else { None };
    let Some(at) = wake_at else {
        let asleep = bell.sleep(unless);
        if asleep {
            bell.rung(waker).await;
        }
        return asleep;
    };
    let wait = at.saturating_since(runner.clock.now());
    if wait.is_zero() || !bell.sleep(unless) {
        return false;
    }
    // Which of the two it was shows in the seat's word and on its clock.
    drop(tokio::time::timeout(wait, bell.rung(waker)).await);
    bell.awake();
    true
}

/// Makes the actor of a life; its factory's panic is the ending.
pub(crate) fn make(shared: &Shared, part: &Part, ready: Option<Ready>) -> Result<Runner, Ending> {
    let made = catch_unwind(AssertUnwindSafe(|| part.maker.make())).map_err(|panic| panic_text(&*panic));
    if let Some(ready) = ready {
        // Whoever started the graph may have given up waiting.
        let _ = ready.send(made.as_ref().map(|_| ()).map_err(String::clone));
    }
    let life = made.map_err(|cause| Ending::Crashed(format!("its factory panicked: {cause}")))?;
    Ok(Runner::new(shared, &part.core, life))
}
