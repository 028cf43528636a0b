//! The topology file: what runs where. Text in, values out; nothing here touches a file, a clock or a machine.
//!
//! A file goes down this road, and each step is one file of this crate:
//!
//! 1. [`parse`] (`spec.rs`, `read.rs`, `scalar.rs`) reads TOML by the table of keys (`keys.rs`) into a [`Spec`]: values
//!    typed, units understood, every place known, names not yet looked up.
//! 2. [`resolve`] (`resolve.rs`, `place.rs`, `lanes.rs`) looks names up, writes patterns and defaults out, adds the
//!    standard wires, and holds the rules of `check.rs` against the whole.
//! 3. The [`Plan`] (`plan.rs`) is immutable and has an id. [`expand`] writes it as a file again, [`draw_text`],
//!    [`draw_mermaid`] and [`draw_svg`] draw it, [`diff`] says what changes between two, [`schema`] is for editors.
//!
//! What is wrong is collected, never thrown at the first: [`check`] returns all [`Problems`] of a file in one run.
//! What is asked for but not built yet is a [`Note`] of the plan, and [`Plan::refusal`] is the sentence for it.

mod check;
mod diff;
mod draw;
mod error;
mod expand;
mod id;
mod keys;
mod lanes;
mod place;
mod plan;
mod read;
mod replay;
mod resolve;
mod scalar;
mod schema;
mod section;
mod spec;
mod suggest;
mod units;

pub use diff::{Change, Effect, diff};
pub use draw::{draw_mermaid, draw_svg, draw_text};
pub use error::{PROBLEMS_MAX, Problem, Problems};
pub use expand::expand;
pub use id::{ActorName, HostName, NAME_LEN_MAX, PlanId, PortName};
pub use plan::{
    Activations, ActorPlan, Cache, DetokenizerSettings, Devices, EncodeSettings, GatewaySettings,
    GroupSettings, Host, KvFormat, Limits, Link, Note, Plan, Policy, Port, PrefillRule, Retention, Role,
    RouterSettings, Scalar, Settings, Tenant, Tier, TokenizerSettings, Windows, Wire,
};
pub use replay::{NoReplay, Replay};
pub use resolve::{HostFacts, check, laptop, resolve};
pub use schema::schema;
pub use spec::{FILE_LEN_MAX, Spec, parse};
pub use units::{size_of, time_of};
