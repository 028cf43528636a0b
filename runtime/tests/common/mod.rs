//! What the test files share: one way to drive a graph whatever the driver, and an actor made of closures.

#![expect(dead_code, reason = "each test file uses the part it needs")]

use std::time::Duration;

use millstream_runtime::{
    Actor, Ctx, Exit, Faults, Graph, LaneState, LiveOptions, Outlet, Running, SeatState, Sim, SimOptions,
    Time, live,
};

/// A driver to run a graph under. Compute seats get threads under `Live` only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sim,
    Live,
}

/// A graph that runs under either driver.
pub enum Drive {
    Sim(Box<Sim>),
    Live(tokio::runtime::Runtime, Running),
}

/// Nothing in these tests takes longer, unless it hangs.
const LONGEST: Duration = Duration::from_secs(10);

impl Drive {
    pub fn start(kind: Kind, graph: Graph) -> Drive {
        match kind {
            Kind::Sim => Drive::sim(graph, 1, Faults::none()),
            Kind::Live => Drive::live(graph, LiveOptions { events: true, ..LiveOptions::default() }),
        }
    }

    pub fn sim(graph: Graph, seed: u64, faults: Faults) -> Drive {
        Drive::Sim(Box::new(Sim::new(graph, SimOptions { seed, faults, ..SimOptions::default() })))
    }

    pub fn live(graph: Graph, options: LiveOptions) -> Drive {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("tokio");
        let running = runtime.block_on(live::start(graph, options)).expect("the graph starts");
        Drive::Live(runtime, running)
    }

    /// Lets the graph run until `is_done`, which must come true.
    pub fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Drive) -> bool) {
        let mut waited = Duration::ZERO;
        while !is_done(self) {
            let step = Duration::from_millis(1);
            match self {
                Drive::Sim(sim) => sim.run_until(sim.now() + step),
                Drive::Live(runtime, _) => runtime.block_on(async { tokio::time::sleep(step).await }),
            }
            waited += step;
            assert!(waited < LONGEST, "still waiting for: {what}\n{:#?}\n{:#?}", self.seats(), self.lanes());
        }
    }

    /// Lets the graph run for `span`.
    pub fn pass(&mut self, span: Duration) {
        match self {
            Drive::Sim(sim) => sim.run_until(sim.now() + span),
            Drive::Live(runtime, _) => runtime.block_on(async { tokio::time::sleep(span).await }),
        }
    }

    /// The next `count` messages of the outlet.
    pub fn collect<T: Send + 'static>(&mut self, outlet: &Outlet<T>, count: usize) -> Vec<T> {
        let mut taken = Vec::new();
        self.until("messages at an outlet", |_| {
            while taken.len() < count
                && let Some(message) = outlet.try_recv()
            {
                taken.push(message);
            }
            taken.len() == count
        });
        taken
    }

    pub fn seats(&self) -> Vec<SeatState> {
        match self {
            Drive::Sim(sim) => sim.seats(),
            Drive::Live(_, running) => running.seats(),
        }
    }

    pub fn seat(&self, name: &str) -> SeatState {
        self.seats().into_iter().find(|seat| seat.name == name).expect("the seat exists")
    }

    pub fn lanes(&self) -> Vec<LaneState> {
        match self {
            Drive::Sim(sim) => sim.lanes(),
            Drive::Live(_, running) => running.lanes(),
        }
    }

    pub fn lane(&self, name: &str) -> LaneState {
        self.lanes().into_iter().find(|lane| lane.name == name).expect("the lane exists")
    }

    pub fn kill(&mut self, name: &str) -> bool {
        match self {
            Drive::Sim(sim) => sim.kill(name),
            Drive::Live(_, running) => running.kill(name),
        }
    }

    /// How the graph failed; waits for it.
    pub fn failure(&mut self) -> Exit {
        match self {
            Drive::Sim(sim) => sim.failed().expect("a unit has failed").clone(),
            Drive::Live(runtime, running) => runtime
                .block_on(async { tokio::time::timeout(LONGEST, running.exited()).await })
                .expect("it ends"),
        }
    }

    pub fn stop(&mut self) {
        match self {
            Drive::Sim(sim) => sim.stop(),
            Drive::Live(runtime, running) => runtime.block_on(running.stop()),
        }
    }

    pub fn now(&self) -> Time {
        match self {
            Drive::Sim(sim) => sim.now(),
            Drive::Live(_, running) => running.now(),
        }
    }
}

/// An actor that is one closure over its messages.
pub struct On<M, F>(pub F, pub std::marker::PhantomData<fn(M)>);

pub fn on<M: Send + 'static, F: FnMut(M, &mut Ctx<'_>) + Send + 'static>(call: F) -> On<M, F> {
    On(call, std::marker::PhantomData)
}

impl<M: Send + 'static, F: FnMut(M, &mut Ctx<'_>) + Send + 'static> Actor for On<M, F> {
    type Message = M;
    fn handle(&mut self, message: M, ctx: &mut Ctx<'_>) {
        (self.0)(message, ctx);
    }
}

/// Nothing is made or lost between a lane's counters.
pub fn assert_conserved(lanes: &[LaneState]) {
    for lane in lanes {
        let gone = lane.received + lane.dropped + lane.overwritten;
        assert_eq!(lane.sent, gone + lane.depth as u64, "{lane:?}");
    }
}
