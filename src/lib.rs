//! The shell of Millstream: the only place that parses arguments and speaks HTTP, and, beside the live driver, the only one that is async. Everything it does
//! with a model goes through the graph.
//!
//! A guided tour, from a file to an answer:
//!
//! 1. [`source`] reads and checks a topology file and finds its model.
//! 2. [`mill`] assembles the graph, starts it, and puts a [`desk`] before it: requests in, replies out.
//! 3. [`server`] puts HTTP before the mill (`http`, with one file per concern). [`costs`] keeps what steps take
//!    between runs.
//! 4. [`mod@simulate`] runs the same plan on virtual time; [`capacity`] does so without computing, to see how much it can do
//!    with a [`workload`]; [`economy`] counts what a fleet for one would cost; [`oracle`] compares its numbers with stored ones, [`eval`]
//!    marks its answers.
//! 5. [`command`] is one file per command, [`args`] the commands as typed; [`limits`] is what the machine can do at most, [`place`] what
//!    a group would hold of a model.

pub mod args;
pub mod builtin;
pub mod capacity;
mod clock;
pub mod command;
pub mod costs;
pub mod desk;
pub mod economy;
pub mod eval;
mod http;
mod json;
mod lasting;
pub mod limits;
pub mod meters;
pub mod mill;
pub mod oracle;
pub mod place;
pub mod server;
pub mod simulate;
pub mod source;
mod suggest;
pub mod workload;

#[cfg(test)]
mod tidy;

pub use server::{ServeOptions, Server};
pub use simulate::simulate;
pub use source::check;
