//! What goes when room is wanted. While there is room nothing does, however old.
//!
//! Blocks go in the order in which they expire, pinned ones last; a hit refreshes a whole beginning, so the end of a
//! chain goes before what it continues. A class or a tenant beyond its bytes gives up its first-to-go blocks: they are
//! found while they are there, and count no more. Room itself comes by the pack: first those whose blocks have all
//! expired, then what is mostly given up is written anew, and only when all bytes together are too many, packs whose
//! blocks are still wanted.

use super::index::{Entry, Index, Pack, Place, Rank, State};
use super::options::{ClassId, Stamp, TierOptions};

/// Of the bytes that are allowed, how many are left free once something had to go.
const SLACK: u64 = 16;

/// So many packs that are smaller than an eighth of a pack's size are written anew as one.
const SMALL_PACKS: usize = 32;

/// What is to be done with packs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// To be deleted.
    pub(super) delete: Vec<u32>,
    /// To be written anew.
    pub(super) renew: Vec<u32>,
}

/// Brings classes and tenants within their bytes, and all objects together within `most`.
pub(super) fn choose(index: &mut Index, options: &TierOptions, now: Stamp, most: u64) -> Choice {
    bound(index, options);
    let goal = most - most / SLACK;
    let mut choice = Choice::default();
    let mut bytes = index.total_bytes();
    // Before there is no room left, so that what is worn out is written anew while there is.
    if bytes > most - most / SLACK / 2 {
        let mut ranked = ranked(index);
        let expired = ranked.iter().take_while(|(rank, ..)| rank.is_over(now)).count();
        let wanted = ranked.split_off(expired);
        evict(&mut choice, &mut bytes, goal, &ranked);
        if bytes > goal {
            give_up_until(index, now);
        }
        if bytes > most {
            let horizon = evict(&mut choice, &mut bytes, goal, &wanted);
            // What expires with the last of them may continue something else.
            give_up_until(index, horizon.map_or(now, |horizon| Stamp(horizon.0.saturating_sub(1))));
        }
    }
    let worn = packs(index, &choice, |pack| pack.kept_bytes * 2 <= pack.block_bytes());
    let small = packs(index, &choice, |pack| pack.bytes * 8 <= options.pack_bytes);
    let (empty, worn): (Vec<u32>, Vec<u32>) = worn.into_iter().partition(|&number| is_empty(index, number));
    choice.renew = worn;
    if small.len() >= SMALL_PACKS {
        choice.renew.extend(small.into_iter().filter(|number| !empty.contains(number)));
    }
    choice.delete.extend(empty);
    choice
}

fn is_empty(index: &Index, number: u32) -> bool {
    index.pack(number).is_none_or(|pack| pack.kept_bytes == 0)
}

/// Packs with that property that nothing else happens to.
fn packs(index: &Index, choice: &Choice, property: impl Fn(&Pack) -> bool) -> Vec<u32> {
    let free =
        |&(number, pack): &(u32, &Pack)| !pack.busy && !choice.delete.contains(&number) && property(pack);
    index.packs().filter(free).map(|(number, _)| number).collect()
}

/// A pack, what its last-to-go block is, and its bytes.
type Ranked = (Rank, u32, u64);

/// All packs that nothing happens to, those that go first first.
fn ranked(index: &Index) -> Vec<Ranked> {
    let rank = |pack: &Pack| {
        let kept = pack.entries.iter().filter(|entry| entry.state == State::Kept);
        kept.map(Entry::rank).max()
    };
    let idle = index.packs().filter(|(_, pack)| !pack.busy);
    let ranked = idle.filter_map(|(number, pack)| Some((rank(pack)?, number, pack.bytes)));
    let mut ranked: Vec<Ranked> = ranked.collect();
    ranked.sort_unstable();
    ranked
}

/// Chooses packs until `bytes` are no more than `goal`. Returns up to when their blocks were to be kept.
fn evict(choice: &mut Choice, bytes: &mut u64, goal: u64, ranked: &[Ranked]) -> Option<Stamp> {
    let mut horizon = None;
    for &(rank, number, size) in ranked {
        if *bytes <= goal {
            break;
        }
        *bytes -= size;
        horizon = horizon.max(Some(rank.expires));
        choice.delete.push(number);
    }
    horizon
}

/// What expires by then is given up: what it continues is gone, or goes first.
pub(super) fn give_up_until(index: &mut Index, horizon: Stamp) {
    let over = kept(index, |entry| entry.rank().is_over(horizon));
    over.into_iter().for_each(|(_, place)| index.set_state(place, State::GivenUp));
}

/// Brings classes and tenants within their bytes: what is beyond is given up.
pub(super) fn bound(index: &mut Index, options: &TierOptions) {
    bound_classes(index, options);
    bound_tenants(index, options);
}

fn bound_classes(index: &mut Index, options: &TierOptions) {
    for (number, class) in options.classes.iter().enumerate() {
        let id = ClassId(u8::try_from(number).unwrap_or(0));
        let bytes = index.class_bytes(id);
        if bytes > class.bytes {
            let over = bytes - (class.bytes - class.bytes / SLACK);
            let of = kept(index, |entry| entry.class == id);
            give_up(index, of, over);
        }
    }
}

fn bound_tenants(index: &mut Index, options: &TierOptions) {
    let greedy = index.tenants().filter(|&(tenant, bytes)| bytes > options.tenant_bytes(tenant));
    for (tenant, bytes) in greedy.collect::<Vec<_>>() {
        let most = options.tenant_bytes(tenant);
        let of = kept(index, |entry| index.tenant_of(entry) == tenant);
        give_up(index, of, bytes - (most - most / SLACK));
    }
}

/// Kept blocks with that property, those that go first first.
fn kept(index: &Index, property: impl Fn(&Entry) -> bool) -> Vec<(Rank, Place)> {
    let places = index.packs().flat_map(|(number, pack)| {
        let entries = pack.entries.iter().enumerate();
        entries.map(move |(entry, held)| (held, Place { pack: number, entry: entry as u32 }))
    });
    let kept = places.filter(|(held, _)| held.state == State::Kept && property(held));
    let mut kept: Vec<_> = kept.map(|(held, place)| (held.rank(), place)).collect();
    kept.sort_unstable();
    kept
}

/// Gives up the first of `candidates`, until they were so many bytes.
fn give_up(index: &mut Index, candidates: Vec<(Rank, Place)>, bytes: u64) {
    let mut freed = 0;
    for (_, place) in candidates {
        if freed >= bytes {
            break;
        }
        freed += u64::from(index.entry(place).bytes);
        index.set_state(place, State::GivenUp);
    }
}
