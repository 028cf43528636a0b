//! Tokenizer files come from strangers: every lie must end in a sentence that says what is wrong.

use super::files::stored;
use millstream_actors::text::{TextError, Tokenizer};
use millstream_kernels::{GgufTokenizer, TextFiles, Texts};
use proptest::prelude::*;
use serde_json::{Value, json};

fn refused(files: &TextFiles) -> String {
    let error = Tokenizer::load(files).unwrap_err();
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The stored Llama tokenizer with a change.
fn changed(change: impl FnOnce(&mut Value)) -> TextFiles {
    let mut files = stored("tiny-llama");
    let mut tokenizer: Value = serde_json::from_str(files.tokenizer_json.as_deref().unwrap()).unwrap();
    change(&mut tokenizer);
    files.tokenizer_json = Some(tokenizer.to_string());
    files
}

#[test]
fn without_any_file_there_is_no_tokenizer() {
    assert!(matches!(Tokenizer::load(&TextFiles::default()), Err(TextError::Missing)));
}

#[test]
fn broken_json_is_refused_with_its_place() {
    let mut files = stored("tiny-llama");
    files.tokenizer_json.as_mut().unwrap().truncate(1000);
    assert!(refused(&files).starts_with("reading tokenizer.json: "), "{}", refused(&files));
    files.tokenizer_json = Some("{}".into());
    assert!(refused(&files).contains("model"), "{}", refused(&files));
}

#[test]
fn lies_in_tokenizer_json_are_refused() {
    type Change = fn(&mut Value);
    let cases: &[(Change, &str)] = &[
        (|t| t["model"]["vocab"]["a"] = json!(4_294_967_295u32), "token id 4294967295"),
        (|t| t["model"]["vocab"]["a"] = json!(1u64 << 40), "expected u32"),
        (|t| t["model"]["vocab"]["a"] = json!(-1), "expected u32"),
        (|t| t["model"]["vocab"]["zz"] = json!(0), "the id 0 belongs to \"!\" and to \"zz\""),
        (|t| t["model"]["merges"][3] = json!(["q", "zzz"]), "merge 3 joins \"q\" and \"zzz\""),
        (|t| t["model"]["merges"][3] = json!(["!", "!"]), "there is no token \"!!\""),
        (|t| t["model"]["merges"][3] = json!(["a".repeat(99), "b".repeat(99)]), "merge 3 joins"),
        (|t| t["model"]["merges"][3] = json!(["", "a"]), "merge 3 joins"),
        (|t| t["model"]["merges"][3] = json!("one"), "not two tokens"),
        (|t| t["model"]["merges"][3] = json!(["a", "b", "c"]), "two tokens"),
        (|t| t["model"]["unk_token"] = json!("<nope>"), "unknown token \"<nope>\""),
        (|t| t["model"]["type"] = json!("Unigram"), "`Unigram` is not known"),
        (|t| t["model"] = json!({"type": "Unigram", "vocab": [["a", 0.5]]}), "`Unigram` is not known"),
        (|t| t["added_tokens"][0]["id"] = json!(0), "the id 0 belongs to"),
        (|t| t["added_tokens"][1]["id"] = json!(635), "the id 635 belongs to"),
        (|t| t["added_tokens"][1]["content"] = json!("<|begin_of_text|>"), "has the ids 635 and 636"),
        (|t| t["added_tokens"][1]["content"] = json!("a"), "\"a\" has the ids 64 and 636"),
        (|t| t["added_tokens"][1]["id"] = json!(900_000_000), "900000000"),
        (|t| t["decoder"] = json!({"type": "CTC"}), "`CTC` is not known"),
        (|t| t["post_processor"] = json!({"type": "BertProcessing"}), "`BertProcessing` is not known"),
        (
            |t| t["post_processor"]["special_tokens"]["<|begin_of_text|>"]["ids"] = json!([7_000_000]),
            "the id 7000000",
        ),
        (
            |t| t["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "`Precompiled`",
        ),
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false})
            },
            "pre-tokenizer",
        ),
        (|t| t["normalizer"] = json!({"type": "Teapot"}), "normalizer"),
    ];
    for (change, expected) in cases {
        let said = refused(&changed(change));
        assert!(said.contains(expected), "{said:?} should say {expected:?}");
    }
}

#[test]
fn a_token_listed_twice_is_refused() {
    let mut files = stored("tiny-llama");
    let text = files.tokenizer_json.as_mut().unwrap();
    *text = text.replacen("\"vocab\": {", "\"vocab\": {\"a\": 700,", 1);
    assert!(refused(&files).contains("\"a\""), "{}", refused(&files));
}

#[test]
fn settings_that_name_no_token_are_refused() {
    let mut files = stored("tiny-llama");
    files.tokenizer_config = Some(json!({"bos_token": {"content": "<nope>"}}));
    assert!(refused(&files).contains("bos_token \"<nope>\""), "{}", refused(&files));
}

#[test]
fn merges_that_would_make_a_control_token_make_none() {
    let files = changed(|t| {
        t["model"]["vocab"]["<|"] = json!(700);
        t["model"]["vocab"]["<|eot_id|>"] = json!(639);
        t["model"]["vocab"]["eot_id|>"] = json!(701);
        t["model"]["merges"][0] = json!(["<", "|"]);
        t["model"]["merges"][1] = json!(["<|", "eot_id|>"]);
    });
    let tokenizer = Tokenizer::load(&files).unwrap();
    let ids = tokenizer.encode_plain("<|eot_id|>");
    assert!(ids.contains(&700) && !ids.contains(&639), "{ids:?}");
}

fn scores() -> GgufTokenizer {
    let tokens = ["<unk>", "<s>", "</s>", "▁a", "a"];
    GgufTokenizer {
        model: "llama".into(),
        tokens: tokens.into_iter().collect(),
        scores: vec![0.0; 5],
        types: vec![2, 3, 3, 1, 1],
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: true,
        ..GgufTokenizer::default()
    }
}

fn gguf(change: impl FnOnce(&mut GgufTokenizer)) -> TextFiles {
    let mut file = scores();
    change(&mut file);
    TextFiles { gguf: Some(file), ..TextFiles::default() }
}

#[test]
fn lies_in_gguf_vocabularies_are_refused() {
    assert_eq!(Tokenizer::load(&gguf(|_| {})).unwrap().encode_prompt("a aü"), [1, 4, 3, 0]);
    type Change = fn(&mut GgufTokenizer);
    let cases: &[(Change, &str)] = &[
        (|f| f.model = "bert".into(), "`bert` is not known"),
        (|f| f.tokens = Texts::default(), "token"),
        (|f| f.scores.truncate(4), "it has 4 and 5"),
        (|f| f.types.truncate(4), "4 token types"),
        (|f| f.scores[3] = f32::NAN, "not a number"),
        (|f| f.types[3] = 9, "unknown type 9"),
        (|f| f.types[3] = 6, "stands for a byte"),
        (
            |f| f.tokens = ["<unk>", "<s>", "</s>", "a", "a"].into_iter().collect(),
            "\"a\" has the ids 3 and 4",
        ),
        (|f| f.bos = Some(5), "special token 5"),
        (|f| f.unk = None, "neither a token for every byte nor an unknown token"),
        (
            |f| (f.model, f.pre) = ("gpt2".into(), Some("teapot".into())),
            "`teapot` is not known; known are: default",
        ),
        (
            |f| (f.model, f.merges) = ("gpt2".into(), ["a b"].into_iter().collect()),
            "merge 0 joins \"a\" and \"b\"",
        ),
        (|f| (f.model, f.merges) = ("gpt2".into(), ["ab"].into_iter().collect()), "merge 0 (\"ab\")"),
    ];
    for (change, expected) in cases {
        let said = refused(&gguf(change));
        assert!(said.contains(expected), "{said:?} should say {expected:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_change_of_a_file_makes_it_panic(at in any::<proptest::sample::Index>(), bytes in "[\\PC\"{}\\[\\],:0-9]{0,4}", cut in 0usize..8) {
        let mut files = stored("tiny-gemma3");
        let text = files.tokenizer_json.take().unwrap();
        let start = text.floor_char_boundary(at.index(text.len()));
        let end = text.ceil_char_boundary((start + cut).min(text.len()));
        files.tokenizer_json = Some([&text[..start], &bytes, &text[end..]].concat());
        if let Ok(tokenizer) = Tokenizer::load(&files) {
            tokenizer.encode_prompt("Hello, wörld <bos> 今天");
        }
    }
}
