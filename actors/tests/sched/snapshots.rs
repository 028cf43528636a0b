//! What the scheduler does with snapshots: when they are taken, and how a sequence goes on with one.

use crate::windows::{EXACT, KEEP};
use crate::world::{World, bounds, request, with_snapshots, with_state};
use crate::{cached, prompt, sequence};
use millstream_actors::sched::Bounds;

const BLOCK: u32 = 4;

fn world(state: bool, keep: Option<u32>) -> World {
    let bounds = Bounds { chunk_tokens: 16, sequences_max: 4, ..bounds(true, BLOCK, 100) };
    let bounds = Bounds { end_tokens: [].into(), ..bounds };
    World::new(with_snapshots(if state { with_state(bounds, 4, EXACT, keep) } else { bounds }))
}

/// Whatever the lengths of prompt, answer and what is new: it begins behind the last token that was computed.
#[test]
fn the_next_turn_goes_on_at_the_very_token() {
    for state in [false, true] {
        for (first, tokens, more) in
            [(1, 2, 3), (3, 2, 1), (16, 5, 3), (17, 1, 9), (30, 21, 9), (40, 9, 1), (29, 20, 2)]
        {
            let mut world = world(state, None);
            world.add(request(1, &prompt(1, 0, first), tokens));
            assert!(world.finish());
            let answer = world.answers[&sequence(1)].clone();
            let history = [prompt(1, 0, first), answer, vec![7; more]].concat();
            world.add(request(2, &history, 3));
            assert!(world.finish());
            let computed = first as u32 + tokens - 1;
            assert_eq!(cached(&world, 2), computed, "{first} and {tokens} tokens, state: {state}");
            assert_eq!(world.scheduler.reused().replayed, 0);
            world.check();
        }
    }
}

/// The first of two conversations that part within a block: the blocks are shared, what is behind them is not.
#[test]
fn a_state_is_not_gone_on_with_behind_other_tokens() {
    let mut world = world(true, None);
    world.add(request(1, &prompt(1, 30, 34), 3));
    assert!(world.finish());
    world.add(request(2, &prompt(2, 30, 34), 3));
    assert!(world.finish());
    assert_eq!(cached(&world, 2), 28 - EXACT, "an exact replay");
}

/// Cut at another token, the state of the later layers would be another.
#[test]
fn behind_a_truncated_prompt_only_what_a_longer_one_leaves_out_is_of_use() {
    for (more, expected) in [(KEEP as usize, true), (KEEP as usize - 1, false)] {
        let mut world = world(true, Some(KEEP));
        world.add(request(1, &prompt(1, 0, 30), 6));
        assert!(world.finish());
        let answer = world.answers[&sequence(1)].clone();
        // One token of the answer is not computed.
        let history = [prompt(1, 0, 30), answer, vec![7; more - 1]].concat();
        world.add(request(2, &history, 3));
        assert!(world.finish());
        assert_eq!(cached(&world, 2) == 35, expected, "{more} tokens behind it");
        world.check();
    }
}

/// Nobody waits for what an ended sequence left, and nothing of it stays.
#[test]
fn what_an_ended_sequence_leaves_is_read_once() {
    for state in [false, true] {
        let mut world = world(state, None);
        world.add(request(1, &prompt(1, 0, 10), 4));
        while !world.requests.is_empty() {
            world.ask();
            world.answer();
            world.plan();
            world.done();
        }
        let pool = world.scheduler.pool();
        assert_eq!((pool.used(), pool.state.used()), (1, usize::from(state)), "a block, and a slot");
        world.plan();
        assert!(world.flight().is_some_and(|step| step.rows.is_empty() && step.exports.len() == 1));
        world.done();
        let pool = world.scheduler.pool();
        assert_eq!((pool.used(), pool.state.used()), (0, 0));
        assert_eq!(world.shelf.count(), 2, "of the prompt and of the answer");
    }
}
