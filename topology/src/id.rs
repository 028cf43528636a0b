//! Every name and number that identifies something, as its own type, so that a host's name is never taken for an
//! actor's.

use std::fmt;

/// The longest name of a host, an actor or a port, in bytes.
pub const NAME_LEN_MAX: usize = 64;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub(crate) String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a host: one process on one machine.
    HostName
}
name! {
    /// The name of an actor: the name of its table in the file.
    ActorName
}
name! {
    /// The name of a port: where a wire leaves or enters an actor.
    PortName
}

/// Digest of everything a plan resolves to; comments, white space and the order of keys do not change it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(pub(crate) u64);

impl PlanId {
    /// The number itself, for frames on a wire.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// FNV-1a over the lines of a plan, 64 bits: stable across releases of the compiler, unlike the standard hasher.
    pub(crate) fn of<'a>(lines: impl Iterator<Item = (&'a str, &'a str)>) -> PlanId {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for (path, value) in lines {
            for byte in path.bytes().chain([0]).chain(value.bytes()).chain([1]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        PlanId(hash)
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl serde::Serialize for PlanId {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for PlanId {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(input)?;
        u64::from_str_radix(&text, 16).map(PlanId).map_err(serde::de::Error::custom)
    }
}
