//! The standard wires, each said once: they follow from the roles, and the ports of a role are those that stand here.

use crate::keys::CAPACITY_MAX;
use crate::plan::{Policy, Role};

/// When a standard wire is there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// Decode computes prompts itself.
    Joined,
    /// Prefill hands over to decode.
    Split,
}

/// A wire that follows from the roles of its ends.
pub(super) struct Standard {
    pub(super) from: (Role, &'static str),
    pub(super) to: (Role, &'static str),
    pub(super) policy: Policy,
    pub(super) room: Room,
    when: When,
}

/// Messages that a standard wire holds where the file says no number.
#[derive(Copy, Clone, Debug)]
pub(super) enum Room {
    Fixed(usize),
    /// All that the gateway admits at once may come by it together; never fewer than this many.
    Crowd(usize),
}

impl Room {
    /// The capacity, where the gateway admits `crowd` requests at once.
    pub(super) fn capacity(self, crowd: usize) -> usize {
        match self {
            Self::Fixed(capacity) => capacity,
            Self::Crowd(least) => crowd.clamp(least, CAPACITY_MAX as usize),
        }
    }
}

impl Standard {
    /// Whether the wire is there when decode is joined, or is not.
    pub(super) fn holds(&self, joined: bool) -> bool {
        match self.when {
            When::Always => true,
            When::Joined => joined,
            When::Split => !joined,
        }
    }
}

macro_rules! standard {
    ($($from:ident.$out:ident -> $to:ident.$into:ident $policy:ident $room:ident($capacity:literal) $when:ident)+) => {
        &[$(Standard {
            from: (Role::$from, stringify!($out)),
            to: (Role::$to, stringify!($into)),
            policy: Policy::$policy,
            room: Room::$room($capacity),
            when: When::$when,
        }),+]
    };
}

/// Every standard wire; the ports of a role are those that stand here.
pub(super) static STANDARD: &[Standard] = standard! {
    Gateway.submit -> Tokenizer.requests Offer Crowd(512) Always
    Gateway.cancel -> Router.cancel Offer Crowd(512) Always
    Gateway.close -> Detokenizer.close Offer Crowd(512) Always
    Tokenizer.prompts -> Router.arrive Offer Crowd(512) Always
    Tokenizer.failures -> Gateway.failures Hold Fixed(256) Always
    Router.failures -> Gateway.failures Hold Fixed(256) Always
    Router.images -> Encode.images Offer Fixed(256) Always
    Router.cancel -> Encode.cancel Offer Crowd(512) Always
    Encode.spans -> Router.spans Hold Fixed(256) Always
    Encode.ended -> Router.ended Hold Fixed(256) Always
    Router.admit -> Prefill.admit Offer Crowd(512) Split
    Router.admit -> Decode.admit Offer Crowd(512) Joined
    Router.cancel -> Prefill.cancel Offer Crowd(512) Split
    Router.cancel -> Decode.cancel Offer Crowd(512) Always
    Prefill.handover -> Decode.handover Offer Fixed(64) Split
    Decode.pull -> Prefill.pull Offer Fixed(64) Split
    Prefill.blocks -> Decode.blocks Reply Fixed(64) Split
    Prefill.tokens -> Detokenizer.tokens Hold Fixed(64) Split
    Decode.tokens -> Detokenizer.tokens Hold Fixed(64) Always
    Prefill.ended -> Router.ended Hold Fixed(256) Split
    Decode.ended -> Router.ended Hold Fixed(256) Always
    Prefill.loads -> Router.loads Latest Fixed(1) Split
    Decode.loads -> Router.loads Latest Fixed(1) Always
    Detokenizer.text -> Gateway.text Hold Fixed(256) Always
    Prefill.fetch -> Cache.fetch Offer Fixed(256) Split
    Cache.fetched -> Prefill.fetched Reply Fixed(256) Split
    Prefill.store -> Cache.store Offer Fixed(256) Split
    Decode.fetch -> Cache.fetch Offer Fixed(256) Joined
    Cache.fetched -> Decode.fetched Reply Fixed(256) Joined
    Decode.store -> Cache.store Offer Fixed(256) Always
    Decode.counts -> Experts.counts Latest Fixed(1) Always
    Experts.placement -> Decode.placement Latest Fixed(1) Always
};
