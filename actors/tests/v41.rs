//! The real thing: a tiny DeepSeek-V4.1 through the whole graph, truncated or whole, and with its cache in four bits.

mod common;

use common::stateful::Case;
use common::{COST, plan_with, resources};
use millstream_actors::assemble::{Driver, assemble};

const MODEL: &str = "tiny-deepseek-v41/ckpt-w16";

/// Eight layers with windows of sixteen.
const CASES: [Case; 3] = [
    Case { model: MODEL, top: "", cache: "", exact: 8 * 16 },
    Case { model: MODEL, top: "decoder_truncation = true", cache: "windows = \"state\"", exact: 8 * 16 },
    Case { model: MODEL, top: "kv = \"fp4\"", cache: "", exact: 8 * 16 },
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

/// Four bits are for what was made for them.
#[test]
fn a_model_that_was_not_made_for_four_bits_is_refused_by_name() {
    let plan = plan_with(["kv = \"fp4\"", ""], "", "joined = true");
    let refused = assemble(&plan, &resources("tiny-llama"), Driver::Sim(COST)).err().expect("it is refused");
    let said = "kv is \"fp4\", and this model's keys and values were not made for four bits: write \"q8\"";
    assert_eq!(refused.to_string(), said);
}
