//! How fast a text becomes tokens: `cargo bench --bench text [-- TOKENIZER.json ...]`, without a file with the tokenizer
//! of the built-in model.
//!
//! Beside the `tokenizers` crate on the same file, in one run on one core. The texts are a megabyte of this project's own
//! code and what its pages and comments say in English; a tokenizer does as well on the text of others as its vocabulary
//! knows the language.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use millstream_actors::text::Tokenizer;
use millstream_kernels::TextFiles;

const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/builtin/model/tokenizer.json");
const BYTES: usize = 1 << 20;
const TRIES: usize = 5;

fn main() {
    let texts = texts();
    let mut files: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if files.is_empty() {
        files.push(BUILT_IN.to_owned());
    }
    for file in files {
        let json = std::fs::read_to_string(&file).expect("a tokenizer.json");
        let theirs = json.parse::<tokenizers::Tokenizer>().expect("the crate reads it");
        let files = TextFiles { tokenizer_json: Some(json), ..TextFiles::default() };
        let ours = Tokenizer::load(&files).expect("it can be served");
        println!("{file}");
        for (name, text) in &texts {
            let ours = speed(text, |text| ours.encode_plain(text).len());
            let theirs = speed(text, |text| theirs.encode_fast(text, false).map_or(0, |ids| ids.len()));
            println!("  {name:8} {ours:6.1} MB/s, the crate {theirs:6.1} MB/s: {:.1} times", ours / theirs);
        }
    }
}

/// Megabytes a second, the best of some tries.
fn speed(text: &str, encode: impl Fn(&str) -> usize) -> f64 {
    let tries = (0..TRIES).map(|_| {
        let start = Instant::now();
        black_box(encode(black_box(text)));
        text.len() as f64 / 1e6 / start.elapsed().as_secs_f64()
    });
    tries.fold(0.0, f64::max)
}

/// English, and code.
fn texts() -> [(&'static str, String); 2] {
    let (mut english, mut code) = (String::new(), String::new());
    let mut paths = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(path) = paths.pop() {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_dir() && !hidden && !path.ends_with("target") {
            let inside = std::fs::read_dir(&path).expect("a folder").flatten().map(|entry| entry.path());
            let mut inside: Vec<PathBuf> = inside.collect();
            inside.sort();
            paths.extend(inside);
        }
        match path.extension().and_then(|kind| kind.to_str()) {
            Some("md") => english.push_str(&read(&path)),
            Some("rs") => {
                let text = read(&path);
                english.extend(text.lines().filter_map(comment).flat_map(|line| [line, "\n"]));
                code.push_str(&text);
            }
            _ => {}
        }
    }
    [("English", english), ("code", code)].map(|(name, mut text)| {
        text.truncate(text.floor_char_boundary(BYTES));
        (name, text)
    })
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a file of text")
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["//! ", "/// ", "// "].iter().find_map(|begin| line.strip_prefix(begin))
}
