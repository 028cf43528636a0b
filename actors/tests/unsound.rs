//! Weights that give no numbers: the request fails with a sentence, the group lives on, and nothing is left behind.

mod common;

use std::time::Duration;

use common::{World, plan, submit};
use millstream_actors::assemble::Resources;
use millstream_actors::request::Outcome;
use millstream_runtime::Faults;

#[test]
fn damaged_weights_fail_the_request_and_not_the_group() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        std::fs::copy(common::oracle("tiny-llama").join(file), folder.path().join(file)).unwrap();
    }
    let weights = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0xff);
    std::fs::write(&weights, bytes).unwrap();
    let resources = Resources::load(folder.path()).expect("the file is of the right form");
    for joined in ["joined = true", "joined = false", "joined = true\nplan_ahead = true"] {
        let mut world = World::new(&plan("", joined), &resources, 3, Faults::none());
        world.submit_at(Duration::ZERO, submit(1, &[1, 2, 3], 8));
        world.run();
        let (_, answer) = world.answers.first_key_value().expect("it has an end");
        assert!(
            matches!(&answer.outcome, Some(Outcome::Failed(why)) if why.contains("not a number")),
            "{answer:?}"
        );
        assert!(answer.tokens.is_empty());
        world.assert_quiet("unsound");
        assert!(world.sim.seats().iter().all(|seat| seat.restarts == 0));
    }
}
