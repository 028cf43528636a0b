//! Model families against stored logits of an independent implementation, and against themselves: however a prompt is
//! cut and whatever shares its steps, the logits are the same to the last bit.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod clothes;
    pub mod gguf;
    pub mod real;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod run;
    pub mod stored;
    pub mod tiny;
}

use std::path::Path;

use fixtures::real::real_model;
use fixtures::run::{Runner, Sequence, argmax, bits};
use fixtures::stored::{floats, json, oracle};
use fixtures::{clothes, tiny};
use millstream_kernels::{
    Activations, Backend, CpuBackend, Error, ExpertFacts, KvMemory, Loaded, ReferenceBackend, Row, Scratch,
    TextFiles, Want, Widened, load, load_beside,
};
use safetensors::SafeTensors;

/// A list of token ids.
fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// What a tiny model's logits may differ by.
fn tolerance(name: &str) -> f32 {
    if name == "tiny-gemma3" { 3e-3 } else { 1e-3 }
}

fn fast() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(2, &[]))
}

fn load_tiny(name: &str) -> Loaded {
    load(&oracle(name)).unwrap()
}

/// Largest difference of two lists.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Holds one way of loading and running a tiny model to all its vectors; gives the largest difference of a logit.
fn hold_to_vectors(name: &str, path: &Path, backend: Box<dyn Backend>) -> f32 {
    let loaded = load(path).unwrap();
    let vectors = json(&oracle(name).join("vectors.json"));
    let bytes = std::fs::read(oracle(name).join("vectors.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut runner = Runner::new(&*loaded.model, backend);
    let mut worst = 0_f32;
    for prompt in vectors["prompts"].as_array().unwrap() {
        let (key, tokens) = (prompt["name"].as_str().unwrap(), ids(&prompt["input_ids"]));
        let logits = runner.all(&tokens, tokens.len());
        worst = worst.max(check_positions(&tensors, (key, prompt), &logits, tolerance(name)));
        let (greedy, last) = runner.greedy(&tokens, 32);
        assert_eq!(greedy, ids(&prompt["greedy"]["ids"]), "{name} {key}: greedy");
        worst = worst.max(difference(&last, &floats(&tensors, &format!("{key}.greedy_final_logits"))));
    }
    assert!(worst < tolerance(name), "{name}: logits differ by {worst}");
    worst
}

/// Compares the logits of every position of a prompt with what is stored of them.
fn check_positions(
    tensors: &SafeTensors<'_>,
    (key, prompt): (&str, &serde_json::Value),
    logits: &[f32],
    tolerance: f32,
) -> f32 {
    let get = |what: &str| floats(tensors, &format!("{key}.{what}"));
    let argmaxes = tensors.tensor(&format!("{key}.argmax")).unwrap();
    let argmaxes = argmaxes.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let vocab = logits.len() / prompt["n"].as_u64().unwrap() as usize;
    let stored = argmaxes.zip(get("max")).zip(get("logsumexp"));
    let mut worst = 0_f32;
    for (p, (logits, ((best, max), logsumexp))) in logits.chunks_exact(vocab).zip(stored).enumerate() {
        let own = argmax(logits);
        let margin = logits[own as usize] - logits[best as usize];
        assert!(own == best || margin <= 2e-3, "{key} position {p}: {own} is above {best} by {margin}");
        worst = worst.max((logits[own as usize] - max).abs());
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        assert!((sum.ln() as f32 + max - logsumexp).abs() < tolerance, "{key} position {p}: sum");
    }
    for p in ids(&prompt["full_logits_at"]) {
        let own = &logits[p as usize * vocab..][..vocab];
        worst = worst.max(difference(own, &get(&format!("logits.{p}"))));
    }
    for top in prompt["top20"].as_array().unwrap() {
        let own = &logits[top["pos"].as_u64().unwrap() as usize * vocab..][..vocab];
        for (id, value) in ids(&top["ids"]).iter().zip(top["values"].as_array().unwrap()) {
            worst = worst.max((own[*id as usize] - value.as_f64().unwrap() as f32).abs());
        }
    }
    worst
}

/// The stored tiny models, one for each family or format that has vectors.
const TINY: [&str; 6] =
    ["tiny-llama", "tiny-gemma3", "tiny-qwen3-moe", "tiny-gpt-oss", "tiny-gpt-oss-mxfp4", "tiny-deepseek-v3"];

#[test]
fn tiny_models_give_the_stored_logits() {
    for name in TINY {
        let worst = hold_to_vectors(name, &oracle(name), fast());
        eprintln!("{name}: largest difference {worst:.2e}");
    }
}

#[test]
fn the_reference_backend_gives_the_stored_logits() {
    // These have every operation between them.
    for name in ["tiny-llama", "tiny-gpt-oss-mxfp4", "tiny-deepseek-v3"] {
        let worst = hold_to_vectors(name, &oracle(name), Box::new(ReferenceBackend));
        eprintln!("{name}, reference: largest difference {worst:.2e}");
    }
}

#[test]
fn a_gguf_file_gives_the_stored_logits() {
    let folder = tempfile::tempdir().unwrap();
    let older = [("tiny-deepseek-v3", tiny::as_older_gguf("tiny-deepseek-v3"))];
    for (index, (name, file)) in
        TINY.map(|name| (name, tiny::as_gguf(name))).into_iter().chain(older).enumerate()
    {
        let path = folder.path().join(format!("{index}.gguf"));
        std::fs::write(&path, file.bytes()).unwrap();
        let worst = hold_to_vectors(name, &path, fast());
        eprintln!("{name}, GGUF: largest difference {worst:.2e}");
    }
}

#[test]
fn shards_and_settings_of_version_5_change_no_bit() {
    for name in TINY {
        let (v5, shards) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        clothes::sharded(name, shards.path());
        let tokens: Vec<u32> = (0..150).map(|i| i * 37 % 630).collect();
        let all = |loaded: Loaded| Runner::new(&*loaded.model, fast()).all(&tokens, 150);
        let plain = all(load_tiny(name));
        assert_eq!(bits(&plain), bits(&all(load(shards.path()).unwrap())), "{name}: shards");
        if oracle(name).join("config.v5.json").exists() {
            clothes::with_v5_config(name, v5.path());
            assert_eq!(bits(&plain), bits(&all(load(v5.path()).unwrap())), "{name}: version 5");
        }
    }
}

#[test]
fn chunks_and_company_change_no_bit() {
    for name in TINY {
        let loaded = load_tiny(name);
        let vectors = json(&oracle(name).join("vectors.json"));
        let prompts: Vec<_> =
            vectors["prompts"].as_array().unwrap().iter().map(|prompt| ids(&prompt["input_ids"])).collect();
        let mut runner = Runner::new(&*loaded.model, fast());
        let alone: Vec<_> = prompts.iter().map(|tokens| bits(&runner.all(tokens, tokens.len()))).collect();
        for chunk in [1, 7, 64] {
            for (tokens, alone) in prompts.iter().zip(&alone) {
                assert_eq!(&bits(&runner.all(tokens, chunk)), alone, "{name}: chunks of {chunk}");
            }
        }
        let together = together(&mut runner, &prompts);
        for (together, alone) in together.iter().zip(&alone) {
            assert_eq!(&bits(together), alone, "{name}: together");
        }
        let mut one_thread = Runner::new(&*loaded.model, Box::new(CpuBackend::new(1, &[])));
        assert_eq!(bits(&one_thread.all(&prompts[3], 100)), alone[3], "{name}: one thread");
    }
}

/// All prompts in the same steps, each in chunks of its own changing size.
fn together(runner: &mut Runner<'_>, prompts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut sequences: Vec<_> = prompts.iter().map(|tokens| runner.sequence(tokens)).collect();
    for round in 0.. {
        let left = |s: &Sequence| s.tokens.len() - s.done;
        let chunks: Vec<usize> =
            sequences.iter().enumerate().map(|(i, s)| left(s).min((round * 13 + i * 29) % 47)).collect();
        if sequences.iter().all(|s| left(s) == 0) {
            break;
        }
        runner.step(&mut sequences, &chunks);
    }
    let logits = sequences.iter().map(|sequence| sequence.logits.clone()).collect();
    sequences.into_iter().for_each(|sequence| runner.release(sequence));
    logits
}

#[test]
fn only_the_wanted_logits_come_and_they_are_the_same() {
    let loaded = load_tiny("tiny-llama");
    let vocab = loaded.model.facts().vocab;
    let mut runner = Runner::new(&*loaded.model, fast());
    let tokens: Vec<u32> = (0..50).map(|i| i * 37 % 630).collect();
    let all = runner.all(&tokens, 50);
    let at = |p: usize| &all[p * vocab..][..vocab];
    assert_eq!(bits(&runner.wanted(&tokens, 20, Want::Last)), bits(at(49)));
    let some = runner.wanted(&tokens, 20, Want::At(&[0, 7, 29]));
    assert_eq!(bits(&some), bits(&[at(20), at(27), at(49)].concat()));
    assert!(runner.wanted(&tokens, 20, Want::Nothing).is_empty());
    assert!(runner.wanted(&tokens, 20, Want::At(&[])).is_empty());
}

#[test]
fn scratch_grows_to_the_largest_step_and_no_further() {
    for name in TINY {
        let loaded = load_tiny(name);
        let mut runner = Runner::new(&*loaded.model, fast());
        let tokens: Vec<u32> = (0..200).map(|i| i * 37 % 630).collect();
        runner.all(&tokens, 64);
        let warm = runner.scratch.bytes();
        for chunk in [64, 1, 33] {
            runner.all(&tokens, chunk);
            assert_eq!(runner.scratch.bytes(), warm, "{name}");
        }
    }
}

#[test]
fn a_panic_of_the_thread_that_reads_text_comes_to_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("tiny.gguf");
    std::fs::write(&gguf, tiny::as_gguf("tiny-llama").bytes()).unwrap();
    for path in [gguf, oracle("tiny-llama")] {
        let read = |_: &TextFiles| panic!("nobody reads this");
        let died = std::panic::catch_unwind(|| load_beside::<()>(&path, Activations::Int8, read));
        assert_eq!(died.unwrap_err().downcast_ref(), Some(&"nobody reads this"));
    }
}

#[test]
fn facts_come_from_the_files() {
    let llama = load_tiny("tiny-llama");
    let facts = llama.model.facts();
    assert_eq!((facts.family, facts.vocab, facts.context), ("llama", 640, 4096));
    assert_eq!((facts.layers, facts.kv_heads, facts.key_dim, facts.value_dim), (4, 2, 16, 16));
    assert_eq!((facts.parameters, facts.bytes), (516_960, 516_960 * 2));
    assert_eq!((facts.bos, facts.eos.as_slice()), (Some(635), &[636, 639][..]));
    assert_eq!((facts.hidden, facts.embedding_bytes, facts.tied), (96, 640 * 96 * 2, false));
    assert_eq!(facts.experts, ExpertFacts::default());
    assert!(llama.text.tokenizer_json.is_some() && llama.text.tokenizer_config.is_some());
    assert!(llama.text.chat_template.unwrap().contains("start_header_id"));
    let gemma = load_tiny("tiny-gemma3");
    assert_eq!((gemma.model.facts().parameters, gemma.model.facts().bos), (445_168, Some(2)));
    assert_eq!((gemma.model.facts().eos.as_slice(), gemma.model.facts().tied), (&[1][..], true));
    // Four layers of three matrices an expert; MXFP4 has 17 bytes for 32 weights.
    let parameters = 4 * 16 * 3 * 32 * 64;
    let experts = ExpertFacts { parameters, bytes: 2 * parameters, count: 16, per_token: 4 };
    assert_eq!(load_tiny("tiny-qwen3-moe").model.facts().experts, experts);
    let experts = ExpertFacts { parameters, bytes: parameters * 17 / 32, count: 8, per_token: 2 };
    assert_eq!(load_tiny("tiny-gpt-oss-mxfp4").model.facts().experts, experts);
}

#[test]
fn a_step_that_does_not_fit_is_refused_before_anything_is_written() {
    let loaded = load_tiny("tiny-llama");
    let good = Row { tokens: &[1, 2], start: 0, blocks: &[0], logits: Want::Last, ..Row::default() };
    let cases = [
        (Row { tokens: &[640], ..good }, "holds token 640, the vocabulary has 640"),
        (Row { start: 4095, ..good }, "ends at position 4097, the model was made for 4096"),
        (Row { start: 15, ..good }, "has 1 blocks, position 17 needs 2"),
        (Row { blocks: &[3], ..good }, "names block 3, the memory has 2"),
        (Row { tokens: &[], ..good }, "wants logits Last of 0 tokens"),
        (Row { logits: Want::At(&[2]), ..good }, "wants logits At([2]) of 2 tokens"),
        (Row { logits: Want::At(&[1, 0]), ..good }, "wants logits At([1, 0]) of 2 tokens"),
    ];
    let mut kv = KvMemory::new(loaded.model.facts().kv_layout(16), 2);
    let mut scratch = Scratch::new();
    for (row, problem) in cases {
        let result = loaded.model.forward(&[good, row], &mut kv, &mut scratch, &mut ReferenceBackend);
        assert_eq!(result.unwrap_err().to_string(), format!("row 1 of the step: {problem}"));
    }
    assert!(kv.head(0, 0, 0, &mut Widened::default()).0.iter().all(|&k| k == 0.0));
    let mut layout = kv.layout();
    layout.key_dim = 8;
    let mut other = KvMemory::new(layout, 2);
    let result = loaded.model.forward(&[good], &mut other, &mut scratch, &mut ReferenceBackend);
    assert!(matches!(result, Err(Error::KvLayout { .. })));
}

#[test]
fn gemma3_270m_gives_the_stored_logits() {
    let Some(path) = real_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let loaded = load(&path).unwrap();
    assert_eq!((loaded.model.facts().bos, loaded.model.facts().eos.as_slice()), (Some(2), &[1, 106][..]));
    let vectors = json(&oracle("gemma3-270m").join("vectors.json"));
    let mut runner = Runner::new(&*loaded.model, fast());
    let mut worst = 0_f32;
    for chat in vectors["chats"].as_array().unwrap() {
        let tokens = ids(&chat["input_ids"]);
        let mut sequence = [runner.sequence(&tokens)];
        worst = worst.max(prompt_of_chat(&mut runner, &mut sequence[0], chat));
        check_greedy(&mut runner, &mut sequence, chat);
        let [sequence] = sequence;
        runner.release(sequence);
    }
    eprintln!("gemma-3-270m: largest difference {worst:.2e}");
    assert!(worst < 0.01, "logits differ by {worst}");
}

/// Computes the prompt of a chat, wanting only the stored positions: 262144 logits for each token would take much
/// memory. Gives the largest difference.
fn prompt_of_chat(runner: &mut Runner<'_>, sequence: &mut Sequence, chat: &serde_json::Value) -> f32 {
    let top20 = chat["top20"].as_array().unwrap();
    let places: Vec<u32> = top20.iter().map(|top| top["pos"].as_u64().unwrap() as u32).collect();
    let row = Row {
        tokens: &sequence.tokens,
        start: 0,
        blocks: &sequence.blocks,
        logits: Want::At(&places),
        ..Row::default()
    };
    runner.model.forward(&[row], &mut runner.kv, &mut runner.scratch, &mut *runner.backend).unwrap();
    sequence.done = sequence.tokens.len();
    let mut worst = 0_f32;
    let vocab = runner.model.facts().vocab;
    for (logits, top) in runner.scratch.logits().chunks_exact(vocab).zip(top20) {
        for (id, value) in ids(&top["ids"]).iter().zip(top["values"].as_array().unwrap()) {
            worst = worst.max((logits[*id as usize] - value.as_f64().unwrap() as f32).abs());
        }
        let max = logits[argmax(logits) as usize];
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        worst = worst.max((sum.ln() as f32 + max - top["logsumexp"].as_f64().unwrap() as f32).abs());
        sequence.logits = logits.to_vec();
    }
    worst
}

/// The continuation is the stored one, up to a step whose stored margin is within what two logits may differ by.
fn check_greedy(runner: &mut Runner<'_>, sequence: &mut [Sequence; 1], chat: &serde_json::Value) {
    let stored = &chat["greedy"];
    let margins = stored["margin"].as_array().unwrap();
    for (index, (id, margin)) in ids(&stored["ids"]).into_iter().zip(margins).enumerate() {
        let (own, margin) = (argmax(&sequence[0].logits), margin.as_f64().unwrap());
        let name = &chat["name"];
        assert!(
            own == id || margin < 0.02,
            "{name}: greedy token {index} is {own}, not {id} ({margin} ahead)"
        );
        sequence[0].tokens.push(id);
        sequence[0].logits.clear();
        runner.step(sequence, &[1]);
    }
}

#[test]
fn smollm2_speaks_the_same_in_any_chunks() {
    let Some(path) = real_model("smollm2-135m-instruct-q4_1.gguf") else { return };
    let loaded = load(&path).unwrap();
    let facts = loaded.model.facts();
    assert_eq!((facts.family, facts.vocab, facts.context, facts.layers), ("llama", 49_152, 8192, 30));
    assert_eq!((facts.bos, facts.eos.as_slice()), (Some(1), &[0, 2][..]));
    let gguf = loaded.text.gguf.as_ref().unwrap();
    assert_eq!((gguf.model.as_str(), gguf.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((gguf.tokens.len(), gguf.merges.len(), gguf.add_bos), (49_152, 48_900, false));
    // "The capital of France is", one token a word.
    let words = ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"];
    let id = |word: &&str| gguf.tokens.iter().position(|token| token == *word).unwrap() as u32;
    let prompt: Vec<u32> = words.iter().map(id).collect();
    let mut runner = Runner::new(&*loaded.model, fast());
    let (next, _) = runner.greedy(&prompt, 1);
    assert_eq!(&gguf.tokens[next[0] as usize], "ĠParis");
    let tokens: Vec<u32> = (0..40).map(|i| i * 997 % 49_000).collect();
    let alone = bits(&runner.all(&tokens, 40));
    for chunk in [1, 7] {
        assert_eq!(bits(&runner.all(&tokens, chunk)), alone, "chunks of {chunk}");
    }
}
