//! How many found tokens are computed once more, in models that keep a state beside their blocks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number of windows that a file may ask for.
const WINDOWS_MAX: u32 = 1_000_000;

/// How much of what was found is replayed: it fills the windows that blocks do not hold.
///
/// # Examples
/// ```
/// use millstream_topology::Replay;
///
/// assert_eq!("4 windows".parse(), Ok(Replay::Windows(4)));
/// assert_eq!((Replay::Bounded.tokens(16, 128), Replay::Windows(20).tokens(16, 128)), (16, 128));
/// assert!("0 windows".parse::<Replay>().is_err());
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// As much as it takes for the answer to be as if nothing had been found.
    #[default]
    Exact,
    /// The same, and nothing where a state was kept in host memory at the position that is gone on from.
    Snapshot,
    /// One window: the cheapest, and an approximation.
    Bounded,
    /// So many windows.
    Windows(u32),
}

impl Replay {
    /// Whether the answer is as if nothing had been found.
    pub fn is_exact(self) -> bool {
        matches!(self, Replay::Exact | Replay::Snapshot)
    }

    /// The same in tokens, for a model with windows of `window` tokens that is exact after `exact`.
    pub fn tokens(self, window: u32, exact: u32) -> u32 {
        match self {
            Replay::Exact | Replay::Snapshot => exact,
            Replay::Bounded => window.min(exact),
            Replay::Windows(count) => window.saturating_mul(count).min(exact),
        }
    }
}

impl fmt::Display for Replay {
    /// As the file writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replay::Exact => f.write_str("exact"),
            Replay::Snapshot => f.write_str("snapshot"),
            Replay::Bounded => f.write_str("bounded"),
            Replay::Windows(count) => write!(f, "{count} windows"),
        }
    }
}

/// The text names no replay.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NoReplay;

impl FromStr for Replay {
    type Err = NoReplay;

    fn from_str(text: &str) -> Result<Replay, NoReplay> {
        match (text, text.strip_suffix(" windows").map(str::parse)) {
            ("exact", _) => Ok(Replay::Exact),
            ("snapshot", _) => Ok(Replay::Snapshot),
            ("bounded", _) => Ok(Replay::Bounded),
            (_, Some(Ok(count @ 1..=WINDOWS_MAX))) => Ok(Replay::Windows(count)),
            _ => Err(NoReplay),
        }
    }
}

impl Serialize for Replay {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Replay {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Replay, D::Error> {
        let text = String::deserialize(input)?;
        text.parse().map_err(|NoReplay| serde::de::Error::custom(format!("no replay: {text}")))
    }
}
