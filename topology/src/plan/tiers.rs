//! What follows from the tiers of a plan.

use super::{Cache, Tier};
use crate::replay::Replay;

impl Cache {
    /// Whether blocks outlive their group.
    pub fn keeps_blocks(&self) -> bool {
        self.tiers.iter().any(|tier| tier.kind != "device")
    }

    /// Whether snapshots are kept, of models with a state or without: they lie in host memory.
    pub fn keeps_snapshots(&self, state: bool) -> bool {
        self.replay == Replay::Snapshot || !state && self.keeps_blocks()
    }

    /// Whether blocks outlive the process.
    pub fn lasts(&self) -> bool {
        self.lasting().is_some()
    }

    /// The tier that outlives the process.
    pub fn lasting(&self) -> Option<&Tier> {
        self.tiers.iter().find(|tier| matches!(tier.kind.as_str(), "disk" | "shared"))
    }
}
