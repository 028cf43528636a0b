//! What a person writes: a synchronous state machine, and what it may ask of its driver.

use std::time::Duration;

use crate::seat::SeatCore;
use crate::time::{Clock, Time};
use crate::trace::Event;

/// A synchronous state machine. It never waits, never asks a clock, never spawns: it is handed one call at a time and
/// sends through the lanes it was built with.
///
/// The same actor runs under [`live`](crate::live) and under [`sim`](crate::sim).
///
/// ```
/// use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut, Sim, SimOptions, Time};
///
/// struct Doubler { out: HoldOut<u64> }
/// impl Actor for Doubler {
///     type Message = u64;
///     fn handle(&mut self, message: u64, _ctx: &mut Ctx<'_>) {
///         self.out.send(message * 2);
///     }
/// }
///
/// let mut g = GraphBuilder::new();
/// let doubler = g.seat::<u64>("doubler", "maths");
/// let input = g.inlet("numbers", &doubler, 8, |n: u64| n);
/// let (out, doubled) = g.outlet("doubled", &doubler, 8);
/// g.actor(doubler, move || Doubler { out: out.clone() });
///
/// let mut sim = Sim::new(g.finish().unwrap(), SimOptions::default());
/// input.offer(21).unwrap();
/// sim.run_until_idle(Time::from_nanos(1_000_000_000));
/// assert_eq!(doubled.try_recv(), Some(42));
/// ```
pub trait Actor: Send + 'static {
    /// One enum per actor: everything that can arrive on any of its lanes.
    type Message: Send + 'static;

    /// One message has arrived.
    fn handle(&mut self, message: Self::Message, ctx: &mut Ctx<'_>);

    /// The inbox is drained, or the turn's share of messages is used up: decide once for all of them. Also the first call
    /// of every life, before any message: the place to ask for a first [`Ctx::wake_at`].
    fn settle(&mut self, _ctx: &mut Ctx<'_>) {}

    /// The time asked for with [`Ctx::wake_at`] has come. ([`Actor::settle`] follows.)
    fn wake(&mut self, _ctx: &mut Ctx<'_>) {}

    /// The unit of `peer`, a seat that shares a lane with this one, died: what it held is gone. No message of its
    /// earlier life arrives after this call, none of its next life before it, and nothing sent to it before this call
    /// reaches its next life. ([`Actor::settle`] follows.)
    fn lost(&mut self, _peer: &str, _ctx: &mut Ctx<'_>) {}

    /// Last call before the seat goes, after a drain or a stop. Not called when the unit dies by a panic.
    fn stop(&mut self, _ctx: &mut Ctx<'_>) {}
}

impl<M: Send + 'static> Actor for Box<dyn Actor<Message = M>> {
    type Message = M;

    fn handle(&mut self, message: M, ctx: &mut Ctx<'_>) {
        (**self).handle(message, ctx);
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        (**self).settle(ctx);
    }

    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        (**self).wake(ctx);
    }

    fn lost(&mut self, peer: &str, ctx: &mut Ctx<'_>) {
        (**self).lost(peer, ctx);
    }

    fn stop(&mut self, ctx: &mut Ctx<'_>) {
        (**self).stop(ctx);
    }
}

/// What an actor may ask of its driver during a call.
#[derive(Debug)]
pub struct Ctx<'a> {
    /// The seat the actor sits in; written at graph time.
    seat: &'a SeatCore,
    /// The driver's clock.
    clock: &'a Clock,
    /// Kept by the seat between turns; the seat clears it when it fires.
    wake_at: &'a mut Option<Time>,
    /// Sum of this turn's `spend` calls; read by the simulator after the turn.
    spent: &'a mut Duration,
}

impl<'a> Ctx<'a> {
    pub(crate) fn new(
        seat: &'a SeatCore,
        clock: &'a Clock,
        wake_at: &'a mut Option<Time>,
        spent: &'a mut Duration,
    ) -> Ctx<'a> {
        Ctx { seat, clock, wake_at, spent }
    }
}

impl Ctx<'_> {
    /// The time. In the simulator it stands still during a turn.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Asks for [`Actor::wake`] at `at` (at once if it has passed). Of several times asked for, the earliest is kept;
    /// it is cleared when it fires, and it dies with the actor.
    pub fn wake_at(&mut self, at: Time) {
        *self.wake_at = Some(self.wake_at.map_or(at, |kept| kept.min(at)));
    }

    /// Sim: this turn takes `cost` of virtual time on top of what it already takes, and what it sends leaves when that
    /// time is over. Live: nothing, since real work takes real time.
    pub fn spend(&mut self, cost: Duration) {
        *self.spent = self.spent.saturating_add(cost);
    }

    /// Records an event of this seat. Free (one branch) when tracing is off.
    pub fn event(&mut self, event: Event) {
        self.seat.record(|| event);
    }

    /// The name of the seat this actor sits in.
    pub fn seat(&self) -> &str {
        &self.seat.name
    }
}
