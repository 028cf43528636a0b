//! The simulator: the same graph on one thread and on virtual time, with faults, all of it drawn from one seed.
//!
//! A message leaves when its sender's turn is over, is under way for a while, and lands in the lane; a seat with
//! something to do takes a turn. What happens at the same virtual moment happens in an order drawn from the seed. Two
//! runs with one seed have one log.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bell::{ATTENTION, LANES};
use crate::graph::{Graph, Part, Wiring};
use crate::lane::{LaneState, Stirred};
use crate::seat::{Life, SeatState};
use crate::supervise::{After, Deaths, Exit, cut, panic_text};
use crate::time::{Clock, Time};
use crate::trace::{Event, Journal};

mod agenda;
mod fault;
mod random;
mod road;

use self::agenda::{Action, Agenda};
pub use self::fault::Faults;
use self::random::Random;
use self::road::Road;

/// How a simulation runs.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Everything random comes from it.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// Virtual time every turn takes, on top of what the actor spends; at least 1 ns.
    pub turn: Duration,
    /// Virtual time a message is under way, on top of any delay; at least 1 ns.
    pub hop: Duration,
    /// Virtual time between the death of a unit and its next life.
    pub rebuild: Duration,
    /// The newest events that [`Sim::log`] keeps at least (it forgets older ones in bulk). The digest covers all.
    pub log_max: usize,
    /// Whether events are recorded at all. Without them there is neither log nor digest, and long runs are faster.
    pub journal: bool,
    /// Links between seats; a lane crosses the first one that it is part of, or none.
    pub links: Vec<SimLink>,
}

/// A link: messages that were said to be so many bytes ([`GraphBuilder::weigh`](crate::GraphBuilder::weigh)) take time on it.
#[derive(Debug, Clone, PartialEq)]
pub struct SimLink {
    /// The lanes that cross it: those with this in their name.
    pub lanes: String,
    /// Every message takes so long, also when nothing is before it.
    pub latency: Duration,
    /// What one seat may send over it.
    pub bytes_per_second: f64,
}

impl Default for SimOptions {
    /// Seed 0, no faults, 1 µs a turn, 1 µs a hop, 1 ms a rebuild, 262,144 events.
    fn default() -> SimOptions {
        SimOptions {
            seed: 0,
            faults: Faults::none(),
            turn: Duration::from_micros(1),
            hop: Duration::from_micros(1),
            rebuild: Duration::from_millis(1),
            log_max: 1 << 18,
            journal: true,
            links: Vec::new(),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do: no message, no wake time, no script. (A seat may still wait for the shell to take from a
    /// full outlet.)
    Idle,
    /// The time is up.
    Limit,
    /// A message has reached an outlet, now.
    Heard,
}

struct SimSeat {
    /// `None` between two lives, and for ever once dead.
    life: Option<Box<dyn Life>>,
    /// Its last turn takes until then.
    busy_until: Time,
    /// Its next turn in the agenda; any other one there is stale.
    planned: Option<Time>,
    spared: bool,
}

/// A graph on virtual time.
///
/// ```
/// use millstream_runtime::{Actor, Ctx, Faults, GraphBuilder, HoldOut, Outcome, Sim, SimOptions, Time};
/// use std::time::Duration;
///
/// struct Echo { out: HoldOut<u32> }
/// impl Actor for Echo {
///     type Message = u32;
///     fn handle(&mut self, message: u32, ctx: &mut Ctx<'_>) {
///         ctx.spend(Duration::from_millis(5));
///         self.out.send(message);
///     }
/// }
///
/// let run = |seed| {
///     let mut g = GraphBuilder::new();
///     let echo = g.seat::<u32>("echo", "echo");
///     let input = g.inlet("in", &echo, 8, |n: u32| n);
///     let (out, outlet) = g.outlet("out", &echo, 8);
///     g.actor(echo, move || Echo { out: out.clone() });
///     let faults = Faults { delay: Duration::from_millis(1), ..Faults::none() };
///     let mut sim = Sim::new(g.finish().unwrap(), SimOptions { seed, faults, ..SimOptions::default() });
///     sim.at(Time::from_nanos(1_000), move |_| input.offer(7).unwrap());
///     assert_eq!(sim.run_until_idle(Time::ZERO + Duration::from_secs(1)), Outcome::Idle);
///     assert_eq!(outlet.try_recv(), Some(7));
///     assert!(sim.now() >= Time::ZERO + Duration::from_millis(5));
///     sim.digest()
/// };
/// assert_eq!(run(1), run(1));
/// assert_ne!(run(1), run(2));
/// ```
pub struct Sim {
    wiring: Arc<Wiring>,
    parts: Vec<Part>,
    clock: Arc<Clock>,
    options: SimOptions,
    random: Random,
    journal: Arc<Journal>,
    log: Vec<(Time, Arc<str>, Event)>,
    seats: Vec<SimSeat>,
    roads: Vec<Road>,
    /// Lanes to the shell.
    outlets: Vec<usize>,
    /// Lanes that may launch something, and room for their list.
    stirred: Arc<Stirred>,
    stirring: Vec<usize>,
    /// When a link is free for the next message of a seat.
    crossing: BTreeMap<(usize, usize), Time>,
    /// Something has reached an outlet since that was last asked.
    heard: bool,
    agenda: Agenda,
    /// By unit.
    deaths: Vec<Deaths>,
    crashes: u32,
    failed: Option<Exit>,
    tickets: u64,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("now", &self.now())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// A simulation at time zero, every actor made.
    ///
    /// # Panics
    /// When a factory does.
    pub fn new(graph: Graph, options: SimOptions) -> Sim {
        let clock = Arc::new(Clock::virtual_zero());
        let journal = Arc::new(Journal::new(Arc::clone(&clock), usize::MAX));
        let Graph { wiring, parts } = graph;
        let seats = parts.iter().map(|part| sim_seat(part, &options.faults)).collect();
        let stirred = Arc::default();
        let lanes = wiring.lanes.iter().enumerate();
        let roads = lanes.clone().map(|lane| Road::new(lane, &options, &stirred)).collect();
        let outlets =
            lanes.filter(|(_, lane)| lane.core().facts.to.is_none()).map(|(place, _)| place).collect();
        for seat in wiring.seats.iter().filter(|_| options.journal) {
            seat.set_journal(Arc::clone(&journal));
        }
        let mut sim = Sim {
            random: Random::new(options.seed),
            deaths: wiring.units.iter().map(|_| Deaths::default()).collect(),
            wiring: Arc::new(wiring),
            parts,
            clock,
            options,
            journal,
            log: Vec::new(),
            seats,
            roads,
            outlets,
            stirred,
            stirring: Vec::new(),
            crossing: BTreeMap::new(),
            heard: false,
            agenda: Agenda::default(),
            crashes: 0,
            failed: None,
            tickets: 0,
        };
        for seat in 0..sim.seats.len() {
            sim.seats[seat].life = Some(sim.parts[seat].maker.make());
            sim.plan(seat, Time::ZERO);
        }
        sim
    }

    /// Runs `script` at the virtual time `at` (now, if that has passed); scripts of one moment run in the order given.
    pub fn at(&mut self, at: Time, script: impl FnOnce(&mut Sim) + 'static) {
        self.agenda.add_script(at.max(self.now()), Box::new(script));
    }

    /// Runs everything up to and including `until`, where time then stands.
    pub fn run_until(&mut self, until: Time) {
        self.run(until, false);
        self.clock.set(self.now().max(until));
    }

    /// Runs until nothing is left to do, but not beyond `limit`.
    pub fn run_until_idle(&mut self, limit: Time) -> Outcome {
        let outcome = self.run(limit, false);
        if outcome == Outcome::Limit {
            self.clock.set(self.now().max(limit));
        }
        outcome
    }

    /// The same, but also until a message reaches an outlet: who takes it then knows when it came.
    pub fn run_until_heard(&mut self, limit: Time) -> Outcome {
        let outcome = self.run(limit, true);
        if outcome == Outcome::Limit {
            self.clock.set(self.now().max(limit));
        }
        outcome
    }

    fn run(&mut self, until: Time, hears: bool) -> Outcome {
        self.shell_moved();
        self.heard = false;
        let mut actions: u32 = 0;
        while let Some((at, action)) = self.agenda.next(until) {
            self.clock.set(at);
            actions = actions.wrapping_add(1);
            if actions.is_multiple_of(4096) {
                self.keep_log();
            }
            match action {
                Action::Script(script) => {
                    script(self);
                    self.shell_moved();
                }
                Action::Land { lane, ticket } => self.land(lane, ticket),
                Action::Turn { seat } => self.take_turn(seat),
                Action::Rebuild { unit, times } => self.rebuild(unit, times),
            }
            if hears && self.heard {
                return Outcome::Heard;
            }
        }
        self.keep_log();
        if self.agenda.is_empty() { Outcome::Idle } else { Outcome::Limit }
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Kills the named seat (or the first seat of the named unit) now, as by a panic between two turns. False: nobody
    /// alive has that name. A unit that is being rebuilt absorbs it.
    pub fn kill(&mut self, name: &str) -> bool {
        let Some(seat) = self.wiring.find(name) else {
            return false;
        };
        if self.wiring.seats[seat].is_dead() {
            return false;
        }
        if self.seats[seat].life.is_some() {
            self.crash(seat, "killed");
            self.keep_log();
        }
        true
    }

    /// The named seat takes no turn for so long, as one that waits for a disk or a system that does not answer. False:
    /// nobody alive has that name.
    pub fn pause(&mut self, name: &str, pause: Duration) -> bool {
        let Some(seat) = self.wiring.find(name).filter(|&seat| self.seats[seat].life.is_some()) else {
            return false;
        };
        let until = self.now() + pause;
        let state = &mut self.seats[seat];
        (state.planned, state.busy_until) = (None, state.busy_until.max(until));
        self.replan(seat);
        true
    }

    /// A digest of the whole log: time, seat and event of every entry, in order.
    pub fn digest(&self) -> u64 {
        self.journal.digest()
    }

    /// The events so far, in order; see [`SimOptions::log_max`].
    pub fn log(&self) -> &[(Time, Arc<str>, Event)] {
        &self.log
    }

    /// Every lane, in the order of the graph.
    pub fn lanes(&self) -> Vec<LaneState> {
        self.wiring.lane_states()
    }

    /// Every seat, in the order of the graph.
    pub fn seats(&self) -> Vec<SeatState> {
        let mut states = self.wiring.seat_states(self.now());
        for (state, seat) in states.iter_mut().zip(&self.seats) {
            state.busy_since = (seat.busy_until > self.now()).then_some(state.since_turn);
        }
        states
    }

    /// The first unit that spent its restart budget, if one has.
    pub fn failed(&self) -> Option<&Exit> {
        self.failed.as_ref()
    }

    /// Calls every actor's `stop` and closes every lane; what that sends to outlets is there at once. Nothing happens
    /// after it.
    pub fn stop(&mut self) {
        for seat in 0..self.seats.len() {
            if let Some(mut life) = self.seats[seat].life.take() {
                let clock = &self.clock;
                if let Err(panic) = catch_unwind(AssertUnwindSafe(move || life.finish(clock))) {
                    self.wiring.seats[seat].set_cause(&panic_text(&*panic));
                }
            }
            self.wiring.seats[seat].die();
        }
        self.agenda = Agenda::default();
        for lane in &self.wiring.lanes {
            if lane.core().facts.to.is_some() {
                lane.purge();
            } else {
                lane.settle();
            }
            lane.core().close();
        }
        self.keep_log();
    }

    // Turns.

    /// Its next turn is at `at`, or when its present one is over, unless one is planned before that.
    fn plan(&mut self, seat: usize, at: Time) {
        let state = &mut self.seats[seat];
        let at = at.max(state.busy_until);
        if state.life.is_some() && state.planned.is_none_or(|planned| planned > at) {
            state.planned = Some(at);
            let tie = self.random.next();
            self.agenda.add(at, tie, Action::Turn { seat });
        }
    }

    /// Plans a turn if the seat has something to do, or asked for one later.
    fn replan(&mut self, seat: usize) {
        if self.wiring.seats[seat].is_held() {
            return;
        }
        if self.wiring.seats[seat].bell.raised() & (LANES | ATTENTION) != 0 {
            self.plan(seat, self.now());
        } else if let Some(at) = self.seats[seat].life.as_ref().and_then(|life| life.wake_at()) {
            self.plan(seat, at.max(self.now()));
        }
    }

    fn take_turn(&mut self, seat: usize) {
        if self.seats[seat].planned != Some(self.now()) {
            return;
        }
        self.seats[seat].planned = None;
        if self.wiring.seats[seat].is_held() {
            return;
        }
        let fault = self.draw_crash(seat);
        if fault == Some(When::Before) {
            return self.crash(seat, "a fault of the simulator");
        }
        let (Some(life), clock) = (self.seats[seat].life.as_mut(), &self.clock) else {
            return;
        };
        match catch_unwind(AssertUnwindSafe(|| life.turn(clock))) {
            Err(panic) => return self.crash(seat, &panic_text(&*panic)),
            Ok(turned) if turned.stirred => self.turned(seat, turned.spent),
            Ok(_) => {}
        }
        if fault == Some(When::After) {
            return self.crash(seat, "a fault of the simulator");
        }
        self.replan(seat);
    }

    /// What a turn sent leaves when its time is over; the room it made is there at once.
    fn turned(&mut self, seat: usize, spent: Duration) {
        let now = self.now();
        let end = now + self.options.turn.max(Duration::from_nanos(1)) + spent;
        let pauses = self.random.chance(self.options.faults.pause);
        let pause = if pauses { self.random.span(self.options.faults.pause_max) } else { Duration::ZERO };
        self.seats[seat].busy_until = end + pause;
        self.wiring.seats[seat].look(now);
        self.launch_stirred(Some(seat), end);
    }

    // Deaths.

    fn draw_crash(&mut self, seat: usize) -> Option<When> {
        let faults = &self.options.faults;
        if self.seats[seat].spared || self.crashes >= faults.crashes_max || !self.random.chance(faults.crash)
        {
            return None;
        }
        self.crashes += 1;
        Some(if self.random.chance(0.5) { When::Before } else { When::After })
    }

    /// The seat dies, and its unit with it.
    fn crash(&mut self, seat: usize, cause: &str) {
        let wiring = Arc::clone(&self.wiring);
        let place = wiring.unit_of(seat);
        let unit = &wiring.units[place];
        wiring.seats[seat].record(|| Event::Crashed);
        for seat in &unit.seats {
            wiring.seats[*seat].set_cause(cause);
            let life = self.seats[*seat].life.take();
            // A panic of an actor that is dropped changes nothing.
            drop(catch_unwind(AssertUnwindSafe(move || drop(life))));
            self.seats[*seat].planned = None;
            self.seats[*seat].busy_until = self.now();
        }
        let now = self.now();
        match self.deaths[place].count(unit.budget, now) {
            Some(times) => {
                cut(&wiring, unit, After::Rebuild);
                let (at, tie) = (now + self.options.rebuild, self.random.next());
                self.agenda.add(at, tie, Action::Rebuild { unit: place, times });
            }
            None => {
                cut(&wiring, unit, After::StayDead);
                let failed = Exit::Failed { unit: unit.name.clone(), cause: cause.to_owned() };
                self.failed.get_or_insert(failed);
            }
        }
        for seat in 0..self.seats.len() {
            self.replan(seat);
        }
    }

    fn rebuild(&mut self, place: usize, times: u32) {
        let wiring = Arc::clone(&self.wiring);
        for seat in &wiring.units[place].seats {
            let maker = &self.parts[*seat].maker;
            match catch_unwind(AssertUnwindSafe(|| maker.make())) {
                Ok(life) => self.seats[*seat].life = Some(life),
                Err(panic) => return self.crash(*seat, &panic_text(&*panic)),
            }
        }
        for seat in &wiring.units[place].seats {
            wiring.seats[*seat].restarts.store(u64::from(times), Ordering::Relaxed);
            wiring.seats[*seat].record(|| Event::Restarted { times });
            self.plan(*seat, self.now());
        }
    }

    fn keep_log(&mut self) {
        let mut entries = Vec::new();
        self.journal.move_to(&mut entries);
        let names = &self.wiring.seats;
        self.log.extend(
            entries.into_iter().map(|entry| (entry.at, Arc::clone(&names[entry.seat].name), entry.event)),
        );
        if self.log.len() > self.options.log_max.saturating_mul(2) {
            self.log.drain(..self.log.len() - self.options.log_max);
        }
    }
}

/// When in a turn a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

fn sim_seat(part: &Part, faults: &Faults) -> SimSeat {
    SimSeat {
        life: None,
        busy_until: Time::ZERO,
        planned: None,
        spared: faults.spares(&part.core.name) || faults.spares(&part.core.unit),
    }
}
