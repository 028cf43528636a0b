//! One step of a seat under the live driver, the same for shared and compute seats: async and threads stay outside.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::bell::{ATTENTION, LANES, ROOM};
use crate::lane::{Path, Policy};
use crate::seat::{Life, Order, SeatCore};
use crate::supervise::panic_text;
use crate::time::{Clock, Time};

use super::Shared;

/// How a life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As it was told to.
    Left,
    /// The actor panicked, or was killed.
    Crashed(String),
}

/// What a step came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Worked,
    /// Nothing to do; up again for any of these bits.
    Rest(u64),
    Over(Ending),
}

/// One life of a seat with what it needs to run.
pub(crate) struct Runner {
    pub(crate) core: Arc<SeatCore>,
    pub(crate) clock: Arc<Clock>,
    /// Hold lanes out of the seat.
    holds: Vec<Arc<dyn Path>>,
    life: Box<dyn Life>,
}

impl Runner {
    pub(crate) fn new(shared: &Shared, core: &Arc<SeatCore>, life: Box<dyn Life>) -> Runner {
        let ours = |lane: &&Arc<dyn Path>| {
            let facts = &lane.core().facts;
            facts.policy == Policy::Hold && facts.from.as_ref().is_some_and(|from| from.index == core.index)
        };
        let holds = shared.wiring.lanes.iter().filter(ours).map(Arc::clone).collect();
        Runner { core: Arc::clone(core), clock: Arc::clone(&shared.clock), holds, life }
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.life.wake_at()
    }

    pub(crate) fn step(&mut self) -> Step {
        if let Some(order) = self.core.ordered() {
            return Step::Over(self.obey(order));
        }
        if self.core.is_held() {
            // Room made after this shows as the bit raised again.
            self.core.bell.lower(ROOM);
            for lane in &self.holds {
                lane.flush();
            }
            if self.core.is_held() {
                return Step::Rest(ROOM | ATTENTION);
            }
        }
        let (life, clock) = (&mut self.life, &self.clock);
        match catch_unwind(AssertUnwindSafe(|| life.turn(clock))) {
            Ok(turned) if turned.drained && !self.core.is_held() => Step::Rest(LANES | ATTENTION),
            // Its share was used up, it waits for room, or there is an order: the next step sees to it.
            Ok(_) => Step::Worked,
            Err(panic) => Step::Over(Ending::Crashed(panic_text(&*panic))),
        }
    }

    fn obey(&mut self, order: Order) -> Ending {
        match order {
            Order::Halt => Ending::Left,
            Order::Kill => Ending::Crashed("killed".to_owned()),
            Order::Finish => {
                let (life, clock) = (&mut self.life, &self.clock);
                match catch_unwind(AssertUnwindSafe(|| life.finish(clock))) {
                    Ok(()) => Ending::Left,
                    Err(panic) => Ending::Crashed(panic_text(&*panic)),
                }
            }
        }
    }

    /// The actor goes, before anybody hears of the ending; a panic while it goes changes nothing.
    pub(crate) fn bury(self) {
        let core = Arc::clone(&self.core);
        let dropped = catch_unwind(AssertUnwindSafe(move || drop(self)));
        if let Err(panic) = dropped {
            tracing::warn!(
                seat = &*core.name,
                cause = panic_text(&*panic),
                "an actor panicked while it was dropped"
            );
        }
    }
}
