//! Blocks of one sequence on their way up from a tier that lasts, until its group has pulled them.

use millstream_runtime::Time;

use crate::kv::BlockHash;
use crate::store::{FetchId, Payload};

/// See the module.
pub(super) struct Flight {
    /// As the tier knows it.
    pub fetch: FetchId,
    /// Who pulls, by number.
    pub group: usize,
    /// Bytes that are read for it.
    pub bytes: u64,
    /// It is given up then, unless it is asked for.
    pub until: Time,
    /// What was asked for and not answered: a place in the sequence's block table, and the names from there on.
    pub asked: Option<(usize, Vec<BlockHash>)>,
    /// Place of the first block that comes from the tier.
    base: usize,
    /// Of the blocks that come from there.
    pub names: Vec<BlockHash>,
    /// Those that are here and were not pulled.
    blocks: Vec<Option<Payload>>,
    /// Nothing more comes.
    ended: bool,
    /// Place behind the last block that was pulled.
    pulled: usize,
}

impl Flight {
    /// Blocks of these names, which stand in a sequence from place `base` on.
    pub fn new(
        (fetch, group): (FetchId, usize),
        base: usize,
        names: Vec<BlockHash>,
        (bytes, until): (u64, Time),
    ) -> Self {
        let blocks = vec![None; names.len()];
        Self { fetch, group, bytes, until, asked: None, base, names, blocks, ended: false, pulled: 0 }
    }

    /// One is here. Returns its name.
    pub fn arrive(&mut self, place: usize, bytes: Payload) -> BlockHash {
        self.blocks[place] = Some(bytes);
        self.names[place]
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The answer to what was asked, when it is known. `near` is what host memory holds.
    pub fn answer(&mut self, near: impl Fn(&BlockHash) -> Option<Payload>) -> Option<(usize, Vec<Payload>)> {
        let (first, names) = self.asked.take()?;
        let mut data = Vec::with_capacity(names.len());
        for (place, name) in (first..).zip(&names) {
            let here = place.checked_sub(self.base).and_then(|place| self.blocks.get(place)?.clone());
            match here.or_else(|| near(name)) {
                Some(bytes) => data.push(bytes),
                None => break,
            }
        }
        let comes = first + data.len() >= self.base && !self.ended;
        if data.len() < names.len() && comes {
            self.asked = Some((first, names));
            return None;
        }
        self.pulled = first + data.len();
        let over = self.pulled.saturating_sub(self.base).min(self.blocks.len());
        self.blocks[..over].fill(None);
        if data.len() < names.len() {
            self.ended = true;
            self.pulled = usize::MAX; // who gets fewer than it asked for asks no more
        }
        Some((first, data))
    }

    /// All of it was pulled.
    pub fn is_done(&self) -> bool {
        self.pulled >= self.base + self.names.len()
    }
}
