//! Rings: where layers that see a window keep the newest positions of a sequence, in its state slot instead of in blocks. A
//! ring is blocks too, of the same layout, so attention reads it as it reads any: block `b` of a sequence is block
//! `b % length` of its ring.

use super::{KvLayout, KvMemory};

/// Positions that may be written at once before the oldest that their window sees is lost.
pub(crate) const AHEAD: usize = 128;

/// Layers whose keys and values lie in rings.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Rings {
    /// How many.
    pub layers: usize,
    /// Positions they see, the newest included.
    pub window: usize,
}

impl Rings {
    /// All layers keep everything in blocks.
    pub const NONE: Rings = Rings { layers: 0, window: 0 };

    /// What a model can keep so whose layers see `window` positions where `sliding` says it: all of these layers, or none
    /// where no layer sees more, for something must be in blocks.
    pub fn of(sliding: &[bool], window: usize) -> Rings {
        let layers = sliding.iter().filter(|&&sliding| sliding).count();
        if layers == 0 || layers == sliding.len() { Rings::NONE } else { Rings { layers, window } }
    }
}

impl KvLayout {
    /// The same with so many of its layers in rings.
    pub fn with_rings(self, rings: Rings) -> KvLayout {
        KvLayout { layers: self.layers - rings.layers, rings, ..self }
    }

    /// Blocks of the rings of one slot; 0 where no layer has one.
    pub fn ring_blocks(&self) -> usize {
        if self.rings.layers == 0 { 0 } else { (self.rings.window + AHEAD).div_ceil(self.block_size) + 1 }
    }

    /// The layout of rings, all layers that have one together.
    pub fn of_rings(&self) -> KvLayout {
        KvLayout { layers: self.rings.layers, rings: Rings::NONE, state: 0, paired: 0, ..*self }
    }

    /// Bytes of the rings of one slot.
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_blocks() * self.of_rings().bytes_per_block()
    }
}

impl KvMemory {
    /// The rings of all slots, one slot's behind the other's; none where no layer has one.
    pub(crate) fn rings_mut(&mut self) -> Option<&mut KvMemory> {
        self.rings.as_deref_mut()
    }

    /// The blocks of the rings of a slot.
    fn ring(&self, slot: u32) -> std::ops::Range<u32> {
        let count = self.layout.ring_blocks() as u32;
        slot * count..(slot + 1) * count
    }

    /// Adds the bytes of the rings of a slot.
    pub(super) fn export_rings(&self, slot: u32, bytes: &mut Vec<u8>) {
        let Some(rings) = &self.rings else { return };
        self.ring(slot).for_each(|block| bytes.extend(rings.block(block)));
    }

    /// Fills the rings of a slot from bytes, which are as many as they take.
    pub(super) fn import_rings(&mut self, slot: u32, bytes: &[u8]) {
        let blocks = self.ring(slot);
        let Some(rings) = &mut self.rings else { return };
        let each = rings.layout().bytes_per_block();
        for (block, bytes) in blocks.zip(bytes.chunks_exact(each)) {
            rings.import(block, bytes).expect("as many bytes as a block takes");
        }
    }
}
