//! KV memory as the schedulers see it: numbers, owners and rights, no bytes.
//!
//! [`Pool`] is the ledger: a block that is written has exactly one owner, a full one may be shared and is found again by
//! its [`BlockHash`], and giving back what one does not own is a bug that stops the seat. [`Leases`] say who else may
//! read a block, until when; a lease carries a fence, so that a message about an ended lease can never be taken for one
//! about a new lease. Where a model keeps a state beside its blocks, [`Slots`] are the ledger of that.

mod hash;
mod idle;
mod lease;
mod pool;
mod slots;

pub use hash::{BlockHash, HashChain, Identity, Salt};
pub use lease::{Lease, LeaseId, Leases, NewLease, Stale};
pub use pool::{BlockId, Owner, Pool};
pub use slots::{SlotId, Slots};

/// Blocks that hold `tokens` positions.
///
/// ```
/// assert_eq!(millstream_actors::kv::blocks_for(0, 16), 0);
/// assert_eq!(millstream_actors::kv::blocks_for(17, 16), 2);
/// ```
pub fn blocks_for(tokens: usize, block_size: u32) -> usize {
    tokens.div_ceil(block_size as usize)
}
