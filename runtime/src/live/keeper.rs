//! The ractor actor that supervises all hosts: it counts deaths against budgets, and it alone cuts between two lives.
//!
//! A unit falls in steps: one seat dies; the others are told to halt and leave after the turn they are in; when the last
//! has left, [`cut`] separates the lives and new hosts begin. Since one actor does all of it, no two units are cut at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor as _, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::watch;

use super::host::{Host, HostState, Ready};
use super::{Outlook, Shared};
use crate::graph::Part;
use crate::seat::Order;
use crate::supervise::{After, Deaths, Exit, cut};
use crate::trace::Event;

/// How often the keeper looks which seats have moved.
const LOOK: Duration = Duration::from_millis(100);

/// The actor; everything it knows is in its state.
pub(crate) struct Keeper;

pub(crate) struct KeeperArgs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) parts: Vec<Part>,
    /// One per part.
    pub(crate) readies: Vec<Ready>,
    pub(crate) outlook: watch::Sender<Outlook>,
}

pub(crate) enum KeeperMessage {
    /// Note which seats have moved.
    Look,
    Stop,
    /// A stop has taken too long.
    StopNow,
    /// The `fall`th fall of the unit has taken too long.
    Impatient {
        unit: usize,
        fall: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Up,
    /// Some seats are still in their last turn.
    Falling {
        cause: String,
    },
    Dead,
}

struct UnitState {
    phase: Phase,
    deaths: Deaths,
    falls: u64,
}

pub(crate) struct KeeperState {
    myself: ActorRef<KeeperMessage>,
    shared: Arc<Shared>,
    parts: Vec<Part>,
    /// The seat of each host that is alive.
    hosts: BTreeMap<ActorId, usize>,
    units: Vec<UnitState>,
    stopping: bool,
    outlook: watch::Sender<Outlook>,
}

impl ractor::Actor for Keeper {
    type Msg = KeeperMessage;
    type State = KeeperState;
    type Arguments = KeeperArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<KeeperMessage>,
        args: KeeperArgs,
    ) -> Result<KeeperState, ActorProcessingErr> {
        let fresh = || UnitState { phase: Phase::Up, deaths: Deaths::default(), falls: 0 };
        let mut state = KeeperState {
            myself,
            units: args.shared.wiring.units.iter().map(|_| fresh()).collect(),
            shared: args.shared,
            parts: args.parts,
            hosts: BTreeMap::new(),
            stopping: false,
            outlook: args.outlook,
        };
        state.remind(KeeperMessage::Look, LOOK);
        for (seat, ready) in args.readies.into_iter().enumerate() {
            state.host(seat, Some(ready)).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<KeeperMessage>,
        message: KeeperMessage,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            KeeperMessage::Look => {
                state.shared.wiring.look(state.shared.clock.now());
                state.remind(KeeperMessage::Look, LOOK);
            }
            KeeperMessage::Stop => state.stop(),
            KeeperMessage::StopNow => state.over(),
            KeeperMessage::Impatient { unit, fall } => state.impatient(unit, fall),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<KeeperMessage>,
        event: SupervisionEvent,
        state: &mut KeeperState,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, cause) = match event {
            SupervisionEvent::ActorFailed(cell, cause) => (cell, Some(cause.to_string())),
            SupervisionEvent::ActorTerminated(cell, _, _) => (cell, None),
            _ => return Ok(()),
        };
        match state.hosts.remove(&cell.get_id()) {
            Some(seat) => state.ended(seat, cause).await,
            None => Ok(()),
        }
    }
}

impl KeeperState {
    async fn host(&mut self, seat: usize, ready: Option<Ready>) -> Result<(), ActorProcessingErr> {
        let args = HostState { shared: Arc::clone(&self.shared), part: self.parts[seat].clone(), ready };
        let (host, _) = Host::spawn_linked(None, Host, args, self.myself.get_cell()).await?;
        self.hosts.insert(host.get_id(), seat);
        Ok(())
    }

    /// The life of a seat is over.
    async fn ended(&mut self, seat: usize, cause: Option<String>) -> Result<(), ActorProcessingErr> {
        if self.stopping {
            if let Some(cause) = cause {
                self.shared.wiring.seats[seat].set_cause(&cause);
            }
            if self.hosts.is_empty() {
                self.over();
            }
            return Ok(());
        }
        let unit = self.shared.wiring.unit_of(seat);
        if self.units[unit].phase == Phase::Up {
            self.fall(unit, seat, cause.unwrap_or_else(|| "it left without being asked".to_owned()));
        }
        if matches!(self.units[unit].phase, Phase::Falling { .. }) && self.alive(unit).is_empty() {
            self.fallen(unit).await?;
        }
        Ok(())
    }

    fn alive(&self, unit: usize) -> Vec<usize> {
        let seats = &self.shared.wiring.units[unit].seats;
        self.hosts.values().copied().filter(|seat| seats.contains(seat)).collect()
    }

    fn fall(&mut self, unit: usize, seat: usize, cause: String) {
        let wiring = &self.shared.wiring;
        tracing::warn!(
            unit = wiring.units[unit].name,
            seat = &*wiring.seats[seat].name,
            cause,
            "a seat died"
        );
        wiring.seats[seat].record(|| Event::Crashed);
        for seat in &wiring.units[unit].seats {
            wiring.seats[*seat].set_cause(&cause);
        }
        for seat in self.alive(unit) {
            wiring.seats[seat].order(Order::Halt);
        }
        self.units[unit].phase = Phase::Falling { cause };
        self.units[unit].falls += 1;
        let fall = self.units[unit].falls;
        self.remind(KeeperMessage::Impatient { unit, fall }, self.shared.options.patience);
    }

    fn remind(&self, message: KeeperMessage, after: Duration) {
        let myself = self.myself.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            // A keeper that has gone needs no reminder.
            let _ = myself.cast(message);
        });
    }

    /// All seats of the unit have left their turns.
    async fn fallen(&mut self, unit: usize) -> Result<(), ActorProcessingErr> {
        let shared = Arc::clone(&self.shared);
        let facts = &shared.wiring.units[unit];
        let Some(times) = self.units[unit].deaths.count(facts.budget, shared.clock.now()) else {
            let cause = match &self.units[unit].phase {
                Phase::Falling { cause } => cause.clone(),
                Phase::Up | Phase::Dead => String::new(),
            };
            self.give_up(unit, cause);
            return Ok(());
        };
        cut(&shared.wiring, facts, After::Rebuild);
        self.units[unit].phase = Phase::Up;
        tracing::info!(unit = facts.name, times, "a unit is built again");
        for seat in &facts.seats {
            shared.wiring.seats[*seat].restarts.store(u64::from(times), Ordering::Relaxed);
            shared.wiring.seats[*seat].record(|| Event::Restarted { times });
            self.host(*seat, None).await?;
        }
        Ok(())
    }

    /// The unit stays dead.
    fn give_up(&mut self, unit: usize, cause: String) {
        let wiring = &self.shared.wiring;
        let name = wiring.units[unit].name.clone();
        tracing::error!(unit = name, cause, "a unit stays dead");
        cut(wiring, &wiring.units[unit], After::StayDead);
        for seat in &wiring.units[unit].seats {
            wiring.seats[*seat].set_cause(&cause);
        }
        // One that could not be brought out of its turn leaves when it comes out.
        for seat in self.alive(unit) {
            wiring.seats[seat].order(Order::Halt);
        }
        self.units[unit].phase = Phase::Dead;
        self.outlook.send_modify(|outlook| {
            outlook.exit.get_or_insert(Exit::Failed { unit: name, cause });
        });
    }

    fn impatient(&mut self, unit: usize, fall: u64) {
        if self.stopping || self.units[unit].falls != fall {
            return;
        }
        let Phase::Falling { cause } = &self.units[unit].phase else {
            return;
        };
        let names: Vec<_> =
            self.alive(unit).iter().map(|seat| &*self.shared.wiring.seats[*seat].name).collect();
        let patience = self.shared.options.patience;
        let cause = format!("{cause}; then {} did not leave its turn within {patience:?}", names.join(", "));
        self.give_up(unit, cause);
    }

    fn stop(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        for seat in self.hosts.values() {
            self.shared.wiring.seats[*seat].order(Order::Finish);
        }
        if self.hosts.is_empty() {
            self.over();
        } else {
            self.remind(KeeperMessage::StopNow, self.shared.options.patience);
        }
    }

    /// Everybody has gone or is left behind: nothing enters a lane any more, and only outlets keep what they have.
    fn over(&mut self) {
        if self.shared.over.swap(true, Ordering::SeqCst) {
            return;
        }
        for lane in &self.shared.wiring.lanes {
            lane.core().close();
            if lane.core().facts.to.is_some() {
                lane.purge();
            }
        }
        for seat in &self.shared.wiring.seats {
            seat.die();
            seat.take_notices();
            seat.bell.set_sleeper(None);
        }
        for seat in self.hosts.values() {
            self.shared.wiring.seats[*seat].order(Order::Halt);
        }
        self.parts.clear();
        self.outlook.send_modify(|outlook| {
            outlook.exit.get_or_insert(Exit::Stopped);
            outlook.over = true;
        });
        self.myself.stop(None);
    }
}
