//! One of the answers of a response on its way out: holds what is said of tokens back until their text is out, so that
//! nothing is said of the tokens of a stop string.

use std::collections::VecDeque;

use millstream_actors::request::{Finish, Logprobs};

/// What can be said of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) id: u32,
    pub(crate) logprobs: Logprobs,
    /// Where the token begins in the answer's text, in characters.
    pub(crate) offset: usize,
}

/// A piece of the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub(crate) text: String,
    /// Empty where the client did not ask.
    pub(crate) said: Vec<Said>,
}

impl Part {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.said.is_empty()
    }

    /// Puts the next piece behind this one.
    pub(crate) fn extend(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.said.extend(next.said);
    }
}

/// One answer.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// All of its text so far.
    text: String,
    waiting: VecDeque<(u32, Logprobs)>,
    /// A place in the text, in bytes and in characters: where the last token that was told began.
    place: (usize, usize),
}

impl Choice {
    /// Takes what the graph sends and gives what may go out.
    pub(crate) fn take(&mut self, text: String, tokens: Vec<u32>, logprobs: Vec<Logprobs>) -> Part {
        self.text.push_str(&text);
        self.waiting.extend(tokens.into_iter().zip(logprobs));
        let out = self.text.len();
        Part { text, said: self.release(|logprobs| logprobs.start < out) }
    }

    /// What is left when the answer is complete: tokens without a text of their own, unless they ended it.
    pub(crate) fn finish(&mut self, finish: Finish) -> Part {
        let said = match finish {
            Finish::Length => self.release(|_| true),
            Finish::Stop => Vec::new(),
        };
        Part { text: String::new(), said }
    }

    fn release(&mut self, out: impl Fn(&Logprobs) -> bool) -> Vec<Said> {
        let count = self.waiting.iter().take_while(|(_, logprobs)| out(logprobs)).count();
        let Self { text, waiting, place } = self;
        let mut say = |(id, logprobs): (u32, Logprobs)| {
            let (bytes, chars) = *place;
            // What starts later begins at a character; what is told late may start at the end of the text.
            let between = text.get(bytes..logprobs.start).unwrap_or_default();
            *place = (bytes.max(logprobs.start), chars + between.chars().count());
            Said { id, offset: place.1, logprobs }
        };
        waiting.drain(..count).map(&mut say).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(starts: &[usize]) -> (Vec<u32>, Vec<Logprobs>) {
        let said = starts.iter().map(|&start| Logprobs { start, ..Logprobs::default() });
        ((0..starts.len() as u32).collect(), said.collect())
    }

    fn take(choice: &mut Choice, text: &str, starts: &[usize]) -> Vec<usize> {
        let (ids, logprobs) = tokens(starts);
        choice.take(text.to_owned(), ids, logprobs).said.iter().map(|said| said.offset).collect()
    }

    #[test]
    fn tokens_are_told_with_their_text() {
        let mut choice = Choice::default();
        assert_eq!(take(&mut choice, "é", &[0, 2]), [0]);
        assert_eq!(take(&mut choice, "", &[3]), [] as [usize; 0]);
        assert_eq!(take(&mut choice, "ab", &[]), [1, 2]);
        assert_eq!(take(&mut choice, "", &[4, 4]), [] as [usize; 0]);
        assert_eq!(choice.finish(Finish::Length).said.iter().map(|s| s.offset).collect::<Vec<_>>(), [3, 3]);
    }

    #[test]
    fn tokens_of_a_stop_are_not_told() {
        let mut choice = Choice::default();
        assert_eq!(take(&mut choice, "a", &[0, 1, 3]), [0]);
        assert!(choice.finish(Finish::Stop).is_empty());
    }
}
