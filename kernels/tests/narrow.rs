//! Models in fewer bits: FP8 weights stand for the values they are said to stand for, other methods are refused by name,
//! and activations of 8 bits come near.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    #[expect(dead_code, reason = "other tests make random models")]
    pub mod folder;
    pub mod gguf;
    #[expect(dead_code, reason = "other tests run sequences in more ways")]
    pub mod run;
    pub mod said;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
    #[expect(dead_code, reason = "other tests take older files")]
    pub mod tiny;
}

use fixtures::folder::{Folder, Tensor};
use fixtures::gguf::GgufFile;
use fixtures::run::{Runner, bits};
use fixtures::said::{loaded, logits, prompt, refused, said};
use fixtures::tiny;
use millstream_kernels::{Activations, CpuBackend, DType, dequantize, load, load_with};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Rows and columns that share a factor in the FP8 matrices below; they divide neither rows nor columns.
const BLOCK: [usize; 2] = [48, 40];

/// The matrices of a model in FP8 (bytes made from the old values, factors beside them), and the same model in F32.
fn in_fp8(name: &str) -> (Folder, Folder) {
    let mut narrow = Folder::stored(name);
    narrow.set(
        "quantization_config",
        json!({ "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": BLOCK }),
    );
    let mut wide = narrow.clone();
    let matrices: Vec<String> =
        narrow.tensors.keys().filter(|name| name.contains("_proj")).cloned().collect();
    for name in matrices {
        let [rows, cols] = *narrow.tensors[&name].shape else { panic!("{name}") };
        let values = narrow.take(&name).values();
        let grid = [rows.div_ceil(BLOCK[0]), cols.div_ceil(BLOCK[1])];
        let factors: Vec<f32> = (0..grid[0] * grid[1]).map(|i| 0.003 + 0.001 * (i % 5) as f32).collect();
        // A byte per value, by its sign and size; which one does not matter, as long as values stay near.
        let byte = |value: &f32| {
            let size = (0..=0x7e_u8).rev().find(|code| f8(*code) * 0.004 <= value.abs()).unwrap_or(0);
            size | if *value < 0.0 { 0x80 } else { 0 }
        };
        let bytes: Vec<u8> = values.iter().map(byte).collect();
        let factor = |at: usize| factors[at / cols / BLOCK[0] * grid[1] + at % cols / BLOCK[1]];
        let widened: Vec<f32> = bytes.iter().enumerate().map(|(at, byte)| f8(*byte) * factor(at)).collect();
        wide.tensors.insert(name.clone(), Tensor::floats(&[rows, cols], &widened));
        narrow.tensors.insert(format!("{name}_scale_inv"), Tensor::floats(&grid, &factors));
        narrow.tensors.insert(name, Tensor { dtype: Dtype::F8_E4M3, shape: vec![rows, cols], bytes });
    }
    (narrow, wide)
}

/// The value of a byte of FP8.
fn f8(code: u8) -> f32 {
    let mut value = [0.0];
    dequantize(DType::F8E4M3, &[code], &mut value);
    value[0]
}

#[test]
fn fp8_is_the_values_it_stands_for() {
    for name in ["tiny-deepseek-v3", "tiny-qwen3-moe"] {
        let (narrow, wide) = in_fp8(name);
        assert_eq!(said(&narrow), said(&wide), "{name}");
    }
}

#[test]
fn other_ways_to_store_fewer_bits_are_refused() {
    let mut folder = Folder::stored("tiny-llama");
    let mut with = |settings: Value| {
        folder.set("quantization_config", settings);
        folder.clone()
    };
    refused(&with(json!({ "bits": 4 })), "quantization_config.quant_method = nothing is not supported");
    refused(&with(json!({ "quant_method": "awq" })), "quant_method = awq is not supported; supported: fp8");
    refused(&with(json!({ "quant_method": "fp8", "fmt": "e5m2" })), "fmt = e5m2 is not supported");
    let block = |size: Value| json!({ "quant_method": "fp8", "weight_block_size": size });
    refused(&with(block(json!(null))), "weight_block_size: [] are no two sizes");
    refused(&with(block(json!([0, 128]))), "weight_block_size: [0.0, 128.0] are no two sizes");
    loaded(&with(block(json!([128, 128])))).unwrap();
}

#[test]
fn fp8_without_its_factors_is_refused() {
    let (mut narrow, _) = in_fp8("tiny-deepseek-v3");
    let settings = narrow.config["quantization_config"].take();
    refused(&narrow, "needed: quantization_config of method fp8 beside it");
    narrow.set("quantization_config", settings);
    narrow.take("model.layers.0.self_attn.q_a_proj.weight_scale_inv");
    refused(&narrow, "no tensor \"model.layers.0.self_attn.q_a_proj.weight_scale_inv\"");
}

/// The matrices of a file in Q8_0, as far as their rows are whole blocks.
fn in_q8_0(file: &mut GgufFile) {
    let matrices = file.tensors.iter_mut().filter(|tensor| tensor.kind == 30);
    for tensor in matrices.filter(|tensor| tensor.shape.last().unwrap().is_multiple_of(32)) {
        let wide: Vec<f32> = tensor
            .bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
            .collect();
        tensor.kind = 8;
        tensor.bytes = Vec::new();
        for block in wide.chunks_exact(32) {
            let largest = block.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let scale = half::f16::from_f32(largest / 127.0);
            tensor.bytes.extend(scale.to_le_bytes());
            let code = |x: &f32| (x / scale.to_f32().max(1e-6)).round().clamp(-127.0, 127.0) as i8 as u8;
            tensor.bytes.extend(block.iter().map(code));
        }
    }
}

#[test]
fn eight_bits_of_activations_come_near_and_depend_on_nothing_else() {
    for name in ["tiny-qwen3-moe", "tiny-gpt-oss", "tiny-deepseek-v3"] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.gguf");
        let mut file = tiny::as_gguf(name);
        in_q8_0(&mut file);
        std::fs::write(&path, file.bytes()).unwrap();
        let tokens = prompt(120, 630);
        let exact = logits(&load(&path).unwrap(), &tokens);
        let rounded = load_with(&path, Activations::Int8).unwrap();
        let near = logits(&rounded, &tokens);
        let rms = |values: &[f32]| (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
        // One expert chosen otherwise moves a position a lot, so it is the middle one that counts.
        let differences: Vec<f32> = exact.iter().zip(&near).map(|(a, b)| a - b).collect();
        let mut errors: Vec<f32> = differences.chunks_exact(exact.len() / tokens.len()).map(rms).collect();
        errors.sort_by(f32::total_cmp);
        let (middle, size) = (errors[errors.len() / 2], rms(&exact));
        assert!(middle > 0.0 && middle < 0.1 * size, "{name}: {middle} of {size}");
        let mut runner = Runner::new(&*rounded.model, Box::new(CpuBackend::new(1, &[])));
        assert_eq!(bits(&runner.all(&tokens, 120)), bits(&near), "{name}: chunks");
    }
}
