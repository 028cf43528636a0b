//! balance: which group a request goes to, from what a router knows of them. Pure: no lane and no clock, so that the same
//! code chooses in a router, in a simulation of thousands of groups, and in a test.
//!
//! - [`Prefills`]: where is this prompt computed first? Groups are compared by predicted time.
//! - [`Decodes`]: where do fewest requests run, with the fewest keys and values? Many routers may choose at once, each with
//!   reports that are old.
//! - [`Beginnings`]: which group was last sent a prompt that begins alike.

mod beginnings;
mod decode;
mod prefill;

pub use beginnings::Beginnings;
pub use decode::{Capacity, Decodes, Held, Report};
pub use prefill::{Prefills, Prompt, Rule, Sent};
