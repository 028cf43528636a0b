//! Whose blocks are found by whom, and how long they are kept, through the whole graph: no tenant finds another's, in the
//! memory of a group, of the host, or on disk; and what is written bears the class of who asked.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use common::stateful::text;
use common::{World, plan_with, resources, submit};
use millstream_actors::assemble::{LastingStore, Resources, keeping};
use millstream_actors::kv::BlockHash;
use millstream_actors::request::{Keeping, Prompt, RequestId, Submit};
use millstream_actors::store::{BlockRecord, ClassId, Footer, Stamp, Tenant, Tier, TierOptions, WriterId};
use millstream_runtime::blob::{Blob, Memory, Part};
use millstream_runtime::{Faults, Time};

const DAY: u32 = 86_400;
/// Tenant and salt. The first is nobody's.
const CLIENTS: [(Option<&str>, Option<&str>); 5] =
    [(None, None), (Some("acme"), None), (Some("zoo"), None), (None, Some("a")), (Some("acme"), Some("a"))];

/// The same prompt for all.
fn ask(id: u64, keeping: Keeping) -> Submit {
    Submit { keeping, ..submit(id, &text(100, 1), 4) }
}

/// What each client finds, and what each finds who comes once more: `again` tokens.
fn found_by_all(again: u32, mut serve: impl FnMut(Submit) -> u32) {
    for (round, expected) in [(0, 0), (1, again)] {
        for (n, &(tenant, salt)) in (0..).zip(&CLIENTS) {
            let keeping = Keeping::of(ClassId(0), tenant, salt);
            let found = serve(ask(1 + round * 10 + n, keeping));
            assert_eq!(found, expected, "round {round}, {tenant:?} with {salt:?}");
        }
    }
}

#[test]
fn nobody_finds_what_another_tenant_computed_in_this_process() {
    let resources = resources("tiny-llama");
    let host = "tiers = [{ host = \"64MiB\" }]";
    // Blocks alone, blocks and what stands behind them, and what stands behind no block at all.
    for (cache, dies, tokens, again) in [("", false, 100, 96), (host, true, 100, 99), (host, true, 10, 9)] {
        let plan = plan_with(["[limits]\nrestarts = 1000", cache], "", "joined = true");
        let mut world = World::new(&plan, &resources, 1, Faults::none());
        found_by_all(again, |request| {
            let (id, prompt) = (request.request, Prompt::Tokens(text(tokens, 1)).into());
            let request = Submit { prompt, ..request };
            let at = world.sim.now() + Duration::from_secs(1);
            world.submit_at(at.saturating_since(Time::ZERO), request);
            world.sim.run_until(at + Duration::from_secs(99));
            world.read();
            // Without the group, all that is found later is the host's.
            assert!(!dies || world.sim.kill("decode"));
            world.cached[&id]
        });
    }
}

const LASTING: &str = "tiers = [{ host = \"1MiB\" }, { disk = \"kv\" }]\n\
    retention = { default = \"1d\", night = { for = \"30d\", size = \"1GiB\" } }";

/// A process of its own that serves these requests, a second apart, and then lives on for a while.
fn process(
    resources: &Resources,
    blob: &Arc<Memory>,
    (number, began): (u64, Stamp),
    asks: &[Submit],
) -> Vec<u32> {
    let blob: Arc<dyn Blob> = Arc::<Memory>::clone(blob);
    let writer = Arc::new(AtomicU64::new(number));
    let store = LastingStore { blob, model: [7; 32], writer, began };
    let resources = Resources { store: Some(store), ..resources.clone() };
    let plan = plan_with(["", LASTING], "", "joined = true");
    let mut world = World::new(&plan, &resources, 1, Faults::none());
    for (n, request) in (1..).zip(asks) {
        world.submit_at(Duration::from_secs(n), request.clone());
    }
    // Long enough for what was hit to be written down.
    world.sim.run_until(Time::ZERO + Duration::from_secs(40));
    world.read();
    asks.iter().map(|ask| world.cached[&ask.request]).collect()
}

#[test]
fn nobody_finds_what_another_tenant_left_on_disk() {
    let (resources, blob) = (resources("tiny-llama"), Arc::new(Memory::new()));
    let mut number = 0;
    found_by_all(96, |request| {
        number += 1;
        process(&resources, &blob, (number, Stamp(1_000)), &[request])[0]
    });
    let tenants: BTreeMap<Tenant, usize> =
        records(&blob).into_iter().fold(BTreeMap::new(), |mut all, (_, tenant, _)| {
            *all.entry(tenant).or_default() += 1;
            all
        });
    // Salts of one tenant are one tenant to the store, so that their bytes are counted together.
    let of = |tenant, salt| tenants.get(&Tenant::of(tenant, salt)).copied().unwrap_or(0);
    assert_eq!(of(Some("acme"), None), 2 * of(None, None), "{tenants:?}");
    assert_eq!((of(None, Some("a")), of(Some("zoo"), None)), (of(None, None), of(None, None)));
    assert_eq!(tenants.len(), 4);
}

/// Every block in a pack, with its class and tenant.
fn records(blob: &Memory) -> Vec<(String, Tenant, BlockRecord)> {
    let mut records = Vec::new();
    for object in blob.list("").expect("memory lists") {
        let Some((layout, name)) = object.name.split_once("/pack-") else { continue };
        let mut bytes = vec![0; object.bytes as usize];
        blob.read(&object.name, &mut [Part { start: 0, into: &mut bytes }]).expect("memory reads");
        let place = Footer::place(&bytes, object.bytes).expect("a whole pack");
        let layout = u128::from_str_radix(layout, 16).expect("a layout").to_be_bytes();
        let name = name.parse().expect("a pack's name");
        let footer =
            Footer::decode(&bytes[place.start as usize..], place.start, layout, name).expect("a footer");
        records.extend(footer.blocks.iter().map(|block| {
            let class = footer.classes[usize::from(block.class)].clone();
            (class, footer.tenants[usize::from(block.tenant)], *block)
        }));
    }
    records
}

#[test]
fn what_is_written_bears_the_class_and_what_is_for_memory_is_not_written() {
    let (resources, blob) = (resources("tiny-llama"), Arc::new(Memory::new()));
    let plan = plan_with(["", LASTING], "", "joined = true");
    let class = |name| ClassId(plan.cache.class_number(name).expect("a class of the plan") as u8);
    let of = |class, seed| {
        let keeping = Keeping { class, ..Keeping::default() };
        Submit { keeping, ..submit(u64::from(seed), &text(40, seed), 1) }
    };
    let asks = [of(class("night"), 1), of(class("chat"), 2), of(ClassId::MEMORY, 3), of(class("default"), 4)];
    process(&resources, &blob, (1, Stamp(1_000)), &asks);
    let mut kept: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (class, _, block) in records(&blob) {
        kept.entry(class).or_default().push(block.expires.0 / DAY);
    }
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["chat", "default", "night"]);
    assert!(kept["night"].iter().all(|days| (30..32).contains(days)), "{kept:?}");
    assert!(kept["chat"].iter().all(|days| (7..9).contains(days)), "{kept:?}");
    assert_eq!(kept.values().map(Vec::len).sum::<usize>(), 3 * 2, "{kept:?}");
}

/// Blocks of a store that are left when all has gone that has expired at a time.
fn left_at(blob: &Memory, now: Stamp) -> usize {
    let plan = plan_with(["", LASTING], "", "joined = true");
    let layout = blob.list("").expect("memory lists")[0].name.split_once('/').expect("a layout").0.to_owned();
    let layout = u128::from_str_radix(&layout, 16).expect("a layout").to_be_bytes();
    let options = TierOptions { writer: WriterId(1_000), layout, ..keeping(&plan.cache) };
    let (mut tier, names) = (Tier::new(options), records(blob).into_iter().map(|(_, _, block)| block.hash));
    let names: Vec<BlockHash> = names.collect();
    tier.refresh();
    while let Some(wish) = tier.wish() {
        tier.tell(wish.carry_out(blob), now);
    }
    tier.expire(now);
    let there = |name: &&BlockHash| tier.plan(&[**name], Tenant::default()).blocks == 1;
    names.iter().filter(there).count()
}

/// Found in the group's own memory, in the host's, or on disk: a hit counts, by the class of who hits.
#[test]
fn a_hit_refreshes_by_the_class_of_who_hits() {
    let resources = resources("tiny-llama");
    let plan = plan_with(["", LASTING], "", "joined = true");
    let of = |id, class: &str| {
        let class = ClassId(plan.cache.class_number(class).expect("a class of the plan") as u8);
        Submit { request: RequestId(id), ..ask(1, Keeping { class, ..Keeping::default() }) }
    };
    for (later, same_process) in [("default", true), ("night", true), ("night", false)] {
        let blob = Arc::new(Memory::new());
        let asks = [of(1, "default"), of(2, later)];
        if same_process {
            assert_eq!(process(&resources, &blob, (1, Stamp(1_000)), &asks), [0, 99]);
        } else {
            process(&resources, &blob, (1, Stamp(1_000)), &asks[..1]);
            assert_eq!(process(&resources, &blob, (2, Stamp(1_000)), &asks[1..]), [96]);
        }
        let left = left_at(&blob, Stamp(1_000 + 3 * DAY));
        assert_eq!(left >= 6, later == "night", "{left} of {later}, in the same process: {same_process}");
    }
}

/// What the first client wants in memory only, a later one may want to last: it is written then.
#[test]
fn what_was_for_memory_is_written_for_who_wants_it_to_last() {
    let resources = resources("tiny-llama");
    let of = |id, class| Submit { request: RequestId(id), ..ask(1, Keeping { class, ..Keeping::default() }) };
    let blob = Arc::new(Memory::new());
    let asks = [of(1, ClassId::MEMORY), of(2, ClassId::MEMORY)];
    process(&resources, &blob, (1, Stamp(1_000)), &asks);
    assert_eq!(process(&resources, &blob, (2, Stamp(1_000)), &asks[1..]), [0], "nobody wants it to last");
    process(&resources, &blob, (3, Stamp(1_000)), &[of(1, ClassId::MEMORY), of(2, ClassId(0))]);
    assert_eq!(process(&resources, &blob, (4, Stamp(1_000)), &asks[1..]), [96]);
}
