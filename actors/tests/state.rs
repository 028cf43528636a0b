//! Models with a state beside their blocks, through the whole graph: what is an approximation is one only where the file
//! asks for it, says so in the usage, and does not depend on the path.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::double::DOUBLE;
use common::windows::{EXACT, KEEP, WINDOW};
use common::{Answer, World, alone, alone_with, plan_with, prompts, resources, submit};
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::Faults;
use millstream_topology::Plan;

const TRUNCATED: &str = "decoder_truncation = true";

/// Every prompt twice, one request after the other; the second finds what the first left.
fn twice() -> Vec<Submit> {
    let prompts = prompts().into_iter().chain(prompts());
    (1u64..).zip(prompts).map(|(id, prompt)| submit(id * 4 + 1, &prompt, 20)).collect()
}

fn run(plan: &Plan, requests: &[Submit], together: usize) -> World {
    let mut world = World::new(plan, &resources(DOUBLE), 1, Faults::none());
    for (n, request) in requests.iter().enumerate() {
        world.submit_at(Duration::from_secs((n / together) as u64), request.clone());
    }
    world.run();
    world.assert_quiet("state");
    assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0), "nobody died");
    world
}

fn differing(
    answers: &BTreeMap<RequestId, Answer>,
    expected: &BTreeMap<RequestId, Answer>,
) -> Vec<RequestId> {
    answers.iter().filter(|(id, answer)| *answer != &expected[id]).map(|(&id, _)| id).collect()
}

/// One window is not enough to see what three layers saw: the answers differ, and only where the usage says so.
#[test]
fn a_bounded_replay_is_labelled() {
    let expected = alone(&resources(DOUBLE), &twice());
    for decode in ["joined = true", "joined = false"] {
        for (replay, tokens) in
            [("bounded", WINDOW), ("2 windows", 2 * WINDOW), ("exact", EXACT), ("9 windows", EXACT)]
        {
            let world = run(&plan_with(["", &format!("replay = \"{replay}\"")], "", decode), &twice(), 1);
            let differing = differing(&world.answers, &expected);
            assert!(differing.iter().all(|id| world.replayed[id] > 0), "{replay}: {differing:?}");
            assert_eq!(differing.is_empty(), tokens == EXACT, "{replay}: {differing:?}");
            let replayed = world.replayed.values().filter(|&&replayed| replayed > 0);
            assert!(replayed.clone().all(|&replayed| replayed == tokens), "{replay}: {:?}", world.replayed);
            // Of the second time, those that find a block of 16 tokens: that is more than any replay here.
            assert_eq!(replayed.count(), 5, "{replay}: {:?}", world.replayed);
            let found = |id: u64| (world.cached[&RequestId(id)], world.replayed[&RequestId(id)]);
            let last = twice().len() as u64 * 4 + 1;
            assert_eq!(found(last), (96 - tokens, tokens), "{replay}: six blocks of a prompt of a hundred");
        }
    }
}

/// A truncated prompt gives another answer than a whole one, and the same on every path.
#[test]
fn a_truncated_prompt_is_cut_at_the_same_token_on_every_path() {
    let resources = resources(DOUBLE);
    let (whole, expected) = (alone(&resources, &twice()), alone_with(TRUNCATED, &resources, &twice()));
    let cut = differing(&expected, &whole);
    let long = |id: &RequestId| prompts()[(id.0 as usize / 4 - 1) % 8].len() > KEEP as usize;
    assert!(cut.iter().all(long), "prompts that are kept whole are unaffected: {cut:?}");
    assert_eq!(cut.len(), expected.keys().filter(|id| long(id)).count(), "all others show it");
    for (prefill, decode) in [
        ("chunk_tokens = 1", "joined = true"),
        ("chunk_tokens = 7", "joined = true"),
        ("chunk_tokens = 7", "joined = false"),
        ("step_time = \"1ms\"", "joined = true"),
        ("chunk_tokens = 4096", "joined = false"),
        ("block_size = 4", "joined = true\nblock_size = 4\nmemory = \"16KiB\""),
        ("prefix_reuse = false", "joined = false\nprefix_reuse = false"),
    ] {
        for together in [1, 16] {
            let world = run(&plan_with([TRUNCATED, ""], prefill, decode), &twice(), together);
            assert_eq!(differing(&world.answers, &expected), [], "{prefill}, {decode}, {together} together");
        }
    }
}

/// Where memory is small, few sequences have a slot at once; the others wait, and handovers are refused and come again.
#[test]
fn few_slots_are_enough() {
    let expected = alone(&resources(DOUBLE), &twice());
    for (prefill, decode) in [
        ("", "joined = true\nsequences_max = 1"),
        ("sequences_max = 1", "joined = false\nsequences_max = 2"),
        ("sequences_max = 4", "joined = false\nsequences_max = 1"),
        ("memory = \"12KiB\"\nblock_size = 4", "joined = false\nblock_size = 4\nmemory = \"12KiB\""),
    ] {
        let world = run(&plan_with(["", ""], prefill, decode), &twice(), 16);
        let wrong = differing(&world.answers, &expected);
        let said = wrong
            .iter()
            .map(|id| (&world.answers[id].outcome, &world.answers[id].tokens, &expected[id].tokens));
        assert!(wrong.is_empty(), "{prefill}, {decode}: {:?}", said.collect::<Vec<_>>());
        assert!(world.answers.values().all(|answer| matches!(answer.outcome, Some(Outcome::Finished(_)))));
    }
}
