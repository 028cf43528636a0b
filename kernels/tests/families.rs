//! What the stored vectors do not hold: families without any, and other ways to store the same model.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod folder;
    pub mod gguf;
    pub mod plain;
    #[expect(dead_code, reason = "other tests run sequences in more ways")]
    pub mod run;
    pub mod said;
    #[expect(dead_code, reason = "other tests read stored numbers")]
    pub mod stored;
}

use fixtures::folder::{Folder, Tensor};
use fixtures::gguf::GgufFile;
use fixtures::plain::Plain;
use fixtures::said::{loaded, logits, prompt, refused, said};
use millstream_kernels::load;
use safetensors::Dtype;
use serde_json::{Value, json};

/// Width of the small models.
const HIDDEN: usize = 24;
/// Their decoder.
const PLAIN: Plain = Plain {
    layers: 2,
    heads: 6,
    kv_heads: 2,
    head_dim: 8,
    eps: 1e-6,
    base: 1e6,
    biases: false,
    norms: false,
};

/// A small random model of a dense family.
fn small(family: &str, class: &str, plain: &Plain, tied: bool) -> Folder {
    let config = json!({
        "architectures": [class], "model_type": family, "hidden_size": HIDDEN, "num_hidden_layers": plain.layers,
        "num_attention_heads": plain.heads, "num_key_value_heads": plain.kv_heads, "head_dim": plain.head_dim,
        "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 128, "rms_norm_eps": plain.eps,
        "rope_theta": plain.base, "tie_word_embeddings": tied, "hidden_act": "silu", "use_sliding_window": false,
        "sliding_window": 32768, "max_window_layers": 2, "attention_dropout": 0.0
    });
    let (queries, keys) = (plain.heads * plain.head_dim, plain.kv_heads * plain.head_dim);
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![50, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    if !tied {
        shapes.push(("lm_head.weight".to_owned(), vec![50, HIDDEN]));
    }
    for layer in 0..plain.layers {
        let mut put = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape.to_vec()))
        };
        for (name, rows, cols) in [
            ("self_attn.q_proj", queries, HIDDEN),
            ("self_attn.k_proj", keys, HIDDEN),
            ("self_attn.v_proj", keys, HIDDEN),
            ("self_attn.o_proj", HIDDEN, queries),
            ("mlp.gate_proj", 40, HIDDEN),
            ("mlp.up_proj", 40, HIDDEN),
            ("mlp.down_proj", HIDDEN, 40),
        ] {
            put(&format!("{name}.weight"), &[rows, cols]);
            if plain.biases && name.starts_with("self_attn") && name != "self_attn.o_proj" {
                put(&format!("{name}.bias"), &[rows]);
            }
        }
        put("input_layernorm.weight", &[HIDDEN]);
        put("post_attention_layernorm.weight", &[HIDDEN]);
        if plain.norms {
            put("self_attn.q_norm.weight", &[plain.head_dim]);
            put("self_attn.k_norm.weight", &[plain.head_dim]);
        }
    }
    Folder::random(config, &shapes, 9)
}

/// The small model as a GGUF file.
fn small_gguf(folder: &Folder, family: &str, plain: &Plain) -> GgufFile {
    let mut file = GgufFile::default();
    file.put("general.architecture", family);
    for (key, value) in [
        ("block_count", plain.layers),
        ("context_length", 128),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", 40),
        ("attention.head_count", plain.heads),
        ("attention.head_count_kv", plain.kv_heads),
        ("attention.key_length", plain.head_dim),
        ("attention.value_length", plain.head_dim),
    ] {
        file.put(&format!("{family}.{key}"), value as u32);
    }
    file.put(&format!("{family}.attention.layer_norm_rms_epsilon"), plain.eps as f32);
    file.put(&format!("{family}.rope.freq_base"), plain.base as f32);
    for (name, tensor) in &folder.tensors {
        let mut name = name.replace("model.layers.", "blk.").replace("model.", "");
        for (from, to) in [
            ("embed_tokens", "token_embd"),
            ("lm_head", "output"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.", "attn_"),
            ("mlp.", "ffn_"),
            ("_proj", ""),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ] {
            name = name.replace(from, to);
        }
        let name = if name == "norm.weight" { "output_norm.weight" } else { &name };
        file.tensor(name, &tensor.shape, 0, tensor.bytes.clone());
    }
    file
}

/// Holds the logits of a small model to its definition, from a folder and from a GGUF file.
fn hold_to_definition((family, class): (&str, &str), plain: &Plain, tied: bool) {
    let folder = small(family, class, plain, tied);
    let tokens = prompt(40, 50);
    let want = plain.logits(&folder, &tokens).concat();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("small.gguf");
    std::fs::write(&path, small_gguf(&folder, family, plain).bytes()).unwrap();
    for loaded in [loaded(&folder).unwrap(), load(&path).unwrap()] {
        assert_eq!(loaded.model.facts().family, family);
        let got = logits(&loaded, &tokens);
        let worst =
            got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max);
        assert_eq!(got.len(), want.len());
        assert!(worst < 1e-4, "{family}: logits differ by {worst}");
    }
}

#[test]
fn qwen2_is_what_its_definition_says() {
    let plain = Plain { biases: true, ..PLAIN };
    hold_to_definition(("qwen2", "Qwen2ForCausalLM"), &plain, true);
    hold_to_definition(("qwen2", "Qwen2ForCausalLM"), &plain, false);
}

#[test]
fn qwen3_is_what_its_definition_says() {
    hold_to_definition(("qwen3", "Qwen3ForCausalLM"), &Plain { norms: true, ..PLAIN }, true);
    let mut windowed = small("qwen3", "Qwen3ForCausalLM", &Plain { norms: true, ..PLAIN }, true);
    windowed.set("use_sliding_window", json!(true));
    refused(&windowed, "use_sliding_window = true is not supported");
    windowed.set("use_sliding_window", json!(false));
    windowed.set("dual_chunk_attention_config", json!({}));
    refused(&windowed, "dual_chunk_attention_config = an object is not supported");
}

#[test]
fn yarn_reaches_as_far_as_it_says() {
    let mut folder = small("qwen2", "Qwen2ForCausalLM", &Plain { biases: true, ..PLAIN }, true);
    let context = |folder: &Folder| loaded(folder).unwrap().model.facts().context;
    folder.set(
        "rope_scaling",
        json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 }),
    );
    assert_eq!(context(&folder), 512);
    folder.set("max_position_embeddings", json!(600));
    assert_eq!(context(&folder), 600);
    folder.set("rope_scaling", json!({ "type": "linear", "factor": 4.0 }));
    assert_eq!(context(&folder), 600);
}

/// Tiny-qwen3-moe with the first expert alone.
fn one_expert() -> Folder {
    let mut folder = Folder::stored("tiny-qwen3-moe");
    folder.tensors.retain(|name, _| !name.contains(".experts.") || name.contains(".experts.0."));
    for layer in 0..4 {
        let router = folder.tensors.get_mut(&format!("model.layers.{layer}.mlp.gate.weight")).unwrap();
        router.shape[0] = 1;
        router.bytes.truncate(2 * 64);
    }
    folder.set("num_experts", json!(1));
    folder.set("num_experts_per_tok", json!(1));
    folder
}

/// Makes the only expert of these layers their dense part.
fn dense(folder: &mut Folder, layers: &[usize], width: usize) {
    for layer in layers {
        folder.take(&format!("model.layers.{layer}.mlp.gate.weight"));
        for part in ["gate_proj", "up_proj", "down_proj"] {
            let expert = folder.take(&format!("model.layers.{layer}.mlp.experts.0.{part}.weight"));
            folder.tensors.insert(format!("model.layers.{layer}.mlp.{part}.weight"), expert);
        }
    }
    folder.set("intermediate_size", json!(width));
}

#[test]
fn one_expert_is_a_dense_layer() {
    let alone = said(&one_expert());
    let mut qwen3 = one_expert();
    dense(&mut qwen3, &[0, 1, 2, 3], 32);
    qwen3.set("architectures", json!(["Qwen3ForCausalLM"]));
    qwen3.set("model_type", json!("qwen3"));
    assert_eq!(said(&qwen3), alone, "all dense, as qwen3");
    let mut some = one_expert();
    dense(&mut some, &[0, 2], 32);
    some.set("decoder_sparse_step", json!(2));
    assert_eq!(said(&some), alone, "every second layer has experts");
    some.set("decoder_sparse_step", json!(1));
    some.set("mlp_only_layers", json!([0, 2]));
    assert_eq!(said(&some), alone, "layers without experts by name");
    some.set("num_experts_per_tok", json!(2));
    refused(&some, "num_experts_per_tok: 2 of 1 experts");
}

#[test]
fn experts_in_one_tensor_are_the_same() {
    let mut folder = Folder::stored("tiny-qwen3-moe");
    let apart = said(&folder);
    for layer in 0..4 {
        let (mut both, mut down) = (Vec::new(), Vec::new());
        for expert in 0..16 {
            let mut take = |part: &str| {
                folder.take(&format!("model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight")).bytes
            };
            both.extend(take("gate"));
            both.extend(take("up"));
            down.extend(take("down"));
        }
        for (name, shape, bytes) in
            [("gate_up_proj", vec![16, 64, 64], both), ("down_proj", vec![16, 64, 32], down)]
        {
            let name = format!("model.layers.{layer}.mlp.experts.{name}");
            folder.tensors.insert(name, Tensor { dtype: Dtype::BF16, shape, bytes });
        }
    }
    assert_eq!(said(&folder), apart);
}

#[test]
fn layers_behind_the_last_are_left_alone() {
    let mut folder = Folder::stored("tiny-deepseek-v3");
    let without = said(&folder);
    let tensor = Tensor::floats(&[1, 2], &[0.0; 2]);
    folder.tensors.insert("model.layers.4.eh_proj.weight".to_owned(), tensor.clone());
    folder.set("num_nextn_predict_layers", json!(1));
    assert_eq!(said(&folder), without);
    folder.tensors.insert("model.layers.3.eh_proj.weight".to_owned(), tensor);
    refused(&folder, "\"model.layers.3.eh_proj.weight\"");
}

#[test]
fn queries_need_no_latent_of_their_own() {
    // Behind a norm without weight a second one changes nothing, so a latent that is a copy is no latent.
    let (ones, mut unit) = (Tensor::floats(&[64], &[1.0; 64]), vec![0.0; 64 * 64]);
    unit.iter_mut().step_by(65).for_each(|value| *value = 1.0);
    let (mut ranked, mut direct) = (Folder::stored("tiny-deepseek-v3"), Folder::stored("tiny-deepseek-v3"));
    for layer in 0..4 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let values: Vec<f32> = (0..96 * 64).map(|i| ((i * 37 + 11) % 64) as f32 / 128.0 - 0.25).collect();
        for folder in [&mut ranked, &mut direct] {
            folder.tensors.insert(name("input_layernorm"), ones.clone());
            for part in ["q_a_proj", "q_a_layernorm", "q_b_proj"] {
                folder.take(&name(&format!("self_attn.{part}")));
            }
        }
        direct.tensors.insert(name("self_attn.q_proj"), Tensor::floats(&[96, 64], &values));
        ranked.tensors.insert(name("self_attn.q_a_proj"), Tensor::floats(&[64, 64], &unit));
        ranked.tensors.insert(name("self_attn.q_a_layernorm"), ones.clone());
        ranked.tensors.insert(name("self_attn.q_b_proj"), Tensor::floats(&[96, 64], &values));
    }
    ranked.set("q_lora_rank", json!(64));
    direct.set("q_lora_rank", Value::Null);
    let of = |folder: &Folder| logits(&loaded(folder).unwrap(), &prompt(100, 630));
    let differences = of(&ranked).into_iter().zip(of(&direct)).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, f32::max);
    assert!(worst < 1e-3, "logits differ by {worst}");
}

#[test]
fn settings_of_experts_that_do_not_go_together_are_refused() {
    let refused = |name: &str, key: &str, value: Value, part: &str| {
        let mut folder = Folder::stored(name);
        folder.set(key, value);
        refused(&folder, part);
    };
    let deepseek = "tiny-deepseek-v3";
    refused(deepseek, "n_group", json!(3), "n_group: 4 of 16 experts from 2 of 3 groups");
    refused(deepseek, "topk_group", json!(5), "n_group: 4 of 16 experts from 5 of 4 groups");
    refused(deepseek, "scoring_func", json!("softmax"), "scoring_func = softmax is not supported");
    refused(deepseek, "qk_rope_head_dim", json!(7), "7 of 23 values cannot turn in pairs");
    refused(deepseek, "moe_layer_freq", json!(2), "moe_layer_freq = 2 is not supported");
    let gpt = "tiny-gpt-oss-mxfp4";
    refused(gpt, "attention_bias", json!(false), "attention_bias = false is not supported; supported: true");
    refused(gpt, "hidden_size", json!(80), "model.embed_tokens.weight");
    refused(
        gpt,
        "intermediate_size",
        json!(48),
        "gate_up_proj_blocks\" is U8 [8, 128, 2, 16], needed: [8, 96, 2, 16]",
    );
    refused(gpt, "layer_types", json!(["full_attention"]), "1 kinds for 4 layers");
    refused("tiny-qwen3-moe", "mlp_only_layers", json!([0]), "model.layers.0.mlp.gate_proj.weight");
    refused(
        "tiny-qwen3-moe",
        "num_experts",
        json!(17),
        "mlp.gate.weight\" is BF16 [16, 64], needed: [17, 64]",
    );
}
