//! Models whose sliding windows may be kept in the state instead of in blocks: the same answers either way, but where the
//! file asks for an approximation. What is expected always comes from windows in blocks.

mod common;

use common::stateful::{Case, requests};
use common::{COST, alone, plan_with, resources};
use millstream_actors::assemble::{Driver, assemble};

const STATE: &str = "windows = \"state\"";

/// Windows of sixteen in four layers of six, and in two of four.
const CASES: [Case; 2] = [
    Case { model: "tiny-gemma3", top: "", cache: STATE, exact: 4 * 15 },
    Case { model: "tiny-gpt-oss", top: "", cache: STATE, exact: 2 * 15 },
];

#[test]
fn the_answer_is_the_same_on_every_path() {
    CASES.iter().for_each(Case::is_the_same_on_every_path);
}

#[test]
fn a_death_does_not_show() {
    CASES.iter().for_each(Case::goes_on_after_a_death);
}

#[test]
fn a_preemption_does_not_show() {
    CASES.iter().for_each(Case::goes_on_after_a_preemption);
}

/// One window is not enough to see what several layers saw: answers differ, and only where the usage says so.
#[test]
fn a_bounded_replay_is_labelled() {
    for case in CASES {
        let expected = alone(&resources(case.model), &requests());
        for (replay, tokens) in [("bounded", 16), ("2 windows", 32.min(case.exact))] {
            let cache = format!("{STATE}\nreplay = \"{replay}\"");
            let plan = plan_with(["", &cache], "memory = \"32MiB\"", "joined = false\nmemory = \"32MiB\"");
            let world = case.run(&plan, &requests(), 1);
            let what = format!("{}, {replay}", case.model);
            case.assert_replayed(&world, tokens, &what);
            let differing = world.answers.iter().filter(|(id, answer)| *answer != &expected[*id]);
            let differing: Vec<_> = differing.map(|(id, _)| id).collect();
            println!("{what}: {differing:?} differ");
            assert!(differing.iter().all(|id| world.replayed[*id] > 0), "{what}: {differing:?}");
            assert_eq!(differing.is_empty(), tokens == case.exact, "{what}: {differing:?}");
        }
    }
}

#[test]
fn a_model_that_leaves_no_choice_is_refused_or_does_as_it_always_does() {
    let plan = plan_with(["", STATE], "", "joined = true\nmemory = \"32MiB\"");
    let assembled = |model| assemble(&plan, &resources(model), Driver::Sim(COST));
    let refused = assembled("tiny-llama").err().expect("it is refused").to_string();
    let said = "cache.windows is \"state\", and this model has no layers with a window beside layers that see everything";
    assert_eq!(refused, format!("{said}: leave it out"));
    assert!(assembled("tiny-deepseek-v41/ckpt-w16").is_ok(), "its windows are there always");
}
