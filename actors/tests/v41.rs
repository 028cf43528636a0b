//! The real thing: a tiny DeepSeek-V4.1 through the whole graph. Joined, split, in chunks, preempted, found and replayed
//! exactly, after deaths, truncated or whole: the same tokens as alone.

mod common;

use std::time::Duration;

use common::{COST, World, alone_with, plan_with, resources, submit};
use millstream_actors::assemble::{Driver, assemble};
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::{Faults, Time};

const MODEL: &str = "tiny-deepseek-v41/ckpt-w16";
/// Eight layers with windows of sixteen.
const EXACT: u32 = 8 * 16;
const MEMORY: &str = "memory = \"32MiB\"";

/// Ids that are text for this vocabulary.
fn text(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|n| (n * 37 + (n / 7) * seed + seed * 101) % 230 + 20).collect()
}

/// Short prompts and long ones; two that begin like a third, longer than a replay, and one that begins alike but shorter.
fn requests() -> Vec<Submit> {
    let long = text(210, 1);
    let behind = |shared: usize, more: usize, seed: u32| [&long[..shared], &text(more, seed)].concat();
    let prompts = [
        text(5, 2),
        long.clone(),
        text(40, 3),
        behind(180, 30, 4),
        behind(90, 20, 5),
        behind(210, 1, 6),
        long.clone(),
    ];
    (1u64..).zip(prompts).map(|(id, prompt)| submit(id, &prompt, 8)).collect()
}

/// Runs the requests, so many at the same time.
fn run(world: &mut World, together: usize) {
    for (n, request) in requests().into_iter().enumerate() {
        world.submit_at(Duration::from_secs((n / together) as u64), request);
    }
}

#[test]
fn the_answer_is_the_same_on_every_path() {
    let resources = resources(MODEL);
    for top in ["", "decoder_truncation = true"] {
        let expected = alone_with(top, &resources, &requests());
        for (prefill, decode) in [
            ("chunk_tokens = 64", format!("joined = true\n{MEMORY}")),
            ("chunk_tokens = 7", format!("joined = false\n{MEMORY}")),
            ("chunk_tokens = 4096\ngroups = 2", format!("joined = false\n{MEMORY}")),
        ] {
            for together in [1, 7] {
                let plan = plan_with([top, ""], &format!("{prefill}\n{MEMORY}"), &decode);
                let mut world = World::new(&plan, &resources, 1, Faults::none());
                run(&mut world, together);
                world.run();
                world.assert_quiet(MODEL);
                assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0), "nobody died");
                for (id, answer) in &world.answers {
                    assert!(matches!(answer.outcome, Some(Outcome::Finished(_))), "{answer:?}");
                    assert_eq!(answer, &expected[id], "{top} {prefill}, {decode}, {together}: {id:?}");
                }
                let replayed: Vec<u32> = world.replayed.values().copied().collect();
                println!("{top} {prefill} {decode} {together}: {replayed:?} of {:?}", world.cached);
                if together == 1 && !prefill.contains("groups") {
                    assert_eq!(replayed, [0, 0, 0, EXACT, 0, EXACT, EXACT]);
                    assert_eq!(world.cached[&RequestId(4)], 176 - EXACT, "eleven blocks were found");
                }
            }
        }
    }
}

#[test]
fn a_death_does_not_show() {
    let resources = resources(MODEL);
    for top in ["", "decoder_truncation = true"] {
        let expected = alone_with(top, &resources, &requests());
        for (decode, victims) in
            [("joined = true", vec!["decode"]), ("joined = false", vec!["prefill", "decode.rank"])]
        {
            for victim in victims {
                let decode = format!("{decode}\n{MEMORY}");
                let plan = plan_with([top, ""], &format!("chunk_tokens = 32\n{MEMORY}"), &decode);
                let mut world = World::new(&plan, &resources, 1, Faults::none());
                run(&mut world, 7);
                world.sim.run_until(Time::ZERO + Duration::from_millis(30));
                assert!(world.sim.kill(victim));
                world.run();
                world.assert_quiet(victim);
                assert_eq!(world.answers.len(), 7);
                for (id, answer) in &world.answers {
                    assert_eq!(answer, &expected[id], "{top} {victim}: {id:?}");
                }
            }
        }
    }
}

#[test]
fn memory_that_does_not_hold_all_at_once_is_enough() {
    let resources = resources(MODEL);
    let expected = alone_with("", &resources, &requests());
    let decode = "joined = true\nblock_size = 8\nmemory = \"400KiB\"";
    let mut world = World::new(&plan_with(["", ""], "block_size = 8", decode), &resources, 1, Faults::none());
    run(&mut world, 7);
    world.run();
    world.assert_quiet("small");
    println!(
        "{} slots, {} blocks, {} preemptions",
        world.sum(|g| &g.slots_total),
        world.sum(|g| &g.blocks_total),
        world.sum(|g| &g.preemptions)
    );
    for (id, answer) in &world.answers {
        assert_eq!(answer, &expected[id], "{id:?}");
    }
}

/// An entry of two tokens never lies in two blocks.
#[test]
fn an_odd_block_size_is_refused_with_its_cure() {
    let plan = plan_with(["", ""], "block_size = 7", "joined = true\nblock_size = 7");
    let refused = assemble(&plan, &resources(MODEL), Driver::Sim(COST)).err().expect("it is refused");
    let said = "actors.decode.block_size is 7, and this model keeps entries of two tokens: make it even";
    assert_eq!(refused.to_string(), said);
}
