//! Several processes on one store, without a server: each learns of the others' packs, and none harms another.

use millstream_actors::store::{Stamp, TierOptions};
use millstream_runtime::blob::{Blob, Faulty, Memory};

use super::host::{AGENT, CHAT, DAY, Host, names, options, tenant};

const NOW: Stamp = Stamp(1_000_000);

fn all(blob: &Memory, kind: &str) -> usize {
    blob.list("").expect("memory").iter().filter(|object| object.name.contains(kind)).count()
}

#[test]
fn what_one_stores_another_finds_after_a_list() {
    let blob = Memory::new();
    let (mut first, mut second) = (Host::open(options(1), &blob, NOW), Host::open(options(2), &blob, NOW));
    first.store(4, 0..12, CHAT);
    first.flush();
    assert_eq!(second.fetch(4, 12), 0);
    second.refresh();
    assert!(second.tier.is_ready());
    assert_eq!(second.fetch(4, 12), 12);
    second.store(4, 0..20, CHAT);
    second.flush();
    assert_eq!(second.tier.counts().stored_blocks, 8, "only what was new");
    first.refresh();
    assert_eq!(first.fetch(4, 20), 20);
}

#[test]
fn a_list_reads_only_what_is_new() {
    let blob = Faulty::new(Memory::new());
    let (mut first, mut second) = (Host::open(options(1), &blob, NOW), Host::open(options(2), &blob, NOW));
    for round in 0..5 {
        first.store(4, round * 5..round * 5 + 5, CHAT);
        first.flush();
        let before = blob.calls();
        second.refresh();
        let packs = blob.calls() - before - 1;
        assert!((1..=2).contains(&packs), "round {round}: {packs} reads");
        let before = blob.calls();
        second.refresh();
        assert_eq!(blob.calls() - before, 1, "nothing was new");
    }
    assert_eq!(second.fetch(4, 25), 25);
}

#[test]
fn a_pack_that_vanished_is_a_miss() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..20, CHAT);
    host.flush();
    let packs: Vec<_> = blob.list("").expect("memory").into_iter().map(|object| object.name).collect();
    blob.delete(packs.last().expect("there are some")).expect("memory");
    let found = host.fetch(4, 20);
    assert!(found > 0 && found < 20);
    assert_eq!((host.fetch(4, 20), host.tier.counts().vanished_packs), (found, 1), "it is known to be gone");
    blob.delete(&packs[0]).expect("memory");
    host.refresh();
    assert_eq!((host.fetch(4, 20), host.tier.counts().vanished_packs), (0, 2), "a list told it");
    host.expect_nothing_left();
}

#[test]
fn two_that_store_the_same_agree_on_whose_counts() {
    let blob = Memory::new();
    let (mut first, mut second) = (Host::open(options(1), &blob, NOW), Host::open(options(2), &blob, NOW));
    first.store(4, 0..12, CHAT);
    second.store(4, 0..12, CHAT);
    first.flush();
    second.flush();
    for _ in 0..4 {
        for host in [&mut first, &mut second] {
            host.refresh();
            host.tier.collect(NOW);
            host.settle();
            assert_eq!(host.fetch(4, 12), 12);
        }
    }
    let third = Host::open(options(3), &blob, NOW);
    assert_eq!(third.tier.plan(&names(4, 12), tenant(4)).blocks, 12);
    let kept = third.tier.class_bytes(CHAT);
    assert!(third.tier.bytes() < 2 * kept, "one of two copies is gone: {} for {kept}", third.tier.bytes());
}

#[test]
fn hits_are_told_to_others_and_to_the_next_start() {
    let blob = Memory::new();
    let mut first = Host::open(options(1), &blob, NOW);
    first.store(4, 0..6, CHAT);
    first.flush();
    first.store(6, 3..9, CHAT);
    first.flush();
    first.store(8, 3..9, CHAT);
    first.flush();
    first.now = NOW.after(DAY - 100);
    assert_eq!(first.fetch(6, 9), 9);
    first.flush();
    assert_eq!(all(&blob, "touch-"), 1);
    // A day after the first store, what nobody hit since has expired. Chain 6 stands on the first blocks of 4.
    let mut second = Host::open(options(2), &blob, NOW.after(DAY + DAY / 16));
    second.tier.expire(second.now);
    second.settle();
    assert_eq!((second.fetch(6, 9), second.fetch(8, 9)), (9, 3));
}

#[test]
fn many_journals_become_one_and_old_ones_go() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    [4, 6, 8].iter().for_each(|&chain| drop(host.store(chain, 0..6, AGENT)));
    host.flush();
    let mut most = 0;
    for _ in 0..100 {
        host.now = host.now.after(DAY / 30);
        for chain in [4, 6, 8] {
            assert_eq!(host.fetch(chain, 6), 6);
            host.flush();
        }
        host.refresh();
        most = most.max(all(&blob, "touch-"));
    }
    assert!((20..=33).contains(&most), "{most}");
    let end = host.now;
    let mut second = Host::open(options(2), &blob, end);
    second.tier.expire(end);
    second.settle();
    assert_eq!(
        [4, 6, 8].map(|chain| second.fetch(chain, 6)),
        [6; 3],
        "what was folded still says that it is in use"
    );
    second.now = end.after(9 * DAY);
    second.refresh();
    assert_eq!(all(&blob, "touch-"), 0, "they say nothing any more");
}

#[test]
fn tiers_of_other_layouts_do_not_meet() {
    let blob = Memory::new();
    let mut host = Host::open(options(1), &blob, NOW);
    host.store(4, 0..6, CHAT);
    host.flush();
    let other = Host::open(TierOptions { layout: [8; 16], ..options(2) }, &blob, NOW);
    assert_eq!((other.tier.blocks(), other.tier.counts().refused), (0, 0));
}

#[test]
fn a_writer_that_begins_again_writes_over_nothing() {
    let blob = Memory::new();
    for round in 0..3 {
        let mut host = Host::new(options(1), &blob, NOW);
        host.store(4 + 2 * round, 3..9, CHAT);
        host.tier.flush();
        host.refresh();
        host.flush();
    }
    let mut host = Host::open(options(2), &blob, NOW);
    host.store(4, 0..3, CHAT);
    assert_eq!([4, 6, 8].map(|chain| host.fetch(chain, 9)), [9; 3]);
}
