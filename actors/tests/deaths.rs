//! One death at a time, in the middle of many streams, and one client that goes away. Every answer but those of a dead
//! gateway is complete and the same as without the death.

mod common;

use std::time::Duration;

use common::double::DOUBLE;
use common::{World, alone_with, plan, plan_with, prompts, resources, submit};
use millstream_actors::request::{Outcome, Submit};
use millstream_runtime::{Faults, Time};

/// Twenty requests whose answers take longer than the deaths below.
fn twenty() -> Vec<Submit> {
    let prompts = prompts();
    (1u64..=20).map(|id| submit(id, &prompts[id as usize % prompts.len()], 96)).collect()
}

/// A model, and what the file says of it.
type Case = (&'static str, &'static str);

/// Models without and with a state; a truncated prompt is cut at the same token when the answer has begun.
const CASES: [Case; 3] = [("tiny-llama", ""), (DOUBLE, ""), (DOUBLE, "decoder_truncation = true")];

/// Runs the twenty and kills `victim` after each of `after` milliseconds, while streams are open.
fn kill((model, top): Case, victim: &str, after: &[u64], joined: bool) -> World {
    let resources = resources(model);
    let decode = format!("joined = {joined}\nmemory = \"8MiB\"");
    let plan = plan_with([top, ""], "chunk_tokens = 64\nmemory = \"8MiB\"", &decode);
    let mut world = World::new(&plan, &resources, 5, Faults::none());
    for request in twenty() {
        world.submit_at(Duration::ZERO, request);
    }
    for &ms in after {
        world.sim.run_until(Time::ZERO + Duration::from_millis(ms));
        world.read();
        assert!(world.answers.len() >= 10, "{victim}: {} streams have begun at {ms} ms", world.answers.len());
        assert!(
            world.answers.values().any(|answer| answer.outcome.is_none()),
            "{victim}: nothing left at {ms} ms"
        );
        assert!(world.sim.kill(victim));
    }
    world.run();
    world.assert_quiet(victim);
    world
}

#[test]
fn whoever_dies_the_streams_go_on() {
    for case in CASES {
        streams_go_on(case);
    }
}

fn streams_go_on(case: Case) {
    let expected = alone_with(case.1, &resources(case.0), &twenty());
    for joined in [true, false] {
        for victim in
            ["decode", "decode.rank", "prefill", "prefill.rank", "router", "tokenizer", "detokenizer"]
        {
            if joined && victim.starts_with("prefill") {
                continue;
            }
            let world = kill(case, victim, &[70, 110], joined);
            for (id, answer) in &world.answers {
                assert_eq!(answer, &expected[id], "{case:?}, {victim}, joined {joined}: {id:?}");
            }
            assert_eq!(world.answers.len(), 20);
        }
    }
}

#[test]
fn when_the_gateway_dies_nothing_is_left_behind() {
    for case in CASES {
        let world = kill(case, "gateway", &[70], false);
        let cut = world.answers.values().any(|answer| answer.outcome.is_none());
        assert!(cut, "some were cut off in the middle");
    }
}

/// That a client is gone is heard before what it asked, when both wait at the door.
#[test]
fn a_client_that_goes_away_at_once_costs_no_work() {
    let resources = resources("tiny-llama");
    for joined in [true, false] {
        let plan = plan("", &format!("joined = {joined}"));
        let mut world = World::new(&plan, &resources, 9, Faults::none());
        for n in 1..5 {
            let request = submit(n, &prompts()[n as usize], 400);
            let id = request.request;
            world.submit_at(Duration::ZERO, request);
            world.abandon_at(Duration::ZERO, id);
        }
        world.run();
        assert_eq!(world.answers.len(), 4);
        for (id, answer) in &world.answers {
            assert_eq!(answer.outcome, Some(Outcome::Cancelled), "{id:?}");
            assert!(answer.tokens.is_empty(), "{id:?} was answered, and nobody was there");
        }
        world.assert_quiet("the clients went away");
    }
}

#[test]
fn a_client_that_goes_away_stops_its_work_within_one_step() {
    let resources = resources("tiny-llama");
    for joined in [true, false] {
        let plan = plan("", &format!("joined = {joined}"));
        let mut world = World::new(&plan, &resources, 9, Faults::none());
        let request = submit(1, &prompts()[6], 400);
        let id = request.request;
        world.submit_at(Duration::ZERO, request);
        let gone = Duration::from_millis(30);
        world.abandon_at(gone, id);
        world.sim.run_until(Time::ZERO + gone);
        let steps = |world: &World| world.assembly.gauges.iter().map(|group| group.steps.get()).sum::<u64>();
        let before = steps(&world);
        assert!(before > 10, "the answer is on its way");
        world.run();
        assert!(steps(&world) <= before + 1, "{} steps after the client had gone", steps(&world) - before);
        assert_eq!(world.answers[&id].outcome, Some(Outcome::Cancelled));
        assert!(world.answers[&id].tokens.len() > 10);
        world.assert_quiet("the client went away");
    }
}
