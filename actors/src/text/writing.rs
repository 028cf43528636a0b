//! Random texts of all scripts and kinds of white space, for tests that hold two ways of encoding against each other.

use proptest::prelude::*;

const PARTS: &[&str] = &[
    "a",
    "The",
    "WORD",
    "camelCase",
    "it's",
    "'S",
    "'ll",
    "'LL",
    "’s",
    "'",
    "ſ",
    "K",
    "é",
    "e\u{301}",
    "\u{301}",
    "ǅ",
    "ß",
    "привет",
    "Ωμέγα",
    "今天",
    "日本語の",
    "カタカナ",
    "가나",
    "\u{1100}\u{1161}",
    "नमस्ते",
    "ไทย",
    "שלום",
    "مرحبا",
    "1",
    "12",
    "1234",
    "٣٤٥",
    "Ⅷ",
    "½",
    "²",
    "१२",
    "👩‍👩‍👧",
    "🇺🇸",
    "❤\u{FE0F}",
    ".",
    "...",
    "!?",
    "//",
    "_",
    "$",
    "€",
    "、",
    "«»",
    "-",
    "\\|",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "\u{B}",
    "\u{C}",
    "\u{85}",
    "\u{A0}",
    "\u{2028}",
    "\u{3000}",
    "\u{200B}",
    "\u{FEFF}",
    "\0",
    "\u{7F}",
    "\u{1B}",
    "\u{E000}",
    "\u{10FFFF}",
    "\u{378}",
    "<|im_end|>",
    "<bos>",
];

/// Parts and any characters, mixed.
pub(super) fn any() -> impl Strategy<Value = String> {
    let part = prop_oneof![6 => prop::sample::select(PARTS).prop_map(str::to_owned), 1 => any_char().prop_map(String::from)];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn any_char() -> impl Strategy<Value = char> {
    prop_oneof![proptest::char::any(), proptest::char::range('\0', '\u{2FFF}')]
}

/// One or two parts over and over, between others.
pub(super) fn run() -> impl Strategy<Value = String> {
    let part = || prop::sample::select(PARTS);
    (part(), part(), part(), part(), 1..300_usize).prop_map(|(before, one, two, after, times)| {
        [before, &one.repeat(times), &[one, two].concat().repeat(times / 4), after].concat()
    })
}
