//! Seats and lanes, built, checked and frozen: what a driver accepts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::Actor;
use crate::bell::bit_of;
use crate::error::{Error, Problem};
use crate::lane::{HoldOut, Inlet, Lane, LaneFacts, LatestOut, OfferOut, Outlet, Path, Policy, ReplyOut};
use crate::seat::{LaneIn, Maker, SeatCore, Source, maker};
use crate::supervise::{Budget, Unit};

mod check;

/// A seat of the graph under construction; `M` is the message of the actor that will sit in it.
pub struct Seat<M> {
    core: Arc<SeatCore>,
    sources: Arc<Mutex<Vec<Arc<dyn Source<M>>>>>,
}

impl<M> Seat<M> {
    /// Its name, as given.
    pub fn name(&self) -> &str {
        &self.core.name
    }
}

impl<M> Clone for Seat<M> {
    fn clone(&self) -> Self {
        Seat { core: Arc::clone(&self.core), sources: Arc::clone(&self.sources) }
    }
}

impl<M> fmt::Debug for Seat<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.core.name)
    }
}

/// Processor cores a compute seat belongs to. Its thread is pinned to the first; empty means not pinned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

impl From<Vec<usize>> for Cores {
    fn from(cores: Vec<usize>) -> Cores {
        Cores(cores)
    }
}

/// What a seat runs on, under the live driver.
#[derive(Debug, Clone)]
pub(crate) enum Ground {
    /// The threads of the async runtime, shared with other seats.
    Shared,
    /// A thread of its own.
    Own(Cores),
}

/// One seat of a finished graph.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) core: Arc<SeatCore>,
    pub(crate) ground: Ground,
    pub(crate) maker: Arc<dyn Maker>,
}

/// What is shared by the parts of a driver.
#[derive(Debug)]
pub(crate) struct Wiring {
    pub(crate) seats: Vec<Arc<SeatCore>>,
    pub(crate) lanes: Vec<Arc<dyn Path>>,
    pub(crate) units: Vec<Unit>,
}

/// A graph that can run: every seat has an actor, names are unique, hold lanes form no cycle.
pub struct Graph {
    pub(crate) wiring: Wiring,
    pub(crate) parts: Vec<Part>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wiring.fmt(f)
    }
}

struct Draft {
    core: Arc<SeatCore>,
    ground: Ground,
    maker: Option<Arc<dyn Maker>>,
    /// Lanes into it so far: urgent ones, others.
    inputs: [usize; 2],
}

/// Builds a [`Graph`]: first seats, then the lanes between them, then an actor for each seat.
///
/// ```
/// use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut};
///
/// struct Source { out: HoldOut<u8> }
/// impl Actor for Source {
///     type Message = ();
///     fn handle(&mut self, (): (), _ctx: &mut Ctx<'_>) { self.out.send(1) }
/// }
/// struct Sink;
/// impl Actor for Sink {
///     type Message = u8;
///     fn handle(&mut self, _message: u8, _ctx: &mut Ctx<'_>) {}
/// }
///
/// let mut g = GraphBuilder::new();
/// let source = g.seat::<()>("source", "front");
/// let sink = g.compute_seat::<u8>("sink", "back", vec![]);
/// let start = g.inlet("start", &source, 1, |()| ());
/// let out = g.hold("numbers", &source, &sink, 16, |n: u8| n);
/// g.actor(source, move || Source { out: out.clone() });
/// g.actor(sink, || Sink);
/// let graph = g.finish()?;
/// # drop((graph, start));
/// # Ok::<(), millstream_runtime::Error>(())
/// ```
#[derive(Default)]
pub struct GraphBuilder {
    drafts: Vec<Draft>,
    lanes: Vec<Arc<dyn Path>>,
    budgets: BTreeMap<String, Budget>,
    problems: Vec<Problem>,
}

impl fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphBuilder").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

/// Name, capacity and urgency of a lane about to be made.
struct Wish<'a> {
    name: &'a str,
    policy: Policy,
    capacity: usize,
    urgent: bool,
}

impl<'a> Wish<'a> {
    fn new(name: &'a str, policy: Policy, capacity: usize) -> Wish<'a> {
        Wish { name, policy, capacity, urgent: false }
    }

    fn urgent(self) -> Wish<'a> {
        Wish { urgent: true, ..self }
    }
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// A seat on the shared threads. Seats of one `unit` fail and restart together.
    pub fn seat<M: Send + 'static>(&mut self, name: &str, unit: &str) -> Seat<M> {
        self.draft(name, unit, Ground::Shared)
    }

    /// A seat that owns a thread, for long turns of pure computing.
    pub fn compute_seat<M: Send + 'static>(
        &mut self,
        name: &str,
        unit: &str,
        cores: impl Into<Cores>,
    ) -> Seat<M> {
        self.draft(name, unit, Ground::Own(cores.into()))
    }

    fn draft<M: Send + 'static>(&mut self, name: &str, unit: &str, ground: Ground) -> Seat<M> {
        let core = Arc::new(SeatCore::new(name, unit, self.drafts.len(), matches!(ground, Ground::Shared)));
        self.drafts.push(Draft { core: Arc::clone(&core), ground, maker: None, inputs: [0, 0] });
        Seat { core, sources: Arc::default() }
    }

    /// A hold lane: when it is full, the sender's seat waits.
    #[expect(
        clippy::too_many_arguments,
        reason = "a lane is its name, two ends, a bound and a wrapping; a call reads well"
    )]
    pub fn hold<A, B, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> HoldOut<T>
    where
        B: Send + 'static,
    {
        HoldOut(self.join(Wish::new(name, Policy::Hold, capacity), Some(&from.core), to, wrap))
    }

    /// An offer lane: when it is full, the message comes back to the sender.
    #[expect(
        clippy::too_many_arguments,
        reason = "a lane is its name, two ends, a bound and a wrapping; a call reads well"
    )]
    pub fn offer<A, B, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> OfferOut<T>
    where
        B: Send + 'static,
    {
        OfferOut(self.join(Wish::new(name, Policy::Offer, capacity), Some(&from.core), to, wrap))
    }

    /// An offer lane that is served before the receiver's other lanes (cancel, for one).
    #[expect(
        clippy::too_many_arguments,
        reason = "a lane is its name, two ends, a bound and a wrapping; a call reads well"
    )]
    pub fn urgent_offer<A, B, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> OfferOut<T>
    where
        B: Send + 'static,
    {
        OfferOut(self.join(Wish::new(name, Policy::Offer, capacity).urgent(), Some(&from.core), to, wrap))
    }

    /// A latest lane: the newest `capacity` messages are kept (1 is the usual number).
    #[expect(
        clippy::too_many_arguments,
        reason = "a lane is its name, two ends, a bound and a wrapping; a call reads well"
    )]
    pub fn latest<A, B, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> LatestOut<T>
    where
        B: Send + 'static,
    {
        LatestOut(self.join(Wish::new(name, Policy::Latest, capacity), Some(&from.core), to, wrap))
    }

    /// A reply lane: `capacity` is the window, the most answers that can be owed at once.
    #[expect(
        clippy::too_many_arguments,
        reason = "a lane is its name, two ends, a bound and a wrapping; a call reads well"
    )]
    pub fn reply<A, B, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> ReplyOut<T>
    where
        B: Send + 'static,
    {
        ReplyOut(self.join(Wish::new(name, Policy::Reply, capacity), Some(&from.core), to, wrap))
    }

    /// How many bytes a message of a lane is: in the simulator it takes time on a link ([`SimLink`](crate::SimLink)).
    pub fn weigh<T: Send + 'static>(&mut self, lane: &ReplyOut<T>, bytes: fn(&T) -> u64) {
        lane.0.weigh(bytes);
    }

    /// A way from the shell into a seat, for any number of threads. It is not emptied when the seat restarts.
    pub fn inlet<B: Send + 'static, T: Send + 'static>(
        &mut self,
        name: &str,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> Inlet<T> {
        Inlet(self.join(Wish::new(name, Policy::Offer, capacity), None, to, wrap))
    }

    /// An inlet that is served before the seat's other lanes.
    pub fn urgent_inlet<B: Send + 'static, T: Send + 'static>(
        &mut self,
        name: &str,
        to: &Seat<B>,
        capacity: usize,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> Inlet<T> {
        Inlet(self.join(Wish::new(name, Policy::Offer, capacity).urgent(), None, to, wrap))
    }

    /// A way from a seat to the shell: the seat's end is a hold lane. It is not emptied when the seat restarts.
    pub fn outlet<A, T: Send + 'static>(
        &mut self,
        name: &str,
        from: &Seat<A>,
        capacity: usize,
    ) -> (HoldOut<T>, Outlet<T>) {
        let wish = Wish::new(name, Policy::Hold, capacity);
        let lane = self.lane(&wish, Some(&from.core), None, 0);
        (HoldOut(Arc::clone(&lane)), Outlet(lane))
    }

    /// Puts an actor into a seat. The factory is called at the start and at each restart, on the seat's own thread where
    /// it has one; it keeps one clone of each sender and gives out clones.
    pub fn actor<A: Actor>(&mut self, seat: Seat<A::Message>, factory: impl FnMut() -> A + Send + 'static) {
        let draft = &mut self.drafts[seat.core.index];
        if draft.maker.is_some() {
            self.problems.push(Problem::TwoActors(seat.core.name.to_string()));
            return;
        }
        draft.maker = Some(maker(seat.core, seat.sources, factory));
    }

    /// How many restarts a unit has; [`Budget::default`] where this is not called.
    pub fn budget(&mut self, unit: &str, budget: Budget) {
        self.budgets.insert(unit.to_owned(), budget);
    }

    /// Checks and freezes the graph.
    ///
    /// # Errors
    /// [`Error::Graph`] with every mistake found.
    pub fn finish(mut self) -> Result<Graph, Error> {
        self.problems.extend(check::problems(&self.drafts, &self.lanes, &self.budgets));
        if !self.problems.is_empty() {
            return Err(Error::Graph(crate::error::Problems(self.problems)));
        }
        let units = check::units(&self.drafts, &self.budgets);
        let seats = self.drafts.iter().map(|draft| Arc::clone(&draft.core)).collect();
        let part =
            |draft: Draft| draft.maker.map(|maker| Part { core: draft.core, ground: draft.ground, maker });
        let parts = self.drafts.into_iter().filter_map(part).collect();
        Ok(Graph { wiring: Wiring { seats, lanes: self.lanes, units }, parts })
    }

    fn join<T: Send + 'static, B: Send + 'static>(
        &mut self,
        wish: Wish<'_>,
        from: Option<&Arc<SeatCore>>,
        to: &Seat<B>,
        wrap: impl Fn(T) -> B + Send + Sync + 'static,
    ) -> Arc<Lane<T>> {
        let inputs = &mut self.drafts[to.core.index].inputs[usize::from(wish.urgent)];
        let bit = bit_of(*inputs, wish.urgent);
        *inputs += 1;
        let lane = self.lane(&wish, from, Some(&to.core), bit);
        let source = Arc::new(LaneIn { lane: Arc::clone(&lane), wrap });
        to.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
        lane
    }

    fn lane<T: Send + 'static>(
        &mut self,
        wish: &Wish<'_>,
        from: Option<&Arc<SeatCore>>,
        to: Option<&Arc<SeatCore>>,
        bit: u64,
    ) -> Arc<Lane<T>> {
        if wish.capacity == 0 {
            self.problems.push(Problem::NoCapacity(wish.name.to_owned()));
        }
        let facts = LaneFacts {
            name: Arc::from(wish.name),
            policy: wish.policy,
            capacity: wish.capacity.max(1),
            urgent: wish.urgent,
            from: from.map(Arc::clone),
            to: to.map(Arc::clone),
            bit,
        };
        let lane = Arc::new(Lane::new(facts));
        self.lanes.push(Arc::clone(&lane) as Arc<dyn Path>);
        lane
    }
}
