//! A group with a time budget tries some steps before it serves: they leave nothing behind, and answers are those of a group
//! that tried none. Made for real time and run on virtual time, in which no step takes any.

mod common;

use std::time::Duration;

use common::double::DOUBLE;
use common::{World, alone, plan_with, prompts, resources, submit};
use millstream_actors::assemble::Driver;
use millstream_actors::cost::Coefficients;
use millstream_actors::request::Submit;
use millstream_runtime::SimOptions;

#[test]
fn trials_leave_nothing_behind() {
    let requests: Vec<Submit> = (1u64..).zip(prompts()).map(|(id, prompt)| submit(id, &prompt, 12)).collect();
    for (model, cache) in [
        ("tiny-llama", ""),
        ("tiny-gemma3", "windows = \"state\""),
        ("tiny-deepseek-v41/ckpt-w16", ""),
        (DOUBLE, ""),
    ] {
        let resources = resources(model);
        let expected = alone(&resources, &requests);
        for decode in ["joined = true", "joined = false\nstep_time = \"10ms\""] {
            let plan = plan_with(["", cache], "step_time = \"10ms\"", decode);
            let mut world = World::driven(Driver::Live, &plan, &resources, SimOptions::default());
            assert!(world.assembly.costs.iter().all(|costs| costs.get().is_none()));
            requests.iter().for_each(|request| world.submit_at(Duration::ZERO, request.clone()));
            world.run();
            world.assert_quiet(model);
            assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0), "nobody died");
            assert!(
                world.assembly.costs.iter().all(|costs| costs.get().is_some()),
                "{model}: all were tried"
            );
            for (id, answer) in &world.answers {
                assert_eq!(answer, &expected[id], "{model}, {decode}, {id:?}");
            }
        }
    }
}

/// Who is told what steps cost tries none, and neither does who has no budget.
#[test]
fn who_knows_tries_nothing() {
    let resources = resources("tiny-llama");
    let told = Coefficients { step: 0.25, ..Coefficients::default() };
    let mut ends = Vec::new();
    for (budget, knows) in [("step_time = \"10ms\"", Some(told)), ("", None)] {
        let plan = plan_with(["", ""], budget, "joined = true");
        let mut world = World::driven(Driver::Live, &plan, &resources, SimOptions::default());
        let costs = world.assembly.costs[0].clone();
        knows.iter().for_each(|&told| costs.set(told));
        world.submit_at(Duration::ZERO, submit(1, &[5, 6, 7], 2));
        world.run();
        assert_eq!(costs.get().is_some(), knows.is_some(), "{budget}");
        ends.push(world.sim.now());
    }
    assert_eq!(ends[0], ends[1], "trials take time");
}
