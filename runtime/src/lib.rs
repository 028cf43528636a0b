//! Actors, lanes and the drivers that run them.
mod actor;
mod bell;
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
pub use sim::{Faults, Outcome, Sim, SimOptions};
pub use supervise::{Budget, Exit};
pub use time::Time;
pub use trace::Event;
