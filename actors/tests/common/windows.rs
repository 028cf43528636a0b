//! The arithmetic of a small model with a state, as a stand-in for one: three layers with windows, and an entry of each
//! token in the blocks, made of integers. The next token depends on all entries and on what the windows saw, so a wrong
//! slot, `valid_from`, `written` or `before`, a state that did not travel, or an entry written by a replay gives another
//! token. It is a stand-in only: what a real model does with a row is tested where the real model is.
#![allow(dead_code, reason = "each test file uses a part of it")]

/// Tokens that a window sees, the newest included.
pub const WINDOW: u32 = 6;
/// Three layers of windows: after so many tokens nothing is left of what a replay did not see.
pub const EXACT: u32 = 3 * (WINDOW - 1);
/// Tokens of a prompt that the last two layers run on when it is truncated; less than they look back together.
pub const KEEP: u32 = WINDOW + 2;
/// Numbers of one place of the windows: position + 1, the token, and what the first two layers make of it.
pub const NUMBERS: usize = 4;
/// Numbers of an entry: position + 1, and what the first layer made of the token.
pub const ENTRY: usize = 2;

/// What a place holds that does not hold what is looked for there.
const WRONG: u32 = 0xBAD;

/// Where a sequence's windows and entries are kept. Numbers are below 2^24, so that an `f32` holds them.
pub trait Store {
    fn window(&self, place: u32) -> [u32; NUMBERS];
    fn put_window(&mut self, place: u32, numbers: [u32; NUMBERS]);
    fn entry(&self, position: u32) -> [u32; ENTRY];
    fn put_entry(&mut self, position: u32, numbers: [u32; ENTRY]);
}

/// A row as the model gets it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    pub tokens: &'a [u32],
    pub start: u32,
    pub valid_from: u32,
    pub written: u32,
    pub before: &'a [u32],
    pub decoder_from: Option<u32>,
}

/// Computes a row. Returns a number for each token that is the model's whole word on what comes next; nothing for those
/// that the last layers do not run on.
pub fn compute(store: &mut impl Store, row: &Given<'_>) -> Vec<Option<u32>> {
    let context: Vec<u32> = row.before.iter().chain(row.tokens).copied().collect();
    let decoder_from = row.decoder_from.unwrap_or(0);
    let mut words = Vec::new();
    for (n, &token) in row.tokens.iter().enumerate() {
        let position = row.start + n as u32;
        let end = row.before.len() + n + 1;
        let newest = context[end.saturating_sub(4)..end].iter().fold(1, |sum, &token| mix(sum, token));
        let place = position % WINDOW;
        store.put_window(place, [position + 1, token, 0, 0]);
        let first = mix(see(store, position, row.valid_from, 1), newest);
        store.put_window(place, [position + 1, token, first, 0]);
        if position >= row.written {
            store.put_entry(position, [position + 1, first]);
        }
        if position < decoder_from {
            words.push(None);
            continue;
        }
        let from = row.valid_from.max(decoder_from);
        let second = see(store, position, from, 2);
        store.put_window(place, [position + 1, token, first, second]);
        let third = see(store, position, from, 3);
        let entries = (0..=position).fold(third, |sum, at| {
            let [held, entry] = store.entry(at);
            mix(sum, if held == at + 1 { entry } else { WRONG })
        });
        words.push(Some(entries));
    }
    words
}

/// What a layer sees in its window: numbers of the layer before.
fn see(store: &impl Store, position: u32, from: u32, number: usize) -> u32 {
    (from.max((position + 1).saturating_sub(WINDOW))..=position).fold(number as u32, |sum, at| {
        let numbers = store.window(at % WINDOW);
        mix(sum, if numbers[0] == at + 1 { numbers[number] } else { WRONG })
    })
}

/// A number of 24 bits in which all bits of both count.
pub fn mix(sum: u32, more: u32) -> u32 {
    let mixed = (sum ^ more.rotate_left(11)).wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA6B) >> 8
}

/// A sequence that is computed alone, its memory its own.
#[derive(Clone, Debug, Default)]
pub struct Alone {
    pub windows: [[u32; NUMBERS]; WINDOW as usize],
    pub entries: Vec<[u32; ENTRY]>,
    tokens: Vec<u32>,
}

impl Alone {
    /// Computes one more token; `decoder_from` is that of the whole sequence.
    pub fn push(&mut self, token: u32, decoder_from: Option<u32>) -> Option<u32> {
        let tokens = std::mem::take(&mut self.tokens);
        let before = &tokens[tokens.len().saturating_sub(3)..];
        let start = tokens.len() as u32;
        let row = Given { tokens: &[token], start, before, decoder_from, ..Given::default() };
        let word = compute(self, &row)[0];
        self.tokens = [tokens, vec![token]].concat();
        word
    }
}

impl Store for Alone {
    fn window(&self, place: u32) -> [u32; NUMBERS] {
        self.windows[place as usize]
    }

    fn put_window(&mut self, place: u32, numbers: [u32; NUMBERS]) {
        self.windows[place as usize] = numbers;
    }

    fn entry(&self, position: u32) -> [u32; ENTRY] {
        self.entries.get(position as usize).copied().unwrap_or_default()
    }

    fn put_entry(&mut self, position: u32, numbers: [u32; ENTRY]) {
        assert_eq!(position as usize, self.entries.len(), "alone, entries come in order");
        self.entries.push(numbers);
    }
}
