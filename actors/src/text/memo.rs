//! What the words of a text became, for when they come again: most of a text is words that stood in it before, and
//! copying tokens is many times as fast as merging. It lives as long as one text is encoded, and its size is bounded.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// Places for words; a word takes that of another whose hash is alike.
const PLACES_MAX: usize = 1 << 13;
/// Bytes of a word that is kept.
const BYTES_MAX: usize = 64;

/// Words and where their tokens lie in what was written.
#[derive(Debug)]
pub(super) struct Memo<'t> {
    /// As many as a power of two.
    places: Vec<Place<'t>>,
}

/// A word and the range of its tokens; the empty word where there is none.
type Place<'t> = (&'t str, u32, u32);

impl<'t> Memo<'t> {
    /// For a text of so many bytes.
    pub fn new(bytes: usize) -> Self {
        let places = (bytes / 8).next_power_of_two().min(PLACES_MAX);
        Self { places: vec![("", 0, 0); places] }
    }

    /// Appends the tokens of a word, which is not empty: again, or as `encode` does. Nothing else may change what is in
    /// `out`.
    pub fn recall(&mut self, word: &'t str, out: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        if word.len() > BYTES_MAX {
            return encode(out);
        }
        let hash = FixedState::default().hash_one(word) as usize;
        let last = self.places.len() - 1;
        let place = &mut self.places[hash & last];
        if place.0 == word {
            return out.extend_from_within(place.1 as usize..place.2 as usize);
        }
        let start = out.len();
        encode(out);
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(out.len())) {
            *place = (word, start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_tokens_however_few_places_there_are() {
        let text: Vec<String> = (0..500_usize).map(|n| "x".repeat(1 + n * n % 90)).collect();
        for bytes in [0, 100, 100_000] {
            let (mut memo, mut out, mut made) = (Memo::new(bytes), Vec::new(), 0);
            for word in &text {
                memo.recall(word, &mut out, |out| {
                    made += 1;
                    out.extend([word.len() as u32, 7]);
                });
            }
            let expected: Vec<u32> = text.iter().flat_map(|word| [word.len() as u32, 7]).collect();
            assert_eq!(out, expected);
            assert!(bytes == 0 || made < text.len(), "{made} of {} were made", text.len());
        }
    }
}
