//! Snapshots through the whole graph: the next turn of a conversation computes what is new in it, with no replay, and says
//! what it would have said with nothing found, whoever dies meanwhile.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::double::DOUBLE;
use common::stateful::{assert_same, text};
use common::{Answer, World, alone_with, plan_with, resources, submit};
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_runtime::{Faults, Time};
use millstream_topology::Plan;

const V41: &str = "tiny-deepseek-v41/ckpt-w16";
const TRUNCATED: &str = "decoder_truncation = true";
/// Tokens of an answer.
const TOKENS: u32 = 9;

/// A model, and what the file says of it.
#[derive(Clone, Copy)]
struct Case {
    model: &'static str,
    /// Lines of its `cache`.
    cache: &'static str,
    /// Groups find what others computed.
    tiers: bool,
}

const HOST: &str = "tiers = [{ host = \"64MiB\" }]";
const STATE: &str = "replay = \"snapshot\"\nwindows = \"state\"";
const CASES: [Case; 5] = [
    Case { model: "tiny-llama", cache: HOST, tiers: true },
    Case { model: "tiny-llama", cache: "replay = \"snapshot\"", tiers: false },
    Case { model: V41, cache: "replay = \"snapshot\"\ntiers = [{ host = \"64MiB\" }]", tiers: true },
    Case { model: "tiny-gemma3", cache: STATE, tiers: false },
    Case { model: "tiny-gpt-oss", cache: STATE, tiers: false },
];

/// A conversation: each turn's prompt is the one before, its answer, and `more` tokens.
struct Conversation {
    turns: Vec<Submit>,
    answers: BTreeMap<RequestId, Answer>,
}

impl Conversation {
    fn new(model: &str, top: &str, (first, more): (usize, [usize; 2]), id: u64) -> Self {
        let resources = resources(model);
        let (mut turns, mut answers) = (Vec::new(), BTreeMap::new());
        let mut prompt = text(first, id as u32);
        for n in 0..=more.len() as u64 {
            let turn = submit(10 * id + n, &prompt, TOKENS);
            let answer = alone_with(top, &resources, std::slice::from_ref(&turn));
            prompt.extend(answer.values().flat_map(|answer| &answer.tokens));
            prompt.extend(more.get(n as usize).map(|&more| text(more, 50 + n as u32)).unwrap_or_default());
            turns.push(turn);
            answers.extend(answer);
        }
        Self { turns, answers }
    }

    /// Tokens of a turn and its answer that were computed.
    fn computed(&self, turn: usize) -> u32 {
        let prompts: [usize; 3] = std::array::from_fn(|turn| match &*self.turns[turn].prompt {
            millstream_actors::request::Prompt::Tokens(tokens) => tokens.len(),
            _ => panic!("prompts are tokens here"),
        });
        prompts[turn] as u32 + TOKENS - 1
    }
}

/// One turn after the other.
fn run(plan: &Plan, model: &str, turns: &[Submit]) -> World {
    let mut world = World::new(plan, &resources(model), 1, Faults::none());
    for (n, turn) in (1u32..).zip(turns) {
        world.submit_at(Duration::from_secs(1) * n, turn.clone());
        world.sim.run_until(Time::ZERO + Duration::from_millis(500) + Duration::from_secs(1) * n);
        world.read();
        assert!(
            world.answers.get(&turn.request).is_some_and(|a| a.outcome.is_some()),
            "nothing waits for long"
        );
    }
    world.run();
    world.assert_quiet(model);
    assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0), "nobody died");
    world
}

fn plan(top: &str, cache: &str, prefill: &str, decode: &str) -> Plan {
    let memory = "memory = \"32MiB\"";
    plan_with([top, cache], &format!("{prefill}\n{memory}"), &format!("{decode}\n{memory}"))
}

fn numbers(map: &BTreeMap<RequestId, u32>) -> Vec<u32> {
    map.values().copied().collect()
}

/// What was computed of the turn before is found to the last token, by any group; nothing is replayed.
#[test]
fn the_next_turn_goes_on_where_the_answer_ended() {
    for Case { model, cache, tiers } in CASES {
        for first in [205, 3] {
            let talk = Conversation::new(model, "", (first, [30, 5]), 1);
            for (prefill, decode) in [
                ("chunk_tokens = 64", "joined = true"),
                ("chunk_tokens = 7", "joined = false"),
                ("groups = 2\nchunk_tokens = 64", "joined = false\ngroups = 2"),
            ] {
                let world = run(&plan("", cache, prefill, decode), model, &talk.turns);
                let what = format!("{model}, {first} tokens, {prefill}, {decode}");
                assert_same(&world, &talk.answers, &what);
                assert_eq!(numbers(&world.replayed), [0, 0, 0], "{what}");
                if tiers || decode == "joined = true" {
                    let found = [0, talk.computed(0), talk.computed(1)];
                    assert_eq!(numbers(&world.cached), found, "{what}");
                }
            }
        }
    }
}

/// The last token is computed for its logits: a state is taken back by so much.
#[test]
fn a_prompt_that_comes_again_costs_one_token() {
    for Case { model, cache, .. } in CASES {
        let prompt = text(205, 1);
        let twice: Vec<Submit> = (1..=2).map(|id| submit(4 * id, &prompt, TOKENS)).collect();
        let expected = alone_with("", &resources(model), &twice);
        for decode in ["joined = true", "joined = false"] {
            let world = run(&plan("", cache, "chunk_tokens = 64", decode), model, &twice);
            assert_same(&world, &expected, model);
            assert_eq!(
                (numbers(&world.cached), numbers(&world.replayed)),
                (vec![0, 204], vec![0, 0]),
                "{model}"
            );
        }
    }
}

/// Where no snapshot fits, enough is replayed for the same answer.
#[test]
fn without_a_snapshot_it_is_an_exact_replay() {
    let exact = 8 * 16;
    let long = text(210, 1);
    let prompts = [&long[..], &[&long[..180], &text(30, 2)].concat()];
    let requests: Vec<Submit> = (1..).zip(prompts).map(|(id, prompt)| submit(id, prompt, TOKENS)).collect();
    let expected = alone_with("", &resources(V41), &requests);
    let world = run(&plan("", "replay = \"snapshot\"", "chunk_tokens = 64", "joined = true"), V41, &requests);
    assert_same(&world, &expected, "a beginning");
    assert_eq!((numbers(&world.cached), numbers(&world.replayed)), (vec![0, 176 - exact], vec![0, exact]));
}

/// Layers that see the end of a prompt only: a snapshot is of use where they would begin behind it.
#[test]
fn a_truncated_prompt_is_gone_on_from_where_that_changes_nothing() {
    for model in [V41, DOUBLE] {
        let (found, not) = if model == V41 { ([40, 30], [5, 5]) } else { ([20, 30], [1, 2]) };
        for (more, hits) in [(found, true), (not, false)] {
            let talk = Conversation::new(model, TRUNCATED, (205, more), 1);
            for decode in ["joined = true", "joined = false"] {
                let cache = format!("replay = \"snapshot\"\n{HOST}");
                let world = run(&plan(TRUNCATED, &cache, "chunk_tokens = 64", decode), model, &talk.turns);
                assert_same(&world, &talk.answers, &format!("{model}, {decode}, {more:?}"));
                let all = [0, talk.computed(0), talk.computed(1)];
                assert_eq!(numbers(&world.cached) == all, hits, "{model} {more:?}: {:?}", world.cached);
            }
        }
    }
}

/// Of many conversations the newest are gone on from; memory is what the file says.
#[test]
fn the_budget_holds() {
    let talks: Vec<Conversation> = (1..=6).map(|id| Conversation::new(V41, "", (100, [20, 5]), id)).collect();
    let turns = |n: usize| talks.iter().map(move |talk| talk.turns[n].clone());
    let all: Vec<Submit> = turns(0).chain(turns(1)).collect();
    let cache = "replay = \"snapshot\"\nsnapshots = \"512KiB\"";
    let world = run(&plan("", cache, "chunk_tokens = 64", "joined = true"), V41, &all);
    let gauges = world.assembly.cache.as_ref().expect("a cache");
    let (bytes, count) = (gauges.snapshot_bytes.get(), gauges.snapshots.get());
    println!("{count} snapshots of {bytes} bytes, {} brought", gauges.snapshots_brought.get());
    assert!(bytes <= 512 << 10 && (2..24).contains(&count), "{count} snapshots of {bytes} bytes");
    for talk in &talks {
        for turn in &talk.turns[..2] {
            assert_eq!(world.answers[&turn.request], talk.answers[&turn.request]);
        }
    }
}

/// Deaths of everyone, lost and late messages: the same answers, and nothing stays behind.
#[test]
fn chaos_costs_time_and_nothing_else() {
    let new = u64::from(std::process::id()) * 1_000_003;
    println!("the new seed is {new}");
    for (model, cache, least) in [("tiny-llama", HOST, 41), (DOUBLE, SMALL, 10), (DOUBLE, STATE_AND_HOST, 41)]
    {
        let talks: Vec<Conversation> =
            (1..=5).map(|id| Conversation::new(model, "", (20 + 9 * id as usize, [7, 3]), id)).collect();
        let (mut finished, mut brought) = (0, 0);
        for seed in (0..40).chain([new]) {
            let mut world = chaotic(seed, model, cache);
            for (talk, at) in talks.iter().zip(0..) {
                for (turn, n) in talk.turns.iter().zip(0..) {
                    world.submit_at(Duration::from_millis(7 * at + 60 * n), turn.clone());
                }
            }
            for (n, victim) in (1..).zip(["cache", "decode", "decode.rank", "cache", "router"]) {
                world.sim.run_until(Time::ZERO + Duration::from_millis(37) * n);
                world.read();
                world.sim.kill(victim);
            }
            world.run();
            world.assert_quiet(&format!("seed {seed}"));
            brought += world.assembly.cache.as_ref().map_or(0, |cache| cache.snapshots_brought.get());
            for (id, answer) in &world.answers {
                if matches!(answer.outcome, Some(Outcome::Finished(_))) {
                    let expected = talks.iter().find_map(|talk| talk.answers.get(id)).expect("a turn");
                    assert_eq!(answer, expected, "{model}, seed {seed}, {id:?}");
                    finished += 1;
                }
            }
        }
        println!("{model}: {finished} finished, {brought} snapshots brought");
        assert!(finished > 41 * 15 / 2 && brought > least, "{model}: {finished} finished, {brought} brought");
    }
}

/// Room for a few.
const SMALL: &str = "replay = \"snapshot\"\nsnapshots = \"1KiB\"";
const STATE_AND_HOST: &str = "replay = \"snapshot\"\ntiers = [{ host = \"64MiB\" }]";

fn chaotic(seed: u64, model: &str, cache: &str) -> World {
    let mut faults = Faults::from_seed(seed);
    let groups = ["prefill", "prefill.0", "prefill.1", "decode"].iter();
    faults.lossless = groups.flat_map(|group| [format!("{group}.steps"), format!("{group}.done")]).collect();
    faults.spare = vec!["gateway".to_owned()];
    let memory = if model == DOUBLE { "memory = \"10KiB\"" } else { "memory = \"256KiB\"" };
    let (prefill, decode) = match seed % 3 {
        0 => (format!("chunk_tokens = 32\n{memory}"), format!("joined = true\n{memory}")),
        1 => (format!("chunk_tokens = 9\n{memory}"), format!("joined = false\n{memory}")),
        _ => (format!("chunk_tokens = 32\ngroups = 2\n{memory}"), format!("joined = false\n{memory}")),
    };
    let plan = plan_with(["[limits]\nrestarts = 1000", cache], &prefill, &decode);
    World::new(&plan, &resources(model), seed, faults)
}
