//! Prompts cut by time: the same answers, and no step that is predicted to take longer than it may, but by the smallest
//! chunk.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millstream_actors::cost::Coefficients;
use millstream_actors::picture::{Detail, Picture, PictureBounds};
use millstream_actors::request::{PromptImage, Request};
use millstream_actors::sched::{Bounds, Timing};
use millstream_kernels::ImagePlan;
use millstream_kernels::work::WorkFacts;
use proptest::prelude::*;

use crate::world::{World, bounds, request};
use crate::{any_bounds, any_state, live, op, prompt, sequence};

fn work() -> Arc<WorkFacts> {
    static WORK: OnceLock<Arc<WorkFacts>> = OnceLock::new();
    let read = || {
        let folder =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle/tiny-deepseek-v41/ckpt-w16");
        Arc::new(WorkFacts::of_config(folder.as_ref()).expect("settings in the tree"))
    };
    Arc::clone(WORK.get_or_init(read))
}

/// A step takes 10 ms, a row 1 ms, a token 1 ms, besides what it multiplies.
fn timed(bounds: Bounds, step_ms: u64) -> Bounds {
    let coefficients = Coefficients { step: 0.01, row: 0.001, token: 0.001, ..Coefficients::default() };
    let timing = Timing { work: work(), coefficients, step_time: Some(Duration::from_millis(step_ms)) };
    Bounds { chunk_tokens: 1_000, timing: Some(timing), ..bounds }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn prompts_that_are_cut_by_time_give_the_same_answers(
        bounds in prop_oneof![any_bounds(), any_state()], step_ms in 0_u64..60, ops in proptest::collection::vec(op(), 1..200),
    ) {
        live(World::new(timed(bounds, step_ms)), ops);
    }
}

/// Tokens of each row of the next step, which is made.
fn rows(world: &mut World) -> Vec<usize> {
    world.plan();
    let rows = world.flight().map(|step| step.rows.iter().map(|row| row.tokens.len()).collect());
    world.done();
    rows.unwrap_or_default()
}

#[test]
fn the_largest_chunk_that_fits_is_taken() {
    let bounds = Bounds { sequences_max: 16, waiting_max: 16, end_tokens: [].into(), ..bounds(true, 4, 200) };
    let mut world = World::new(timed(bounds, 60));
    world.add(request(1, &prompt(1, 0, 30), 40));
    world.add(request(2, &prompt(2, 0, 100), 40));
    // 10 + 2 + 30, and of the second what is left.
    let first = rows(&mut world);
    assert!(first[0] == 30 && (16..=18).contains(&first[1]), "{first:?}");
    // 10 + 2 + 1, and what is left.
    let second = rows(&mut world);
    assert!(second[0] == 1 && (44..=47).contains(&second[1]), "{second:?}");
}

/// However many answers fill the budget, the oldest prompt goes on by a block a step, and it alone.
#[test]
fn the_oldest_prompt_always_gets_on() {
    let bounds = Bounds { sequences_max: 16, waiting_max: 16, end_tokens: [].into(), ..bounds(true, 4, 200) };
    let mut world = World::new(timed(bounds, 12));
    for id in 1..=8 {
        world.add(request(id, &prompt(id, 0, 1), 60));
    }
    world.add(request(20, &prompt(20, 0, 40), 2));
    world.add(request(21, &prompt(21, 0, 40), 2));
    let mut steps = 0;
    while world.requests.contains_key(&sequence(20)) {
        let rows = rows(&mut world);
        assert!(rows.iter().filter(|&&tokens| tokens > 1).sum::<usize>() <= 4, "{rows:?}");
        steps += 1;
    }
    assert!(steps <= 8 + 10 + 2, "{steps} steps");
}

/// The smallest image there is: 8 by 8 pixels.
fn picture() -> Arc<Picture> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(8, 8).write_to(&mut bytes, image::ImageFormat::Png).expect("it is written");
    let bounds = PictureBounds { bytes: 1 << 20, pixels: 1 << 20 };
    Arc::new(Picture::read("here", bytes.into_inner(), Detail::High, bounds).expect("it is an image"))
}

/// Each chunk of 10 tokens would end within an image; the second image is longer than a chunk.
#[test]
fn an_image_is_cut_only_where_it_is_longer_than_a_chunk() {
    let image = |first: u32, tokens: usize| PromptImage {
        first,
        plan: ImagePlan { width: 8, height: 8, tokens, grid: (1, tokens as u32) },
        picture: picture(),
        embeddings: None,
    };
    let mut world = World::new(Bounds { chunk_tokens: 10, ..bounds(true, 4, 200) });
    let plain = request(1, &prompt(1, 0, 40), 2);
    let images = Arc::from([image(7, 8), image(17, 14)]);
    world.add(Arc::new(Request { images, ..(*plain).clone() }));
    let chunks: Vec<usize> = (0..5).map(|_| rows(&mut world)[0]).collect();
    assert_eq!(chunks, [7, 10, 10, 10, 3]);
}
