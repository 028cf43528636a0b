//! What a tier is told about itself: who it is, how large things may become, and what is kept how long.

use std::collections::BTreeMap;
use std::fmt;

use super::wish::Payload;
use crate::kv::Salt;

/// The most classes of a tier, those of others included.
pub(super) const CLASSES_MAX: usize = 255;

/// Seconds since the beginning of 1970, by the caller's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u32);

impl Stamp {
    /// So many seconds later, or the last moment there is.
    pub fn after(self, seconds: u32) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

/// What a hit says of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// When it was, or up to a step of time later.
    pub(super) used: Stamp,
    /// Until when the block is kept for it.
    pub(super) expires: Stamp,
}

impl Use {
    /// Both, each as late as one of them says.
    pub(super) fn and(self, other: Self) -> Self {
        Self { used: self.used.max(other.used), expires: self.expires.max(other.expires) }
    }
}

/// One run of one process. It is never used again, by whomever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriterId(pub u64);

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Digest of whom blocks belong to. Whoever asks for another tenant's block misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant(pub [u8; 16]);

impl Tenant {
    /// A tenant of the topology, whatever salts its clients send: its bytes are counted together. Clients of none are
    /// told apart by their salt.
    pub fn of(name: Option<&str>, salt: Option<&str>) -> Self {
        Self(*Salt::of(name, salt.filter(|_| name.is_none())).as_bytes())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A retention class, by its place in [`TierOptions::classes`]; one beyond the last is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassId(pub u8);

impl ClassId {
    /// Of blocks that are kept in memory alone: no tier stores them, and who finds some refreshes nothing.
    pub const MEMORY: Self = Self(u8::MAX);
}

/// How long blocks of one kind are kept, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Known to all processes by this.
    pub name: String,
    /// Seconds from the last hit until it may go. It goes when room is wanted, not before.
    pub ttl_s: u32,
    /// The most bytes of this class.
    pub bytes: u64,
}

/// Bytes that may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Of all objects together.
    pub total: u64,
    /// Of each tenant.
    pub tenant: u64,
    /// Of tenants that have another number.
    pub tenants: BTreeMap<Tenant, u64>,
    /// Of pinned blocks. Further ones are not pinned.
    pub pinned: u64,
}

/// Everything a tier is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierOptions {
    /// This run of this process.
    pub writer: WriterId,
    /// Digest of everything that makes stored bytes mean what they mean: model, layout and number format of its KV
    /// memory. Tiers of different layouts do not see each other's objects.
    pub layout: [u8; 16],
    /// Blocks are written together until they are so many bytes.
    pub pack_bytes: u64,
    /// The most bytes that wait to be stored, or are being stored.
    pub queue_bytes: u64,
    /// The most bytes of one read, a single larger block excepted.
    pub read_bytes: u64,
    /// What lies between two wanted blocks is read along up to this length.
    pub gap_bytes: u64,
    /// Wishes that are carried out at the same time.
    pub wishes: usize,
    /// Fetches at the same time.
    pub fetches: usize,
    /// Touched blocks that are remembered before they are written down.
    pub touches: usize,
    /// See there.
    pub budget: Budget,
    /// What the layout stands for, in words; written beside the packs where nobody has written it.
    pub about: Option<Payload>,
    /// The first one is that of all who name none, or one that is not here. There is at least one.
    pub classes: Vec<Class>,
}

impl TierOptions {
    /// Packs of 32 MiB, a queue of eight, no bounds but that, one class that is kept for a day.
    pub fn new(writer: WriterId, layout: [u8; 16]) -> Self {
        let budget = Budget { total: u64::MAX, tenant: u64::MAX, tenants: BTreeMap::new(), pinned: 0 };
        Self {
            writer,
            layout,
            pack_bytes: 32 << 20,
            queue_bytes: 256 << 20,
            read_bytes: 8 << 20,
            gap_bytes: 64 << 10,
            wishes: 16,
            fetches: 1024,
            touches: 1 << 16,
            budget,
            about: None,
            classes: vec![Class { name: "default".to_owned(), ttl_s: 86_400, bytes: u64::MAX }],
        }
    }

    /// The class of this number, as a place in `classes`.
    pub(super) fn class(&self, class: ClassId) -> usize {
        if usize::from(class.0) < self.classes.len() { usize::from(class.0) } else { 0 }
    }

    /// The class of this name.
    pub(super) fn class_named(&self, name: &str) -> ClassId {
        let place = self.classes.iter().position(|class| class.name == name).unwrap_or(0);
        ClassId(u8::try_from(place).unwrap_or(0))
    }

    /// Takes in classes that others name: kept as long as the first one, and called as they are. They are few.
    pub(super) fn learn(&mut self, names: &[String]) {
        let (known, first) = (self.classes.len(), self.classes[0].clone());
        let new = names.iter().filter(|name| self.classes.iter().all(|class| class.name != **name));
        let new: Vec<Class> =
            new.map(|name| Class { name: name.clone(), bytes: u64::MAX, ..first.clone() }).collect();
        self.classes.extend(new.into_iter().take(CLASSES_MAX.saturating_sub(known)));
    }

    /// What a hit by this class now says. Time goes in steps of a thirty-second of the time to live, so that hits shortly
    /// after each other are one, and blocks that are hit together expire together.
    pub(super) fn hit(&self, class: ClassId, now: Stamp) -> Use {
        let ttl = self.classes[self.class(class)].ttl_s;
        let step = (ttl / 32).max(1);
        let expires = now.after(ttl).0.div_ceil(step).saturating_mul(step);
        Use { used: Stamp(expires.saturating_sub(ttl)), expires: Stamp(expires) }
    }

    /// When a block was used last, by when it expires: the first version of packs and journals says no more.
    pub(super) fn guess(&self, class: ClassId, stored: Stamp, expires: Stamp) -> Use {
        let ttl = self.classes[self.class(class)].ttl_s;
        // What expires as it did when it was stored was not used since, as far as that tells.
        let hit = expires != self.hit(class, stored).expires;
        let used = Stamp(if hit { expires.0.saturating_sub(ttl) } else { 0 }).max(stored);
        Use { used, expires }
    }

    pub(super) fn tenant_bytes(&self, tenant: Tenant) -> u64 {
        self.budget.tenants.get(&tenant).copied().unwrap_or(self.budget.tenant)
    }

    /// What all names begin with.
    pub(super) fn prefix(&self) -> String {
        format!("{:032x}/", u128::from_be_bytes(self.layout))
    }
}
