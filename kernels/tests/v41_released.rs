//! DeepSeek-V4.1 as it is released: FP8 with a power of two for each square, experts of 4-bit values in pairs, lookup tables
//! with a power of two for each run. They stand for the values that they are said to stand for.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    #[expect(dead_code, reason = "other tests make random models")]
    pub mod folder;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
}

use fixtures::folder::{Folder, Tensor};
use fixtures::stored::oracle;
use millstream_kernels::{Activations, CpuBackend, Error, KvMemory, Loaded, Row, Scratch, Want, load_with};
use safetensors::Dtype;
use serde_json::json;

/// Rows and columns that share a power of two, in the released files and here.
const SQUARE: usize = 32;

/// A way to store the values of a tensor.
struct Stored {
    /// The codes, packed as files have them, and their format.
    codes: (Dtype, Vec<usize>, Vec<u8>),
    /// Exponents, with their shape.
    exponents: (Vec<usize>, Vec<u8>),
    /// The values that codes and exponents stand for.
    values: Vec<f32>,
}

/// The value of a code of eight bits, by its definition.
fn eight_bits(code: u8) -> f64 {
    let (size, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let value = if size == 0 { mantissa * 2_f64.powi(-6) } else { (1.0 + mantissa) * 2_f64.powi(size - 7) };
    if code & 0x80 == 0 { value } else { -value }
}

/// The value of a code of four bits.
fn four_bits(code: u8) -> f64 {
    let value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}

/// Codes and exponents of values, where `block` rows and columns share an exponent.
fn narrowed(
    values: &[f32],
    [rows, cols]: [usize; 2],
    block: [usize; 2],
    (codes, value): (std::ops::Range<u8>, fn(u8) -> f64),
) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let grid = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
    let square = |at: usize| at / cols / block[0] * grid[1] + at % cols / block[1];
    let mut largest = vec![0.0_f64; grid[0] * grid[1]];
    for (at, &x) in values.iter().enumerate() {
        largest[square(at)] = largest[square(at)].max(f64::from(x).abs());
    }
    let table: Vec<(u8, f64)> =
        codes.filter(|code| code & 0x7f != 0x7f).map(|code| (code, value(code))).collect();
    let top = table.iter().fold(0.0, |max: f64, (_, value)| max.max(*value));
    let power = |square: usize| (largest[square].max(1e-9) / top).log2().ceil() as i32;
    let nearest = |at: usize| {
        let wanted = f64::from(values[at]) / 2_f64.powi(power(square(at)));
        let off = |(_, value): &&(u8, f64)| (value - wanted).abs();
        *table.iter().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap()
    };
    let chosen: Vec<(u8, f64)> = (0..values.len()).map(nearest).collect();
    let exponents = (0..largest.len()).map(|square| (power(square) + 127) as u8).collect();
    let stands_for = |(at, (_, value)): (usize, &(u8, f64))| (value * 2_f64.powi(power(square(at)))) as f32;
    let values = chosen.iter().enumerate().map(stands_for).collect();
    (chosen.into_iter().map(|(code, _)| code).collect(), exponents, values)
}

/// In FP8, with a power of two for each block of these sizes.
fn fp8(tensor: &Tensor, block: [usize; 2]) -> Stored {
    let shape = [tensor.shape[0], tensor.shape[1]];
    let (codes, exponents, values) = narrowed(&tensor.values(), shape, block, (0..0xff, eight_bits));
    let grid = vec![shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
    Stored { codes: (Dtype::F8_E4M3, shape.to_vec(), codes), exponents: (grid, exponents), values }
}

/// In pairs of four bits, with a power of two for each 32 values of a row.
fn fp4(tensor: &Tensor) -> Stored {
    let shape = [tensor.shape[0], tensor.shape[1]];
    let (codes, exponents, values) = narrowed(&tensor.values(), shape, [1, 32], (0..16, four_bits));
    let pairs = codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let (halved, runs) = (vec![shape[0], shape[1] / 2], vec![shape[0], shape[1] / 32]);
    Stored { codes: (Dtype::I8, halved, pairs), exponents: (runs, exponents), values }
}

/// How the released files store a tensor of this name, if not as it is.
fn released(name: &str, tensor: &Tensor) -> Option<Stored> {
    let squares = ["wq_a", "wq_b", "attn.wkv", "wo_a", "wo_b", "shared_experts.w", "engram.wkv", "main_proj"];
    if name.contains("ffn.experts.") {
        Some(fp4(tensor))
    } else if name.ends_with("engram.embed.weight") {
        Some(fp8(tensor, [1, tensor.shape[1]]))
    } else if squares.iter().any(|square| name.contains(square)) && !name.starts_with("vision.") {
        Some(fp8(tensor, [SQUARE, SQUARE]))
    } else {
        None
    }
}

/// A stored checkpoint as it would be released, and the same values in F32.
fn both(which: impl Fn(&str) -> bool) -> (Folder, Folder) {
    let mut narrow = Folder::stored("tiny-deepseek-v41/ckpt-w16");
    let settings = json!({
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [SQUARE, SQUARE],
        "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    });
    let mut wide = narrow.clone();
    narrow.set("quantization_config", settings);
    let names: Vec<String> = narrow.tensors.keys().filter(|name| which(name)).cloned().collect();
    for name in names {
        let tensor = narrow.take(&name);
        let Some(Stored { codes, exponents, values }) = released(&name, &tensor) else {
            narrow.tensors.insert(name, tensor);
            continue;
        };
        wide.tensors.insert(name.clone(), Tensor::floats(&tensor.shape, &values));
        let (dtype, shape, bytes) = codes;
        narrow.tensors.insert(
            name.replace("weight", "scale"),
            Tensor { dtype: Dtype::F8_E8M0, shape: exponents.0, bytes: exponents.1 },
        );
        narrow.tensors.insert(name, Tensor { dtype, shape, bytes });
    }
    (narrow, wide)
}

fn loaded(folder: &Folder, activations: Activations) -> Result<Loaded, Error> {
    let place = tempfile::tempdir().unwrap();
    folder.write(place.path());
    let tokenizer = oracle("tiny-deepseek-v41/ckpt-w16").join("tokenizer.json");
    std::fs::copy(tokenizer, place.path().join("tokenizer.json")).unwrap();
    load_with(place.path(), activations)
}

/// Logits of all tokens of a prompt, computed in one step.
fn logits(loaded: &Loaded) -> Vec<f32> {
    let tokens: Vec<u32> = (0..70).map(|i| 3 + i * 37 % 490).collect();
    let layout = loaded.model.facts().kv_layout(16);
    let mut kv = KvMemory::new(layout, 5).with_slots(1);
    let (mut scratch, mut backend) = (Scratch::new(), CpuBackend::new(2, &[]));
    let row = Row { tokens: &tokens, blocks: &[4, 2, 0, 1, 3], logits: Want::All, ..Row::default() };
    loaded.model.forward(&[row], &mut kv, &mut scratch, &mut backend).unwrap();
    scratch.logits().to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

#[test]
fn what_is_released_in_eight_bits_is_the_values_it_stands_for() {
    let (narrow, wide) = both(|name| !name.contains("ffn.experts."));
    let (narrow, wide) =
        (loaded(&narrow, Activations::F32).unwrap(), loaded(&wide, Activations::F32).unwrap());
    let said = logits(&wide);
    assert_eq!(bits(&logits(&narrow)), bits(&said));
    let (narrow, wide) = (narrow.model.facts(), wide.model.facts());
    assert_eq!(narrow.parameters - wide.parameters, 0);
    assert!(narrow.bytes < wide.bytes, "{} and {}", narrow.bytes, wide.bytes);
}

#[test]
fn experts_in_pairs_of_four_bits_are_the_values_they_stand_for() {
    let (narrow, wide) = both(|_| true);
    let said = [&narrow, &wide].map(|folder| logits(&loaded(folder, Activations::F32).unwrap()));
    // Four bits are summed in another order.
    let off = furthest(&said[0], &said[1]);
    assert!(off < 1e-3, "{off}");
    let off = furthest(
        &said[0],
        &logits(&loaded(&Folder::stored("tiny-deepseek-v41/ckpt-w16"), Activations::F32).unwrap()),
    );
    assert!(off > 1e-3, "nothing was rounded: {off}");
}

#[test]
fn packing_takes_them_too() {
    let (narrow, _) = both(|_| true);
    let exact = logits(&loaded(&narrow, Activations::F32).unwrap());
    let packed = logits(&loaded(&narrow, Activations::Int8).unwrap());
    assert!(packed.iter().all(|logit| logit.is_finite()));
    let off = furthest(&exact, &packed);
    assert!(off > 0.0, "experts were not packed");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (narrow, _) = both(|_| true);
    let refused = |change: &dyn Fn(&mut Folder), part: &str| {
        let mut folder = narrow.clone();
        change(&mut folder);
        let error = loaded(&folder, Activations::F32).unwrap_err().to_string();
        assert!(error.contains(part), "no {part:?} in: {error}");
    };
    let expert = "layers.0.ffn.experts.0.w1";
    refused(
        &|folder| drop(folder.take(&format!("{expert}.scale"))),
        "no tensor \"layers.0.ffn.experts.0.w1.weight_scale_inv\"",
    );
    let transposed =
        |name: String| move |folder: &mut Folder| folder.tensors.get_mut(&name).unwrap().shape.reverse();
    refused(&transposed("layers.0.ffn.experts.0.w2.weight".to_owned()), "w2.weight\" is I8 [16, 64], needed");
    refused(&transposed("layers.1.engram.embed.scale".to_owned()), "embed.scale\" is F8_E8M0");
    refused(
        &transposed("layers.0.attn.wq_b.scale".to_owned()),
        "wq_b.scale\" is F8_E8M0 [1, 4], needed: [4, 1]",
    );
    let say = |key: &'static str, value: &'static str| {
        move |folder: &mut Folder| folder.config["quantization_config"][key] = json!(value)
    };
    refused(&say("scale_fmt", "f16"), "quantization_config.scale_fmt = f16 is not supported");
    refused(&say("expert_dtype", "fp6"), "quantization_config.expert_dtype = fp6 is not supported");
}
