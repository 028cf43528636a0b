//! Keys and values of past tokens, in blocks. Who owns which block is decided elsewhere; this is only the memory, in
//! the layout that attention reads fastest.

mod format;
pub(crate) mod fp4;
mod rings;

use memmap2::MmapMut;

pub use format::{KvFormat, Widened};
pub(crate) use rings::AHEAD;
pub use rings::Rings;

use crate::error::Error;
use crate::memory;

/// Values per vector that rows are filled up to.
const LANES: usize = 8;

/// Shape of KV memory; the same for all ranks that exchange blocks.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct KvLayout {
    /// Layers that keep keys and values.
    pub layers: usize,
    /// Heads of keys and values per layer.
    pub kv_heads: usize,
    /// Values per head of a key.
    pub key_dim: usize,
    /// Values per head of a value; those of a key where a model does not tell them apart.
    pub value_dim: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// How numbers are stored.
    pub format: KvFormat,
    /// Numbers of a sequence's state slot; 0 where a model keeps everything in blocks.
    pub state: usize,
    /// So many layers, the first ones, keep one entry for each two tokens; the others one for each token.
    pub paired: usize,
    /// Layers besides, which keep their newest positions in state slots.
    pub rings: Rings,
}

impl KvLayout {
    /// Bytes that one block takes, all layers together.
    pub fn bytes_per_block(&self) -> usize {
        self.layer_offset(self.layers)
    }

    /// Tokens of an entry of a layer.
    pub fn ratio(&self, layer: usize) -> usize {
        1 + usize::from(layer < self.paired)
    }

    /// The layout that a single layer has by itself: of as many tokens as it has entries in a block.
    pub fn of_layer(&self, layer: usize) -> KvLayout {
        KvLayout { block_size: self.block_size / self.ratio(layer), ..*self }
    }

    /// Where a layer begins in a block, in bytes.
    fn layer_offset(&self, layer: usize) -> usize {
        let paired = layer.min(self.paired);
        let of = |layer: usize| self.of_layer(layer).bytes_per_layer();
        paired * of(0) + (layer - paired) * of(self.layers)
    }

    /// Bytes that one state slot takes.
    pub fn bytes_per_slot(&self) -> usize {
        self.state * size_of::<f32>() + self.ring_bytes()
    }

    /// Distance between one value of a key and the next: `block_size`, rounded up to whole vectors.
    pub fn key_stride(&self) -> usize {
        self.block_size.next_multiple_of(LANES)
    }

    /// Distance between the values of one token and the next: `value_dim`, rounded up to whole vectors.
    pub fn value_stride(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Numbers in the keys of one block, layer and head, where a layer has an entry for each token.
    pub(crate) fn key_len(&self) -> usize {
        self.key_dim * self.key_stride()
    }

    /// Numbers in the values of one block, layer and head.
    pub(crate) fn value_len(&self) -> usize {
        self.block_size * self.value_stride()
    }

    /// Bytes of one block, layer and head: keys, values, scales where the format has some; whole cache lines.
    pub(crate) fn bytes_per_head(&self) -> usize {
        format::bytes(self).next_multiple_of(64)
    }

    /// Bytes of the keys and values of one block and layer.
    fn bytes_per_layer(&self) -> usize {
        self.kv_heads * self.bytes_per_head()
    }
}

/// KV memory of one rank: `[blocks, layers, kv_heads]`, each holding the keys `[key_dim, key_stride]` and then the values
/// `[block_size, value_stride]` of one block, layer and head.
///
/// Keys are transposed, so that one vector holds the same value of eight tokens and scores need no sums across a vector.
/// The operating system gives the memory when a block is first written, so a large budget costs nothing until it is used.
#[derive(Debug)]
pub struct KvMemory {
    /// Shape of a block.
    layout: KvLayout,
    /// Number of blocks.
    blocks: usize,
    /// Numbers in their format; written by [`KvMemory::write`] and [`KvMemory::import`] only; what fills up rows stays zero.
    memory: MmapMut,
    /// State slots, `[slots, state]` f32.
    slots: MmapMut,
    /// Rings of all slots, where layers have some.
    rings: Option<Box<KvMemory>>,
}

impl KvMemory {
    /// Whether the system would give memory for `blocks` blocks and `slots` state slots now.
    pub fn is_granted(layout: KvLayout, blocks: usize, slots: usize) -> bool {
        KvMemory::granted(layout, blocks, slots).is_ok()
    }

    /// Memory for `blocks` blocks and no state. Panics when the system does not give it: see [`KvMemory::granted`].
    pub fn new(layout: KvLayout, blocks: usize) -> KvMemory {
        KvMemory::granted(layout, blocks, 0).expect("the system gives memory for keys and values")
    }

    /// Memory for `blocks` blocks and `slots` state slots.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not give it now.
    pub fn granted(layout: KvLayout, blocks: usize, slots: usize) -> Result<KvMemory, Error> {
        let KvLayout { kv_heads, key_dim, value_dim, block_size, .. } = layout;
        let sizes = [kv_heads, key_dim, value_dim, block_size];
        assert!(sizes.iter().all(|&size| size > 0), "KV memory of nothing: {layout:?}");
        assert!(
            layout.paired == 0 || block_size.is_multiple_of(2),
            "a pair would lie in two blocks: {layout:?}"
        );
        let memory = memory::map(blocks.saturating_mul(layout.bytes_per_block()), "keys and values")?;
        let states = memory::map(slots.saturating_mul(layout.state * size_of::<f32>()), "states")?;
        let ring_blocks = slots.saturating_mul(layout.ring_blocks());
        let rings = match ring_blocks {
            0 => None,
            count => Some(Box::new(KvMemory::granted(layout.of_rings(), count, 0)?)),
        };
        Ok(KvMemory { layout, blocks, memory, slots: states, rings })
    }

    /// The same with `slots` state slots. Panics as [`KvMemory::new`] does.
    pub fn with_slots(self, slots: usize) -> KvMemory {
        let KvMemory { slots: states, rings, .. } =
            KvMemory::granted(self.layout, 0, slots).expect("the system gives memory for states");
        KvMemory { slots: states, rings, ..self }
    }

    /// Takes all memory from the system now, which gives it when it is first written otherwise: no step waits for it then.
    pub fn reserve(&mut self) {
        memory::touch(&mut self.memory);
        memory::touch(&mut self.slots);
        self.rings.iter_mut().for_each(|rings| rings.reserve());
    }

    /// Number of state slots; 0 where a slot holds nothing.
    pub fn slots(&self) -> usize {
        match &self.rings {
            Some(rings) => rings.blocks / self.layout.ring_blocks(),
            None => self.slots.len().checked_div(self.layout.state * size_of::<f32>()).unwrap_or(0),
        }
    }

    /// The numbers of a state slot.
    pub fn slot(&self, slot: u32) -> &[f32] {
        let size = self.layout.state * size_of::<f32>();
        bytemuck::cast_slice(&self.slots[slot as usize * size..][..size])
    }

    /// The numbers of a state slot, to be written.
    pub fn slot_mut(&mut self, slot: u32) -> &mut [f32] {
        let size = self.layout.state * size_of::<f32>();
        bytemuck::cast_slice_mut(&mut self.slots[slot as usize * size..][..size])
    }

    /// The bytes of a state slot, to be sent to a rank of the same layout.
    pub fn export_slot(&self, slot: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.slot(slot).iter().flat_map(|number| number.to_le_bytes()).collect();
        self.export_rings(slot, &mut bytes);
        bytes
    }

    /// Fills a state slot from bytes that [`KvMemory::export_slot`] gave under the same layout.
    ///
    /// # Errors
    /// [`Error::KvBlock`] if `bytes` has another size; the slot is unchanged then.
    pub fn import_slot(&mut self, slot: u32, bytes: &[u8]) -> Result<(), Error> {
        let needed = self.layout.bytes_per_slot();
        if bytes.len() != needed {
            return Err(Error::KvBlock { size: bytes.len(), needed });
        }
        let (bytes, rings) = bytes.split_at(self.layout.state * size_of::<f32>());
        self.import_rings(slot, rings);
        let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.slot_mut(slot).iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        Ok(())
    }

    /// Shape of a block.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Stores one entry's `k [kv_heads, key_dim]` and `v [kv_heads, value_dim]` at place `offset` of `block`.
    #[expect(
        clippy::too_many_arguments,
        reason = "a struct would be made for each token only to be taken apart"
    )]
    pub fn write(&mut self, layer: usize, block: u32, offset: usize, k: &[f32], v: &[f32]) {
        let layout = self.layout.of_layer(layer);
        let KvLayout { kv_heads, key_dim, value_dim, block_size, .. } = layout;
        assert!(offset < block_size, "KV write: token {offset} of a block of {block_size}");
        assert_eq!(k.len(), kv_heads * key_dim, "KV write: keys");
        assert_eq!(v.len(), kv_heads * value_dim, "KV write: values");
        let (start, each) = (self.layer_start(layer, block), layout.bytes_per_head());
        let heads = self.memory[start..][..kv_heads * each].chunks_exact_mut(each);
        for ((head, k), v) in heads.zip(k.chunks_exact(key_dim)).zip(v.chunks_exact(value_dim)) {
            format::write(&layout, head, offset, (k, v));
        }
    }

    /// Keys `[key_dim, key_stride]`, tokens innermost, and values `[block_size, value_stride]` of one block, layer and
    /// head: where they are, or widened into `wide`.
    pub fn head<'a>(
        &'a self,
        layer: usize,
        block: u32,
        head: usize,
        wide: &'a mut Widened,
    ) -> (&'a [f32], &'a [f32]) {
        format::widen(&self.layout.of_layer(layer), self.stored(layer, block, head), wide)
    }

    /// The values of a layer with one head.
    pub fn values(&self, layer: usize) -> Values<'_> {
        let layout = self.layout.of_layer(layer);
        assert!(layer < layout.layers && layout.kv_heads == 1, "values of layer {layer} of {layout:?}");
        let (each, first) = (self.layout.bytes_per_block(), self.layout.layer_offset(layer));
        Values { memory: &self.memory, layout, each, first }
    }

    /// The stored bytes of one block, layer and head.
    pub(crate) fn stored(&self, layer: usize, block: u32, head: usize) -> &[u8] {
        assert!(head < self.layout.kv_heads, "KV head {head} of {}", self.layout.kv_heads);
        let each = self.layout.of_layer(layer).bytes_per_head();
        &self.memory[self.layer_start(layer, block) + head * each..][..each]
    }

    /// The bytes of a block, all layers, to be stored or sent to a rank of the same layout.
    pub fn block(&self, block: u32) -> &[u8] {
        let start = self.layer_start(0, block);
        &self.memory[start..][..self.layout.bytes_per_block()]
    }

    /// The same, copied.
    pub fn export(&self, block: u32) -> Vec<u8> {
        self.block(block).to_vec()
    }

    /// Fills a block from bytes that [`KvMemory::export`] gave under the same layout.
    ///
    /// # Errors
    /// [`Error::KvBlock`] if `bytes` has another size; the block is unchanged then.
    pub fn import(&mut self, block: u32, bytes: &[u8]) -> Result<(), Error> {
        let needed = self.layout.bytes_per_block();
        if bytes.len() != needed {
            return Err(Error::KvBlock { size: bytes.len(), needed });
        }
        let start = self.layer_start(0, block);
        self.memory[start..][..needed].copy_from_slice(bytes);
        Ok(())
    }

    /// Where a block and layer start, in bytes.
    fn layer_start(&self, layer: usize, block: u32) -> usize {
        assert!((block as usize) < self.blocks, "KV block {block} of {}", self.blocks);
        assert!(layer == 0 || layer < self.layout.layers, "KV layer {layer} of {}", self.layout.layers);
        block as usize * self.layout.bytes_per_block() + self.layout.layer_offset(layer)
    }
}

/// Values of all entries of a layer with one head.
#[derive(Copy, Clone, Debug)]
pub struct Values<'a> {
    /// All blocks.
    memory: &'a [u8],
    /// That of the layer.
    layout: KvLayout,
    /// Bytes of a block, and where the layer begins in it.
    each: usize,
    first: usize,
}

impl Values<'_> {
    /// Which block of a sequence an entry is in, and its place there.
    #[inline]
    pub fn place(&self, entry: u32) -> (usize, usize) {
        let in_block = self.layout.block_size as u32;
        ((entry / in_block) as usize, (entry % in_block) as usize)
    }

    /// The value of an entry, widened to `out [value_dim]`.
    #[inline]
    pub fn widen(&self, block: u32, offset: usize, out: &mut [f32]) {
        assert!(offset < self.layout.block_size, "KV value: token {offset} of {}", self.layout.block_size);
        let head = &self.memory[block as usize * self.each + self.first..][..self.layout.bytes_per_head()];
        format::widen_value(&self.layout, head, offset, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: [f32; 10] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0];

    fn layout(format: KvFormat) -> KvLayout {
        KvLayout {
            layers: 2,
            kv_heads: 2,
            key_dim: 3,
            value_dim: 5,
            block_size: 4,
            format,
            state: 3,
            paired: 0,
            rings: Rings::NONE,
        }
    }

    #[test]
    fn a_token_is_found_where_the_layout_says() {
        let formats = [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Fp4];
        for (format, error) in formats.into_iter().zip([0.0, 1e-3, 4e-3, 0.2]) {
            let mut kv = KvMemory::new(layout(format), 3);
            let k = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
            kv.write(1, 2, 3, &k, &V);
            let near = |got: f32, want: f32| (got - want).abs() <= error * 100.0;
            let mut wide = Widened::default();
            for head in 0..2 {
                let (keys, values) = kv.head(1, 2, head, &mut wide);
                assert!((0..3).all(|value| near(keys[value * 8 + 3], k[head * 3 + value])), "{format:?}");
                assert!((0..5).all(|value| near(values[3 * 8 + value], V[head * 5 + value])), "{format:?}");
                assert_eq!(keys.iter().filter(|&&k| k != 0.0).count(), 3);
                assert_eq!(values.iter().filter(|&&v| v != 0.0).count(), 5);
            }
            let (keys, values) = kv.head(0, 2, 1, &mut wide);
            assert!(keys.iter().chain(values).all(|&x| x == 0.0));
        }
    }

    #[test]
    fn a_block_travels_as_bytes() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Fp4] {
            let layout = layout(format);
            let mut from = KvMemory::new(layout, 2);
            from.write(0, 1, 0, &[1.0; 6], &V);
            from.write(1, 1, 2, &[3.0; 6], &[4.0; 10]);
            let bytes = from.export(1);
            assert_eq!(bytes.len(), layout.bytes_per_block());
            let mut into = KvMemory::new(layout, 4);
            into.import(3, &bytes).expect("same layout");
            into.reserve();
            assert_eq!(
                (into.stored(0, 3, 1), into.stored(1, 3, 0)),
                (from.stored(0, 1, 1), from.stored(1, 1, 0))
            );
            let error = into.import(3, &bytes[4..]).expect_err("too short");
            let size = bytes.len();
            let said = format!("a KV block of {} bytes, this layout needs {size}", size - 4);
            assert_eq!(error.to_string(), said);
        }
    }

    #[test]
    fn paired_layers_hold_half_as_many_entries() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8] {
            let whole = KvLayout { kv_heads: 1, layers: 3, block_size: 32, ..layout(format) };
            let halved = KvLayout { paired: 2, ..whole };
            let both = KvLayout { paired: 3, ..whole };
            assert!(both.bytes_per_block() < halved.bytes_per_block(), "{format:?}");
            assert!(halved.bytes_per_block() < whole.bytes_per_block(), "{format:?}");
            let mut kv = KvMemory::new(halved, 2);
            for (layer, entries) in [(0, 16), (1, 16), (2, 32)] {
                for entry in 0..entries {
                    let number = (layer * 32 + entry) as f32;
                    kv.write(layer, 1, entry, &[number; 3], &[-number; 5]);
                }
            }
            let (mut wide, mut row) = (Widened::default(), [0.0; 5]);
            for (layer, entries) in [(0, 16), (1, 16), (2, 32)] {
                for entry in 0..entries {
                    let number = (layer * 32 + entry) as f32;
                    kv.values(layer).widen(1, entry, &mut row);
                    let near = |got: f32, want: f32| (got - want).abs() < 1e-4;
                    assert!(row.iter().all(|&got| near(got, -number)), "{format:?} layer {layer}: {row:?}");
                    let (keys, values) = kv.head(layer, 1, 0, &mut wide);
                    assert!(near(keys[entries + entry], number) && near(values[8 * entry + 4], -number));
                }
            }
        }
    }

    #[test]
    fn a_state_travels_as_bytes() {
        let mut from = KvMemory::new(layout(KvFormat::F32), 1).with_slots(2);
        from.slot_mut(1).copy_from_slice(&[1.0, -2.5, f32::MIN_POSITIVE]);
        let bytes = from.export_slot(1);
        let mut into = KvMemory::new(layout(KvFormat::F16), 1).with_slots(3);
        into.import_slot(2, &bytes).expect("same layout");
        assert_eq!((into.slot(2), into.slot(1)), (from.slot(1), [0.0; 3].as_slice()));
        assert!(into.import_slot(0, &bytes[1..]).is_err() && into.slots() == 3);
    }

    #[test]
    fn eight_bits_keep_what_a_large_neighbour_leaves() {
        let layout = KvLayout { key_dim: 40, value_dim: 40, ..layout(KvFormat::Q8) };
        let mut kv = KvMemory::new(layout, 1);
        let token: Vec<f32> = (0..80).map(|i| if i % 40 == 35 { 1000.0 } else { i as f32 / 80.0 }).collect();
        kv.write(0, 0, 1, &token, &token);
        let mut wide = Widened::default();
        let (keys, values) = kv.head(0, 0, 1, &mut wide);
        for (i, want) in token[40..].iter().enumerate() {
            // The first 32 share a scale, and 1000 is not among them.
            let allowed = if i < 32 { 1.0 / 254.0 } else { 1000.0 / 254.0 };
            assert!((keys[i * 8 + 1] - want).abs() <= allowed && (values[40 + i] - want).abs() <= allowed);
        }
        kv.write(0, 0, 2, &[f32::NAN; 80], &token);
        assert!(kv.head(0, 0, 0, &mut wide).0[2].is_nan());
    }
}
