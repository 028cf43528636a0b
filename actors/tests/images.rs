//! Prompts with images, with a double for the eyes ([`common::eyes`] says what it does) and with the tiny models that have
//! real ones: the same answer on every path and after every death; each image looked at once; no block shared between
//! images; what cannot be seen is refused.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::eyes::{DEEPSEEK, IMAGE, TEMPLATE, file, message, picture, with_eyes, with_template};
use common::{Answer, World, plan, resources, submit};
use millstream_actors::assemble::Resources;
use millstream_actors::request::{Outcome, Part, Prompt, Refusal, RequestId, Submit};
use millstream_runtime::{Faults, Time};
use millstream_topology::Plan;

fn eyes() -> Resources {
    with_eyes(&resources("tiny-qwen3-moe"))
}

fn ask(id: u64, parts: Vec<Part>, tokens: u32) -> Submit {
    Submit { prompt: Prompt::Chat(vec![message(parts)]).into(), ..submit(id, &[], tokens) }
}

fn text(words: &str) -> Part {
    Part::Text(words.to_owned())
}

fn place(number: usize) -> String {
    format!("messages[0].content[{number}]")
}

/// Sixteen requests with no, one and two images, of which some are the same and stand at the same place.
fn requests(tokens: u32) -> Vec<Submit> {
    let image = |number: u64, at: usize| {
        let (width, height) = (9 + (number as u32 * 11) % 30, 5 + (number as u32 * 7) % 20);
        picture(&place(at), file(number, width, height))
    };
    let parts = |id: u64| match id % 4 {
        0 => vec![text("what is the mill, and where is the stream?")],
        1 => vec![image(1 + id / 8, 0), text("what is this?")],
        2 => vec![text("here are two: "), image(id % 5, 1), text(" and "), image(3, 3)],
        _ => vec![text("what is this?"), image(1 + id / 8, 1)],
    };
    (1..=16).map(|id| ask(id, parts(id), tokens)).collect()
}

fn run(plan: &Plan, requests: &[Submit], apart: Duration) -> World {
    run_with(&eyes(), plan, requests, apart)
}

fn run_with(resources: &Resources, plan: &Plan, requests: &[Submit], apart: Duration) -> World {
    let mut world = World::new(plan, resources, 3, Faults::none());
    for (n, request) in requests.iter().enumerate() {
        world.submit_at(apart * n as u32, request.clone());
    }
    world.run();
    world.assert_quiet("images");
    world
}

/// Each alone, joined, nothing reused.
fn alone(requests: &[Submit]) -> BTreeMap<RequestId, Answer> {
    alone_with(&eyes(), requests)
}

fn alone_with(resources: &Resources, requests: &[Submit]) -> BTreeMap<RequestId, Answer> {
    let plan = plan("", "joined = true\nmemory = \"64MiB\"\nprefix_reuse = false");
    let answers = run_with(resources, &plan, requests, Duration::from_secs(1)).answers;
    assert!(
        answers.values().all(|answer| matches!(answer.outcome, Some(Outcome::Finished(_)))),
        "{answers:?}"
    );
    answers
}

#[test]
fn the_answer_is_the_same_on_every_path() {
    let requests = requests(12);
    let expected = alone(&requests);
    let texts: Vec<&Vec<u32>> = expected.values().map(|answer| &answer.tokens).collect();
    assert!(texts.iter().filter(|text| **text != texts[0]).count() > 8, "answers depend on the images");
    for (what, plan) in [
        ("joined, chunk 1", plan("chunk_tokens = 1", "joined = true")),
        ("joined, chunk 5", plan("chunk_tokens = 5", "joined = true")),
        ("split", plan("chunk_tokens = 16", "joined = false")),
        ("split, chunk 7", plan("chunk_tokens = 7", "joined = false")),
        ("groups", plan("groups = 2", "groups = 2\njoined = false")),
        ("small", plan("chunk_tokens = 16\nmemory = \"120KiB\"", "joined = true\nmemory = \"120KiB\"")),
        ("small, split", plan("memory = \"120KiB\"", "joined = false\nmemory = \"120KiB\"")),
    ] {
        for apart in [Duration::ZERO, Duration::from_millis(3)] {
            let world = run(&plan, &requests, apart);
            assert_eq!(world.answers, expected, "{what}");
            let preempted: u64 = world.assembly.gauges.iter().map(|group| group.preemptions.get()).sum();
            assert!(!what.starts_with("small") || preempted > 0 || !apart.is_zero(), "{what} is not small");
            let shown = &world.assembly.encoders[0];
            assert_eq!((shown.images.get(), shown.hits.get(), shown.waiting.get()), (5, 11, 0), "{what}");
        }
    }
}

#[test]
fn real_eyes_give_the_same_answer_on_every_path_too() {
    for (name, template) in [("tiny-qwen3-vl", TEMPLATE), ("tiny-deepseek-v41/ckpt-w16", DEEPSEEK)] {
        let resources = with_template(&resources(name), template);
        let requests = requests(8);
        let expected = alone_with(&resources, &requests);
        let alike = |id: u64| requests[id as usize - 1].prompt == requests[0].prompt;
        assert!(
            (2..=16)
                .filter(|id| expected[&RequestId(*id)].tokens == expected[&RequestId(1)].tokens)
                .all(alike)
        );
        let large = |more: &str| format!("memory = \"64MiB\"\n{more}");
        for (what, plan) in [
            ("joined, chunk 5", plan(&large("chunk_tokens = 5"), &large("joined = true"))),
            ("split, chunk 16", plan(&large("chunk_tokens = 16"), &large("joined = false"))),
            ("groups", plan(&large("groups = 2"), &large("groups = 2\njoined = false"))),
        ] {
            let world = run_with(&resources, &plan, &requests, Duration::ZERO);
            assert_eq!(world.answers, expected, "{name}, {what}");
            assert_eq!(world.assembly.encoders[0].images.get(), 5, "{name}, {what}");
        }
        let plan = plan(&large("chunk_tokens = 32"), &large("joined = false"));
        for victim in ["encode", "prefill", "decode"] {
            let mut world = World::new(&plan, &resources, 7, Faults::none());
            requests.iter().for_each(|request| world.submit_at(Duration::ZERO, request.clone()));
            world.sim.run_until(Time::ZERO + Duration::from_millis(6));
            world.read();
            assert!(world.sim.kill(victim));
            world.run();
            world.assert_quiet(victim);
            assert_eq!(world.answers, expected, "{name}: {victim}");
        }
    }
}

#[test]
fn different_images_share_no_block_and_the_same_one_does() {
    let words = "once upon a time there was a mill by the stream";
    let with = |id: u64, number: u64| {
        ask(id, vec![text(words), picture(&place(1), file(number, 24, 24)), text(words)], 4)
    };
    let requests = [with(1, 1), with(2, 2), with(3, 1)];
    let world = run(&plan("", "joined = true"), &requests, Duration::from_secs(1));
    let cached = |id: u64| world.cached[&RequestId(id)];
    let (other, same) = (cached(2), cached(3));
    assert!(other > 0 && other + 38 < same, "{other} found behind another image, {same} behind the same");
    assert_eq!(world.answers[&RequestId(1)].tokens.len(), 4);
}

#[test]
fn whoever_dies_the_answers_are_the_same() {
    let requests = requests(64);
    let expected = alone(&requests);
    for joined in [true, false] {
        for victim in ["encode", "router", "tokenizer", "decode", "decode.rank", "prefill", "prefill.rank"] {
            if joined && victim.starts_with("prefill") {
                continue;
            }
            for ms in [1, 4, 30] {
                let settings = format!("joined = {joined}\nmemory = \"8MiB\"");
                let plan = plan("chunk_tokens = 64\nmemory = \"8MiB\"", &settings);
                let mut world = World::new(&plan, &eyes(), ms, Faults::none());
                requests.iter().for_each(|request| world.submit_at(Duration::ZERO, request.clone()));
                world.sim.run_until(Time::ZERO + Duration::from_millis(ms));
                world.read();
                assert!(world.answers.values().any(|a| a.outcome.is_none()) || world.answers.is_empty());
                assert!(world.sim.kill(victim));
                world.run();
                world.assert_quiet(victim);
                assert_eq!(world.answers, expected, "{victim} at {ms} ms, joined {joined}");
            }
        }
    }
}

#[test]
fn a_hundred_seeds_of_trouble_and_no_wrong_answer() {
    let requests = requests(10);
    let expected = alone(&requests);
    let plans = [plan("chunk_tokens = 16", "joined = true"), plan("chunk_tokens = 9", "joined = false")];
    let (mut finished, mut restarts) = (0, 0);
    for seed in 0..100 {
        let mut faults = Faults::from_seed(seed);
        faults.spare = vec!["gateway".to_owned()];
        let inside = |group: &str| [format!("{group}.steps"), format!("{group}.done")];
        faults.lossless = ["prefill", "decode"].iter().flat_map(|group| inside(group)).collect();
        let mut world = World::new(&plans[seed as usize % 2], &eyes(), seed, faults);
        for (n, request) in requests.iter().enumerate() {
            world.submit_at(Duration::from_millis(n as u64 * (seed % 3)), request.clone());
        }
        world.run();
        if world.sim.failed().is_none() {
            world.assert_quiet(&format!("seed {seed}"));
            assert_eq!(world.assembly.encoders[0].waiting.get(), 0, "seed {seed}");
        }
        restarts +=
            world.sim.seats().iter().filter(|seat| seat.name == "encode").map(|s| s.restarts).sum::<u64>();
        for (id, answer) in &world.answers {
            let wanted = &expected[id];
            let whole = matches!(answer.outcome, Some(Outcome::Finished(_)));
            finished += usize::from(whole);
            assert!(wanted.tokens.starts_with(&answer.tokens), "seed {seed}, {id:?}");
            assert!(!whole || answer.tokens == wanted.tokens, "seed {seed}, {id:?}");
        }
    }
    assert!(finished > 800 && restarts > 0, "{finished} of 1600 finished, encode died {restarts} times");
}

/// How a request with this prompt ends.
fn outcome(prompt: Prompt) -> Outcome {
    let request = Submit { prompt: prompt.into(), ..submit(1, &[], 4) };
    let world = run(&plan("", "joined = true"), &[request], Duration::ZERO);
    world.answers[&RequestId(1)].outcome.clone().expect("it has ended")
}

#[test]
fn what_cannot_be_seen_is_refused_by_its_place() {
    let refused = |bytes: Vec<u8>| {
        let parts = vec![text("a"), picture(&place(0), file(1, 9, 9)), picture(&place(2), bytes)];
        match outcome(Prompt::Chat(vec![message(parts)])) {
            Outcome::Refused(Refusal::Image { place, why }) => (place, why),
            other => panic!("{other:?}"),
        }
    };
    let whole = file(5, 60, 60);
    let (at, why) = refused(whole[..whole.len() / 2].to_vec());
    assert_eq!(at, place(2));
    assert!(why.starts_with("this image cannot be decoded: "), "{why}");
    let (at, why) = refused(file(5, 200, 1));
    assert_eq!((at.as_str(), why.as_str()), (&*place(2), "this image of 200 x 1 pixels is too flat"));
}

#[test]
fn only_a_template_can_place_an_image() {
    let say = |words: &str| Prompt::Chat(vec![message(vec![text(words)])]);
    assert!(matches!(outcome(say("<|vision_start|><|image_pad|><|vision_end|>")), Outcome::Finished(_)));
    assert!(matches!(outcome(Prompt::Text("<|image_pad|>".to_owned())), Outcome::Finished(_)));
    let mixed = vec![text("<|image_pad|>"), picture(&place(1), file(1, 8, 8)), text("|image_pad|>")];
    assert!(matches!(outcome(Prompt::Chat(vec![message(mixed)])), Outcome::Finished(_)));
    let Outcome::Refused(Refusal::Invalid(why)) = outcome(Prompt::Tokens(vec![5, IMAGE, 7])) else {
        panic!("an image's token without an image was taken");
    };
    assert!(why.contains("token 638 stands for an image"), "{why}");
}

#[test]
fn a_template_or_a_model_that_cannot_show_images_refuses_them() {
    let parts = vec![text("a"), picture(&place(1), file(1, 9, 9))];
    let blind = resources("tiny-qwen3-moe");
    let no_place = Resources { template: blind.template.clone(), ..eyes() };
    for (resources, expected) in [(blind, "no eyes"), (no_place, "writes 0 of 1 images")] {
        let mut world = World::new(&plan("", "joined = true"), &resources, 1, Faults::none());
        world.submit_at(Duration::ZERO, ask(1, parts.clone(), 4));
        world.run();
        let outcome = format!("{:?}", world.answers[&RequestId(1)].outcome);
        assert!(outcome.contains(expected), "{outcome}");
    }
}

#[test]
fn a_client_that_goes_away_is_not_looked_for() {
    let mut world = World::new(&plan("", "joined = true"), &eyes(), 1, Faults::none());
    let many =
        |id: u64| ask(id, (0..8).map(|n| picture(&place(n), file(id * 8 + n as u64, 24, 24))).collect(), 4);
    for id in 1..=4 {
        world.submit_at(Duration::ZERO, many(id));
    }
    for id in 2..=4 {
        world.abandon_at(Duration::from_millis(5), RequestId(id));
    }
    let late = Submit { patience: Some(Duration::from_millis(6)), ..many(5) };
    world.submit_at(Duration::ZERO, late);
    world.run();
    world.assert_quiet("clients went away");
    let outcome = |id: u64| world.answers[&RequestId(id)].outcome.clone();
    assert!(matches!(outcome(1), Some(Outcome::Finished(_))));
    assert!((2..=4).all(|id| outcome(id) == Some(Outcome::Cancelled)));
    assert_eq!(outcome(5), Some(Outcome::Expired));
    let images = world.assembly.encoders[0].images.get();
    assert!((8..20).contains(&images), "{images} images were looked at");
}
