//! What becomes of known beginnings: where blocks are kept, for whom, and how long.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Windows, time_text};
use crate::replay::Replay;

/// What becomes of known beginnings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// How many found tokens are computed once more, in models that keep a state beside their blocks.
    pub replay: Replay,
    /// Where windows are kept.
    pub windows: Windows,
    /// From the fastest to the one that lasts.
    pub tiers: Vec<Tier>,
    /// Bytes of host memory for snapshots; `None` where none are kept.
    pub snapshots: Option<u64>,
    /// How long each class is kept; those that no file need mention are among them.
    pub retention: BTreeMap<String, Retention>,
    /// Clients that share nothing with others.
    pub tenants: BTreeMap<String, Tenant>,
}

/// One tier of the prefix store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// `device`, `host`, `disk` or `shared`.
    pub kind: String,
    /// Where it lies, for disk and shared.
    pub place: Option<String>,
    /// Bytes it may use.
    pub size: Option<u64>,
}

impl Tier {
    /// The folder or URL of disk or shared.
    pub fn place(&self) -> &str {
        self.place.as_deref().unwrap_or_default()
    }
}

/// How long blocks of one class are kept, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// From their last use.
    #[serde(rename = "for", with = "time_text")]
    pub keep: Duration,
    /// Bytes that they may take together.
    pub size: Option<u64>,
}

impl Retention {
    /// For so long, without a bound on bytes.
    pub fn of(keep: Duration) -> Self {
        Self { keep, size: None }
    }
}

/// Clients whose blocks nobody else finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// `sha256:` and the digest of the API key that they send, in lower case.
    pub key: String,
    /// Class of their requests that name none.
    pub retention: String,
    /// Bytes that their blocks may take.
    pub size: Option<u64>,
}

/// The classes that every plan has, with the days they are kept. A chat goes on after days; what an agent does is used
/// again within seconds, and looked at once more before the week is over.
pub(crate) const CLASSES: [(&str, u32); 3] = [("default", 1), ("agent", 3), ("chat", 7)];

impl Cache {
    /// The class of requests that name none.
    pub const DEFAULT_CLASS: &'static str = CLASSES[0].0;

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

    /// The tier that outlives the process and has all of its blocks.
    pub fn lasting(&self) -> Option<&Tier> {
        self.tier("shared").or_else(|| self.tier("disk"))
    }

    /// The folder for copies of what was written to and read from a shared tier, where there is one.
    pub fn near(&self) -> Option<&Tier> {
        self.tier("shared").and_then(|_| self.tier("disk"))
    }

    fn tier(&self, kind: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.kind == kind)
    }

    /// All classes in the order in which processes of this plan number them: the default one, then the others by name.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &Retention)> {
        let default = self.retention.get_key_value(Self::DEFAULT_CLASS);
        let others = self.retention.iter().filter(|(name, _)| *name != Self::DEFAULT_CLASS);
        default.into_iter().chain(others).map(|(name, retention)| (name.as_str(), retention))
    }

    /// The number of the class of this name.
    pub fn class_number(&self, name: &str) -> Option<usize> {
        self.classes().position(|(class, _)| class == name)
    }
}
