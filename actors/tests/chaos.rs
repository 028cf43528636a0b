//! Two hundred seeds of trouble, and one new one. A request may end with an error, never with wrong tokens; blocks and
//! leases are back at zero each time; the same seed gives the same log twice.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::double::DOUBLE;
use common::{Answer, World, alone, plan, prompts, resources, submit};
use millstream_actors::assemble::Resources;
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::Faults;
use millstream_topology::Plan;

const TOKENS: u32 = 12;

/// Prompts of all lengths, and three that begin, or are, like one of them.
fn requests() -> Vec<Submit> {
    let mut prompts = prompts();
    for (like, same, more) in [(7, 100, 0), (7, 64, 30), (5, 70, 20)] {
        let beginning = prompts[like][..same].to_vec();
        prompts.push([beginning, vec![like as u32; more]].concat());
    }
    (1u64..).zip(prompts).map(|(id, prompt)| submit(id, &prompt, TOKENS)).collect()
}

/// Topologies that the seeds take turns at: one group, two groups, small memory, several groups of each, steps that are planned ahead.
fn plans(small: &str) -> Vec<Plan> {
    let small = format!("memory = \"{small}\"");
    vec![
        plan("chunk_tokens = 16", "joined = true"),
        plan("chunk_tokens = 24", "groups = 2\njoined = true"),
        plan("chunk_tokens = 32\nlease = \"200ms\"", "joined = false"),
        plan(&format!("{small}\nchunk_tokens = 7"), &format!("joined = false\n{small}")),
        plan("groups = 2\nchunk_tokens = 64", "groups = 2\njoined = false"),
        plan("chunk_tokens = 16", &format!("joined = true\nplan_ahead = true\n{small}")),
        plan("chunk_tokens = 32\nplan_ahead = true", "joined = false\nplan_ahead = true"),
    ]
}

/// Lanes inside a unit do not lose messages: both ends live and die together.
fn faults(seed: u64) -> Faults {
    let mut faults = Faults::from_seed(seed);
    faults.lossless = ["prefill", "decode", "prefill.0", "prefill.1", "decode.0", "decode.1"]
        .iter()
        .flat_map(|group| [format!("{group}.steps"), format!("{group}.done")])
        .collect();
    if !seed.is_multiple_of(8) {
        faults.spare = vec!["gateway".to_owned()];
    }
    faults
}

struct Run {
    digest: u64,
    restarts: u64,
    answers: BTreeMap<RequestId, Answer>,
}

fn run(seed: u64, plan: &Plan, resources: &Resources, faults: Faults) -> Run {
    let mut world = World::new(plan, resources, seed, faults);
    for (n, request) in requests().into_iter().enumerate() {
        let id = request.request;
        world.submit_at(Duration::from_millis(n as u64 * (seed % 7)), request);
        if (seed + n as u64).is_multiple_of(11) {
            world.abandon_at(Duration::from_millis(n as u64 * (seed % 7) + seed % 29), id);
        }
    }
    world.run();
    let failed = world.sim.failed().is_some();
    if !failed {
        world.assert_quiet(&format!("seed {seed}"));
    }
    let restarts = world.sim.seats().iter().map(|seat| seat.restarts).sum();
    Run { digest: world.sim.digest(), restarts, answers: world.answers }
}

fn judge(seed: u64, expected: &BTreeMap<RequestId, Answer>, run: &Run) -> (usize, usize) {
    let mut finished = 0;
    for (id, answer) in &run.answers {
        let wanted = &expected[id];
        match &answer.outcome {
            Some(Outcome::Finished(_)) => {
                assert_eq!(answer.tokens, wanted.tokens, "seed {seed}, {id:?}");
                assert_eq!(answer.text, wanted.text, "seed {seed}, {id:?}");
                finished += 1;
            }
            _ => {
                assert!(
                    wanted.tokens.starts_with(&answer.tokens),
                    "seed {seed}, {id:?}: wrong tokens before the error"
                );
                assert!(
                    wanted.text.starts_with(&answer.text),
                    "seed {seed}, {id:?}: wrong text before the error"
                );
            }
        }
    }
    (finished, run.answers.len())
}

#[test]
fn two_hundred_seeds_and_a_new_one() {
    many_seeds("tiny-llama", "300KiB");
}

#[test]
fn two_hundred_seeds_for_a_model_with_a_state() {
    many_seeds(DOUBLE, "10KiB");
}

fn many_seeds(model: &str, small: &str) {
    let resources = resources(model);
    let expected = alone(&resources, &requests());
    assert!(expected.values().all(|answer| answer.tokens.len() == TOKENS as usize), "{expected:?}");
    let plans = plans(small);
    let new = u64::from(std::process::id()) * 1_000_003;
    println!("the new seed is {new}");
    let (mut finished, mut all) = (0, 0);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for seed in (0..200).chain([new]) {
        let plan = &plans[seed as usize % plans.len()];
        let first = run(seed, plan, &resources, faults(seed));
        let (done, of) = judge(seed, &expected, &first);
        finished += done;
        all += of;
        for answer in first.answers.values() {
            *outcomes.entry(format!("{:?}", answer.outcome)).or_default() += 1;
        }
        if seed.is_multiple_of(5) {
            assert_eq!(
                first.digest,
                run(seed, plan, &resources, faults(seed)).digest,
                "seed {seed}: the same log twice"
            );
        }
    }
    println!("{finished} of {all} requests finished in spite of the faults: {outcomes:?}");
    assert!(finished * 2 > all, "most requests must survive: {finished} of {all}");
}

/// Where no message is lost, no death costs a request: whoever dies but the gateway, every answer is complete.
#[test]
fn without_lost_messages_every_request_is_answered() {
    deaths_only("tiny-llama", "300KiB");
}

#[test]
fn without_lost_messages_every_request_of_a_model_with_a_state_is_answered() {
    deaths_only(DOUBLE, "10KiB");
}

fn deaths_only(model: &str, small: &str) {
    let resources = resources(model);
    let expected = alone(&resources, &requests());
    let plans = plans(small);
    let new = u64::from(std::process::id()) * 1_000_003;
    println!("the new seed is {new}");
    let mut crashes = 0;
    for seed in (1000..1120).chain([new]) {
        let crash = 0.01 + 0.04 * (seed % 7) as f64 / 7.0;
        let mut faults = Faults { crash, crashes_max: 5, ..faults(seed) };
        faults.lossless = vec!["*".to_owned()];
        faults.spare = vec!["gateway".to_owned()];
        let first = run(seed, &plans[seed as usize % plans.len()], &resources, faults);
        crashes += first.restarts;
        judge(seed, &expected, &first);
        for (id, answer) in &first.answers {
            let fine = matches!(answer.outcome, Some(Outcome::Finished(_) | Outcome::Cancelled));
            assert!(fine, "seed {seed}, {id:?}: {:?} after {} tokens", answer.outcome, answer.tokens.len());
        }
    }
    assert!(crashes > 200, "only {crashes} deaths in all");
}
