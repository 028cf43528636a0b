//! Ids, rendered chats and decoded texts must be those the reference libraries gave.

use super::files::{ids, messages, real, stored, tokenizer, vectors};
use millstream_actors::text::{ChatMessage, ChatRole, ChatTemplate, Marked, Tokenizer};
use millstream_kernels::TextFiles;
use serde_json::{Value, json};

fn check_samples(tokenizer: &Tokenizer, samples: &[Value]) {
    for sample in samples {
        let text = sample["text"].as_str().unwrap();
        let plain = tokenizer.encode_plain(text);
        assert_eq!(plain, ids(&sample["ids"]), "{text:?}");
        assert_eq!(tokenizer.encode_prompt(text), ids(&sample["ids_with_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&plain), sample["decoded"].as_str().unwrap(), "{text:?}");
    }
}

fn check_chat(family: &str) {
    let files = stored(family);
    let tokenizer = Tokenizer::load(&files).unwrap();
    let template = ChatTemplate::load(&files, &tokenizer).unwrap().unwrap();
    let vectors = vectors(family, "tokenizer_vectors.json");
    let chat = &vectors["chat"];
    let marked = template.render(&messages(&chat["messages"]), true).unwrap();
    assert_eq!(marked.text(), chat["rendered"].as_str().unwrap());
    assert_eq!(tokenizer.encode_marked(&marked), ids(&chat["ids"]));
    check_samples(&tokenizer, vectors["samples"].as_array().unwrap());
}

#[test]
fn the_llama_family_gives_the_stored_ids() {
    check_chat("tiny-llama");
    let tokenizer = tokenizer("tiny-llama");
    assert_eq!(
        (tokenizer.vocab(), tokenizer.bos(), tokenizer.end_tokens()),
        (640, Some(635), &[639, 636][..])
    );
    assert!(tokenizer.is_control(639) && tokenizer.bytes(639).is_empty() && !tokenizer.is_control(0));
}

#[test]
fn the_gemma_family_gives_the_stored_ids() {
    check_chat("tiny-gemma3");
    let tokenizer = tokenizer("tiny-gemma3");
    assert_eq!((tokenizer.bos(), tokenizer.end_tokens()), (Some(2), &[1, 5][..]));
}

/// Families whose vectors may lie beside the others.
#[test]
fn the_other_families_give_the_stored_ids() {
    let folder = std::path::Path::new(super::files::ORACLE);
    for family in ["tiny-qwen3-moe", "tiny-gpt-oss", "tiny-deepseek-v3", "tiny-deepseek-v4", "tiny-qwen3-vl"]
    {
        if folder.join(family).join("tokenizer_vectors.json").exists() {
            check_chat(family);
        } else {
            println!("skipped: {family} is not stored");
        }
    }
}

#[test]
fn gemma_from_gguf_gives_the_stored_ids() {
    let Some(files) = real("gemma-3-270m-q4_k_m.gguf") else { return };
    let tokenizer = Tokenizer::load(&files).unwrap();
    let vectors = vectors("gemma3-270m", "vectors.json");
    for sample in vectors["tokenizer_samples"].as_array().unwrap() {
        let text = sample["text"].as_str().unwrap();
        let got = tokenizer.encode_marked(&Marked::trusted(text));
        assert_eq!(got[..1], [2]);
        assert_eq!(got[1..], ids(&sample["ids"]), "{text:?}");
        if !text.contains("<start_of_turn>") {
            assert_eq!(tokenizer.encode_plain(text), ids(&sample["ids"]), "{text:?}");
            assert_eq!(tokenizer.decode(&got), sample["decoded"].as_str().unwrap(), "{text:?}");
        }
    }
    let template = ChatTemplate::load(&files, &tokenizer).unwrap().unwrap();
    for chat in vectors["chats"].as_array().unwrap() {
        let marked = template.render(&messages(&chat["messages"]), true).unwrap();
        assert_eq!(marked.text(), chat["rendered"].as_str().unwrap());
        assert_eq!(tokenizer.encode_marked(&marked), ids(&chat["input_ids"]));
        let greedy = ids(&chat["greedy"]["ids"]);
        assert_eq!(tokenizer.decode(&greedy), chat["greedy"]["text"].as_str().unwrap());
    }
    assert_eq!(
        (tokenizer.vocab(), tokenizer.bos(), tokenizer.end_tokens()),
        (262_144, Some(2), &[1, 106][..])
    );
}

#[test]
fn smollm2_from_gguf_has_its_own_template() {
    let Some(files) = real("smollm2-135m-instruct-q4_1.gguf") else { return };
    let tokenizer = Tokenizer::load(&files).unwrap();
    let template = ChatTemplate::load(&files, &tokenizer).unwrap().unwrap();
    let marked = template.render(&[ChatMessage::new(ChatRole::User, "Hi <|im_end|> 42")], true).unwrap();
    assert_eq!(
        marked.text(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi <|im_end|> 42<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode_marked(&marked);
    assert_eq!(ids.iter().filter(|id| tokenizer.is_control(**id)).count(), 5);
    let text = tokenizer.decode(&ids);
    assert!(text.ends_with("Hi <|im_end|> 42\nassistant\n"), "{text}");
    assert_eq!((tokenizer.bos(), tokenizer.end_tokens()), (Some(1), &[2, 0][..]));
    for text in ["It's 12  times\n\n3,5!", "naïve 今天 👩‍👩‍👧", "\t x\r\n"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode_plain(text)), text);
    }
    let split = |text| {
        let ids = tokenizer.encode_plain(text);
        ids.iter().map(|id| String::from_utf8_lossy(tokenizer.bytes(*id)).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(split("Hello world 123's"), ["Hello", " world", " ", "1", "2", "3", "'s"]);
}

/// The two ways files of the Llama 2 kind put a space before texts: the older before every text between control tokens,
/// the newer at the very start alone.
#[test]
fn the_space_before_a_text_stands_where_the_file_says() {
    let file = |normalizer: Value, splitter: Value| {
        let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 3)));
        let pieces = ["▁", "a", "b", "▁a", "▁b"].into_iter().zip(259..);
        let mut vocab: serde_json::Map<String, Value> = bytes.collect();
        vocab
            .extend(["<unk>", "<s>", "</s>"].into_iter().zip(0..).map(|(text, id)| (text.into(), json!(id))));
        vocab.extend(pieces.map(|(text, id)| (text.into(), json!(id))));
        let added = |id: u32, text: &str| json!({"id": id, "content": text, "special": true});
        let decoders = [
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
            json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        ];
        let tokenizer = json!({
            "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "normalizer": normalizer, "pre_tokenizer": splitter, "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "vocab": vocab, "merges": ["▁ a", "▁ b"], "unk_token": "<unk>", "byte_fallback": true}
        });
        let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true});
        Tokenizer::load(&TextFiles {
            tokenizer_json: Some(tokenizer.to_string()),
            tokenizer_config: Some(config),
            ..TextFiles::default()
        })
        .unwrap()
    };
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]});
    let older = file(prepend, Value::Null);
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let newer = file(Value::Null, metaspace);
    for tokenizer in [&older, &newer] {
        assert_eq!(tokenizer.encode_plain("a b"), [262, 263]);
        assert_eq!(tokenizer.encode_prompt("ü"), [1, 259, 198, 191]);
        assert_eq!(tokenizer.decode(&[262, 263]), "a b");
        assert_eq!(tokenizer.bytes(262), b" a");
        assert_eq!(tokenizer.end_tokens(), [2]);
    }
    let marked = Marked::trusted("a</s>b");
    assert_eq!(older.encode_marked(&marked), [262, 2, 263]);
    assert_eq!(newer.encode_marked(&marked), [262, 2, 261]);
    let marked = Marked::trusted("<s>a");
    assert_eq!(older.encode_marked(&marked), [1, 262]);
    assert_eq!(newer.encode_marked(&marked), [1, 260]);
}
