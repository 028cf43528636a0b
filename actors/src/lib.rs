//! The serving roles of Millstream: synchronous actors, pure schedulers, and the one function that makes a graph of
//! them. No clock, no IO, no async here; the drivers of `millstream_runtime` bring time and lanes.
//!
//! # The road of a request, file by file
//!
//! 1. [`request`]: what the shell hands in and gets back.
//! 2. [`gateway`]: the door: bounds, deadlines, and what each client has got so far.
//! 3. [`tokenizer`]: text to token ids ([`prompt`] and [`text`] are how).
//! 4. [`router`]: which groups compute it. A prompt with images ([`picture`]) goes to [`encode`] first.
//! 5. [`prefill`]: the prompt, in chunks; then the handover under a lease.
//! 6. [`decode`]: a token each step.
//! 7. [`detokenizer`]: tokens to text; back to the gateway.
//!
//! Behind prefill and decode stand [`group`] (what they share), [`sched`] (which tokens the next step computes),
//! [`cost`] (how long that will take), [`sequence`], [`kv`] (the ledger of blocks and the leases), [`rank`] (runs a step) and
//! [`sample`] (chooses a token).
//! Blocks that outlive their group are with [`cache`], which keeps them as [`store`] says and has [`disk`] read and write.
//! [`message`] is every message of every lane on one page. [`assemble`] wires a plan.

pub mod assemble;
pub mod cache;
pub mod cost;
pub mod decode;
pub mod detokenizer;
pub mod disk;
pub mod encode;
pub mod error;
pub mod gateway;
pub mod gauges;
pub mod group;
pub mod kv;
pub mod message;
pub mod outbox;
pub mod picture;
pub mod prefill;
pub mod prompt;
pub mod rank;
pub mod request;
pub mod router;
pub mod sample;
pub mod sched;
pub mod sequence;
pub mod snapshot;
pub mod store;
pub mod text;
pub mod tokenizer;

pub use error::Error;
