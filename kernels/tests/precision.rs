//! Real models in less than full precision (packed weights and 8-bit activations; keys and values in fewer bits): near the
//! exact results where these are clear, and the same to the last bit however the work is cut.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod real;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod run;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod stored;
}

use fixtures::real::real_model;
use fixtures::run::{Runner, Sequence, argmax, bits};
use fixtures::stored::{json, oracle};
use millstream_kernels::{Activations, CpuBackend, KvFormat, KvLayout, KvMemory, Loaded, load_with};

/// A list of token ids.
fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A real model, packed.
fn packed(file: &str) -> Option<Loaded> {
    Some(load_with(&real_model(file)?, Activations::Int8).unwrap())
}

fn runner(loaded: &Loaded) -> Runner<'_> {
    Runner::new(&*loaded.model, Box::new(CpuBackend::new(2, &[])))
}

/// The logits of a sequence's last token.
fn last<'a>(runner: &Runner<'_>, sequence: &'a Sequence) -> &'a [f32] {
    &sequence.logits[sequence.logits.len() - runner.model.facts().vocab..]
}

#[test]
fn gemma3_270m_says_the_same_where_the_choice_is_clear() {
    let Some(loaded) = packed("gemma-3-270m-q4_k_m.gguf") else { return };
    let vectors = json(&oracle("gemma3-270m").join("vectors.json"));
    let mut runner = runner(&loaded);
    let (mut kept, mut all) = (0, 0);
    for chat in vectors["chats"].as_array().unwrap() {
        let (tokens, greedy) = (ids(&chat["input_ids"]), &chat["greedy"]);
        let mut sequence = [runner.sequence(&tokens)];
        let start = tokens.len() - tokens.len().min(8);
        runner.quiet(&mut sequence[0], start);
        runner.step(&mut sequence, &[tokens.len() - start]);
        let steps = ids(&greedy["ids"]).into_iter().zip(greedy["margin"].as_array().unwrap());
        for ((id, margin), top5) in steps.zip(greedy["top5"].as_array().unwrap()) {
            let logits = last(&runner, &sequence[0]);
            let best = argmax(logits);
            let margin = margin.as_f64().unwrap();
            assert!(best == id || margin < 0.5, "{}: {best}, not {id}, {margin} ahead", chat["name"]);
            let stored = ids(top5.get("ids").unwrap_or(top5));
            all += stored.len();
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            let by_logit = |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]);
            order.select_nth_unstable_by(stored.len() - 1, by_logit);
            kept += stored.iter().filter(|id| order[..stored.len()].contains(id)).count();
            sequence[0].tokens.push(id);
            sequence[0].logits.clear();
            runner.step(&mut sequence, &[1]);
        }
        let [sequence] = sequence;
        runner.release(sequence);
    }
    eprintln!("gemma-3-270m, int8: {kept} of {all} of the best five are the same");
    assert!(kept * 10 > all * 9, "{kept} of {all} of the best five are the same");
}

#[test]
fn smollm2_gives_the_same_bits_in_any_chunks_and_company() {
    let Some(loaded) = packed("smollm2-135m-instruct-q4_1.gguf") else { return };
    let mut runner = runner(&loaded);
    let tokens: Vec<u32> = (0..40).map(|i| i * 997 % 49_000).collect();
    let alone = bits(&runner.all(&tokens, 40));
    for chunk in [1, 7, 8, 9] {
        assert_eq!(bits(&runner.all(&tokens, chunk)), alone, "chunks of {chunk}");
    }
    let others: Vec<u32> = tokens.iter().rev().copied().collect();
    let mut both = [runner.sequence(&others), runner.sequence(&tokens)];
    runner.step(&mut both, &[11, 13]);
    runner.step(&mut both, &[1, 27]);
    assert_eq!(bits(&both[1].logits), alone, "in company");
}

#[test]
fn keys_and_values_in_fewer_bits_change_little_and_nothing_with_the_chunks() {
    let Some(path) = real_model("smollm2-135m-instruct-q4_1.gguf") else { return };
    let loaded = load_with(&path, Activations::F32).unwrap();
    let tokens: Vec<u32> = (0..70).map(|i| i * 997 % 49_000).collect();
    let exact = runner(&loaded).all(&tokens, 70);
    for (format, allowed) in [(KvFormat::F16, 2e-3), (KvFormat::Q8, 5e-2)] {
        let mut runner = runner(&loaded);
        let layout = KvLayout { format, ..runner.kv.layout() };
        runner.kv = KvMemory::new(layout, runner.kv.blocks());
        let whole = runner.all(&tokens, 70);
        assert_eq!(bits(&runner.all(&tokens, 9)), bits(&whole), "{format:?}");
        let rms =
            |v: &mut dyn Iterator<Item = f32>| (v.map(|x| x * x).sum::<f32>() / exact.len() as f32).sqrt();
        let error = rms(&mut whole.iter().zip(&exact).map(|(a, b)| a - b)) / rms(&mut exact.iter().copied());
        eprintln!("{format:?}: logits differ by {error:.1e} of their size");
        assert!(error < allowed && error > 0.0, "{format:?}: {error}");
    }
}
