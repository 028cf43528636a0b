//! The scheduler against a memory that remembers: every row must find, in its block table, exactly the tokens before it.
//! A block that is freed too early, shared by mistake or lost in a preemption shows as a foreign token.

#[path = "sched/rights.rs"]
mod rights;
#[path = "sched/snapshots.rs"]
mod snapshots;
#[path = "sched/state.rs"]
mod state;
#[path = "sched/timed.rs"]
mod timed;
#[path = "common/windows.rs"]
mod windows;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_actors::message::SequenceId;
use millstream_actors::request::{Observe, Request, RequestId};
use millstream_actors::sched::{Adopted, Bounds, Scheduler, StateBounds};
use proptest::prelude::*;
use rights::{Rights, any_rights};
use windows::{EXACT, KEEP, WINDOW};
use world::{World, bounds, request, with_snapshots, with_state};

/// A prompt of which the first `shared` tokens are those of all prompts.
fn prompt(id: u64, shared: usize, length: usize) -> Vec<u32> {
    (0..length as u32).map(|n| if (n as usize) < shared { n } else { (id as u32) * 100 + n }).collect()
}

fn sequence(id: u64) -> SequenceId {
    SequenceId { request: RequestId(id), attempt: 0 }
}

/// Tokens of a request's prompt that were not computed.
fn cached(world: &World, id: u64) -> u32 {
    world.found[&RequestId(id)].cached
}

#[derive(Clone, Debug)]
enum Op {
    Add { shared: usize, prompt: usize, tokens: u32, rights: Rights },
    Adopt { shared: usize, prompt: usize, tokens: u32, rights: Rights },
    Arrive,
    Abort(usize),
    Plan,
    Run,
    Done,
    Spoil,
    Ask,
    Answer,
    GiveUp,
}

fn op() -> impl Strategy<Value = Op> {
    let numbers = || (0usize..40, 1usize..40, 1u32..24);
    prop_oneof![
        2 => (numbers(), any_rights()).prop_map(|((shared, prompt, tokens), rights)| Op::Add { shared, prompt, tokens, rights }),
        1 => (numbers(), any_rights()).prop_map(|((shared, prompt, tokens), rights)| Op::Adopt { shared, prompt, tokens, rights }),
        2 => Just(Op::Arrive),
        1 => (0usize..8).prop_map(Op::Abort),
        5 => Just(Op::Plan),
        3 => Just(Op::Run),
        5 => Just(Op::Done),
        1 => Just(Op::Spoil),
        3 => Just(Op::Ask),
        3 => Just(Op::Answer),
        1 => Just(Op::GiveUp),
    ]
}

fn any_bounds() -> impl Strategy<Value = Bounds> {
    let queue = (1usize..8, 20u64..200, 1u64..60);
    (1usize..50, 1usize..6, queue, 1u32..9, 8usize..40, any::<bool>()).prop_map(
        |(chunk_tokens, sequences_max, queue, block_size, blocks, reuse)| {
            let (waiting_max, waiting_tokens_max, wait_steps_max) = queue;
            let plain = bounds(reuse, block_size, blocks);
            Bounds { chunk_tokens, sequences_max, waiting_max, waiting_tokens_max, wait_steps_max, ..plain }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: histories(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_gives_the_answer_it_gives_alone(bounds in any_bounds(), ops in proptest::collection::vec(op(), 1..200)) {
        both(&bounds, &ops);
    }

    /// With windows that blocks do not hold: the same, where enough is replayed.
    #[test]
    fn every_sequence_with_a_state_gives_the_answer_it_gives_alone(bounds in any_state(), ops in proptest::collection::vec(op(), 1..200)) {
        both(&bounds, &ops);
    }

    /// With snapshots of all that ended.
    #[test]
    fn every_sequence_that_goes_on_with_a_snapshot_gives_the_answer_it_gives_alone(bounds in any_snapshots(), ops in proptest::collection::vec(op(), 1..200)) {
        both(&bounds, &ops);
    }
}

/// Histories of each kind: more than usual where `MILLSTREAM_SEEDS` says so.
fn histories() -> u32 {
    std::env::var("MILLSTREAM_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(600)
}

/// Bounds of a model with a state, or without, whose snapshots are kept.
fn any_snapshots() -> impl Strategy<Value = Bounds> {
    let exact = any_state().prop_map(|bounds| {
        let state = bounds.state.map(|state| StateBounds { replay: EXACT as usize, ..state });
        Bounds { state, ..bounds }
    });
    prop_oneof![any_bounds(), exact].prop_map(with_snapshots)
}

/// Bounds of a model with a state: few slots or many, replays that are exact and others, truncated prompts and whole ones.
fn any_state() -> impl Strategy<Value = Bounds> {
    let replay =
        prop_oneof![4 => Just(EXACT), 1 => Just(EXACT + 3), 1 => Just(WINDOW), 1 => Just(2 * WINDOW)];
    let keep = prop_oneof![Just(None), Just(Some(KEEP))];
    (any_bounds(), 1usize..8, replay, keep)
        .prop_map(|(bounds, slots, replay, keep)| with_state(bounds, slots, replay, keep))
}

/// The same happens to a scheduler with one step in flight, and to one with two: whatever both answer is the same, unless it
/// depends on what was found.
fn both(bounds: &Bounds, ops: &[Op]) {
    let answers =
        [false, true].map(|ahead| live(World::new(Bounds { ahead, ..bounds.clone() }), ops.to_vec()));
    let [one, two] = answers;
    let exact = bounds.state.is_none_or(|state| state.replay >= EXACT as usize);
    for (id, answer) in &one {
        let other = two.get(id).unwrap_or(answer);
        let same = answer.starts_with(other) || other.starts_with(answer);
        assert!(same || !exact, "{id:?}: {answer:?}, {other:?}");
    }
}

/// Lives through what happens, and then to the end. Returns what came of each, to its end where nobody ended it.
fn live(mut world: World, ops: Vec<Op>) -> BTreeMap<SequenceId, Vec<u32>> {
    for (id, op) in (1u64..).zip(ops) {
        match op {
            Op::Add { shared, prompt: length, tokens, rights } => {
                world.add(rights.of(&world, &request(id, &prompt(id, shared, length), tokens)));
            }
            Op::Adopt { shared, prompt: length, tokens, rights } => {
                world.adopt(rights.of(&world, &request(id, &prompt(id, shared, length), tokens)));
            }
            Op::Arrive => world.arrive(),
            Op::Abort(nth) => world.abort(nth),
            Op::Plan => world.plan(),
            Op::Run => world.run(),
            Op::Done => world.done(),
            Op::Spoil => world.spoil(),
            Op::Ask => world.ask(),
            Op::Answer => world.answer(),
            Op::GiveUp => world.give_up(),
        }
        world.check();
    }
    // Whatever is left finishes in bounded time, and then nobody owns a block or a slot.
    assert!(world.finish(), "stuck: {:?}", world.requests.keys());
    let pool = world.scheduler.pool();
    assert_eq!((pool.used(), pool.state.used()), (0, 0));
    world.check();
    world.answers
}

#[test]
fn the_oldest_keeps_its_pace_when_memory_runs_out() {
    let mut world = World::new(Bounds { end_tokens: [].into(), ..bounds(false, 2, 14) });
    for id in 1..=3 {
        world.add(request(id, &prompt(id, 0, 5), 20));
    }
    let mut steps = 0;
    while world.requests.contains_key(&sequence(1)) {
        world.plan();
        world.done();
        steps += 1;
    }
    assert_eq!(steps, 20, "a token each step from the first on");
    assert!(world.scheduler.preemptions() > 0, "three such answers do not fit at once");
}

#[test]
fn a_request_that_never_fits_is_refused_at_once() {
    let mut scheduler = Scheduler::new(bounds(false, 4, 3));
    assert!(scheduler.add(request(1, &prompt(1, 0, 10), 3), Duration::ZERO).is_err());
    assert!(scheduler.add(request(2, &prompt(2, 0, 9), 3), Duration::ZERO).is_ok());
}

/// Many who come at once.
fn crowd(chunk_tokens: usize, blocks: usize, ahead: bool) -> World {
    let (waiting_max, waiting_tokens_max) = (16, 50_000);
    let bounds = bounds(true, 16, blocks);
    let bounds = Bounds { chunk_tokens, sequences_max: 16, waiting_max, waiting_tokens_max, ahead, ..bounds };
    let mut world = World::new(bounds);
    for id in 1..=16 {
        world.add(request(id, &prompt(id, 2000, 2010), 1));
    }
    world
}

#[test]
fn many_who_come_at_once_cost_one_prompt() {
    let cases = [(256, 1000), (4096, 2500), (100, 300), (4096, 300)];
    for ((chunk_tokens, blocks), ahead) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut world = crowd(chunk_tokens, blocks, ahead);
        assert!(world.finish());
        assert_eq!(world.computed, 2000 + 16 * 10, "chunks of {chunk_tokens}, {blocks} blocks, {ahead}");
        assert_eq!((cached(&world, 1), cached(&world, 16)), (0, 2000));
        let reused = world.scheduler.reused();
        assert_eq!((reused.sought, reused.found), (16 * 2010, 15 * 2000));
        world.check();
    }
}

/// Whoever computes may go away at any moment; those who wait for it go on.
#[test]
fn the_one_who_computes_for_all_may_go_away() {
    for gone_after in 1..30 {
        let mut world = crowd(100, 1000, gone_after % 2 == 0);
        for _ in 0..gone_after {
            world.plan();
            world.done();
        }
        world.plan(); // and with a step in flight
        let before = world.requests.len();
        world.abort(0);
        assert!(world.finish(), "after {gone_after} steps");
        assert!(before < 16 || world.computed <= 2000 + 16 * 10 + 16, "{}", world.computed);
        world.check();
    }
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_and_did_not_save_anything() {
    let mut world = World::new(Bounds { end_tokens: [].into(), ..bounds(true, 2, 14) });
    for id in 1..=3 {
        world.add(request(id, &prompt(id, 0, 5), 20));
    }
    assert!(world.finish());
    assert!(world.scheduler.preemptions() > 0, "three such answers do not fit at once");
    assert!(world.scheduler.reused().found > 0);
    assert!(world.found.values().all(|found| found.cached == 0), "{:?}", world.found);
}

#[test]
fn the_next_turn_of_a_conversation_finds_the_whole_history() {
    let mut world = World::new(Bounds { end_tokens: [].into(), ..bounds(true, 4, 60) });
    let first = prompt(1, 0, 30);
    world.add(request(1, &first, 21));
    assert!(world.finish());
    let history = [first, world.answers[&sequence(1)].clone(), vec![7; 9]].concat();
    world.add(request(2, &history, 3));
    assert!(world.finish());
    // The last token of an answer is never computed, and only whole blocks are found: 48 of the first 50.
    assert_eq!(cached(&world, 2), 48);
}

/// Logits that are wanted are computed, found or not.
#[test]
fn what_is_observed_is_not_skipped() {
    for (observe, found) in [(Observe::Nothing, 28), (Observe::At(vec![13, 20]), 12), (Observe::All, 0)] {
        let mut world = World::new(Bounds { end_tokens: [].into(), ..bounds(true, 4, 60) });
        world.add(request(1, &prompt(0, 0, 30), 3));
        assert!(world.finish());
        world.add(Request { observe, ..(*request(2, &prompt(0, 0, 30), 3)).clone() }.into());
        let mut observed = 0;
        while !world.requests.is_empty() {
            world.plan();
            observed += world.flight().map_or(0, |step| step.rows.iter().map(|row| row.observe.len()).sum());
            world.done();
        }
        assert_eq!(cached(&world, 2), found);
        assert_eq!(
            observed,
            match found {
                28 => 0,
                12 => 2,
                _ => 32,
            }
        );
        world.check();
    }
}

#[test]
fn a_decode_group_pulls_only_what_it_does_not_know() {
    let mut scheduler = Scheduler::new(bounds(true, 4, 60));
    let mut world = World::new(bounds(true, 4, 60));
    let long = prompt(0, 0, 33);
    world.adopt(request(1, &long, 5));
    assert!(world.finish());
    assert_eq!(
        world.scheduler.adopt(&request(2, &long, 5), &[3], Adopted::default()),
        Some(8),
        "8 of 9 blocks are here"
    );
    assert_eq!(
        world.scheduler.adopt(&request(3, &long[..32], 5), &[3], Adopted::default()),
        Some(8),
        "all are here"
    );
    assert_eq!(
        scheduler.adopt(&request(2, &long, 5), &[3], Adopted::default()),
        Some(0),
        "a group that knows nothing"
    );
}
