//! The prefix store through the whole graph: what one group computed is found by another, and by the same one after its
//! death; answers are what they would have been, whoever dies, is slow, or forgets.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use common::stateful::text;
use common::{World, alone, alone_with, plan_with, resources, submit};
use millstream_actors::assemble::{LastingStore, Resources, kv_layout};
use millstream_actors::request::{Outcome, Submit};
use millstream_actors::store::Stamp;
use millstream_runtime::blob::{Blob, Memory};
use millstream_runtime::{Faults, Time};
use millstream_topology::Plan;

const V41: &str = "tiny-deepseek-v41/ckpt-w16";
/// Eight layers with windows of sixteen.
const EXACT: u32 = 8 * 16;
const TIERS: [&str; 2] = ["", "tiers = [{ host = \"64MiB\" }]"];

/// `count` prompts with one beginning, one of each three longer than the others share.
fn requests(count: u64) -> Vec<Submit> {
    let shared = text(200, 1);
    let prompt = |id: u64| [&shared[..], &text(5 + 20 * (id as usize % 3), id as u32 + 2)].concat();
    (1..=count).map(|id| submit(id, &prompt(id), 6)).collect()
}

/// A death after each request: all that is found later was kept outside the group.
#[test]
fn what_a_dead_group_computed_is_not_computed_again() {
    for (model, replay) in [("tiny-llama", 0), (V41, EXACT)] {
        let resources = resources(model);
        let requests = requests(4);
        let expected = alone(&resources, &requests);
        let memory = "memory = \"32MiB\"";
        let plan =
            plan_with(TIERS, &format!("chunk_tokens = 64\n{memory}"), &format!("joined = true\n{memory}"));
        let mut world = World::new(&plan, &resources, 1, Faults::none());
        for request in &requests {
            let start = world.sim.now() + Duration::from_secs(1);
            world.submit_at(start.saturating_since(Time::ZERO), request.clone());
            world.sim.run_until(start + Duration::from_secs(1));
            world.read();
            let answered = world.answers.get(&request.request).is_some_and(|answer| answer.outcome.is_some());
            assert!(answered, "nobody waits for a wake that is for others");
            world.run();
            world.assert_quiet(model);
            assert!(world.sim.kill("decode"));
        }
        assert_eq!(world.answers, expected, "{model}");
        let cached: Vec<u32> = world.cached.values().copied().collect();
        // The third prompt ends in the block in which the fourth leaves it.
        let tail = if replay == 0 { 8 } else { 0 };
        assert_eq!(cached, [0, 192 - replay, 192 - replay, 192 - replay + tail], "{model}");
        assert_eq!(world.replayed.values().sum::<u32>(), 3 * replay);
        assert!(world.sum(|group| &group.blocks_fetched) >= 12, "twelve blocks of the beginning");
    }
}

/// A group that has nothing else to do asks for what was found as soon as it is told of it.
#[test]
fn what_is_found_is_not_waited_for() {
    let resources = resources("tiny-llama");
    let mut world = World::new(&plan_with(TIERS, "", "joined = true"), &resources, 1, Faults::none());
    for request in requests(3) {
        let (id, begun) = (request.request, world.sim.now());
        world.submit_at(begun.saturating_since(Time::ZERO), request);
        world.run_for(Duration::from_secs(10), &[id]);
        let took = world.sim.now().saturating_since(begun);
        assert!(took < Duration::from_millis(300), "{id:?}: {took:?}, {} found", world.cached[&id]);
        world.run_for(Duration::from_secs(1), &[]);
        assert!(world.sim.kill("decode"));
    }
    assert!(world.sum(|group| &group.blocks_fetched) >= 12);
}

/// Split and with two prefill groups: a prompt that goes to the other group finds what the first one computed.
#[test]
fn any_group_finds_what_another_computed() {
    let resources = resources("tiny-llama");
    let requests = requests(12);
    let expected = alone(&resources, &requests);
    let plan = plan_with(TIERS, "groups = 2\nchunk_tokens = 64", "joined = false\ngroups = 2");
    for apart in [Duration::ZERO, Duration::from_millis(2), Duration::from_secs(1)] {
        let mut world = World::new(&plan, &resources, 1, Faults::none());
        for (n, request) in (0..).zip(&requests) {
            world.submit_at(apart * n, request.clone());
        }
        world.run();
        world.assert_quiet("two and two");
        assert_eq!(world.answers, expected, "{apart:?}");
    }
}

/// Deaths of everyone, lost and late messages: the same answers, and nothing stays behind.
#[test]
fn chaos_costs_time_and_nothing_else() {
    let resources = resources("tiny-llama");
    let requests = requests(16);
    let expected = alone_with("", &resources, &requests);
    let mut finished = 0;
    for seed in 0..24 {
        let mut faults = Faults::from_seed(seed);
        let groups = ["prefill.0", "prefill.1", "decode"].iter();
        faults.lossless =
            groups.flat_map(|group| [format!("{group}.steps"), format!("{group}.done")]).collect();
        faults.spare = vec!["gateway".to_owned()];
        let small = "memory = \"256KiB\"";
        let (prefill, decode) = if seed % 2 == 0 {
            (format!("chunk_tokens = 32\n{small}"), format!("joined = true\n{small}"))
        } else {
            (format!("chunk_tokens = 32\ngroups = 2\n{small}"), format!("joined = false\n{small}"))
        };
        let host = ["", if seed % 3 == 0 { "tiers = [{ host = \"100KiB\" }]" } else { TIERS[1] }];
        let plan = plan_with(["[limits]\nrestarts = 1000", host[1]], &prefill, &decode);
        let mut world = World::new(&plan, &resources, seed, faults);
        for (n, request) in (0..).zip(&requests) {
            world.submit_at(Duration::from_millis(15) * n, request.clone());
        }
        for (n, victim) in (1..).zip(["cache", "decode", "cache", "router"]) {
            world.sim.run_until(Time::ZERO + Duration::from_millis(40) * n);
            world.read();
            world.sim.kill(victim);
        }
        world.run();
        world.assert_quiet(&format!("seed {seed}"));
        for (id, answer) in &world.answers {
            if matches!(answer.outcome, Some(Outcome::Finished(_))) {
                assert_eq!(answer, &expected[id], "seed {seed}");
                finished += 1;
            }
        }
    }
    assert!(finished > 24 * requests.len() / 2, "{finished} finished");
}

/// Tokens found for each request, each by a process of its own that has what the others left in `blob`.
fn one_by_one(blob: &Arc<dyn Blob>, plan: &Plan, resources: &Resources, requests: &[Submit]) -> Vec<u32> {
    let expected = alone(resources, requests);
    let found = |(n, request): (u32, &Submit)| {
        let store = LastingStore {
            blob: Arc::clone(blob),
            model: [7; 32],
            writer: Arc::new(AtomicU64::new(n.into())),
            began: Stamp(1_000 + n),
        };
        let resources = Resources { store: Some(store), ..resources.clone() };
        let mut world = World::new(plan, &resources, 1, Faults::none());
        world.submit_at(Duration::from_secs(1), request.clone());
        world.run();
        world.assert_quiet("");
        assert_eq!(world.answers[&request.request], expected[&request.request]);
        world.cached[&request.request]
    };
    (0..).zip(requests).map(found).collect()
}

/// Of a beginning that host memory does not hold, as much comes up as it does.
#[test]
fn a_beginning_larger_than_host_memory_comes_up_in_part() {
    let resources = resources("tiny-llama");
    let (memory, five) = ("memory = \"32MiB\"", 5);
    let plan = |host: usize| {
        let tiers = format!("tiers = [{{ host = \"{host}B\" }}, {{ disk = \"kv\" }}]");
        plan_with(["", &tiers], &format!("chunk_tokens = 64\n{memory}"), &format!("joined = true\n{memory}"))
    };
    let layout = kv_layout(&plan(1 << 20), resources.model.facts(), 16).expect("the standard one");
    let blob: Arc<dyn Blob> = Arc::new(Memory::new());
    // Packs have something between blocks, which counts too.
    let plan = plan(five * layout.bytes_per_block() + 100);
    assert_eq!(one_by_one(&blob, &plan, &resources, &requests(2)), [0, 16 * five as u32]);
}

/// The whole process dies after each request; the folder is all that is left.
#[test]
fn the_next_process_finds_what_this_one_wrote() {
    let blob: Arc<dyn Blob> = Arc::new(Memory::new());
    for (model, replay) in [("tiny-llama", 0), (V41, EXACT)] {
        let resources = resources(model);
        let requests = requests(4);
        let memory = "memory = \"32MiB\"";
        let tiers = ["", "tiers = [{ host = \"1MiB\" }, { disk = \"kv\" }]"];
        let plan =
            plan_with(tiers, &format!("chunk_tokens = 64\n{memory}"), &format!("joined = true\n{memory}"));
        let cached = one_by_one(&blob, &plan, &resources, &requests);
        assert_eq!(cached, [0, 192 - replay, 192 - replay, 192 - replay], "{model}");
    }
}
