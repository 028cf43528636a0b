//! Hostile settings of every family: whatever number or text stands in `config.json` or in the metadata of a GGUF file,
//! loading gives a model that computes, or an error. The files themselves are broken in `files.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod gguf;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
    #[expect(dead_code, reason = "other tests take older files")]
    pub mod tiny;
}

use std::path::Path;

use fixtures::stored::{json, oracle};
use fixtures::tiny;
use millstream_kernels::{CpuBackend, KvMemory, Row, Scratch, Want, load};
use serde_json::{Value, json};

/// One model of each family that has more than the plain settings.
const TINY: [&str; 4] = ["tiny-gemma3", "tiny-qwen3-moe", "tiny-gpt-oss-mxfp4", "tiny-deepseek-v3"];

/// Loads a model and, if that works, computes a step; true if both did.
fn runs(path: &Path) -> bool {
    let Ok(loaded) = load(path) else { return false };
    let layout = loaded.model.facts().kv_layout(4);
    if !KvMemory::is_granted(layout, 1, 0) {
        return false;
    }
    let mut kv = KvMemory::new(layout, 1);
    let row = Row { tokens: &[0, 0], start: 0, blocks: &[0], logits: Want::All, ..Row::default() };
    let mut backend = CpuBackend::new(1, &[]);
    loaded.model.forward(&[row], &mut kv, &mut Scratch::new(), &mut backend).is_ok()
}

/// Writes a new file: to write over the old one would make some file systems wait for the disk, thousands of times.
fn write(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
}

/// What is put in the place of a setting.
fn hostile() -> Vec<Value> {
    vec![
        json!(0),
        json!(1),
        json!(-1),
        json!(1e30),
        json!(3_000_000),
        json!(u64::MAX),
        json!("sliding_attention"),
        json!(null),
        json!(true),
        json!([0]),
        json!({}),
    ]
}

/// All settings that one could be put in the place of, as the keys on the way to them.
fn places(config: &Value) -> Vec<Vec<String>> {
    let keys = |value: &Value| value.as_object().map_or(Vec::new(), |map| map.keys().cloned().collect());
    let mut places = Vec::new();
    for key in keys(config) {
        places.extend(keys(&config[&key]).into_iter().map(|inner| vec![key.clone(), inner]));
        places.push(vec![key]);
    }
    places
}

#[test]
fn no_setting_of_a_folder_does_harm() {
    for name in TINY {
        let place = tempfile::tempdir().unwrap();
        std::fs::copy(oracle(name).join("model.safetensors"), place.path().join("model.safetensors"))
            .unwrap();
        for style in ["config.json", "config.v5.json"].map(|style| oracle(name).join(style)) {
            if !style.exists() {
                continue;
            }
            let config = json(&style);
            let with = |config: &Value| {
                write(&place.path().join("config.json"), config.to_string().as_bytes());
                runs(place.path())
            };
            assert!(with(&config), "{name} as it is");
            // The two styles differ in sections only.
            let sections = style.ends_with("config.v5.json");
            for keys in places(&config).into_iter().filter(|keys| !sections || keys.len() > 1) {
                for value in hostile() {
                    let mut broken = config.clone();
                    *keys.iter().fold(&mut broken, |at, key| &mut at[key]) = value;
                    with(&broken);
                }
            }
        }
    }
}

#[test]
fn no_number_in_metadata_does_harm() {
    for name in TINY {
        let (place, file) = (tempfile::tempdir().unwrap(), tiny::as_gguf(name));
        let path = place.path().join("model.gguf");
        let with = |metadata: Option<(usize, u32)>| {
            let mut file = file.clone();
            if let Some((entry, number)) = metadata {
                // Behind the number of the type; of a text or a flag, these are length or value.
                let value = &mut file.metadata[entry].1;
                let len = value.len().min(8) - 4;
                value[4..4 + len].copy_from_slice(&number.to_le_bytes()[..len]);
            }
            write(&path, &file.bytes());
            runs(&path)
        };
        assert!(with(None), "{name} as it is");
        for entry in 0..file.metadata.len() {
            for number in [0, 1, 7, 1 << 20, u32::MAX, f32::NAN.to_bits()] {
                with(Some((entry, number)));
            }
        }
    }
}

/// Text is read beside the weights, by a thread of its own: what is wrong there is said as well.
#[test]
fn damaged_texts_are_refused_with_their_file() {
    let whole = oracle("tiny-llama");
    let place = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&whole).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, place.path().join(file.file_name().unwrap())).unwrap();
    }
    load(place.path()).unwrap();
    let refused = |name: &str| {
        let error = load(place.path()).expect_err("a damaged text was loaded").to_string();
        assert!(error.contains(name), "no {name} in: {error}");
    };
    for (name, bytes) in [
        ("tokenizer_config.json", &b"{"[..]),
        ("tokenizer.json", b"\xff"),
        ("chat_template.jinja", b"a \xff"),
    ] {
        let path = place.path().join(name);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, bytes).unwrap();
        refused(name);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused(name);
        std::fs::remove_dir(&path).unwrap();
        before.into_iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
    }
}
