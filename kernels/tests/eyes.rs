//! Models with eyes against stored logits, and against themselves: however a prompt with images is cut and whatever shares
//! its steps, the logits are the same to the last bit.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod clothes;
    pub mod folder;
    pub mod images;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod run;
    pub mod stored;
}

use fixtures::folder::Folder;
use fixtures::images::{Seen, Seer, ids};
use fixtures::run::{Runner, argmax, bits};
use fixtures::stored::{floats, json, oracle};
use millstream_kernels::{CpuBackend, Error, KvMemory, Row, Scratch, Span, load};
use safetensors::SafeTensors;
use serde_json::{Value, json as value};

/// What logits may differ by.
const TOLERANCE: f32 = 1e-3;

/// Largest difference of two lists.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Largest difference of the logits of a prompt from what is stored of them.
fn worst(tensors: &SafeTensors<'_>, prompt: &Value, logits: &[f32]) -> f32 {
    let key = prompt["name"].as_str().unwrap();
    let get = |what: &str| floats(tensors, &format!("{key}.{what}"));
    let vocab = 640;
    let mut worst = 0_f32;
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
    for (own, want) in logits.chunks_exact(vocab).zip(get("logsumexp")) {
        let max = own[argmax(own) as usize];
        let sum: f64 = own.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        worst = worst.max((sum.ln() as f32 + max - want).abs());
    }
    worst
}

#[test]
fn text_alone_gives_the_stored_logits() {
    let path = oracle("tiny-qwen3-vl");
    let loaded = load(&path).unwrap();
    let bytes = std::fs::read(path.join("vectors.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut runner = Runner::new(&*loaded.model, Box::new(CpuBackend::new(2, &[])));
    for prompt in json(&path.join("vectors.json"))["prompts"].as_array().unwrap() {
        let tokens = ids(&prompt["input_ids"]);
        let worst = worst(&tensors, prompt, &runner.all(&tokens, tokens.len()));
        assert!(worst < TOLERANCE, "{}: logits differ by {worst}", prompt["name"]);
        let (greedy, last) = runner.greedy(&tokens, 32);
        assert_eq!(greedy, ids(&prompt["greedy"]["ids"]), "{}", prompt["name"]);
        let key = format!("{}.greedy_final_logits", prompt["name"].as_str().unwrap());
        assert!(difference(&last, &floats(&tensors, &key)) < TOLERANCE);
    }
}

#[test]
fn images_give_the_stored_logits() {
    let mut seer = Seer::new("tiny-qwen3-vl");
    let bytes = std::fs::read(oracle("tiny-qwen3-vl").join("vision.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut most = 0_f32;
    for prompt in seer.vectors["prompts"].as_array().unwrap().clone() {
        let (name, tokens) = (prompt["name"].as_str().unwrap(), ids(&prompt["input_ids"]));
        let images = seer.images(&prompt);
        let places = tensors.tensor(&format!("{name}.position_ids")).unwrap();
        let places: Vec<u32> =
            places.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let turns = seer.turns(&images, 0, tokens.len() + 1);
        for (axis, places) in places.chunks_exact(tokens.len()).enumerate() {
            let own: Vec<u32> = turns[..tokens.len()].iter().map(|place| place[axis]).collect();
            assert_eq!(own, places, "{name}, axis {axis}");
        }
        let delta = prompt["mrope_delta"].as_i64().unwrap() + tokens.len() as i64;
        assert_eq!(turns[tokens.len()].map(i64::from), [delta; 3], "{name}");
        let logits = seer.run(&[(&tokens, &images)], &[&[tokens.len()]]).remove(0);
        let worst = worst(&tensors, &prompt, &logits);
        assert!(worst < TOLERANCE, "{name}: logits differ by {worst}");
        most = most.max(worst);
        assert_eq!(seer.greedy(&tokens, &images, 32), ids(&prompt["greedy"]["ids"]), "{name}");
    }
    eprintln!("tiny-qwen3-vl with images: largest difference {most:.2e}");
}

#[test]
fn chunks_and_company_change_no_bit() {
    let mut seer = Seer::new("tiny-qwen3-vl");
    let prompts: Vec<(Vec<u32>, Vec<Seen>)> = seer.vectors["prompts"]
        .as_array()
        .unwrap()
        .clone()
        .iter()
        .map(|prompt| (ids(&prompt["input_ids"]), seer.images(prompt)))
        .collect();
    let mut alone = Vec::new();
    for (tokens, images) in &prompts {
        let whole = bits(&seer.run(&[(tokens, images)], &[&[tokens.len()]])[0]);
        for chunk in [1, 3, 8] {
            let chunks = vec![chunk; tokens.len().div_ceil(chunk)];
            let cut = seer.run(&[(tokens, images)], &[&chunks]).remove(0);
            assert_eq!(bits(&cut), whole, "chunks of {chunk}");
        }
        alone.push(whole);
    }
    let all: Vec<(&[u32], &[Seen])> = prompts.iter().map(|(t, i)| (t.as_slice(), i.as_slice())).collect();
    let chunks: Vec<Vec<usize>> =
        (0..all.len()).map(|i| (0..90).map(|n| (n * 7 + i * 5) % 11).collect()).collect();
    let chunks: Vec<&[usize]> = chunks.iter().map(Vec::as_slice).collect();
    for (together, alone) in seer.run(&all, &chunks).iter().zip(&alone) {
        assert_eq!(&bits(together), alone, "together");
    }
}

#[test]
fn settings_of_version_5_change_no_bit() {
    let tokens: Vec<u32> = (0..150).map(|i| i * 37 % 630).collect();
    let place = tempfile::tempdir().unwrap();
    clothes_v5(place.path());
    let all = |path: &std::path::Path| {
        let loaded = load(path).unwrap();
        assert_eq!(loaded.model.facts().image_token, Some(638));
        assert_eq!(loaded.model.facts().eos, [635]);
        bits(&Runner::new(&*loaded.model, Box::new(CpuBackend::new(2, &[]))).all(&tokens, 150))
    };
    assert_eq!(all(place.path()), all(&oracle("tiny-qwen3-vl")));
}

/// The model under the settings that transformers 5 writes.
fn clothes_v5(to: &std::path::Path) {
    fixtures::clothes::with_v5_config("tiny-qwen3-vl", to);
}

#[test]
fn steps_that_no_image_fits_are_refused() {
    let loaded = load(&oracle("tiny-qwen3-vl")).unwrap();
    let model = &*loaded.model;
    let mut kv = KvMemory::new(model.facts().kv_layout(16), 4);
    let embeddings = vec![0.5; 3 * 256];
    let mut refused = |tokens: &[u32], spans: &[Span<'_>], turns: &[[u32; 3]], part: &str| {
        let row = Row { tokens, blocks: &[0], spans, turns, ..Row::default() };
        let backend = &mut CpuBackend::new(1, &[]);
        let error = model.forward(&[row], &mut kv, &mut Scratch::new(), backend).unwrap_err();
        assert!(matches!(error, Error::Step { row: 0, .. }));
        assert!(error.to_string().contains(part), "no {part:?} in: {error}");
    };
    let span = |first, width| Span { first, embeddings: &embeddings, width };
    let tokens = [1, 638, 638, 638, 5];
    refused(&tokens, &[span(0, 256)], &[], "an image at tokens 0 to 3 that are none of one");
    refused(&tokens, &[span(3, 256)], &[], "has 768 values of an image, 256 a token, from token 3 on");
    refused(&tokens, &[span(1, 100)], &[], "100 a token");
    refused(&tokens, &[span(1, 256), span(1, 256)], &[], "from token 1 on");
    refused(&tokens, &[span(1, 256)], &[[0; 3]; 4], "turns by 4 places, has 5 tokens");
    refused(&tokens, &[], &[[4_096; 3]; 5], "turns by [4096, 4096, 4096]");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let refused = |section: &str, key: &str, setting: Value, part: &str| {
        let mut folder = Folder::stored("tiny-qwen3-vl");
        folder.config[section][key] = setting;
        let place = tempfile::tempdir().unwrap();
        folder.write(place.path());
        let error = load(place.path()).unwrap_err().to_string();
        assert!(error.contains(part), "no {part:?} in: {error}");
    };
    let section =
        |sizes: Value| value!({ "mrope_interleaved": true, "mrope_section": sizes, "rope_type": "default" });
    refused(
        "text_config",
        "rope_scaling",
        section(value!([6, 5, 4])),
        "6 + 5 + 4 pairs of 16 cannot alternate",
    );
    refused("text_config", "rope_scaling", section(value!([4, 6, 6])), "cannot alternate");
    refused("text_config", "rope_scaling", Value::Null, "text_config.rope_scaling: is missing");
    refused("vision_config", "num_position_embeddings", value!(63), "63 are no square");
    refused(
        "vision_config",
        "deepstack_visual_indexes",
        value!([0, 4]),
        "[0, 4] are no ascending blocks of 4",
    );
    refused("vision_config", "num_heads", value!(5), "5 heads of 48 values cannot turn");
    refused("vision_config", "out_hidden_size", value!(48), "48 values for layers of 64");
    refused(
        "vision_config",
        "hidden_act",
        value!("silu"),
        "vision_config.hidden_act = silu is not supported",
    );
}
