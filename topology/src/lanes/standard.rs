//! The standard wires, each said once: they follow from the roles, and the ports of a role are those that stand here.

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
    pub(super) capacity: usize,
    when: When,
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
    ($($from:ident.$out:ident -> $to:ident.$into:ident $policy:ident $capacity:literal $when:ident)+) => {
        &[$(Standard {
            from: (Role::$from, stringify!($out)),
            to: (Role::$to, stringify!($into)),
            policy: Policy::$policy,
            capacity: $capacity,
            when: When::$when,
        }),+]
    };
}

/// Every standard wire; the ports of a role are those that stand here.
pub(super) static STANDARD: &[Standard] = standard! {
    Gateway.submit -> Tokenizer.requests Offer 512 Always
    Gateway.cancel -> Router.cancel Offer 512 Always
    Gateway.close -> Detokenizer.close Offer 512 Always
    Tokenizer.prompts -> Router.arrive Offer 512 Always
    Tokenizer.failures -> Gateway.failures Hold 256 Always
    Router.failures -> Gateway.failures Hold 256 Always
    Router.images -> Encode.images Offer 256 Always
    Router.cancel -> Encode.cancel Offer 512 Always
    Encode.spans -> Router.spans Hold 256 Always
    Encode.ended -> Router.ended Hold 256 Always
    Router.admit -> Prefill.admit Offer 512 Split
    Router.admit -> Decode.admit Offer 512 Joined
    Router.cancel -> Prefill.cancel Offer 512 Split
    Router.cancel -> Decode.cancel Offer 512 Always
    Prefill.handover -> Decode.handover Offer 64 Split
    Decode.pull -> Prefill.pull Offer 64 Split
    Prefill.blocks -> Decode.blocks Reply 64 Split
    Prefill.tokens -> Detokenizer.tokens Hold 64 Split
    Decode.tokens -> Detokenizer.tokens Hold 64 Always
    Prefill.ended -> Router.ended Hold 256 Split
    Decode.ended -> Router.ended Hold 256 Always
    Detokenizer.text -> Gateway.text Hold 256 Always
    Prefill.fetch -> Cache.fetch Offer 256 Split
    Cache.fetched -> Prefill.fetched Reply 256 Split
    Prefill.store -> Cache.store Offer 256 Split
    Decode.fetch -> Cache.fetch Offer 256 Joined
    Cache.fetched -> Decode.fetched Reply 256 Joined
    Decode.store -> Cache.store Offer 256 Always
    Decode.counts -> Experts.counts Latest 1 Always
    Experts.placement -> Decode.placement Latest 1 Always
};
