//! What a fleet would cost: group sizes, the ratio of prefill to decode, how long blocks are kept and where, for a workload and a
//! goal. Everything is counted in closed form from inputs that the report shows; nothing runs, nothing is read or written.
//!
//! `spec` is what a person writes, `check` what must hold of it; `demand` is what is asked, `model` what a prompt and a step
//! ask of the arithmetic; `group` makes time of that, `wait` queues; `prefill`, `decode` and `joined` count groups, `keep` bytes
//! that are kept; `search` tries everything, `even` says where joined groups stop being cheaper; `outcome` writes the
//! `report` and `assumptions` the inputs, `text` shows both.

mod assumptions;
mod check;
mod decode;
mod demand;
mod even;
mod group;
mod joined;
mod keep;
mod model;
mod outcome;
mod prefill;
pub mod report;
mod search;
pub mod spec;
pub mod text;
mod wait;

pub use check::check;
pub use demand::{Demand, Hits, Seen};
pub use model::Model;
pub use outcome::{Setting, plan};
pub use report::Report;
pub use spec::Spec;

#[cfg(test)]
mod tests;
