//! The thread of a compute seat: it looks for work a little while, then parks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::host::{Ready, make};
use super::runner::{Ending, Runner, Step};
use crate::bell::{Bell, LANES, Sleeper};
use crate::graph::Part;

/// Looks at the word between two looks at the clock.
const LOOKS: u32 = 32;

/// What the thread is given.
pub(crate) struct Start {
    pub(crate) shared: Arc<Shared>,
    pub(crate) part: Part,
    /// The core to pin it to.
    pub(crate) core: Option<usize>,
    pub(crate) ready: Option<Ready>,
    /// Told when the actor is gone.
    pub(crate) leave: oneshot::Sender<Ending>,
}

/// Runs one life of a seat on a thread of its own. It is never joined: its host hears when it has left.
pub(crate) fn spawn(start: Start) -> std::io::Result<()> {
    let name = start.part.core.name.to_string();
    std::thread::Builder::new().name(name).spawn(move || {
        let Start { shared, part, core, ready, leave } = start;
        pin(&part, core);
        let ending = live(&shared, &part, ready);
        // A host that has gone was told to go.
        let _ = leave.send(ending);
    })?;
    Ok(())
}

fn pin(part: &Part, core: Option<usize>) {
    if let Some(id) = core
        && !core_affinity::set_for_current(core_affinity::CoreId { id })
    {
        tracing::warn!(seat = &*part.core.name, core = id, "the thread could not be pinned");
    }
}

fn live(shared: &Shared, part: &Part, ready: Option<Ready>) -> Ending {
    part.core.bell.set_sleeper(Some(Sleeper::Thread(std::thread::current())));
    let mut runner = match make(shared, part, ready) {
        Ok(runner) => runner,
        Err(ending) => return ending,
    };
    let ending = loop {
        match runner.step() {
            Step::Worked => {}
            Step::Rest(unless) => rest(&runner, unless, shared.options.spin),
            Step::Over(ending) => break ending,
        }
    };
    runner.bury();
    ending
}

/// Until one of `unless` is raised, or the wake time comes.
fn rest(runner: &Runner, unless: u64, spin: Duration) {
    let bell = &runner.core.bell;
    // While it waits for room, time does not wake it.
    let wake_at = if unless & LANES != 0 { runner.wake_at() } else { None };
    if looks(bell, unless) {
        return;
    }
    let from = runner.clock.now();
    let mut now = from;
    while now.saturating_since(from) < spin {
        if looks(bell, unless) {
            return;
        }
        now = runner.clock.now();
        if wake_at.is_some_and(|at| at <= now) {
            return;
        }
    }
    if !bell.sleep(unless) {
        return;
    }
    while bell.is_asleep() {
        match wake_at {
            None => std::thread::park(),
            Some(at) => {
                let wait = at.saturating_since(runner.clock.now());
                if wait.is_zero() {
                    break;
                }
                std::thread::park_timeout(wait);
            }
        }
    }
    bell.awake();
}

/// True as soon as one of `unless` is raised.
fn looks(bell: &Bell, unless: u64) -> bool {
    for _ in 0..LOOKS {
        if bell.raised() & unless != 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
