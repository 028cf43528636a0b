//! What holds for a real model that keeps a state beside its blocks: joined, split, in chunks, found and replayed exactly,
//! preempted, after deaths, it says what it says alone with nothing reused.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_actors::assemble::{Resources, kv_layout};
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::{Faults, Time};
use millstream_topology::Plan;

use super::{Answer, World, alone_with, plan_with, resources, submit};

/// Tokens in a block.
const BLOCK: usize = 16;

/// A model, and what the file says of it.
pub struct Case {
    pub model: &'static str,
    /// Lines at the top of the file.
    pub top: &'static str,
    /// Lines of its `cache`.
    pub cache: &'static str,
    /// Tokens of an exact replay.
    pub exact: usize,
}

/// Ids that are text for the vocabularies of all tiny models.
pub fn text(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|n| (n * 37 + (n / 7) * seed + seed * 101) % 230 + 20).collect()
}

/// Tokens that each request after those before it finds, in whole blocks.
const FOUND: [usize; 7] = [0, 0, 0, 176, 80, 208, 208];

/// Short prompts and long ones; some begin like a long one.
pub fn requests() -> Vec<Submit> {
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

/// Every answer is whole, and the one expected.
pub fn assert_same(world: &World, expected: &BTreeMap<RequestId, Answer>, what: &str) {
    assert_eq!(world.answers.len(), expected.len(), "{what}");
    for (id, answer) in &world.answers {
        assert!(matches!(answer.outcome, Some(Outcome::Finished(_))), "{what}: {answer:?}");
        assert_eq!(answer, &expected[id], "{what}: {id:?}");
    }
}

impl Case {
    fn resources(&self) -> Resources {
        resources(self.model)
    }

    /// With lines of the tables of prefill and decode, and much memory.
    pub fn plan(&self, prefill: &str, decode: &str) -> Plan {
        let memory = "memory = \"32MiB\"";
        plan_with([self.top, self.cache], &format!("{prefill}\n{memory}"), &format!("{decode}\n{memory}"))
    }

    /// Runs the requests, so many at the same time.
    pub fn run(&self, plan: &Plan, requests: &[Submit], together: usize) -> World {
        let mut world = World::new(plan, &self.resources(), 1, Faults::none());
        for (n, request) in requests.iter().enumerate() {
            world.submit_at(Duration::from_secs((n / together) as u64), request.clone());
        }
        world.run();
        world.assert_quiet(self.model);
        assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0), "nobody died");
        world
    }

    pub fn is_the_same_on_every_path(&self) {
        let expected = alone_with(self.top, &self.resources(), &requests());
        for (prefill, decode) in [
            ("chunk_tokens = 64", "joined = true"),
            ("chunk_tokens = 7", "joined = false"),
            ("chunk_tokens = 4096\ngroups = 2", "joined = false"),
        ] {
            for together in [1, 7] {
                let world = self.run(&self.plan(prefill, decode), &requests(), together);
                let what = format!("{} {} {prefill}, {decode}, {together} together", self.model, self.top);
                assert_same(&world, &expected, &what);
                if together == 1 && !prefill.contains("groups") {
                    self.assert_replayed(&world, self.exact, &what);
                }
            }
        }
    }

    /// What the usage says, where one request came after the other.
    pub fn assert_replayed(&self, world: &World, replay: usize, what: &str) {
        let worth = FOUND.map(|found| if found > replay { found } else { 0 });
        let numbers = |map: &BTreeMap<RequestId, u32>| map.values().map(|&n| n as usize).collect::<Vec<_>>();
        assert_eq!(numbers(&world.replayed), worth.map(|found| found.min(replay)), "{what}: replayed");
        assert_eq!(numbers(&world.cached), worth.map(|found| found.saturating_sub(replay)), "{what}: cached");
    }

    pub fn goes_on_after_a_death(&self) {
        let (resources, requests) = (self.resources(), requests());
        let expected = alone_with(self.top, &resources, &requests);
        for (decode, victim) in
            [("joined = true", "decode"), ("joined = false", "prefill"), ("joined = false", "decode.rank")]
        {
            let plan = self.plan("chunk_tokens = 32", decode);
            let mut world = World::new(&plan, &resources, 1, Faults::none());
            for request in requests.clone() {
                world.submit_at(Duration::ZERO, request);
            }
            world.sim.run_until(Time::ZERO + Duration::from_millis(30));
            assert!(world.sim.kill(victim));
            world.run();
            world.assert_quiet(victim);
            assert_same(&world, &expected, &format!("{} {} {victim}", self.model, self.top));
        }
    }

    /// Three at a time in memory that three such sequences outgrow.
    pub fn goes_on_after_a_preemption(&self) {
        let resources = self.resources();
        let layout = kv_layout(&self.plan("", ""), resources.model.facts(), BLOCK as u32).expect("a layout");
        // Slots take half of it, so a sequence's share of the blocks are the bytes of a slot too.
        let memory = 6 * layout.bytes_per_slot() as u64;
        let length = layout.bytes_per_slot() * BLOCK / layout.bytes_per_block() * 4 / 3;
        let prompts = (1..=6).map(|id| (id, text(length / 3, id as u32)));
        let requests: Vec<Submit> =
            prompts.map(|(id, prompt)| submit(id, &prompt, (length - length / 3) as u32)).collect();
        let decode = format!("joined = true\nsequences_max = 3\nmemory = \"{}KiB\"", memory.div_ceil(1024));
        let world = self.run(&plan_with([self.top, self.cache], "", &decode), &requests, 6);
        let (preempted, replayed) = (world.sum(|g| &g.preemptions), world.sum(|g| &g.tokens_replayed));
        println!("{} of {length} tokens: {preempted} preemptions, {replayed} tokens replayed", self.model);
        assert!(preempted > 0 && world.sum(|g| &g.slots_total) == 3, "memory is too large to preempt");
        assert_same(&world, &alone_with(self.top, &resources, &requests), "preempted");
    }
}
