//! Splits texts into words: what the splitters of the `tokenizers` crate do for families whose letters are bytes, on
//! slices of the text and by automata instead of backtracking. Only what is sure to come out the same is done here; of
//! anything else this file says that it cannot, and the crate does it. A test holds the two against each other.
//!
//! (The crate gives up after a million steps back, which takes a run of blanks of that length, and leaves the rest of the
//! text one word; here it is split on.)

use std::sync::OnceLock;

use regex_automata::meta::{Config, Regex};
use regex_automata::{Anchored, Input};
use regex_syntax::ast::{self, Ast};
use regex_syntax::hir::{Hir, translate::Translator};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

/// The pattern of GPT-2, which is part of the crate's byte-level splitter.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// How most patterns end: the last blank of several belongs to the word behind it. It is the one lookaround done here.
const TAIL: &str = r"|\s+(?!\S)|\s+";
const BLANKS: &str = r"\s+";
/// Bytes of the automaton of a pattern that are kept; many scripts in one text need more than the default.
const AUTOMATON_BYTES: usize = 8 << 20;

/// Steps, each of which splits what the one before it left.
#[derive(Debug)]
pub(super) struct Splitter {
    wanted: Vec<Step<String>>,
    /// Made when the first text comes, since loading a model has no time for it; none if a pattern is not for us.
    steps: OnceLock<Option<Vec<Step<Pattern>>>>,
}

#[derive(Debug)]
enum Step<P> {
    /// Every numeric character is a word.
    Digits,
    /// What matches is a word, and so is what stands between.
    Split(P),
}

impl Splitter {
    /// The same as that of the crate, which must end by making characters of bytes; that last is left to the reader of
    /// the words. None: it has steps that are not for us.
    pub fn new(splitter: &PreTokenizerWrapper) -> Option<Self> {
        let mut wanted = Vec::new();
        let (last, steps) = match splitter {
            PreTokenizerWrapper::Sequence(list) => list.as_ref().split_last()?,
            one => (one, &[][..]),
        };
        for step in steps {
            wanted.push(match step {
                PreTokenizerWrapper::Digits(digits) if digits.individual_digits => Step::Digits,
                PreTokenizerWrapper::Split(split)
                    if !split.invert && split.behavior == SplitDelimiterBehavior::Isolated =>
                {
                    let SplitPattern::Regex(pattern) = &split.pattern else { return None };
                    Step::Split(pattern.clone())
                }
                _ => return None,
            });
        }
        match last {
            PreTokenizerWrapper::ByteLevel(last) if !last.add_prefix_space => {
                wanted.extend(last.use_regex.then(|| Step::Split(GPT2.to_owned())));
                Some(Self { wanted, steps: OnceLock::new() })
            }
            _ => None,
        }
    }

    /// Gives `word` every word of the text, in order. Says whether it could; if not, it gave none.
    pub fn words<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) -> bool {
        let compile = |step: &Step<String>| match step {
            Step::Digits => Some(Step::Digits),
            Step::Split(pattern) => Pattern::new(pattern).map(Step::Split),
        };
        let steps = self.steps.get_or_init(|| self.wanted.iter().map(compile).collect());
        steps.as_deref().is_some_and(|steps| {
            split(steps, text, word);
            true
        })
    }
}

fn split<'t>(steps: &[Step<Pattern>], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match steps.split_first() {
        None => word(text),
        Some((Step::Digits, later)) => digits(text, &mut |part| split(later, part, word)),
        Some((Step::Split(pattern), later)) => pattern.split(text, &mut |part| split(later, part, word)),
    }
}

fn digits<'t>(text: &'t str, part: &mut dyn FnMut(&'t str)) {
    let mut rest = text;
    while let Some((at, digit)) = rest.char_indices().find(|(_, c)| c.is_numeric()) {
        if at > 0 {
            part(&rest[..at]);
        }
        let end = at + digit.len_utf8();
        part(&rest[at..end]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        part(rest);
    }
}

/// A pattern, without its tail.
#[derive(Debug)]
struct Pattern {
    /// The second of two alternatives, where there are two, is a run of blanks.
    regex: Regex,
    /// Whether there was a tail: then hardly any text stands between matches.
    tail: bool,
}

impl Pattern {
    /// None: the pattern is not for us.
    fn new(pattern: &str) -> Option<Self> {
        let head = pattern.strip_suffix(TAIL).filter(|head| !head.ends_with('\\'));
        let parts = match head {
            Some(head) => vec![read(head)?, read(BLANKS)?],
            None => vec![read(pattern)?],
        };
        let config = Config::new().hybrid_cache_capacity(AUTOMATON_BYTES);
        let regex = Regex::builder().configure(config).build_many_from_hir(&parts).ok()?;
        Some(Self { regex, tail: head.is_some() })
    }

    fn split<'t>(&self, text: &'t str, part: &mut dyn FnMut(&'t str)) {
        let mut from = 0;
        while let Some((start, end)) = self.find(text, from) {
            if from < start {
                part(&text[from..start]);
            }
            part(&text[start..end]);
            from = end;
        }
        if from < text.len() {
            part(&text[from..]);
        }
    }

    /// Begin and end of the next match.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let input = Input::new(text).range(from..);
        // A match that begins here needs no search for its begin.
        let here = if self.tail { self.regex.search(&input.clone().anchored(Anchored::Yes)) } else { None };
        let found = here.or_else(|| self.regex.search(&input))?;
        let (start, end) = (found.start(), found.end());
        if found.pattern().as_usize() == 1 && end < text.len() {
            // The run is as long as can be, so what follows it is no blank.
            let last = text[start..end].char_indices().next_back().map_or(0, |(at, _)| at);
            return Some((start, if last > 0 { start + last } else { end }));
        }
        Some((start, end))
    }
}

/// The meaning of a pattern, if it has the same one in the crate: that reads `a?+` as greedy beyond recall, and knows more
/// flags. What can match nothing is left to it too.
fn read(pattern: &str) -> Option<Hir> {
    let plain = |(at, _): (usize, &str)| [":", "i:"].iter().any(|flag| pattern[at + 2..].starts_with(flag));
    if !pattern.match_indices("(?").all(plain) {
        return None;
    }
    let ast = ast::parse::Parser::new().parse(pattern).ok()?;
    ast::visit(&ast, Stacked).ok()?;
    let meaning = Translator::new().translate(pattern, &ast).ok()?;
    meaning.properties().minimum_len().is_some_and(|least| least > 0).then_some(meaning)
}

/// Refuses repetitions of bare repetitions.
struct Stacked;

impl ast::Visitor for Stacked {
    type Output = ();
    type Err = ();

    fn finish(self) -> Result<(), ()> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        match ast {
            Ast::Repetition(outer) if matches!(*outer.ast, Ast::Repetition(_)) => Err(()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::super::decoding::byte_alphabet;
    use super::super::split::{STYLES, named};
    use super::super::tokenizer::Tokenizer;
    use super::super::{json, writing};
    use super::*;

    /// Splitters that are none of the table's: two of other families, and one whose pattern leaves gaps.
    const OTHERS: [&[&str]; 3] = [
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"],
        &[r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]|\s+(?!\S)|\s+"],
        &[r"\p{Lu}|\s+(?!\S)|\s+"],
    ];

    fn of(patterns: &[&str]) -> PreTokenizerWrapper {
        use tokenizers::pre_tokenizers::{byte_level::ByteLevel, sequence::Sequence, split::Split};
        let split = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap().into()
        };
        let last = [ByteLevel::new(false, true, false).into()];
        Sequence::new(patterns.iter().map(split).chain(last).collect()).into()
    }

    fn all() -> Vec<PreTokenizerWrapper> {
        let styles = STYLES.iter().map(|style| named(Some(style.names[0])).unwrap().splitter);
        styles.chain(OTHERS.map(of)).collect()
    }

    /// Words in the letters of bytes, as the crate gives them.
    fn theirs(splitter: &PreTokenizerWrapper, text: &str) -> Vec<String> {
        let mut words = PreTokenizedString::from(text);
        splitter.pre_tokenize(&mut words).unwrap();
        let words = words.get_splits(OffsetReferential::Original, OffsetType::None);
        words.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    fn ours(splitter: &Splitter, text: &str) -> Option<Vec<String>> {
        let (mut words, letters) = (Vec::new(), byte_alphabet());
        let spell = |word: &str| word.bytes().map(|byte| letters[usize::from(byte)]).collect();
        splitter.words(text, &mut |word| words.push(spell(word))).then_some(words)
    }

    const STORED: [&str; 6] = [
        include_str!("../../../examples/builtin/model/tokenizer.json"),
        include_str!("../../../kernels/tests/oracle/tiny-llama/tokenizer.json"),
        include_str!("../../../kernels/tests/oracle/tiny-qwen3-moe/tokenizer.json"),
        include_str!("../../../kernels/tests/oracle/tiny-gpt-oss/tokenizer.json"),
        include_str!("../../../kernels/tests/oracle/tiny-deepseek-v3/tokenizer.json"),
        include_str!("../../../kernels/tests/oracle/tiny-gemma3/tokenizer.json"),
    ];

    thread_local! {
        static SPLITTERS: Vec<(PreTokenizerWrapper, Splitter)> =
            all().into_iter().map(|theirs| (theirs.clone(), Splitter::new(&theirs).unwrap())).collect();
        static TOKENIZERS: Vec<[Tokenizer; 2]> = {
            let load = |text: &str| json::load(text, None).unwrap();
            STORED.map(|text| [load(text), load(text).by_crate()]).into()
        };
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_crate(text in writing::any(), run in writing::run()) {
            SPLITTERS.with(|all| for (crates, splitter) in all {
                for text in [&text, &run] {
                    assert_eq!(ours(splitter, text).unwrap(), theirs(crates, text), "{text:?} by {crates:?}");
                }
            });
        }

        #[test]
        fn ids_are_those_of_the_crate(text in writing::any(), run in writing::run()) {
            TOKENIZERS.with(|all| for [tokenizer, by_crate] in all {
                for text in [&text, &run] {
                    assert_eq!(tokenizer.encode_plain(text), by_crate.encode_plain(text), "{text:?}");
                }
            });
        }
    }

    #[test]
    fn what_would_come_out_otherwise_is_left_to_the_crate() {
        for pattern in [
            r"\p{N}{1,3}+|x",
            r"\p{L}++",
            r"(?=a)a",
            r"a*",
            r"a\|\s+(?!\S)|\s+",
            "(?x)a b",
            "(?i)a",
            r"\s+(?!\S)",
        ] {
            let splitter = Splitter::new(&of(&[pattern])).unwrap();
            assert_eq!(ours(&splitter, "a b"), None, "{pattern}");
        }
        let json = |text: &str| serde_json::from_str::<PreTokenizerWrapper>(text).unwrap();
        for splitter in [
            r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#,
            r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}"#,
            r#"{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}"#,
            r#"{"type": "Sequence", "pretokenizers": []}"#,
        ] {
            assert!(Splitter::new(&json(splitter)).is_none(), "{splitter}");
        }
    }
}
