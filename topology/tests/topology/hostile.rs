//! Files that mean harm, and files hurt by chance: whatever stands in them, the answer is a plan or a list of problems,
//! quickly, and never a panic.

use crate::stored::{HOST, all_good};
use millstream_topology::{
    FILE_LEN_MAX, PROBLEMS_MAX, Problems, check, draw_mermaid, draw_svg, draw_text, expand,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// Whatever comes out is fit to be shown: a good plan can be drawn and written, problems have places in the file.
fn sound(text: &str) {
    match check(text, "hurt.toml", &HOST) {
        Ok(plan) => {
            let written = expand(&plan);
            let again =
                check(&written, "written.toml", &HOST).unwrap_or_else(|problems| panic!("{problems}"));
            assert_eq!(again.id, plan.id);
            let _ = (draw_text(&plan), draw_mermaid(&plan), draw_svg(&plan), plan.refusal());
        }
        Err(problems) => placed(text, &problems),
    }
}

fn placed(text: &str, problems: &Problems) {
    let lines = text.matches('\n').count() + 1;
    assert!((1..=PROBLEMS_MAX).contains(&problems.len()));
    let shown = problems.to_string();
    assert!(shown.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{shown:?}");
    let mut last = (0, 0);
    for problem in problems {
        assert!((1..=lines).contains(&problem.line) && problem.column >= 1);
        assert!(problem.span.start <= text.len());
        assert!(last <= (problem.line, problem.column), "problems are in order:\n{shown}");
        last = (problem.line, problem.column);
    }
}

/// The only message of a text that has one problem.
fn told(text: &str) -> String {
    let problems = check(text, "hostile.toml", &HOST).expect_err("a hostile file");
    placed(text, &problems);
    problems.iter().next().expect("problems are never empty").message.clone()
}

#[test]
fn large_files_are_not_read() {
    let text = "a".repeat(64 << 20);
    assert_eq!(told(&text), format!("the file has {} bytes; {FILE_LEN_MAX} are the most", text.len()));
    assert!(told(&"é".repeat(1 << 20)).contains("are the most"));
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["[", "{a=", "[{a=["] {
        for count in [100, 10_000, 100_000] {
            told(&format!("model = {}", open.repeat(count)));
        }
    }
    assert_eq!(told(&format!("{}a = 1", "a.".repeat(10_000))), "nested too deeply");
    told(&format!("[{}a]", "a.".repeat(10_000)));
    told(&format!("{}\n", "[".repeat(1 << 20)));
}

#[test]
fn the_largest_files_are_answered() {
    let rest = "model = \"builtin\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n";
    let fill = |line: &dyn Fn(usize) -> String| {
        let mut text = String::from(rest);
        let mut number = 0;
        while text.len() < FILE_LEN_MAX - 200 {
            text.push_str(&line(number));
            number += 1;
        }
        text
    };
    let texts = [
        fill(&|i| format!("key{i} = 1\n")),
        fill(&|i| format!("[actors.prefil{i}]\n")),
        fill(&|i| format!("[hosts.h{i}]\ncount = 1000\n")),
        fill(&|_| "[[wires]]\nfrom = \"a.b\"\nto = \"c.d\"\n".to_owned()),
        fill(&|_| "=\n".to_owned()),
        fill(&|_| "\0".to_owned()),
        fill(&|_| "\u{1b}[31m\n".to_owned()),
        format!("{rest}on = [{}]", "\"prefil\", ".repeat(90_000)),
        format!("{rest}{} = 1", "k".repeat(1_000_000)),
        format!("{rest}memory = \"{}GiB\"", "9".repeat(1_000_000)),
        format!("{rest}ranks = {}", "9".repeat(1_000_000)),
        format!("name = \"{}\"\n{rest}", "n".repeat(1_000_000)),
    ];
    for text in &texts {
        sound(text);
    }
}

#[test]
fn odd_texts_are_answered() {
    for text in [
        "", "\n", "\u{feff}", "\0", "\r", "\r\n\r\n", "#", "[]", "[[]]", "=", "\"", "'''", "\u{202e}", "a",
        "a.",
    ] {
        sound(text);
    }
}

#[test]
fn counts_are_bounded_before_anything_is_written_out() {
    for count in
        ["1000000000000", "18446744073709551616", "-1", "0", "1e12", "0xffffffffffff", "nan", "1024.5"]
    {
        let text = format!(
            "model = \"builtin\"\n[hosts]\np = {{ count = {count}, address = \"p{{i}}:1\" }}\n\
             [actors.gateway]\non = \"*\"\n[actors.prefill]\non = \"*\"\ngroups = {count}\n[actors.decode]\non = \"*\"\nranks = {count}\n"
        );
        let problems = check(&text, "hostile.toml", &HOST).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems}");
    }
}

#[test]
fn the_largest_plan_can_be_written_out() {
    let mut text =
        String::from("model = \"builtin\"\n[hosts]\np = { count = 1024, address = \"p{i}:7400\" }\n");
    text.push_str(
        "[actors.gateway]\non = \"*\"\n[actors.tokenizer]\non = \"*\"\n[actors.router]\non = \"*\"\n",
    );
    for i in 0..14 {
        text.push_str(&format!(
            "[actors.p{i}]\nrole = \"prefill\"\non = \"*\"\n[actors.d{i}]\nrole = \"decode\"\non = \"*\"\n"
        ));
    }
    sound(&text);
}

#[derive(Clone, Debug)]
enum Hurt {
    Replace(Index, u8),
    Insert(Index, u8),
    Delete(Index, u8),
    Repeat(Index, u8),
    Swap(Index, Index),
    Word(Index, &'static str),
}

const WORDS: &[&str] = &[
    "=",
    "[",
    "]",
    "{",
    "}",
    ".",
    "\n",
    "\"",
    "'''",
    "#",
    ",",
    "0",
    "99999999999999999999",
    "-1",
    "1.5",
    "\"p*\"",
    "\"0s\"",
    "actors",
    "hosts",
    "count",
    "{i}",
    "joined = true\n",
    "groups = 2\n",
    "ranks = 9\n",
    "policy = \"hold\"\n",
    "on = \"*\"\n",
    "[[wires]]\n",
    "role = \"decode\"\n",
    "\u{0}",
    "\u{feff}",
    "é",
    "\r",
    "\t",
];

fn hurt() -> impl Strategy<Value = Hurt> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b"\n =.[]{}\"'#,0123456789abz_-\\\0".to_vec())];
    prop_oneof![
        (any::<Index>(), byte.clone()).prop_map(|(at, byte)| Hurt::Replace(at, byte)),
        (any::<Index>(), byte).prop_map(|(at, byte)| Hurt::Insert(at, byte)),
        (any::<Index>(), 1..40_u8).prop_map(|(at, count)| Hurt::Delete(at, count)),
        (any::<Index>(), 1..80_u8).prop_map(|(at, count)| Hurt::Repeat(at, count)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Hurt::Swap(a, b)),
        (any::<Index>(), prop::sample::select(WORDS)).prop_map(|(at, word)| Hurt::Word(at, word)),
    ]
}

fn apply(bytes: &mut Vec<u8>, hurt: &Hurt) {
    if bytes.is_empty() {
        return;
    }
    match hurt {
        Hurt::Replace(at, byte) => *at.get_mut(bytes) = *byte,
        Hurt::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
        Hurt::Delete(at, count) | Hurt::Repeat(at, count) => {
            let start = at.index(bytes.len());
            let end = bytes.len().min(start + usize::from(*count));
            match hurt {
                Hurt::Delete(..) => drop(bytes.drain(start..end)),
                _ => bytes.extend_from_within(start..end),
            }
        }
        Hurt::Swap(a, b) => {
            // Whole lines change places.
            let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
            *bytes = lines.concat();
        }
        Hurt::Word(at, word) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, word.bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hurt_files_never_panic(which in any::<Index>(), hurts in prop::collection::vec(hurt(), 1..6)) {
        let files = all_good();
        let mut bytes = which.get(&files).1.clone().into_bytes();
        for hurt in &hurts {
            apply(&mut bytes, hurt);
        }
        sound(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn files_of_words_never_panic(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        sound(&words.concat());
    }
}

#[test]
fn every_byte_hurt_once() {
    for (_, text) in all_good() {
        for at in 0..text.len() {
            for byte in [b'\n', b'['] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = byte;
                if let Ok(text) = String::from_utf8(bytes) {
                    sound(&text);
                }
            }
        }
    }
}
