//! A crash at every call and in the middle of every write: what was said to be stored is there afterwards, nothing
//! that is found is wrong, and the store goes on.

use millstream_actors::store::{Budget, Counts, Footer, Stamp, TierOptions, WriterId};
use millstream_runtime::blob::{Blob, BlobErrorKind, Fault, Faulty, Memory, Part};

use super::host::{AGENT, CHAT, DAY, Host, options};

const CHAINS: std::ops::Range<u64> = 4..8;
const BLOCKS: u32 = 14;

/// A life with everything that writes: packs of two classes, journals, packs written anew, deletions. Returns how many
/// blocks of each chain were said to be stored.
fn live(blob: &dyn Blob, start: Stamp) -> (Vec<u32>, Counts) {
    let mut host = Host::open(options(1), blob, start);
    let mut said = vec![0; CHAINS.count()];
    for round in 0..2 {
        for (place, chain) in CHAINS.enumerate() {
            let class = if chain % 2 == 0 { CHAT } else { AGENT };
            let before = host.tier.counts().dropped_failed;
            for depth in 0..BLOCKS / 2 * (round + 1) {
                host.store(chain, depth..depth + 1, class);
                // Nobody will ever want these.
                host.store(chain + 20 * u64::from(round + 1), 3 + depth..4 + depth, class);
            }
            host.flush();
            if host.tier.counts().dropped_failed == before && host.tier.ledger().queued_bytes == 0 {
                said[place] = BLOCKS / 2 * (round + 1);
            }
        }
        host.now = host.now.after(DAY / 2);
        for chain in CHAINS {
            host.fetch(chain, BLOCKS);
        }
        host.flush();
    }
    host.tier.expire(start.after(DAY + DAY / 8));
    host.settle();
    (said, host.tier.counts())
}

/// Whatever is there is right, what was said to be stored is there, and more can be stored.
fn expect_usable(blob: &dyn Blob, said: &[u32], writer: u64, what: &str) {
    println!("{what}: {said:?} were said to be stored");
    let mut host = Host::open(TierOptions { writer: WriterId(writer), ..options(1) }, blob, Stamp(1_100_000));
    for (chain, said) in CHAINS.zip(said) {
        let found = host.fetch(chain, BLOCKS);
        assert!(found >= *said as usize, "{what}: chain {chain} has {found} of {said}");
    }
    for chain in CHAINS {
        host.store(chain, 0..BLOCKS, CHAT);
    }
    host.flush();
    for chain in CHAINS {
        assert_eq!(host.fetch(chain, BLOCKS), BLOCKS as usize, "{what}: it is usable");
    }
    host.expect_nothing_left();
}

#[test]
fn a_crash_at_every_call() {
    let start = Stamp(1_000_000);
    let quiet = Faulty::new(Memory::new());
    let (all, counts) = live(&quiet, start);
    assert_eq!(all, [BLOCKS; 4], "without a crash everything is stored");
    assert!(counts.renewed_packs > 1, "{counts:?}");
    for call in 0..quiet.calls() {
        for fault in [Fault::Crash { done: false }, Fault::Crash { done: true }] {
            let blob = Faulty::new(Memory::new());
            blob.at(call, fault);
            let (said, _) = live(&blob, start);
            assert_eq!(blob.crashed(), Some(call));
            blob.revive();
            expect_usable(&blob, &said, 2, &format!("{fault:?} at {call}"));
        }
    }
    println!("{} crashes", 2 * quiet.calls());
}

#[test]
fn a_store_that_keeps_half_of_a_write() {
    let start = Stamp(1_000_000);
    let (mut cuts, mut from) = (0, 0);
    let cut = |call: u64, bytes: u64| {
        let blob = Faulty::new(Memory::new());
        blob.at(call, Fault::Cut(bytes));
        let (said, _) = live(&blob, start);
        (blob, said)
    };
    // In headers, payloads, footers and trailers, and just before the last byte of some.
    while let Some(put) = cut(from, 0).0.crashed() {
        for bytes in (0..2_500).step_by(83).chain([1, 47, 48, 49]) {
            let (blob, said) = cut(put, bytes);
            blob.revive();
            expect_usable(&blob, &said, 2, &format!("cut at {bytes} in call {put}"));
            cuts += 1;
        }
        from = put + 1;
    }
    println!("{cuts} cuts");
    assert!(cuts > 100);
}

/// The packs of a store, whole.
fn packs(blob: &dyn Blob) -> Vec<(String, Vec<u8>)> {
    let listed = blob.list("").expect("memory").into_iter().filter(|object| object.name.contains("pack-"));
    let read = |object: millstream_runtime::blob::Listed| {
        let mut bytes = vec![0; object.bytes as usize];
        blob.read(&object.name, &mut [Part { start: 0, into: &mut bytes }]).expect("it is listed");
        (object.name, bytes)
    };
    listed.map(read).collect()
}

#[test]
fn every_byte_of_a_pack_may_be_flipped() {
    let start = Stamp(1_000_000);
    let blob = Memory::new();
    let mut host = Host::open(TierOptions { pack_bytes: 1 << 20, ..options(1) }, &blob, start);
    host.store(4, 0..6, CHAT);
    host.flush();
    let (name, whole) = packs(&blob).remove(0);
    let (mut misses, mut damaged, mut refused) = (0, 0, 0);
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        let other = Memory::new();
        other.put(&name, &[&bytes]).expect("memory");
        let mut host = Host::open(TierOptions { writer: WriterId(2), ..options(1) }, &other, start);
        let found = host.fetch(4, 6);
        misses += usize::from(found < 6);
        damaged += host.tier.counts().damaged_blocks;
        refused += host.tier.counts().refused;
        if found < 6 && host.tier.counts().damaged_blocks == 1 {
            assert_eq!(host.fetch(4, 6), found, "it is not tried again");
            assert_eq!(host.tier.counts().damaged_blocks, 1);
            host.store(4, 0..6, CHAT);
            host.flush();
            assert_eq!(host.fetch(4, 6), 6, "it is stored anew, and found there");
        }
    }
    let all = whole.len() as u64 - 48;
    assert_eq!((misses as u64, damaged + refused), (all, all), "each byte behind the header matters");
    assert!(damaged > 0 && refused > 0);
}

/// A pack as the first version of the format has it, in which no record says when its block was used.
fn first_version(pack: &[u8]) -> Vec<u8> {
    const RECORD: usize = 68;
    let trailer = pack.len() - 24;
    let start = u64::from_le_bytes(pack[trailer..trailer + 8].try_into().expect("eight bytes"));
    let (payloads, footer) = pack[..trailer].split_at(start as usize);
    let blocks = u32::from_le_bytes(footer[36..40].try_into().expect("four bytes"));
    let (head, records) = footer.split_at(footer.len() - blocks as usize * RECORD);
    let mut old = head.to_vec();
    records.chunks(RECORD).for_each(|record| old.extend([&record[..52], &record[56..]].concat()));
    old.extend(start.to_le_bytes());
    old.extend(crc32c::crc32c(&old).to_le_bytes());
    [payloads, &old, b"mspack01-end"].concat()
}

#[test]
fn packs_of_the_first_version_are_read_and_written_anew() {
    let (start, blob) = (Stamp(1_000_000), Memory::new());
    let mut host = Host::open(TierOptions { pack_bytes: 1 << 20, ..options(1) }, &blob, start);
    host.store(4, 0..6, CHAT);
    host.flush();
    let (name, whole) = packs(&blob).remove(0);
    blob.put(&name, &[&first_version(&whole)]).expect("memory");
    let mut host = Host::open(options(2), &blob, start.after(DAY / 2));
    assert!(host.tier.held().all(|held| held.used == start), "not used since");
    assert_eq!((host.fetch(4, 6), host.tier.counts().refused), (6, 0));
    host.tier.discard(|held| held.depth == 5);
    host.settle();
    let host = Host::open(options(3), &blob, start.after(DAY));
    assert_eq!(host.tier.held().map(|held| held.used >= start.after(DAY / 2)).collect::<Vec<_>>(), [true; 5]);
}

#[test]
fn a_pack_under_another_name_is_refused() {
    let blob = Memory::new();
    let mut host = Host::open(TierOptions { pack_bytes: 1 << 20, ..options(1) }, &blob, Stamp(1_000_000));
    host.store(4, 0..6, CHAT);
    host.flush();
    let (name, whole) = packs(&blob).remove(0);
    let other = Memory::new();
    other.put(&name.replace("-00000000", "-00000001"), &[&whole]).expect("memory");
    let mut host = Host::open(options(2), &other, Stamp(1_000_000));
    assert_eq!((host.fetch(4, 6), host.tier.counts().refused), (0, 1));
    assert!(Footer::place(&whole[..whole.len() - 1], whole.len() as u64).is_err());
}

#[test]
fn a_store_that_lies_about_lengths_costs_misses_only() {
    for lie in [-1_000_000, -100, -1, 1, 24, 10_000] {
        let blob = Faulty::new(Memory::new());
        let mut first = Host::open(options(1), &blob, Stamp(1_000_000));
        first.store(4, 0..12, CHAT);
        first.flush();
        let mut second = Host::new(options(2), &blob, Stamp(1_000_000));
        blob.at(0, Fault::Lie(lie));
        second.refresh();
        assert_eq!(second.fetch(4, 12), 0, "lie {lie}");
        second.refresh();
        assert_eq!(second.fetch(4, 12), 12, "lie {lie}: the next list is right");
    }
}

#[test]
fn a_full_store_gives_up_what_is_oldest_and_goes_on() {
    let blob = Memory::with_room(12_000);
    let mut host = Host::open(options(1), &blob, Stamp(1_000_000));
    for chain in 0..30 {
        host.now = host.now.after(3_600);
        host.store(chain * 2, 0..10, CHAT);
        host.flush();
    }
    assert_eq!(host.fetch(58, 10), 10, "the newest is there");
    let counts = host.tier.counts();
    assert!(counts.deleted_packs > 0 && counts.dropped_failed == 0, "{counts:?}");
    host.expect_nothing_left();
}

#[test]
fn what_cannot_be_written_is_dropped_and_counted() {
    for kind in [BlobErrorKind::Denied, BlobErrorKind::Broken, BlobErrorKind::Full] {
        let blob = Faulty::new(Memory::new());
        let budget = Budget { total: 1 << 20, ..options(1).budget };
        let mut host = Host::open(TierOptions { budget, ..options(1) }, &blob, Stamp(1_000_000));
        (0..3).for_each(|_| blob.at(0, Fault::Fail(kind)));
        host.store(4, 0..3, CHAT);
        host.flush();
        assert_eq!((host.tier.counts().dropped_failed, host.tier.counts().errors), (3, 3));
        host.expect_nothing_left();
        host.store(4, 0..3, CHAT);
        blob.at(0, Fault::Fail(kind));
        host.flush();
        assert_eq!((host.tier.counts().stored_blocks, host.fetch(4, 3)), (3, 3), "a second try is made");
    }
}
