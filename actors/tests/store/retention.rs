//! What goes and what stays: nothing while there is room, then in the order of expiry, and ends of chains first.

use std::collections::BTreeMap;

use millstream_actors::store::{Budget, Class, Stamp, Stored, TierOptions};
use millstream_runtime::blob::Memory;

use super::host::{AGENT, CHAT, DAY, Host, names, options, tenant};

const NOW: Stamp = Stamp(1_000_000);

fn bounded(total: u64) -> TierOptions {
    let budget = Budget { total, pinned: 2_000, ..options(1).budget };
    TierOptions { budget, ..options(1) }
}

/// Blocks of each chain that are found, without touching them.
fn found(host: &Host<'_>, chains: &[u64], blocks: u32) -> Vec<usize> {
    chains.iter().map(|&chain| host.tier.plan(&names(chain, blocks), tenant(chain)).blocks).collect()
}

#[test]
fn nothing_goes_while_there_is_room() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..12, CHAT);
    host.flush();
    host.now = NOW.after(900 * DAY);
    host.tier.collect(host.now);
    host.settle();
    assert_eq!(host.fetch(4, 12), 12);
    host.tier.expire(host.now.after(2 * DAY));
    host.settle();
    assert_eq!((host.fetch(4, 12), host.tier.bytes()), (0, 0), "unless it is asked for");
}

#[test]
fn what_expires_first_goes_first() {
    let blob = Memory::new();
    let mut host = Host::open(bounded(20_000), &blob, NOW);
    let chains: Vec<u64> = (0..20).map(|chain| 2 * chain).collect();
    for &chain in &chains {
        host.now = host.now.after(3_600);
        host.store(chain, 0..10, CHAT);
        host.flush();
        host.fetch(0, 10);
        assert!(host.tier.bytes() <= 20_000);
    }
    let found = found(&host, &chains, 10);
    assert_eq!((found[0], found[19]), (10, 10), "in use, and new: {found:?}");
    assert!(found[1] < 10 && found[2] < 10, "{found:?}");
    assert!(found.iter().skip(1).is_sorted_by_key(|blocks| *blocks > 5), "the oldest went: {found:?}");
    assert!(host.tier.bytes() > 15_000, "no more than what was needed");
}

#[test]
fn longer_classes_outlive_shorter_ones() {
    let blob = Memory::new();
    let mut host = Host::open(bounded(20_000), &blob, NOW);
    host.store(0, 0..20, AGENT);
    for chain in 1..12 {
        host.now = host.now.after(3_600);
        host.store(2 * chain, 3..13, CHAT);
        host.flush();
    }
    assert_eq!(host.fetch(0, 20), 20, "kept for three days, though it is the oldest");
}

#[test]
fn a_chain_is_found_from_its_beginning() {
    let blob = Memory::new();
    let mut host = Host::open(bounded(16_000), &blob, NOW);
    // Long conversations that take turns: their blocks lie in many packs.
    for turn in 0..12 {
        for chain in [4, 6, 8] {
            host.now = host.now.after(600);
            host.fetch(chain, 100);
            host.store(chain, turn * 4..turn * 4 + 4, CHAT);
            host.flush();
        }
    }
    let (reachable, all) = ([4, 6, 8].map(|chain| host.fetch(chain, 48)), host.tier.blocks());
    let sum: usize = reachable.iter().sum();
    // The first three blocks are shared by all.
    assert!(sum - 6 >= all * 8 / 10, "{sum} of {all} blocks can be reached: {reachable:?}");
}

/// Two chains that nobody asks for, each in many packs, stored in so long a time that their packs expire one after the
/// other.
fn long_chains(options: TierOptions, blob: &Memory) -> Host<'_> {
    let mut host = Host::open(options, blob, NOW);
    for part in 0..9 {
        for chain in [4, 6] {
            host.now = host.now.after(900);
            host.store(chain, part * 8..part * 8 + 8, CHAT);
            host.flush();
        }
    }
    host
}

#[test]
fn of_long_chains_the_end_goes_first_whatever_is_beyond_its_bytes() {
    let class = Class { name: "chat".to_owned(), ttl_s: DAY, bytes: 8_000 };
    let tenants = BTreeMap::from([(tenant(4), 8_000)]);
    let bounds = [
        ("total", bounded(9_000)),
        ("class", TierOptions { classes: vec![class], ..options(1) }),
        ("tenant", TierOptions { budget: Budget { tenants, ..options(1).budget }, ..options(1) }),
    ];
    for (what, options) in bounds {
        let blob = Memory::new();
        let host = long_chains(options, &blob);
        let reachable: usize = found(&host, &[4, 6], 72).iter().sum();
        // What was stored behind what had gone already goes next.
        let kept = host.tier.held().filter(|held| held.kept && held.expires > host.now).count();
        assert!(kept > 25, "{what}: {kept} are kept");
        // The first three blocks are shared by both.
        assert!(reachable >= kept + 3, "{what}: {reachable} can be reached, {kept} are kept");
    }
}

#[test]
fn a_class_and_a_tenant_have_their_own_bytes() {
    let blob = Memory::new();
    let class = |name: &str, ttl_s, bytes| Class { name: name.to_owned(), ttl_s, bytes };
    let budget = Budget { tenants: BTreeMap::from([(tenant(1), 3_000)]), ..options(1).budget };
    let classes = vec![class("chat", DAY, 4_000), class("agent", DAY, u64::MAX)];
    let mut host = Host::open(TierOptions { budget, classes, ..options(1) }, &blob, NOW);
    for chain in 0..10 {
        host.now = host.now.after(60);
        host.store(2 * chain, 0..8, CHAT);
        host.store(2 * chain + 20, 3..11, AGENT);
        host.store(2 * chain + 1, 0..8, AGENT);
        host.flush();
    }
    assert!(host.tier.class_bytes(CHAT) <= 4_000 && host.tier.class_bytes(CHAT) > 2_000);
    assert!(host.tier.tenant_bytes(tenant(1)) <= 3_000 && host.tier.tenant_bytes(tenant(1)) > 1_500);
    assert!(host.tier.class_bytes(AGENT) > 8_000, "without a bound nothing goes");
    assert_eq!(found(&host, &[18, 19], 8), [8, 8], "the newest are there");
}

#[test]
fn pins_are_preferred_within_their_budget_and_lock_nothing() {
    let blob = Memory::new();
    let mut host = Host::open(bounded(12_000), &blob, NOW);
    host.store(0, 0..3, CHAT);
    host.flush();
    host.store(0, 3..10, CHAT);
    host.flush();
    let pinned = host.tier.pin(&names(0, 10), tenant(0), true);
    assert_eq!(pinned, 10);
    for chain in 1..20 {
        host.now = host.now.after(3_600);
        host.store(2 * chain, 0..10, CHAT);
        host.flush();
    }
    assert_eq!(found(&host, &[0], 10), [10], "older than all, and there");
    let many: usize = (1..20).map(|chain| host.tier.pin(&names(2 * chain, 10)[3..], tenant(0), true)).sum();
    assert!(many < 20, "the budget of pins is 2,000 bytes: {many}");
    host.tier.pin(&names(0, 10), tenant(0), false);
    for chain in 20..30 {
        host.now = host.now.after(3_600);
        host.store(2 * chain, 0..10, CHAT);
        host.flush();
    }
    assert!(found(&host, &[0], 10)[0] < 10, "let go");
    // A budget of nothing: even pins go.
    let blob = Memory::new();
    let mut host = Host::open(bounded(0), &blob, NOW);
    host.store(0, 0..10, CHAT);
    host.flush();
    assert_eq!(host.tier.bytes(), 0);
}

#[test]
fn what_is_left_of_packs_is_written_anew_as_one() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    for chain in 0..8 {
        host.store(2 * chain, 3..8, CHAT);
    }
    host.store(0, 0..3, CHAT);
    host.flush();
    host.now = NOW.after(DAY / 2);
    for chain in [0, 4, 10] {
        assert_eq!(host.fetch(chain, 5), 5);
    }
    host.flush();
    host.tier.expire(NOW.after(DAY + DAY / 16));
    host.settle();
    let hit = |host: &Host<'_>| found(host, &[0, 4, 10], 5);
    assert_eq!(hit(&host), [5; 3]);
    let counts = host.tier.counts();
    assert!(counts.renewed_packs > 0, "{counts:?}");
    let second = Host::open(options(2), &blob, NOW);
    assert_eq!(hit(&second), [5; 3], "for others too");
    assert!(second.tier.bytes() <= host.tier.class_bytes(CHAT) * 2 + 1_000);
}

#[test]
fn many_small_packs_become_few() {
    let blob = Memory::new();
    let mut host = Host::open(TierOptions { pack_bytes: 60_000, ..options(1) }, &blob, NOW);
    for depth in 0..100 {
        assert_eq!(host.store(4, depth..depth + 1, CHAT), [Stored::Queued]);
        host.flush();
    }
    let plan = host.tier.plan(&names(4, 100), tenant(4));
    assert_eq!(plan.blocks, 100);
    assert!(host.tier.counts().renewed_packs >= 60, "{:?}", host.tier.counts());
    assert_eq!(host.fetch(4, 100), 100);
    host.expect_nothing_left();
}
