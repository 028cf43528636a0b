//! Actors, lanes, and two drivers that run the same graph: `live` on threads and tokio, `sim` on virtual time from a seed.
//! This crate knows nothing of language models.
//!
//! # The tour
//!
//! 1. An [`Actor`] is a synchronous state machine: a message comes, it changes its state and sends. [`Ctx`] is all it may
//!    ask of the outside.
//! 2. A [`Seat`] is an actor with its lanes. Lanes have one of four policies, and the type of the sending end says which:
//!    [`HoldOut`], [`OfferOut`], [`LatestOut`], [`ReplyOut`]. The shell talks through [`Inlet`] and [`Outlet`].
//! 3. [`GraphBuilder`] wires seats and lanes and gives each seat a factory for its actor; [`GraphBuilder::finish`] checks
//!    everything and freezes it into a [`Graph`].
//! 4. [`live::start`] makes a [`Running`] of it: shared seats are hosted by ractor actors on tokio, compute seats own a
//!    thread.
//! 5. [`Sim`] runs it on one thread and virtual [`Time`], with [`Faults`] drawn from a seed.
//! 6. Both supervise by unit: what dies together is built again together, within a [`Budget`]; [`Exit`] says how it ended.
//! 7. Both tell what happens: [`SeatState`], [`LaneState`], and the closed list of [`Event`]s.
//!
//! Beside all this stands [`blob`], the seam to stores of bytes that outlive a process.
//!
//! Inside, from the bottom: `bell` (who is woken), `lane` (where messages are), `seat` (what a turn is), `supervise` (what
//! a death does), then the drivers.
//!
//! # What is promised
//!
//! **Turns.** An actor is called by one thread at a time. A turn is: the notices of losses, `wake` if its time has come,
//! up to [`TURN_MESSAGES_MAX`] messages, then `settle`. The first turn of a life comes without being asked for and has a
//! `settle` too. A turn ends early when a hold lane overflows or the driver wants the seat. Lanes into a seat are served
//! in turn, urgent ones before all others (with more than 52 plain or 8 urgent lanes, some share a place in the round).
//!
//! **Order.** Within one lane, messages arrive in the order they were sent. Between lanes there is no order, not even
//! between two lanes that join the same seats.
//!
//! **Bounds.** A lane holds at most its capacity. On top of it a hold lane has an overflow, bounded by what the sender
//! sends in one turn, since the sender's seat takes no further turn before it has moved on. A seat that waits so neither
//! handles nor wakes nor hears of losses; the graph is checked for cycles of hold lanes, so the wait ends unless the
//! shell leaves an outlet unread. A reply lane is bounded by its window: one more is a bug and kills the seat.
//!
//! **Loss.** While both ends live, live lanes lose nothing but what *latest* overwrites. `sent` always equals
//! `received + dropped + overwritten + depth`, once nothing moves.
//!
//! **Restart.** A panic in a seat (or a kill) ends its whole unit. Its other seats leave after the turn they are in; their
//! actors are dropped without `stop`; lanes between the unit and other seats, and within it, are emptied; then every
//! actor is made anew by its factory. On each lane to a neighbour:
//! - `lost(peer)` comes before anything of the peer's new life, and after it nothing of the old life comes;
//! - nothing the neighbour sent before its `lost(peer)` reaches the new life;
//! - wake times and orders of the old life die with it.
//!
//! Inlets and outlets are not emptied: what the shell sent waits for the new life. The message in hand when the seat died
//! is gone.
//!
//! **Budget.** A unit that dies once more than its budget allows stays dead: neighbours hear `lost`, lanes to it drop or
//! refuse whatever is sent, its outlets end, and `exited` says [`Exit::Failed`]. Everything else goes on until it is
//! stopped. A seat that does not leave its turn within [`LiveOptions::patience`] fails its unit in the same way.
//!
//! **Determinism.** Under [`Sim`], the same graph, seed, options and scripts give the same log, whatever the machine, as
//! long as actors keep to [`Ctx`] (no clock, no randomness of their own, no order of hash maps).
//!
//! # What is not promised
//!
//! - That a message is handled: its receiver may die with it. Who needs that, asks again in `lost`.
//! - Exactly-once: an actor that resends after a loss may have been heard the first time, by way of an outlet.
//! - Fairness between seats in real time, or any bound on when a turn begins. A turn is never interrupted.
//! - That `wake` is on time: never early, but late by the length of a turn, by a wait for room, and by up to a
//!   millisecond on a shared seat.
//! - That two numbers of [`LaneState`] or [`SeatState`] were read at one instant.
//!
//! # What is absent
//!
//! No actor is async, reads a clock, or spawns. No lock is held while an actor is called, but for the factory's own. No
//! message is allocated for. No `unsafe`. Only `time` reads the clock; only `live` spawns.

mod actor;
mod bell;
pub mod blob;
mod error;
mod graph;
mod lane;
pub mod live;
mod seat;
pub mod sim;
mod supervise;
mod time;
mod trace;

pub use actor::{Actor, Ctx};
pub use error::{Error, Problem, Problems};
pub use graph::{Cores, Graph, GraphBuilder, Seat};
pub use lane::{HoldOut, Inlet, LaneState, LatestOut, OfferOut, Outlet, Policy, ReplyOut};
pub use live::{LiveOptions, Running};
pub use seat::{SeatState, TURN_MESSAGES_MAX};
pub use sim::{Faults, Outcome, Sim, SimLink, SimOptions};
pub use supervise::{Budget, Exit};
pub use time::Time;
pub use trace::Event;
