//! A store that a person looks after while processes use it: what is let go is gone for all of them, whatever breaks
//! meanwhile nothing else is, and reading all of it finds what is damaged.

use millstream_actors::store::{Got, Io, PackName, Stamp, Sum, TierOptions, Told, Wish, WishId, WriterId};
use millstream_runtime::blob::{Blob, BlobErrorKind, Fault, Faulty, Memory, Part};

use super::host::{AGENT, CHAT, Host, content, name, options, tenant};

const NOW: Stamp = Stamp(1_000_000);

/// Eight chains of eight blocks, which share the first three with the others of their tenant, mixed in their packs.
fn filled(blob: &dyn Blob) {
    let mut host = Host::open(options(1), blob, NOW);
    for depth in 0..8 {
        for chain in 0..8 {
            host.store(chain, depth..depth + 1, if chain < 4 { CHAT } else { AGENT });
        }
    }
    host.flush();
}

/// Blocks that are found of each chain.
fn found(host: &mut Host<'_>) -> Vec<usize> {
    (0..8).map(|chain| host.fetch(chain, 8)).collect()
}

/// Lets go of all of a tenant, and carries on until nothing is left to do.
fn discard(host: &mut Host<'_>, of: u64) -> Sum {
    let sum = host.tier.discard(|held| held.tenant == tenant(of));
    host.settle();
    while host.tier.is_discarding() {
        host.tier.collect(host.now);
        host.settle();
    }
    sum
}

#[test]
fn what_is_let_go_is_gone_for_all_and_nothing_else_is() {
    let blob = Memory::new();
    filled(&blob);
    let mut server = Host::open(options(2), &blob, NOW);
    let mut host = Host::open(options(3), &blob, NOW);
    let sum = discard(&mut host, 1);
    assert_eq!(sum.blocks, 3 + 4 * 5);
    let (even, odd) = (|blocks: &[usize]| blocks.iter().step_by(2).copied().collect::<Vec<_>>(), [0; 4]);
    for host in [&mut host, &mut Host::open(options(4), &blob, NOW)] {
        let blocks = found(host);
        assert_eq!((even(&blocks), even(&blocks[1..])), (vec![8; 4], odd.to_vec()));
    }
    // Who has not heard of it misses, and finds again what lies elsewhere now once it has.
    let blocks = found(&mut server);
    assert_eq!(even(&blocks[1..]), odd);
    server.refresh();
    assert_eq!(even(&found(&mut server)), [8; 4]);
    let left: u64 = blob.list("").expect("memory lists").iter().map(|object| object.bytes).sum();
    let kept: u64 = host.tier.held().map(|held| u64::from(held.bytes)).sum();
    assert!(host.tier.held().all(|held| held.tenant == tenant(0) && held.kept && held.used <= NOW));
    assert!(left < kept + 3_000, "{left} bytes for {kept}");
}

/// Whatever call fails, and wherever it is interrupted: the other tenant has all of its blocks.
#[test]
fn nothing_else_goes_whatever_breaks() {
    for kind in [Fault::Fail(BlobErrorKind::Full), Fault::Crash { done: false }, Fault::Crash { done: true }]
    {
        for call in 0..60 {
            let blob = Faulty::new(Memory::new());
            filled(&blob);
            let mut host = Host::open(options(3), &blob, NOW);
            blob.at(blob.calls() + call, kind);
            discard(&mut host, 1);
            blob.revive();
            let blocks = found(&mut Host::open(options(4), &blob, NOW));
            assert!(blocks.iter().step_by(2).all(|blocks| *blocks == 8), "{kind:?} at {call}: {blocks:?}");
        }
    }
}

#[test]
fn classes_that_are_not_known_here_keep_their_names() {
    let blob = Memory::new();
    filled(&blob);
    let one = TierOptions { classes: options(3).classes[..1].to_vec(), ..options(3) };
    let mut host = Host::open(one, &blob, NOW);
    let agents = |host: &Host<'_>| host.tier.held().filter(|held| held.class == "agent").count();
    assert_eq!(agents(&host), 2 * 2 * 5);
    discard(&mut host, 1);
    let mut other = Host::open(options(4), &blob, NOW);
    assert_eq!((agents(&host), agents(&other)), (10, 10), "written anew by who did not know them");
    assert_eq!(other.fetch(4, 8), 8);
}

#[test]
fn reading_all_of_it_finds_what_is_damaged() {
    let blob = Memory::new();
    filled(&blob);
    let host = Host::open(TierOptions { writer: WriterId(3), ..options(3) }, &blob, NOW);
    let packs: Vec<(PackName, u64)> = host.tier.packs().collect();
    let look = |pack| -> (usize, Vec<_>) {
        let (mut whole, mut damaged) = (0, Vec::new());
        for inspection in host.tier.inspections(pack) {
            let wish = Wish { id: WishId(0), io: inspection.io() };
            assert!(matches!(wish.io, Io::Read { .. }) && wish.reads() <= 700);
            let Told { result: Ok(Got::Bytes(got)), .. } = wish.carry_out(&blob) else {
                panic!("memory reads")
            };
            for (hash, bytes, good) in inspection.judge(&got) {
                assert_eq!(bytes, content(&hash).len() as u64);
                if good { whole += 1 } else { damaged.push(hash) }
            }
        }
        (whole, damaged)
    };
    let all: usize = packs.iter().map(|(pack, _)| look(*pack).0).sum();
    assert_eq!(all, 2 * 3 + 8 * 5);
    // The first byte of the first block.
    let (pack, bytes) = packs[0];
    let object = format!("{:032x}/pack-{pack}", u128::from_be_bytes([9; 16]));
    let mut whole = vec![0; bytes as usize];
    blob.read(&object, &mut [Part { start: 0, into: &mut whole }]).expect("memory reads");
    whole[48] ^= 1;
    blob.put(&object, &[&whole]).expect("memory writes");
    assert_eq!(look(pack).1, [name(0, 0)]);
}
