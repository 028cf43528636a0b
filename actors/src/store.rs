//! A tier of the prefix store on a byte store: blocks that outlive their group, packed into large objects, found by
//! their names. It is pure: it says what it wishes of a [`Blob`], is told what came of it, and is told the time.
//!
//! - [`Tier`] is all of it. `store` puts blocks down, behind everything else; `fetch` brings a beginning up.
//! - [`Wish`] and [`Told`] are how it meets the world. Whoever takes a wish carries it out ([`Wish::carry_out`]) and
//!   brings the answer, in any order and at any time.
//! - `pack` is what an object looks like. Its footer names its blocks, and the last thing written says that it is whole.
//! - `index` knows which block is where; it is made of the footers, and of nothing else.
//! - `queue` collects blocks to be stored until they fill a pack.
//! - `fetching` joins what is wanted to few large reads, one flight for each block.
//! - `buffers` keeps the memory that bytes come in.
//! - `touches` tells other processes, and the next start, what was hit.
//! - `retain` chooses what goes when room is wanted; `compaction` writes anew what is left of packs that went mostly.
//!
//! # What holds
//!
//! A reader trusts nothing: whatever a store returns, a block that arrives has the bytes that were stored under its
//! name, and anything else is a miss that is counted. A damaged block is remembered as bad, and may be stored again.
//!
//! Any number of processes may share a store, each with a [`WriterId`] of its own. No object is written twice, none is
//! changed, and each may vanish at any time. Where two packs have the same block, the newer one counts, which is the
//! same one for all.
//!
//! A hit refreshes a block and all before it, and a new block expires no later than the one that it continues, so what
//! goes first is the end of a chain.
//!
//! [`Blob`]: millstream_runtime::blob::Blob

mod buffers;
mod compaction;
mod fetching;
mod index;
mod options;
mod pack;
mod queue;
mod retain;
mod roll;
mod tier;
mod touches;
mod wish;

pub use buffers::{Buffer, Buffers};
pub use fetching::{FetchId, FetchPlan, News};
pub use options::{Budget, Class, ClassId, Stamp, Tenant, TierOptions, WriterId};
pub use pack::{BlockRecord, Footer, PackName, RECORD_BYTES, Refused};
pub use queue::{NewBlock, Stored};
pub use roll::is_pack;
pub use tier::{Counts, Held, Inspection, Ledger, Sum, Tier};
pub use wish::{Got, Io, Payload, Told, Wish, WishId};
