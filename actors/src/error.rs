//! What can go wrong before a graph runs.

use std::collections::TryReserveError;
use std::path::PathBuf;

/// Errors of this crate; each names what was attempted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's files cannot be read or are not understood.
    #[error("cannot load the model {path}")]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// What the reader says.
        #[source]
        source: Box<millstream_kernels::Error>,
    },
    /// The model's tokenizer or chat template cannot be used.
    #[error("cannot use the tokenizer of {path}")]
    Text {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: crate::text::TextError,
    },
    /// The memory a group was given does not hold a single block, with the state of one sequence where there is one.
    #[error(
        "actors.{actor}.memory is {given} bytes, and one sequence of this model takes at least {needed}: give it more"
    )]
    Memory {
        /// The actor.
        actor: String,
        /// Bytes in the plan.
        given: u64,
        /// Bytes of both.
        needed: u64,
    },
    /// An entry of two tokens would lie in two blocks.
    #[error(
        "actors.{actor}.block_size is {block_size}, and this model keeps entries of two tokens: make it even"
    )]
    Pairs {
        /// The actor.
        actor: String,
        /// Tokens of a block in the plan.
        block_size: u32,
    },
    /// The plan keeps windows in the state, and no layer of the model has one, or every layer has.
    #[error(
        "cache.windows is \"state\", and this model has no layers with a window beside layers that see everything: leave it out"
    )]
    NoWindows,
    /// The plan keeps numbers in four bits, and the model's keys and values are not compressed.
    #[error("kv is \"fp4\", and this model's keys and values were not made for four bits: write \"q8\"")]
    FourBits,
    /// The system does not give a group as much memory as the plan says.
    #[error("actors.{actor}.memory must be less")]
    NotGranted {
        /// The actor.
        actor: String,
        /// How much was wanted for what.
        #[source]
        source: Box<millstream_kernels::Error>,
    },
    /// Host memory for blocks does not hold a single one, so that nothing could be brought up into it.
    #[error("cache.tiers: host is {given} bytes, and one block of this model takes {needed}: give it more")]
    Host {
        /// Bytes in the plan.
        given: u64,
        /// Bytes of a block.
        needed: u64,
    },
    /// The system does not give as much memory as is to be reserved for the host tier beside the groups.
    #[error(
        "cache.tiers: the system does not give the {wanted} bytes that reserve = true wants for host, beside the memory of groups: make it less"
    )]
    HostNotGranted {
        /// Bytes in the plan.
        wanted: u64,
        /// What the system says.
        #[source]
        source: TryReserveError,
    },
    /// The plan has an encode actor, and nothing to look with.
    #[error("actors.{0} looks at images, and this model has no eyes: leave it out")]
    NoEyes(String),
    /// The plan has a tier that lasts, and whoever assembles it opened none.
    #[error("the plan keeps blocks in a tier that lasts, and none is opened")]
    NoStore,
    /// The plan asks for what is not built yet.
    #[error("{0}")]
    NotBuilt(String),
    /// A role that the graph cannot do without is missing; `check` refuses such files.
    #[error("the plan has no {0}")]
    Missing(String),
    /// The graph itself is wrong.
    #[error("cannot build the graph")]
    Graph(#[source] millstream_runtime::Error),
}
