//! The real thing: a tiny DeepSeek-V4.1 through the whole graph, truncated or whole.

mod common;

use common::stateful::Case;
use common::{COST, plan_with, resources};
use millstream_actors::assemble::{Driver, assemble};

const MODEL: &str = "tiny-deepseek-v41/ckpt-w16";

/// Eight layers with windows of sixteen.
const CASES: [Case; 2] = [
    Case { model: MODEL, top: "", cache: "", exact: 8 * 16 },
    Case { model: MODEL, top: "decoder_truncation = true", cache: "windows = \"state\"", exact: 8 * 16 },
];

#[test]
fn the_answer_is_the_same_on_every_path() {
    CASES.iter().for_each(Case::is_the_same_on_every_path);
}

#[test]
fn a_death_does_not_show() {
    CASES.iter().for_each(Case::goes_on_after_a_death);
}

#[test]
fn a_preemption_does_not_show() {
    CASES.iter().for_each(Case::goes_on_after_a_preemption);
}

/// An entry of two tokens never lies in two blocks.
#[test]
fn an_odd_block_size_is_refused_with_its_cure() {
    let plan = plan_with(["", ""], "block_size = 7", "joined = true\nblock_size = 7");
    let refused = assemble(&plan, &resources(MODEL), Driver::Sim(COST)).err().expect("it is refused");
    let said = "actors.decode.block_size is 7, and this model keeps entries of two tokens: make it even";
    assert_eq!(refused.to_string(), said);
}
