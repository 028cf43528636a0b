//! Hostile files: whatever bytes a model file holds, loading gives a model or an error that names the file, what was
//! read and where; it never panics and never takes memory for what the file only claims to have.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]
#![expect(unsafe_code, reason = "the allocator of this test notes the largest request")]

mod fixtures {
    pub mod gguf;
    pub mod small;
    pub mod stored;
    #[expect(dead_code, reason = "other tests take older files")]
    pub mod tiny;
}

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fixtures::gguf::GgufFile;
use fixtures::stored::{floats, oracle};
use fixtures::{small, tiny};
use millstream_kernels::{DType, Error, KvMemory, ReferenceBackend, Row, Scratch, Want, dequantize, load};
use proptest::prelude::{ProptestConfig, any, prop, proptest};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Notes the largest request of the whole test.
struct Noting;

/// Largest request so far, in bytes.
static LARGEST: AtomicUsize = AtomicUsize::new(0);
/// No file here has more than some megabytes; tables of positions of a broken context are the largest thing built.
const LARGEST_MAX: usize = 32 << 20;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// A folder for broken files.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    /// Loads these bytes as a GGUF file.
    fn gguf(&self, bytes: &[u8]) -> Result<(), Error> {
        write(&self.path(), bytes);
        try_load(&self.path())
    }

    /// Loads a folder with these weights.
    fn safetensors(&self, bytes: &[u8]) -> Result<(), Error> {
        write(&self.folder.path().join("config.json"), small::config().to_string().as_bytes());
        write(&self.folder.path().join("model.safetensors"), bytes);
        try_load(self.folder.path())
    }

    /// Loads the small folder with settings changed.
    fn config(&self, key: &str, value: Value) -> Result<(), Error> {
        let mut config = small::config();
        config[key] = value;
        small::folder(self.folder.path());
        std::fs::write(self.folder.path().join("config.json"), config.to_string()).unwrap();
        try_load(self.folder.path())
    }
}

/// Writes a new file. Writing over the old one would make some file systems wait for the disk, thousands of times.
fn write(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
}

/// Loads a model and, if that works, computes a step with it.
fn try_load(path: &Path) -> Result<(), Error> {
    let result = load(path).map(|loaded| {
        let facts = loaded.model.facts();
        let mut kv = KvMemory::new(facts.kv_layout(4), 1);
        let row = Row { tokens: &[0, 0], start: 0, blocks: &[0], logits: Want::All, ..Row::default() };
        let mut scratch = Scratch::new();
        loaded.model.forward(&[row], &mut kv, &mut scratch, &mut ReferenceBackend).unwrap();
    });
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= LARGEST_MAX, "{largest} bytes at once");
    if let Err(error) = &result {
        assert!(error.to_string().contains(path.to_str().unwrap()), "no file in: {error}");
    }
    result
}

/// The message of an error that must come.
fn message(result: Result<(), Error>) -> String {
    result.expect_err("a broken file was loaded").to_string()
}

/// Asserts that loading fails with a message that holds `part`.
#[track_caller]
fn refused(result: Result<(), Error>, part: &str) {
    let message = message(result);
    assert!(message.contains(part), "no {part:?} in: {message}");
}

#[test]
fn formats_widen_to_the_values_of_their_definition() {
    // Random blocks, widened by the reference code of the format's authors.
    let bytes = std::fs::read(oracle("formats").join("blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    // F32 is what it is, and the values of F8E4M3 have a test of their own.
    for dtype in DType::ALL.into_iter().filter(|dtype| ![DType::F32, DType::F8E4M3].contains(dtype)) {
        let name = format!("{dtype:?}");
        let name = name.strip_suffix('K').map_or(name.clone(), |bits| format!("{bits}_K"));
        let values = floats(&tensors, &format!("{name}.values"));
        let blocks = tensors.tensor(&format!("{name}.blocks")).unwrap();
        let mut own = vec![0.0; values.len()];
        dequantize(dtype, blocks.data(), &mut own);
        for (i, (own, value)) in own.iter().zip(&values).enumerate() {
            assert_eq!(own.to_bits(), value.to_bits(), "{name}: value {i} is {own}, not {value}");
        }
    }
}

#[test]
fn the_small_files_are_right_before_they_are_broken() {
    let place = Place::new();
    place.gguf(&small::gguf().bytes()).unwrap();
    place.safetensors(&small::safetensors()).unwrap();
    let gguf = load(&place.path()).unwrap();
    assert_eq!((gguf.model.facts().bos, gguf.model.facts().eos.as_slice()), (Some(1), &[2][..]));
    let text = gguf.text.gguf.unwrap();
    assert_eq!((&text.tokens[5], text.scores[5], text.types[0]), ("▁", -3.0, 2));
    assert!(text.add_bos && text.add_space_prefix && text.merges.is_empty());
}

#[test]
fn a_gguf_file_cut_off_anywhere_is_refused() {
    let (place, bytes) = (Place::new(), small::gguf().bytes());
    for len in 0..bytes.len() {
        let message = message(place.gguf(&bytes[..len]));
        assert!(len < 4 || message.contains(" at byte "), "cut at {len}: {message}");
    }
}

#[test]
fn a_safetensors_file_cut_off_anywhere_is_refused() {
    let (place, bytes) = (Place::new(), small::safetensors());
    for len in 0..bytes.len() {
        refused(place.safetensors(&bytes[..len]), "safetensors header at byte ");
    }
}

#[test]
fn no_changed_byte_does_harm() {
    let place = Place::new();
    let (gguf, safetensors) = (small::gguf().bytes(), small::safetensors());
    let header = 8 + u64::from_le_bytes(*safetensors.first_chunk().unwrap()) as usize;
    let data = gguf.len() - 4 * (6 * 8 + 8 * 3 + 8 * 8 * 2 + 4 * 8 * 2 + 12 * 8 * 3);
    for (bytes, end, is_gguf) in [(gguf, data + 64, true), (safetensors, header + 64, false)] {
        for at in 0..end {
            for change in [0x01, 0x04, 0x20, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                let _ = if is_gguf { place.gguf(&bytes) } else { place.safetensors(&bytes) };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_random_bytes_do_harm(head in 0_usize..64, bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let place = Place::new();
        let gguf = small::gguf().bytes();
        let _ = place.gguf(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
        let _ = place.gguf(&[&gguf[..24 + 8 * head], &bytes[..]].concat());
        let safetensors = small::safetensors();
        let _ = place.safetensors(&bytes);
        let _ = place.safetensors(&[&safetensors[..head], &bytes[..], &safetensors[head + bytes.len()..]].concat());
    }

    #[test]
    fn no_random_numbers_do_harm(at in 4_usize..1200, number in any::<u64>(), shift in 0_u32..64) {
        let place = Place::new();
        for (mut bytes, is_gguf) in [(small::gguf().bytes(), true), (small::safetensors(), false)] {
            bytes[at..at + 8].copy_from_slice(&(number >> shift).to_le_bytes());
            let _ = if is_gguf { place.gguf(&bytes) } else { place.safetensors(&bytes) };
        }
    }
}

/// The small file with eight bytes at `at` changed.
fn patched(at: usize, number: u64) -> Vec<u8> {
    let mut bytes = small::gguf().bytes();
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Where a text ends in the small file.
fn behind(text: &str) -> usize {
    let bytes = small::gguf().bytes();
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap() + text.len()
}

#[test]
fn counts_that_lie_are_refused() {
    let place = Place::new();
    refused(place.gguf(&patched(8, 1 << 60)), "GGUF header at byte 8: 1152921504606846976 tensors, at most");
    refused(place.gguf(&patched(16, 1 << 60)), "GGUF header at byte 16: 1152921504606846976 entries");
    refused(place.gguf(&patched(16, 60_000)), "entry ");
    refused(place.gguf(&patched(24, 1 << 60)), "metadata at byte 24: a text of 1152921504606846976 bytes");
    refused(place.gguf(&patched(24, 1 << 20)), "metadata at byte 32: needs 1048576 bytes, the file has ");
    let list = behind("ggml.tokens") + 8;
    refused(place.gguf(&patched(list, 1 << 60)), "metadata \"tokenizer.ggml.tokens\" at byte ");
    refused(place.gguf(&patched(list, 1 << 23)), "metadata \"tokenizer.ggml.tokens\" at byte ");
    let list = behind("ggml.scores") + 8;
    refused(place.gguf(&patched(list, 1 << 23)), "needs 33554432 bytes, the file has ");
    refused(place.gguf(&patched(list, 3)), "");
}

#[test]
fn sizes_and_places_that_lie_are_refused() {
    let place = Place::new();
    let entry = behind("token_embd.weight");
    refused(place.gguf(&patched(entry + 4, 1 << 62)), "tensor \"token_embd.weight\" at byte ");
    refused(place.gguf(&patched(entry + 4, 0)), "a size of 0");
    refused(place.gguf(&patched(entry + 4, 1 << 20)), "end behind the file");
    refused(place.gguf(&patched(entry + 24, u64::MAX - 31)), "end behind the file");
    refused(place.gguf(&patched(entry + 24, 7)), "offset 7 is no multiple of 32");
    refused(place.gguf(&patched(entry + 24, 192)), "is inside of another tensor");
    let mut file = small::gguf();
    file.tensors[0].kind = 16;
    refused(place.gguf(&file.bytes()), "type of tensor \"token_embd.weight\" = 16 at byte ");
    file.tensors[0].kind = 2;
    refused(place.gguf(&file.bytes()), "a size of [6, 8] Q4_0 values makes no sense");
    file.tensors[0].kind = 0;
    file.tensors[0].shape = vec![1, 1, 1, 6, 8];
    refused(place.gguf(&file.bytes()), "5 sizes, 1 to 4 are possible");
    file.tensors[0].shape = vec![8, 6];
    refused(place.gguf(&file.bytes()), "tensor \"token_embd.weight\" is F32 [8, 6], needed: [8, 8]");
    file.tensors[0].shape = vec![6, 8];
    file.tensors[1].name = "token_embd.weight".to_owned();
    refused(place.gguf(&file.bytes()), "the name is there twice");
}

#[test]
fn headers_that_make_no_sense_are_refused() {
    let place = Place::new();
    let with = |edit: &dyn Fn(&mut GgufFile)| {
        let mut file = small::gguf();
        edit(&mut file);
        place.gguf(&file.bytes())
    };
    let version = |version: u32| {
        let mut bytes = small::gguf().bytes();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        place.gguf(&bytes)
    };
    version(2).unwrap();
    refused(version(1), "GGUF version = 1 is not supported; supported: 2, 3");
    refused(version(3_u32.swap_bytes()), "GGUF version = big-endian is not supported");
    refused(with(&|file| file.put("general.alignment", 3_u32)), "\"general.alignment\" at byte ");
    refused(with(&|file| file.put("general.alignment", 0_u32)), "0 is no power of two");
    refused(with(&|file| file.put("general.architecture", "llama")), "the key is there twice");
    let value = |kind: u32, bytes: &[u8]| [&kind.to_le_bytes()[..], bytes].concat();
    let broken = |value: Vec<u8>| with(&|file| file.metadata.push(("x".to_owned(), value.clone())));
    refused(broken(value(7, &[2])), "metadata \"x\" at byte ");
    refused(broken(value(13, &[])), "a value of type 13, 0 to 12 are known");
    refused(broken(value(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])), "text is no UTF-8");
    let mut nested = value(9, &[]);
    for _ in 0..100_000 {
        nested.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    refused(broken(nested), "lists are nested deeper than 4");
    refused(place.gguf(b"GGML"), "is neither a folder with config.json nor a GGUF file");
    refused(place.gguf(b""), "is neither a folder with config.json nor a GGUF file");
    refused(try_load(Path::new("/nowhere/model.gguf")), "cannot read /nowhere/model.gguf");
}

#[test]
fn gguf_features_that_are_not_built_are_refused_by_name() {
    let place = Place::new();
    let with = |edit: &dyn Fn(&mut GgufFile)| {
        let mut file = small::gguf();
        edit(&mut file);
        place.gguf(&file.bytes())
    };
    let architecture = with(&|file| {
        file.metadata.remove(0);
        file.put("general.architecture", "mamba");
    });
    refused(
        architecture,
        "unknown architecture \"mamba\"; known: llama, qwen2, qwen3, qwen3moe, gemma3, gpt-oss",
    );
    refused(with(&|file| drop(file.metadata.remove(0))), "general.architecture: is missing or no text");
    refused(with(&|file| file.put("llama.expert_count", 8_u32)), "llama.expert_count = 8 is not supported");
    refused(
        with(&|file| file.put("llama.rope.scaling.type", "longrope")),
        "llama.rope.scaling.type = longrope",
    );
    refused(
        with(&|file| file.put("llama.rope.scaling.type", "yarn")),
        "llama.rope.scaling.factor: is missing",
    );
    refused(with(&|file| file.put("llama.logit_scale", 2.0_f32)), "llama.logit_scale = 2 is not supported");
    refused(
        with(&|file| file.put("llama.rope.dimension_count", 2_u32)),
        "dimension_count = 2 is not supported",
    );
    let bias = with(&|file| file.tensor("blk.0.attn_q.bias", &[8], 0, vec![0; 32]));
    refused(bias, "tensor \"blk.0.attn_q.bias\" = F32 [8] is not supported");
    refused(with(&|file| drop(file.tensors.pop())), "no tensor \"blk.0.ffn_down.weight\"");
    with(&|file| file.put("llama.attention.head_count_kv2", &[1][..])).unwrap_err();
    with(&|file| file.put("llama.rope.scaling.type", "none")).unwrap();
    let mut softcapped = tiny::as_gguf("tiny-gemma3");
    softcapped.put("gemma3.final_logit_softcapping", 30.0_f32);
    refused(place.gguf(&softcapped.bytes()), "gemma3.final_logit_softcapping = 30 is not supported");
}

/// A safetensors file with this header and `data` bytes.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn safetensors_headers_that_lie_are_refused() {
    let place = Place::new();
    let mut long = small::safetensors();
    for length in [u64::MAX, 1 << 60, 1 << 20, 99_000_000] {
        long[..8].copy_from_slice(&length.to_le_bytes());
        refused(place.safetensors(&long), "safetensors header at byte 0: a length of ");
    }
    let tensor = |a: u64, b: u64| {
        format!("{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{a},{b}]}}", b.wrapping_sub(a))
    };
    let two = |a: String, b: String| with_header(&format!("{{\"a\":{a},\"b\":{b}}}"), 64);
    refused(place.safetensors(&two(tensor(0, 40), tensor(32, 64))), "safetensors header at byte 8");
    refused(place.safetensors(&two(tensor(0, 32), tensor(40, 64))), "safetensors header at byte 8");
    refused(place.safetensors(&two(tensor(0, 32), tensor(32, 65))), "is at [32, 65] of 64 bytes");
    refused(place.safetensors(&two(tensor(0, 32), tensor(32, 16))), "is at [32, 16] of 64 bytes");
    let far = two(tensor(0, 1 << 63), tensor(1 << 63, u64::MAX));
    refused(place.safetensors(&far), "safetensors header at byte 8");
    let deep = with_header(&format!("{{\"a\":{}", "[".repeat(100_000)), 0);
    refused(place.safetensors(&deep), "safetensors header at byte ");
    refused(place.safetensors(&with_header("{}", 0)), "no tensor \"model.embed_tokens.weight\"");
    refused(place.safetensors(&with_header("{", 0)), "EOF while parsing");
    let shape =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"I32\",\"shape\":[6,8],\"data_offsets\":[0,192]}}";
    refused(
        place.safetensors(&with_header(shape, 192)),
        "tensor \"model.embed_tokens.weight\" is I32 [6, 8]",
    );
}

#[test]
fn shards_that_do_not_fit_their_index_are_refused() {
    let place = tempfile::tempdir().unwrap();
    small::folder(place.path());
    let index = |map: Value| {
        let index = json!({ "weight_map": map });
        std::fs::write(place.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        try_load(place.path())
    };
    refused(index(json!({ "a": "../model.safetensors" })), "is no name of a file in the folder");
    refused(index(json!({ "a": "/etc/passwd" })), "is no name of a file in the folder");
    refused(index(json!({ "a": 3 })), "is no name of a file in the folder");
    refused(index(json!({ "a": "b.safetensors" })), "cannot read");
    refused(index(json!({ "a": "model.safetensors" })), "is in model.safetensors, the index does not say so");
    refused(index(json!([])), "weight_map: is missing or no object");
    std::fs::remove_file(place.path().join("model.safetensors.index.json")).unwrap();
    std::fs::remove_file(place.path().join("model.safetensors")).unwrap();
    refused(try_load(place.path()), "has neither model.safetensors nor model.safetensors.index.json");
    std::fs::write(place.path().join("config.json"), "{\n  \"a\": ]").unwrap();
    refused(try_load(place.path()), "config.json: JSON at byte 9: expected value at line 2");
    std::fs::remove_file(place.path().join("config.json")).unwrap();
    refused(try_load(place.path()), "the folder has no config.json");
}

#[test]
fn settings_that_are_not_built_are_refused_by_name() {
    let place = Place::new();
    let config = |key: &str, value: Value| place.config(key, value);
    refused(
        config("architectures", json!(["MambaForCausalLM"])),
        "unknown architecture \"MambaForCausalLM, llama\"",
    );
    refused(
        config("model_type", json!("mistral")),
        "known: LlamaForCausalLM (llama), Qwen2ForCausalLM (qwen2), ",
    );
    refused(
        config("attention_bias", json!(true)),
        "attention_bias = true is not supported; supported: false",
    );
    refused(config("mlp_bias", json!(true)), "mlp_bias = true is not supported");
    refused(config("hidden_act", json!("relu")), "hidden_act = relu is not supported; supported: silu");
    refused(config("final_logit_softcapping", json!(30.0)), "final_logit_softcapping = 30 is not supported");
    refused(
        config("rope_scaling", json!({ "rope_type": "yarn", "factor": 4 })),
        "rope_scaling.original_max_position_embeddings: is missing",
    );
    refused(
        config("rope_scaling", json!({ "type": "longrope" })),
        "rope_scaling.type = longrope is not supported",
    );
    config("rope_scaling", json!({ "type": "dynamic", "factor": 2.0 })).unwrap();
    let partial = json!({ "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5 });
    refused(config("rope_parameters", partial), "rope_parameters.partial_rotary_factor = 0.5");
    config("rope_scaling", json!({ "type": "linear", "factor": 2.0 })).unwrap();
    config("attention_bias", json!(null)).unwrap();
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let place = Place::new();
    let config = |key: &str, value: Value| place.config(key, value);
    refused(config("num_hidden_layers", json!(1_u64 << 60)), "num_hidden_layers: ");
    refused(config("num_hidden_layers", json!(2)), "no tensor \"model.layers.1.");
    refused(config("num_attention_heads", json!(0)), "0 is no whole number from 1 to");
    refused(config("num_attention_heads", json!(-2)), "-2 is no whole number");
    refused(config("num_key_value_heads", json!(3)), "2 heads cannot share 3");
    refused(config("head_dim", json!(3)), "a head of 3 values cannot turn in pairs");
    refused(config("hidden_size", json!("8")), "hidden_size: 8 is no number");
    refused(config("hidden_size", json!(null)), "hidden_size: is missing");
    refused(config("rms_norm_eps", json!(-1.0)), "rms_norm_eps: -1 is no positive number");
    refused(config("rope_theta", json!(0)), "rope_theta: 0 is no positive number");
    refused(config("eos_token_id", json!("end")), "eos_token_id: is neither a token nor a list of tokens");
    refused(config("vocab_size", json!(7)), "is F32 [6, 8], needed: [7, 8]");
    refused(config("tie_word_embeddings", json!(false)), "no tensor \"lm_head.weight\"");
}
