//! The same answer on every path: joined or split, steps planned ahead or not, any chunk size, any number of requests sharing the batch, memory so
//! small that sequences are preempted, blocks of earlier requests reused or not. Compared token for token with the
//! answer that a request gets alone. For models with a state the replay is exact here, so it holds for them too.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::double::DOUBLE;
use common::{Answer, World, alone, plan, prompts, resources, submit};
use millstream_actors::assemble::Resources;
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::Faults;
use millstream_topology::Plan;

fn same(name: &str, plans: &[(&str, Plan)]) {
    let resources = resources(name);
    let requests: Vec<Submit> = (1u64..)
        .zip(prompts().into_iter().chain(prompts()))
        .map(|(id, prompt)| submit(id, &prompt, 20))
        .collect();
    let expected = alone(&resources, &requests);
    for (what, plan) in plans {
        for together in [1, 4, 16] {
            let Batch { answers, preempted, found } = batch(plan, &resources, &requests, together);
            match *what {
                "preempted" => assert!(preempted > 0 || together < 16, "memory is too large to preempt"),
                "nothing reused" => assert_eq!((preempted, found), (0, 0)),
                _ => assert!(preempted == 0 && found > 0, "{what}: {preempted} preempted, {found} found"),
            }
            for (id, answer) in &answers {
                assert!(matches!(answer.outcome, Some(Outcome::Finished(_))), "{what}: {answer:?}");
                assert_eq!(answer, &expected[id], "{name}, {what}, {together} together, {id:?}");
            }
        }
    }
}

struct Batch {
    answers: BTreeMap<RequestId, Answer>,
    preempted: u64,
    found: u64,
}

fn batch(plan: &Plan, resources: &Resources, requests: &[Submit], together: usize) -> Batch {
    let mut world = World::new(plan, resources, 1, Faults::none());
    for (n, request) in requests.iter().enumerate() {
        world.submit_at(Duration::from_secs((n / together) as u64), request.clone());
    }
    world.run();
    world.assert_quiet("batch");
    let gauges = &world.assembly.gauges;
    let preempted = gauges.iter().map(|group| group.preemptions.get()).sum();
    let found = gauges.iter().map(|group| group.tokens_found.get()).sum();
    Batch { answers: world.answers, preempted, found }
}

/// `small` is memory in which sixteen sequences do not fit at once.
fn plans(small: &str) -> Vec<(&'static str, Plan)> {
    let preempted = format!("joined = true\nblock_size = 4\nmemory = \"{small}\"");
    vec![
        ("joined, chunk 1", plan("chunk_tokens = 1", "joined = true")),
        ("joined, chunk 7", plan("chunk_tokens = 7", "joined = true")),
        ("joined, chunk 64", plan("chunk_tokens = 64", "joined = true")),
        ("joined, whole", plan("chunk_tokens = 4096", "joined = true")),
        ("joined, by time", plan("step_time = \"2ms\"", "joined = true")),
        ("joined, two groups", plan("", "joined = true\ngroups = 2")),
        ("split, by time", plan("step_time = \"1ms\"", "joined = false")),
        ("split, chunk 1", plan("chunk_tokens = 1", "joined = false")),
        ("split, chunk 7", plan("chunk_tokens = 7", "joined = false")),
        ("split, whole", plan("chunk_tokens = 4096", "joined = false")),
        ("two of each", plan("groups = 2", "groups = 2\njoined = false")),
        ("preempted", plan("block_size = 4", &preempted)),
        ("joined, ahead", plan("chunk_tokens = 7", "joined = true\nplan_ahead = true")),
        ("split, ahead", plan("plan_ahead = true", "joined = false\nplan_ahead = true")),
        ("preempted", plan("block_size = 4", &format!("{preempted}\nplan_ahead = true"))),
        ("nothing reused", plan("prefix_reuse = false", "joined = false\nprefix_reuse = false")),
        ("other blocks", plan("block_size = 8", "joined = false\nblock_size = 8")),
    ]
}

#[test]
fn llama() {
    same("tiny-llama", &plans("400KiB"));
}

#[test]
fn gemma3_with_its_windows() {
    same("tiny-gemma3", &plans("400KiB"));
}

/// Windows in a slot beside the blocks: replayed behind what was found, handed over, given up and begun again.
#[test]
fn a_model_with_a_state() {
    same(DOUBLE, &plans("16KiB"));
}
