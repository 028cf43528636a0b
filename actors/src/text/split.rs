//! How GGUF files with merges split a text into words before merging: the file gives only a name
//! (`tokenizer.ggml.pre`), and this is the table of the names. Patterns are those of the families' own `tokenizer.json`.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::TextError;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NUMBERS: &str = r"\p{N}{1,3}";
const CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

/// What a name stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    pub names: &'static [&'static str],
    /// Applied one after the other; none: the pattern of GPT-2.
    patterns: &'static [&'static str],
    /// Every digit is a word.
    digits: bool,
    /// Texts are put into composed form first.
    composed: bool,
    /// A word that is a token as it stands is not merged.
    whole_words: bool,
}

const NONE: Style = Style { names: &[], patterns: &[], digits: false, composed: false, whole_words: false };

pub(super) const STYLES: &[Style] = &[
    Style { names: &["default", "gpt-2", "mpt", "olmo", "phi-2"], ..NONE },
    Style { names: &["smollm", "starcoder", "refact", "codeshell"], digits: true, ..NONE },
    Style { names: &["llama-bpe", "llama3", "llama-v3"], patterns: &[LLAMA3], whole_words: true, ..NONE },
    Style { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA3], ..NONE },
    Style { names: &["qwen2", "deepseek-r1-qwen"], patterns: &[QWEN2], composed: true, ..NONE },
    Style { names: &["gpt-4o", "llama4"], patterns: &[O200K], ..NONE },
    Style { names: &["deepseek-v3"], patterns: &[NUMBERS, CJK, DEEPSEEK], ..NONE },
];

/// Steps before the merges.
#[derive(Debug)]
pub(super) struct Splitting {
    pub normalizer: Option<NormalizerWrapper>,
    pub splitter: PreTokenizerWrapper,
    pub whole_words: bool,
}

/// The steps that `name` stands for; without a name, those of GPT-2. Errors: an unknown name.
pub(super) fn named(name: Option<&str>) -> Result<Splitting, TextError> {
    let name = name.unwrap_or("default");
    let style = STYLES.iter().find(|style| style.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = STYLES.iter().flat_map(|style| style.names).copied().collect();
        TextError::unknown("pre-tokenizer (tokenizer.ggml.pre)", name, &known)
    })?;
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in style.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_string());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        steps.push(split.expect("the patterns of the table compile").into());
    }
    if style.digits {
        steps.push(Digits::new(true).into());
    }
    steps.push(ByteLevel::new(false, true, style.patterns.is_empty()).into());
    Ok(Splitting {
        normalizer: style.composed.then(|| NFC.into()),
        splitter: Sequence::new(steps).into(),
        whole_words: style.whole_words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut split = PreTokenizedString::from(text);
        named(Some(name)).unwrap().splitter.pre_tokenize(&mut split).unwrap();
        let words = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        words.into_iter().map(|(word, _, _)| word.replace('Ġ', " ")).collect()
    }

    #[test]
    fn every_name_splits() {
        for name in STYLES.iter().flat_map(|style| style.names) {
            assert_eq!(words(name, "It's 12  x!").concat(), "It's 12  x!", "{name}");
        }
    }

    #[test]
    fn the_families_differ_where_they_should() {
        assert_eq!(words("gpt-2", "a 1234's"), ["a", " 1234", "'s"]);
        assert_eq!(words("smollm", "a 1234's"), ["a", " ", "1", "2", "3", "4", "'s"]);
        assert_eq!(words("llama-bpe", "a 1234'S"), ["a", " ", "123", "4", "'S"]);
        assert_eq!(words("qwen2", "a 12"), ["a", " ", "1", "2"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = named(Some("teapot")).unwrap_err().to_string();
        assert!(error.contains("`teapot`") && error.contains("smollm") && error.contains("qwen2"), "{error}");
    }
}
