//! What a state slot holds: for each layer, drafting ones behind the others, the keys of its newest positions in a ring;
//! then, for each source of pairs, what the newest positions bring to a pair.

/// Positions that a ring holds beyond the window: so many may be computed and taken back.
pub(super) const SPARE: usize = 6;
/// Positions of which a source of pairs keeps what pairs are made of.
pub(super) const HALVES: usize = 8;

/// The layout of a slot.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct State {
    /// Positions that a token sees, itself included.
    pub window: usize,
    /// Values of a key.
    pub dim: usize,
    /// Layers, drafting ones among them.
    pub rings: usize,
    /// Sources of pairs.
    pub paired: usize,
}

impl State {
    /// Positions of a ring.
    pub fn ring_len(&self) -> usize {
        self.window + SPARE
    }

    /// Where the ring of a layer begins, and how many positions it holds.
    pub fn ring(&self, layer: usize) -> (usize, usize) {
        (layer * self.ring_len() * self.dim, self.ring_len())
    }

    /// Where a source of pairs keeps what `position` brings: the score and the value, `dim` numbers each.
    pub fn half(&self, source: usize, position: usize) -> usize {
        let first = self.rings * self.ring_len() * self.dim;
        first + (source * HALVES + position % HALVES) * 2 * self.dim
    }

    /// Numbers in all.
    pub fn numbers(&self) -> usize {
        (self.rings * self.ring_len() + self.paired * HALVES * 2) * self.dim
    }
}
