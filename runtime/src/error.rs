//! What can go wrong when a graph is built or started, each case saying what was attempted.

use std::fmt;

/// An operating error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The graph has mistakes; all of them are listed.
    #[error("the graph cannot run: {0}")]
    Graph(Problems),
    /// A seat's factory panicked, or its thread could not be made, before the graph was up.
    #[error("seat `{seat}` could not be started: {cause}")]
    Start {
        /// The seat that was being started.
        seat: String,
        /// The panic's text or the system's reason.
        cause: String,
    },
}

/// Every mistake of a graph, in the order of building.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// One mistake of a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Two seats or two lanes share a name.
    #[error("the name `{0}` is used twice")]
    NameTwice(String),
    /// `GraphBuilder::actor` was never called for this seat.
    #[error("seat `{0}` has no actor")]
    NoActor(String),
    /// `GraphBuilder::actor` was called twice for this seat.
    #[error("seat `{0}` has two actors")]
    TwoActors(String),
    /// A lane that can hold nothing.
    #[error("lane `{0}` has capacity 0")]
    NoCapacity(String),
    /// A budget for a unit that has no seat.
    #[error("there is a budget for unit `{0}`, which has no seat")]
    NoUnit(String),
    /// Hold lanes form a ring, so that all of its seats could wait for each other for ever.
    #[error("hold lanes form a cycle: {}", .0.join(" -> "))]
    HoldCycle(Vec<String>),
}
