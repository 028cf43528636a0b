//! What a fetch reads: few large parts, each block once, and nothing that a tenant may not see.

use millstream_actors::store::{Io, PackName, Tenant, TierOptions, WriterId};
use millstream_runtime::blob::Memory;

use super::host::{AGENT, CHAT, Host, content, name, names, options, tenant};
use millstream_actors::store::{ClassId, Stamp, Stored};

const NOW: Stamp = Stamp(1_000_000);

fn bytes(chain: u64, blocks: std::ops::Range<u32>) -> u64 {
    blocks.map(|depth| content(&name(chain, depth)).len() as u64).sum()
}

#[test]
fn a_chain_that_was_stored_together_is_one_read() {
    let blob = Memory::new();
    let wide = TierOptions { pack_bytes: 1 << 20, read_bytes: 1 << 20, ..options(1) };
    let mut host = Host::open(wide.clone(), &blob, NOW);
    // Two chains that grow by turns.
    for depth in 0..20 {
        host.store(4, depth..depth + 1, CHAT);
        host.store(7, depth..depth + 1, CHAT);
    }
    host.flush();
    assert_eq!(host.tier.counts().stored_blocks, 40);
    let plan = host.tier.plan(&names(4, 30), tenant(4));
    assert_eq!((plan.blocks, plan.near, plan.bytes, plan.reads), (20, 0, bytes(4, 0..20), 1));
    let mut second = Host::open(TierOptions { writer: WriterId(2), ..wide }, &blob, NOW);
    assert_eq!(second.tier.plan(&names(4, 30), tenant(4)), plan, "another process plans the same");
    assert_eq!((second.fetch(4, 30), second.fetch(7, 20)), (20, 20));
    assert_eq!(second.tier.counts().fetched_bytes, bytes(4, 0..20) + bytes(7, 0..20));
    second.expect_nothing_left();
}

#[test]
fn reads_are_bounded_and_small_gaps_are_read_along() {
    let blob = Memory::new();
    let mut host = Host::open(TierOptions { pack_bytes: 1 << 20, ..options(1) }, &blob, NOW);
    host.store(4, 0..30, CHAT);
    host.flush();
    let plan = host.tier.plan(&names(4, 30), tenant(4));
    let least = plan.bytes / 700;
    assert!(plan.reads as u64 > least && plan.reads as u64 <= 2 * least + 1, "{plan:?}");
    let skipping: Vec<_> = names(4, 30).into_iter().step_by(2).collect();
    let plan = host.tier.plan(&skipping, tenant(4));
    let wanted: u64 = skipping.iter().map(|hash| content(hash).len() as u64).sum();
    assert!(plan.bytes >= wanted && plan.bytes <= bytes(4, 0..30), "{plan:?}");
    host.begin(skipping, tenant(4), CHAT);
    host.settle();
    assert_eq!(host.hear()[0].1, 15);
}

#[test]
fn a_block_is_read_once_however_many_want_it() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..12, CHAT);
    host.flush();
    let (_, first) = host.begin(names(4, 12), tenant(4), CHAT);
    let (_, second) = host.begin(names(4, 8), tenant(4), CHAT);
    assert_eq!((first.near, second.near, second.reads), (0, 8, 0));
    host.settle();
    assert_eq!(host.hear().iter().map(|(_, blocks)| *blocks).sum::<usize>(), 20);
    assert_eq!(host.tier.counts().fetched_blocks, 12);
    host.expect_nothing_left();
}

#[test]
fn what_is_not_written_yet_is_found_in_memory() {
    let blob = Memory::new();
    let mut host = Host::new(options(1), &blob, NOW);
    host.store(4, 0..12, CHAT);
    let (_, plan) = host.begin(names(4, 12), tenant(4), CHAT);
    assert_eq!((plan.blocks, plan.near, plan.reads), (12, 12, 0));
    assert_eq!(host.hear()[0].1, 12, "before there was any list, and without a wish");
    assert_eq!(host.tier.wish(), None, "nothing is written before the numbers that are taken are known");
    host.refresh();
    host.flush();
    assert_eq!(host.tier.counts().stored_blocks, 12);
    host.expect_nothing_left();
}

#[test]
fn nobody_finds_what_belongs_to_another_tenant() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..6, CHAT);
    for stored in [false, true] {
        assert_eq!(host.tier.plan(&names(4, 6), tenant(5)).blocks, 0, "stored: {stored}");
        assert_eq!(host.tier.plan(&names(4, 6), Tenant([77; 16])).blocks, 0);
        assert_eq!(host.tier.plan(&names(4, 6), tenant(4)).blocks, 6);
        host.flush();
    }
}

#[test]
fn a_cancelled_fetch_leaves_nothing() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..30, CHAT);
    host.flush();
    let (first, _) = host.begin(names(4, 30), tenant(4), CHAT);
    let (second, plan) = host.begin(names(4, 5), tenant(4), CHAT);
    assert_eq!(plan.near, 5);
    let begun = host.tier.wish().expect("a read");
    assert!(matches!(begun.io, Io::Read { .. }));
    host.cancel(first);
    let ledger = host.tier.ledger();
    assert!(ledger.fetches == 1 && ledger.flights < 12, "what nobody waits for is not read: {ledger:?}");
    host.tier.tell(begun.carry_out(&blob), NOW);
    host.settle();
    assert_eq!(host.hear(), [(second, 5)]);
    host.expect_nothing_left();
}

#[test]
fn whoever_carried_out_wishes_may_die() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..12, CHAT);
    host.flush();
    host.store(6, 3..12, AGENT);
    host.begin(names(4, 12), tenant(4), CHAT);
    host.tier.flush();
    while host.tier.wish().is_some() {}
    host.tier.lost(NOW);
    assert_eq!(host.hear()[0].1, 0, "a miss, and no wait");
    host.settle();
    assert_eq!((host.fetch(4, 12), host.fetch(6, 12)), (12, 12), "tried again");
    host.expect_nothing_left();
}

#[test]
fn a_block_that_is_known_is_not_stored_again() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    assert_eq!(host.store(4, 0..2, CHAT), [Stored::Queued; 2]);
    assert_eq!(host.store(4, 0..2, CHAT), [Stored::Known; 2]);
    host.flush();
    assert_eq!(host.store(4, 0..2, CHAT), [Stored::Known; 2]);
    assert_eq!(host.store(4, 2..3, ClassId(200)), [Stored::Queued], "a class beyond all is the first");
}

#[test]
fn names_of_packs_are_read_back_and_nothing_else_is() {
    let name = PackName { writer: WriterId(0xfe), number: 77 };
    assert_eq!(name.to_string().parse(), Ok(name));
    for wrong in
        ["", "-", "00-1", "00000000000000fe-4d", "00000000000000FE-0000004d", "00000000000000fe-+000004d"]
    {
        assert_eq!(wrong.parse::<PackName>(), Err(()), "{wrong}");
    }
}
