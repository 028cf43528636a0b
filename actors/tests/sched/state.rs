//! What the scheduler does with a state: whom it lets wait, what it takes of what was found, and where a prompt is cut.

use std::sync::Arc;

use millstream_actors::message::SequenceId;
use millstream_actors::request::{Observe, Request, RequestId};
use millstream_actors::sched::Bounds;

use crate::windows::{EXACT, KEEP, WINDOW};
use crate::world::{World, bounds, request, with_state};
use crate::{cached, prompt};

const BLOCK: u32 = 4;

fn stateful(chunk_tokens: usize, blocks: usize, replay: u32, keep: Option<u32>) -> Bounds {
    let (waiting_max, waiting_tokens_max) = (16, 10_000);
    let bounds = bounds(true, BLOCK, blocks);
    let bounds = Bounds { chunk_tokens, sequences_max: 16, waiting_max, waiting_tokens_max, ..bounds };
    with_state(Bounds { end_tokens: [].into(), ..bounds }, 16, replay, keep)
}

fn replayed(world: &World, id: u64) -> u32 {
    world.found[&RequestId(id)].replayed
}

#[test]
fn what_is_found_counts_as_far_as_it_is_longer_than_the_replay() {
    for (replay, shared, taken) in [
        (EXACT, 40, (40 - EXACT, EXACT)),
        (EXACT, 16, (16 - EXACT, EXACT)),
        (EXACT, 15, (0, 0)),
        (WINDOW, 8, (8 - WINDOW, WINDOW)),
        (WINDOW, 7, (0, 0)),
        (2 * WINDOW, 40, (40 - 2 * WINDOW, 2 * WINDOW)),
        (16, 16, (0, 0)),
    ] {
        let mut world = World::new(stateful(64, 100, replay, None));
        world.add(request(1, &prompt(1, shared, 50), 3));
        assert!(world.finish());
        world.add(request(2, &prompt(2, shared, 50), 3));
        assert!(world.finish());
        assert_eq!((cached(&world, 2), replayed(&world, 2)), taken, "replay {replay}, {shared} shared");
        let reused = world.scheduler.reused();
        assert_eq!((reused.found, reused.replayed), (u64::from(taken.0), u64::from(taken.1)));
        world.check();
    }
}

/// Those who replay at the same time do so in one step, as rows like others.
#[test]
fn replays_share_a_step() {
    let mut world = World::new(stateful(400, 400, EXACT, None));
    world.add(request(1, &prompt(1, 40, 50), 3));
    assert!(world.finish());
    for id in 2..=5 {
        world.add(request(id, &prompt(id, 40, 50), 3));
    }
    world.plan();
    let rows = |world: &World| -> Vec<(u64, u32, usize)> {
        let rows = world.flight().into_iter().flat_map(|step| &step.rows);
        rows.map(|row| (row.sequence.request.0, row.start, row.tokens.len())).collect()
    };
    let (start, tokens) = (40 - EXACT, 10 + EXACT as usize);
    assert_eq!(
        rows(&world),
        [2, 3, 4, 5].map(|id| (id, start, tokens)),
        "four replays and what is behind them"
    );
    assert!(world.finish());
    assert_eq!([2, 3, 4, 5].map(|id| replayed(&world, id)), [EXACT; 4]);
}

/// Sixteen at once compute one beginning and fifteen replays, whatever the chunk and whoever goes away.
#[test]
fn whoever_shares_a_beginning_waits_before_it_begins() {
    let crowd = |chunk_tokens: usize, blocks: usize| {
        let mut world = World::new(stateful(chunk_tokens, blocks, EXACT, None));
        for id in 1..=16 {
            world.add(request(id, &prompt(id, 400, 406), 1));
        }
        world
    };
    for (chunk_tokens, blocks) in [(64, 400), (1000, 800), (10, 130)] {
        let mut world = crowd(chunk_tokens, blocks);
        assert!(world.finish());
        let expected = 400 + 16 * 6 + 15 * EXACT as usize;
        assert_eq!(world.computed, expected, "chunks of {chunk_tokens}, {blocks} blocks");
        assert_eq!((cached(&world, 1), cached(&world, 16)), (0, 400 - EXACT));
        world.check();
    }
    for gone_after in 1..12 {
        let mut world = crowd(50, 400);
        for _ in 0..gone_after {
            world.plan();
            world.done();
        }
        world.plan(); // and with a step in flight
        world.abort(0);
        assert!(world.finish(), "after {gone_after} steps");
        assert!(world.computed <= 400 + 16 * (6 + EXACT as usize) + 50, "{}", world.computed);
        world.check();
    }
}

/// One that waits for another's beginning does not hold up those behind it, and shares too little is no reason to wait.
#[test]
fn those_behind_a_sequence_that_waits_go_on() {
    let mut world = World::new(stateful(32, 400, EXACT, None));
    world.add(request(1, &prompt(1, 200, 201), 1));
    world.add(request(2, &prompt(2, 200, 201), 1));
    world.add(request(3, &prompt(3, 0, 10), 1));
    world.add(request(4, &prompt(4, 12, 20), 1)); // it shares less than a replay with the first
    world.plan();
    let ids = |world: &World| -> Vec<u64> {
        world.flight().into_iter().flat_map(|step| &step.rows).map(|row| row.sequence.request.0).collect()
    };
    assert_eq!(ids(&world), [1], "the chunk is full");
    world.done();
    while world.requests.contains_key(&SequenceId { request: RequestId(1), attempt: 0 }) {
        world.plan();
        assert!(!ids(&world).contains(&2), "it waits for the first");
        world.done();
    }
    assert!(world.finish());
    assert_eq!((cached(&world, 2), cached(&world, 3), cached(&world, 4)), (200 - EXACT, 0, 0));

    let mut world = World::new(stateful(400, 400, EXACT, None));
    for (id, shared, length) in [(1, 200, 300), (2, 200, 201), (3, 0, 10), (4, 12, 20)] {
        world.add(request(id, &prompt(id, shared, length), 1));
    }
    world.plan();
    assert_eq!(ids(&world), [1, 3, 4], "the second waits, and nobody for it");
    assert!(world.finish());
}

#[test]
fn a_preempted_sequence_replays_and_goes_on_as_if_nothing_had_been() {
    let mut world = World::new(stateful(16, 28, EXACT, None));
    for id in 1..=3 {
        world.add(request(id, &prompt(id, 0, 20), 40));
    }
    assert!(world.finish());
    assert!(world.scheduler.preemptions() > 0, "three such answers do not fit at once");
    assert!(world.scheduler.reused().replayed > 0, "it found its own blocks");
    assert_eq!((world.scheduler.pool().used(), world.scheduler.pool().state.used()), (0, 0));
    world.check();
}

/// Tokens that were sent are computed as a part of a chunk and give what they gave one at a time, where a prompt is cut
/// too: the cut depends on the prompt alone. `World` compares with the sequence alone, token by token.
#[test]
fn an_attempt_that_begins_again_gives_the_same_answer() {
    for keep in [None, Some(KEEP)] {
        for length in [3, KEEP as usize, KEEP as usize + 1, 30] {
            let whole = {
                let mut world = World::new(stateful(16, 100, EXACT, keep));
                world.add(request(1, &prompt(1, 0, length), 12));
                assert!(world.finish());
                world.answers.remove(&SequenceId { request: RequestId(1), attempt: 0 }).expect("its answer")
            };
            for sent in 0..12 {
                for (chunk_tokens, warm) in [(1, false), (7, false), (64, false), (64, true)] {
                    let mut world = World::new(stateful(chunk_tokens, 100, EXACT, keep));
                    if warm {
                        world.add(request(2, &prompt(1, 0, length), 12));
                        assert!(world.finish());
                    }
                    let sent: Arc<[u32]> = whole[..sent].into();
                    let again =
                        Request { attempt: 1, sent, ..(*request(1, &prompt(1, 0, length), 12)).clone() };
                    world.add(again.into());
                    assert!(world.finish(), "{length} tokens, chunks of {chunk_tokens}");
                    assert_eq!(world.answers[&SequenceId { request: RequestId(1), attempt: 1 }], whole);
                }
            }
        }
    }
}

/// Logits that are wanted of a prompt are there, so it is not cut then.
#[test]
fn a_prompt_whose_logits_are_observed_is_not_cut() {
    for (observe, cut) in [
        (Observe::Nothing, Some(30 - KEEP)),
        (Observe::At(vec![29, 31]), Some(30 - KEEP)),
        (Observe::At(vec![30 - KEEP]), Some(30 - KEEP)),
        (Observe::At(vec![30 - KEEP - 1, 31]), None),
        (Observe::All, None),
    ] {
        let mut world = World::new(stateful(16, 100, EXACT, Some(KEEP)));
        world.add(Request { observe, ..(*request(1, &prompt(1, 0, 30), 3)).clone() }.into());
        while !world.requests.is_empty() {
            world.plan();
            for state in
                world.flight().into_iter().flat_map(|step| &step.rows).filter_map(|row| row.state.as_ref())
            {
                assert_eq!(state.decoder_from, cut);
            }
            world.done();
        }
    }
}
