//! What follows from the tiers of a plan.

use super::{Cache, Tier};

impl Cache {
    /// Whether blocks outlive the process.
    pub fn lasts(&self) -> bool {
        self.lasting().is_some()
    }

    /// The tier that outlives the process.
    pub fn lasting(&self) -> Option<&Tier> {
        self.tiers.iter().find(|tier| matches!(tier.kind.as_str(), "disk" | "shared"))
    }
}
