//! Prefix reuse through the whole graph: what many prompts begin with is computed once, answers are what they would have
//! been, and the usage says what was saved.

mod common;

use std::time::Duration;

use common::double::DOUBLE;
use common::windows::EXACT;
use common::{World, alone, plan, resources, submit};
use millstream_actors::request::{Prompt, RequestId, Submit};
use millstream_runtime::Faults;

/// Sixteen clients with one long beginning.
fn crowd() -> Vec<Submit> {
    let shared: Vec<u32> = (0..160).map(|n| (n * 37 + 3) % 600).collect();
    let prompt = |id: u64| [shared.clone(), vec![id as u32; 5]].concat();
    (1..=16).map(|id| submit(id, &prompt(id), 6)).collect()
}

/// All at the same moment, and one after the other: the beginning is computed once.
#[test]
fn sixteen_clients_with_one_beginning_cost_one_prompt() {
    one_prompt("tiny-llama", 0);
}

/// With a state, all but the first replay the end of the beginning; they wait before they begin.
#[test]
fn sixteen_clients_of_a_model_with_a_state_cost_one_prompt_and_fifteen_replays() {
    one_prompt(DOUBLE, EXACT);
}

fn one_prompt(model: &str, replay: u32) {
    let resources = resources(model);
    let requests = crowd();
    let expected = alone(&resources, &requests);
    for apart in [Duration::ZERO, Duration::from_millis(3), Duration::from_secs(1)] {
        for (prefill, decode) in
            [("chunk_tokens = 64", "joined = true"), ("chunk_tokens = 48", "joined = false")]
        {
            let mut world = World::new(&plan(prefill, decode), &resources, 1, Faults::none());
            for (n, request) in (0..).zip(&requests) {
                world.submit_at(apart * n, request.clone());
            }
            world.run();
            world.assert_quiet(decode);
            assert_eq!(world.answers, expected, "{decode}, {apart:?} apart");
            // The beginning once, then for each its own end and all tokens of its answer but the last.
            let computed = u64::from(160 + 16 * (5 + 5) + 15 * replay);
            assert_eq!(world.sum(|group| &group.tokens), computed, "{decode}, {apart:?} apart");
            assert_eq!(world.replayed.values().sum::<u32>(), 15 * replay);
            assert_eq!(world.sum(|group| &group.tokens_replayed), u64::from(15 * replay));
            let cached: Vec<u32> = world.cached.values().copied().collect();
            assert_eq!(cached.iter().sum::<u32>(), 15 * (160 - replay), "{cached:?}");
            assert_eq!(cached.iter().filter(|&&cached| cached == 0).count(), 1, "{cached:?}");
            let groups = world.assembly.gauges.len() as u64;
            assert_eq!(world.sum(|group| &group.blocks_cached), groups * 10, "one copy in each group");
        }
    }
}

/// A decode group that knows the beginning pulls the rest only, or nothing.
#[test]
fn decode_pulls_only_what_it_does_not_know() {
    let resources = resources("tiny-llama");
    let requests = crowd();
    let mut world = World::new(&plan("", "joined = false"), &resources, 1, Faults::none());
    for (n, request) in (0..).zip(&requests) {
        world.submit_at(Duration::from_secs(n), request.clone());
    }
    world.run();
    let found = |world: &World| {
        let decode = world.assembly.gauges.iter().find(|group| group.name == "decode");
        decode.map(|group| group.tokens_found.get())
    };
    assert_eq!(found(&world), Some(15 * 160));
    let Prompt::Tokens(prompt) = &*requests[0].prompt else { panic!("prompts are tokens here") };
    let whole = submit(17, &prompt[..160], 6);
    world.submit_at(Duration::from_secs(100), whole.clone());
    world.run();
    assert_eq!(found(&world), Some(16 * 160), "every block of this prompt is full and known");
    assert_eq!(world.answers[&RequestId(17)], alone(&resources, &[whole])[&RequestId(17)]);
    world.assert_quiet("nothing was pulled");
}

/// Two beginnings, two groups: each goes where it went before, unless that group has too much to do.
#[test]
fn a_prompt_goes_where_its_beginning_is_known() {
    let resources = resources("tiny-llama");
    let mut world = World::new(&plan("groups = 2", "joined = false"), &resources, 1, Faults::none());
    let prompt = |family: u32, id: u64| [vec![family; 70], vec![id as u32; 9]].concat();
    for (second, families) in [(0, [5, 6]), (1, [6, 5]), (2, [6, 5]), (3, [5, 6])] {
        for (n, family) in (0..).zip(families) {
            let id = 1 + second * 2 + n;
            world.submit_at(Duration::from_secs(second), submit(id, &prompt(family, id), 3));
        }
    }
    world.run();
    let cached: Vec<u32> = world.cached.values().copied().collect();
    assert_eq!(cached, [0, 0, 64, 64, 64, 64, 64, 64]);
    for id in 20..40 {
        world.submit_at(Duration::from_secs(10), submit(id, &prompt(5, id), 3));
    }
    world.run();
    let paid = (20..40).filter(|id| world.cached[&RequestId(*id)] == 0).count();
    assert_eq!(paid, 1, "the other group computed the beginning too, once");
}

/// A group that died knows nothing any more; whatever is found after that is found in its new life.
#[test]
fn a_restarted_group_finds_nothing_of_its_earlier_life() {
    let resources = resources("tiny-llama");
    let requests = crowd();
    let expected = alone(&resources, &requests);
    let mut world = World::new(&plan("chunk_tokens = 64", "joined = true"), &resources, 1, Faults::none());
    for request in &requests[..8] {
        world.submit_at(Duration::ZERO, request.clone());
    }
    world.run();
    assert!(world.sim.kill("decode"));
    for request in &requests[8..] {
        world.submit_at(Duration::from_secs(100), request.clone());
    }
    world.run();
    world.assert_quiet("after the death");
    assert_eq!(world.answers, expected);
    let paid = (9..=16).filter(|id| world.cached[&RequestId(*id)] == 0).count();
    assert_eq!(paid, 1, "{:?}", world.cached);
}
