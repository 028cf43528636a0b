//! Bytes into text while they arrive: a token may end in the middle of a character, and a stop string may be spread over
//! many tokens. What comes out, taken together, never depends on where the bytes were cut.
//!
//! The text is what [`String::from_utf8_lossy`] makes of all bytes. It is cut before the stop string that *ends* first;
//! among those that end at the same place, before the longest. Text that may still turn out to be the beginning of a stop
//! string is held back.

use super::TextError;

/// Stop strings a request may have.
const STOPS_MAX: usize = 64;

/// What one call gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// New text, whole characters.
    pub text: String,
    /// A stop string was met, now or before; the text before it is complete.
    pub stopped: bool,
}

/// The text of one answer as it grows. Time is linear in the bytes, for a given set of stop strings.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    stops: Vec<Stop>,
    /// Decoded text that is held back: the longest end of the text that begins a stop string.
    held: String,
    /// An unfinished character, three bytes at most.
    partial: Vec<u8>,
    stopped: bool,
}

/// One stop string, watched for as Knuth, Morris and Pratt do.
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For each length of a matched part, the length to fall back to.
    fallback: Vec<usize>,
    /// How much of `text` the end of the answer matches; less than all of it.
    matched: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let text = text.into_bytes();
        let mut fallback = vec![0; text.len()];
        let mut matched = 0;
        for at in 1..text.len() {
            while matched > 0 && text[at] != text[matched] {
                matched = fallback[matched - 1];
            }
            matched += usize::from(text[at] == text[matched]);
            fallback[at] = matched;
        }
        Self { text, fallback, matched: 0 }
    }

    /// Whether the stop string ends with this byte.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

impl TextStream {
    /// A stream that ends before the first of `stops`. Errors: an empty stop string, or more than 64 of them.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.iter().any(String::is_empty) {
            return Err(TextError::Stops("an empty one would end every answer at once"));
        }
        if stops.len() > STOPS_MAX {
            return Err(TextError::Stops("there are more than 64"));
        }
        Ok(Self { stops: stops.into_iter().map(Stop::new).collect(), ..Self::default() })
    }

    /// Adds the bytes of a token. After a stop string nothing more comes.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        let mut text = String::new();
        if !self.stopped {
            let decoded = self.decode(bytes);
            self.watch(&decoded, &mut text);
        }
        Piece { text, stopped: self.stopped }
    }

    /// Adds bytes in which no stop string counts. Never after [`Self::push`].
    pub fn pass(&mut self, bytes: &[u8]) -> Piece {
        Piece { text: self.decode(bytes), stopped: self.stopped }
    }

    /// Bytes of decoded text that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// No more bytes: gives what was held back. An unfinished character becomes U+FFFD (and may, in theory, complete a
    /// stop string: [`Self::stopped`]).
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        if !self.stopped {
            if !std::mem::take(&mut self.partial).is_empty() {
                self.watch("\u{FFFD}", &mut text);
            }
            text.push_str(&std::mem::take(&mut self.held));
        }
        text
    }

    /// Whether a stop string was met.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Whole characters out of what is there; the rest waits in `partial`.
    fn decode(&mut self, bytes: &[u8]) -> String {
        let joined;
        let mut rest = if self.partial.is_empty() {
            bytes
        } else {
            joined = [&std::mem::take(&mut self.partial), bytes].concat();
            &joined[..]
        };
        let mut text = String::with_capacity(rest.len());
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            let Some(bad) = error.error_len() else {
                self.partial = after.to_vec();
                return text;
            };
            text.push('\u{FFFD}');
            rest = &after[bad..];
        }
    }

    /// Moves decoded text through the watch; what can no longer belong to a stop string goes to `out`.
    fn watch(&mut self, decoded: &str, out: &mut String) {
        let before = self.held.len();
        self.held.push_str(decoded);
        for (at, byte) in decoded.bytes().enumerate() {
            let mut longest = 0;
            for stop in &mut self.stops {
                if stop.step(byte) {
                    longest = longest.max(stop.text.len());
                }
            }
            if longest > 0 {
                self.held.truncate(before + at + 1 - longest);
                out.push_str(&std::mem::take(&mut self.held));
                self.stopped = true;
                return;
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let release = self.held.len() - keep;
        out.extend(self.held.drain(..release));
    }
}
