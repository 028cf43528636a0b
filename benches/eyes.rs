//! How long an image takes: `cargo bench --bench eyes [-- THREADS [SIDE]]`.
//!
//! A made-up tower of a usual size (24 layers of 1,024 values) in front of a text model of nothing encodes one image of
//! 1,024 by 1,024 pixels. Multiply-adds are counted from the shapes: products and attention apart. The limit, multiplying
//! and adding in registers with vectors of eight, is measured in the same run; vectors of sixteen can be faster than it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use millstream_kernels::check::Sample;
use millstream_kernels::{Backend, CpuBackend, Pixels, Whole, load};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

/// The tower: layers, width, heads, width of the feed-forward layers.
const TOWER: [usize; 4] = [24, 1_024, 16, 4_096];
/// Sides of a patch; patches that are merged.
const PATCH: usize = 16;
const MERGE: usize = 2;
/// Width of the text model.
const OUT: usize = 2_048;

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(2);
    let side = numbers.get(1).copied().unwrap_or(1_024) as u32;
    let mut backend = CpuBackend::new(threads, &[]);
    let limit = limit(&mut backend);
    println!("{}, {threads} threads, limit {:.1} G multiply-adds/s", backend.name(), limit / 1e9);
    let folder = std::env::temp_dir().join(format!("millstream-eyes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    write(&folder);
    let loaded = load(&folder).expect("the model just written");
    let eyes = loaded.model.vision().expect("eyes");
    let plan = eyes.plan(side, side).expect("an image");
    let rgb: Vec<u8> =
        (0..plan.width * plan.height * 3).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let image = Pixels { width: plan.width, height: plan.height, rgb: &rgb };
    let patches = plan.tokens * MERGE * MERGE;
    let [layers, width, heads, wide] = TOWER;
    let products = patches
        * (3 * 2 * PATCH * PATCH * width + layers * (4 * width * width + 2 * width * wide))
        + patches * 4 * width * width * MERGE * MERGE / 4;
    let attention = layers * 2 * patches * patches * width;
    for _ in 0..2 {
        let start = Instant::now();
        let seen = eyes.encode(&plan, image, &mut backend).expect("an image");
        let time = start.elapsed().as_secs_f64();
        let all = (products + attention) as f64;
        println!(
            "image {side} x {side}: {patches} patches, {} numbers, {time:.2} s; {:.2} T multiply-adds in products, {:.2} T \
             in attention: {:.1} G/s, {:.0} % of the limit",
            seen.len(),
            products as f64 / 1e12,
            attention as f64 / 1e12,
            all / time / 1e9,
            100.0 * all / time / limit
        );
    }
    alone(&mut backend, patches, (heads, width / heads), limit);
    std::fs::remove_dir_all(&folder).expect("the folder just made");
}

/// Attention of one layer by itself.
fn alone(backend: &mut CpuBackend, tokens: usize, (heads, head_dim): (usize, usize), limit: f64) {
    let mut sample = Sample::new(5);
    let [q, k, v] = [(); 3].map(|()| sample.values(tokens * heads * head_dim));
    let mut out = vec![0.0; q.len()];
    let args = Whole { heads, scale: 0.125, q: &q, k: &k, v: &v };
    let time = best(&mut || backend.attention_whole(&args, tokens, &mut out));
    let rate = (2 * tokens * tokens * heads * head_dim) as f64 / time;
    println!(
        "attention of one layer: {:.1} ms, {:.1} G/s, {:.0} % of the limit",
        time * 1e3,
        rate / 1e9,
        100.0 * rate / limit
    );
}

/// Multiply-adds per second in registers.
fn limit(backend: &mut CpuBackend) -> f64 {
    let operations = backend.probe_multiply_adds() as f64;
    let time = best(&mut || {
        backend.probe_multiply_adds();
    });
    operations / 2.0 / time
}

/// Shortest of some tries, in seconds.
fn best(run: &mut dyn FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..10).map(once).min().unwrap_or(Duration::MAX).as_secs_f64()
}

/// Writes the model.
fn write(folder: &Path) {
    let [layers, width, heads, wide] = TOWER;
    let config = json!({
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 5,
        "tie_word_embeddings": true,
        "text_config": {
            "hidden_size": OUT, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 32, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 4096,
            "rope_scaling": { "mrope_interleaved": true, "mrope_section": [6, 5, 5], "rope_type": "default" }
        },
        "vision_config": {
            "depth": layers, "hidden_size": width, "num_heads": heads, "intermediate_size": wide, "patch_size": PATCH,
            "spatial_merge_size": MERGE, "temporal_patch_size": 2, "num_position_embeddings": 2304,
            "out_hidden_size": OUT, "deepstack_visual_indexes": [], "hidden_act": "gelu_pytorch_tanh"
        }
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let mut tensors = BTreeMap::new();
    for (name, shape) in text().into_iter().chain(tower()) {
        let count = shape.iter().product::<usize>();
        let size = if shape.len() == 1 { 1.0 } else { (shape[shape.len() - 1] as f32).sqrt().recip() };
        tensors.insert(name, (shape, values(count, size)));
    }
    let mut views = BTreeMap::new();
    for (name, (shape, bytes)) in &tensors {
        views.insert(name.clone(), TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("a tensor"));
    }
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
}

/// Random numbers of two bytes, between `-size` and `size`.
fn values(count: usize, size: f32) -> Vec<u8> {
    let mut sample = Sample::new(count as u64);
    (0..count).flat_map(|_| ((sample.value() * size).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect()
}

/// Tensors of the text model.
fn text() -> Vec<(String, Vec<usize>)> {
    let layer = |part: &str| format!("model.language_model.layers.0.{part}.weight");
    let mut all = vec![
        ("model.language_model.embed_tokens.weight".to_owned(), vec![64, OUT]),
        ("model.language_model.norm.weight".to_owned(), vec![OUT]),
    ];
    all.extend(["input_layernorm", "post_attention_layernorm"].map(|norm| (layer(norm), vec![OUT])));
    all.extend(["q_norm", "k_norm"].map(|norm| (layer(&format!("self_attn.{norm}")), vec![32])));
    for (part, rows, cols) in [
        ("self_attn.q_proj", 64, OUT),
        ("self_attn.k_proj", 32, OUT),
        ("self_attn.v_proj", 32, OUT),
        ("self_attn.o_proj", OUT, 64),
        ("mlp.gate_proj", 64, OUT),
        ("mlp.up_proj", 64, OUT),
        ("mlp.down_proj", OUT, 64),
    ] {
        all.push((layer(part), vec![rows, cols]));
    }
    all
}

/// Tensors of the tower.
fn tower() -> Vec<(String, Vec<usize>)> {
    let [layers, width, _, wide] = TOWER;
    let merged = width * MERGE * MERGE;
    let mut all = vec![("model.visual.pos_embed.weight".to_owned(), vec![2_304, width])];
    let mut put = |name: String, shape: &[usize]| {
        all.push((format!("model.visual.{name}.bias"), vec![shape[0]]));
        all.push((format!("model.visual.{name}.weight"), shape.to_vec()));
    };
    put("patch_embed.proj".to_owned(), &[width, 3, 2, PATCH, PATCH]);
    put("merger.norm".to_owned(), &[width]);
    put("merger.linear_fc1".to_owned(), &[merged, merged]);
    put("merger.linear_fc2".to_owned(), &[OUT, merged]);
    for layer in 0..layers {
        for (part, shape) in [
            ("norm1", vec![width]),
            ("norm2", vec![width]),
            ("attn.qkv", vec![3 * width, width]),
            ("attn.proj", vec![width, width]),
            ("mlp.linear_fc1", vec![wide, width]),
            ("mlp.linear_fc2", vec![width, wide]),
        ] {
            put(format!("blocks.{layer}.{part}"), &shape);
        }
    }
    all
}
