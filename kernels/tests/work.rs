//! What is said of the work of a row is what a backend counts when it computes it, in every family.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod counting;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
}

use std::path::Path;

use fixtures::counting::Counting;
use fixtures::stored::oracle;
use millstream_kernels::work::{RowShape, WorkFacts};
use millstream_kernels::{
    CpuBackend, KvMemory, Loaded, Local, Pixels, Row, Scratch, StateFacts, Want, load, survey,
};

const BLOCK: usize = 16;

fn counting() -> Counting {
    Counting { inner: CpuBackend::new(2, &[]), count: 0 }
}

/// Multiply-adds of a row of a model, counted.
fn counted(model: &Loaded, shape: &RowShape, slots: bool) -> u64 {
    let RowShape { start, tokens, logits, valid_from, written, decoder_from } = *shape;
    let facts = model.model.facts();
    let layout = facts.kv_layout(BLOCK);
    let layout = if slots && facts.state.is_none() { layout.with_rings(facts.rings) } else { layout };
    let blocks: Vec<u32> = (0..(start + tokens).div_ceil(BLOCK as u32)).collect();
    let mut kv = KvMemory::new(layout, blocks.len()).with_slots(1);
    let ids: Vec<u32> = (0..start + tokens).map(|at| (at * 7 + 3) % facts.vocab.min(300) as u32).collect();
    let before = &ids[start.saturating_sub(3) as usize..start as usize];
    let local = Local { slot: 0, valid_from, written, before, decoder_from };
    let logits = if logits == 1 { Want::Last } else { Want::Nothing };
    let own = &ids[start as usize..];
    let row = Row { tokens: own, start, blocks: &blocks, logits, local, ..Row::default() };
    let mut backend = counting();
    model.model.forward(&[row], &mut kv, &mut Scratch::new(), &mut backend).unwrap();
    backend.count
}

fn check(model: &Loaded, shape: &RowShape, slots: bool) {
    let work = model.model.facts().work.row(shape);
    let counted = counted(model, shape, slots);
    assert_eq!(work.multiply_adds(), counted as f64, "{} {shape:?}: {work:?}", model.model.facts().family);
}

#[test]
fn rows_ask_what_a_backend_counts() {
    for name in
        ["tiny-llama", "tiny-gemma3", "tiny-qwen3-moe", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-qwen3-vl"]
    {
        let model = load(&oracle(name)).unwrap();
        for (start, tokens, logits) in [(0, 1, 1), (0, 90, 0), (13, 57, 1), (100, 1, 1), (31, 64, 0)] {
            check(&model, &RowShape::plain(start, tokens, logits), false);
        }
    }
}

#[test]
fn windows_in_the_state_see_what_it_knows() {
    for name in ["tiny-gemma3", "tiny-gpt-oss"] {
        let model = load(&oracle(name)).unwrap();
        for (start, valid_from) in [(40, 40), (60, 40), (45, 30)] {
            check(&model, &RowShape { valid_from, ..RowShape::plain(start, 40, 1) }, true);
        }
    }
}

#[test]
fn compressed_entries_replays_and_truncation_are_counted() {
    for window in ["w16", "w128"] {
        let model = load(&oracle("tiny-deepseek-v41").join(format!("ckpt-{window}"))).unwrap();
        let StateFacts { window, exact_replay, decoder_keep, .. } = model.model.facts().state.unwrap();
        for (start, tokens) in [(0, 1), (0, 333), (95, 1), (96, 1), (301, 100), (900, 3)] {
            check(&model, &RowShape::plain(start, tokens, 1), true);
        }
        let written = exact_replay + 64;
        let replay = RowShape { valid_from: 64, written, ..RowShape::default() };
        for (start, tokens) in
            [(64, exact_replay), (64, 40), (64 + window, 3 * window), (64, exact_replay + 30)]
        {
            check(&model, &RowShape { start, tokens, ..replay }, true);
        }
        let bounded = RowShape { valid_from: written - window, written, ..RowShape::default() };
        check(&model, &RowShape { start: written - window, tokens: window + 9, ..bounded }, true);
        let end = written + 200;
        for decoder_from in [end - decoder_keep.unwrap(), end - 1] {
            let shape = RowShape { decoder_from: Some(decoder_from), logits: 1, ..replay };
            check(&model, &RowShape { start: 64, tokens: end - 64, ..shape }, true);
            check(&model, &RowShape { start: 80, tokens: 20, logits: 0, ..shape }, true);
        }
    }
}

#[test]
fn images_ask_what_a_backend_counts() {
    for folder in ["tiny-qwen3-vl", "tiny-deepseek-v41/ckpt-w16"] {
        let model = load(&oracle(folder)).unwrap();
        let vision = model.model.vision().unwrap();
        let plan = vision.plan(150, 100).unwrap();
        let rgb = vec![100; (plan.width * plan.height * 3) as usize];
        let mut backend = counting();
        vision
            .encode(&plan, Pixels { width: plan.width, height: plan.height, rgb: &rgb }, &mut backend)
            .unwrap();
        assert_eq!(model.model.facts().work.image(&plan).multiply_adds(), backend.count as f64, "{folder}");
    }
}

#[test]
fn settings_alone_say_the_same_as_the_files() {
    for name in
        ["tiny-llama", "tiny-gemma3", "tiny-qwen3-moe", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-qwen3-vl"]
    {
        let (alone, whole) = (WorkFacts::of_config(&oracle(name)).unwrap(), survey(&oracle(name)).unwrap());
        let shape = RowShape::plain(20, 70, 2);
        let (alone, whole) = (alone.row(&shape), whole.facts.work.row(&shape));
        assert_eq!(alone.multiply_adds(), whole.multiply_adds(), "{name}");
    }
    let missing = WorkFacts::of_config(Path::new("/nowhere/config.json")).unwrap_err();
    assert!(missing.to_string().contains("no such file"), "{missing}");
}

/// Bytes that a token has read: what is multiplied, of experts its own; never the table of a large vocabulary.
#[test]
fn weights_are_read_once_a_step_and_experts_as_they_are_chosen() {
    let model = survey(&oracle("tiny-qwen3-moe")).unwrap().facts;
    let row = |tokens| model.work.row(&RowShape::plain(0, tokens, 1));
    let one = row(1).weights_read();
    assert!(one > 0.0 && one < row(2).weights_read() && row(2).weights_read() < 2.0 * one);
    let all = (model.bytes - if model.tied { 0 } else { model.embedding_bytes }) as f64;
    let most = row(10_000).weights_read();
    assert!((0.95..=1.0).contains(&(most / all)), "{most} of {all}");
    let both = row(3) + row(4);
    assert_eq!((both.weights, both.rows), (row(1).weights, 2.0));
    assert!((both.weights_read() - row(7).weights_read()).abs() < 1.0);
}
