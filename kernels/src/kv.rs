//! Keys and values of past tokens, in blocks. Who owns which block is decided elsewhere; this is only the memory, in
//! the layout that attention reads fastest.

use memmap2::MmapMut;

use crate::error::Error;

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
}

impl KvLayout {
    /// Bytes that one block takes, all layers together.
    pub fn bytes_per_block(&self) -> usize {
        self.floats_per_block() * size_of::<f32>()
    }

    /// Distance in `k` between one value of a head and the next: `block_size`, rounded up to whole vectors.
    pub fn key_stride(&self) -> usize {
        self.block_size.next_multiple_of(LANES)
    }

    /// Distance in `v` between one token and the next: `value_dim`, rounded up to whole vectors.
    pub fn value_stride(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Floats of the keys of one block, layer and head.
    pub(crate) fn key_floats(&self) -> usize {
        self.key_dim * self.key_stride()
    }

    /// Floats of the values of one block, layer and head.
    pub(crate) fn value_floats(&self) -> usize {
        self.block_size * self.value_stride()
    }

    /// Floats of the keys and values of one block and layer.
    fn floats_per_layer(&self) -> usize {
        self.kv_heads * (self.key_floats() + self.value_floats())
    }

    /// Floats of one block.
    fn floats_per_block(&self) -> usize {
        self.layers * self.floats_per_layer()
    }
}

/// KV memory of one rank: `[blocks, layers]`, each holding the keys and then the values of one block and layer.
///
/// Keys are transposed, so that one vector holds the same value of eight tokens and scores need no sums across a vector.
/// The operating system gives the memory when a block is first written, so a large budget costs nothing until it is used.
#[derive(Debug)]
pub struct KvMemory {
    /// Shape of a block.
    layout: KvLayout,
    /// Number of blocks.
    blocks: usize,
    /// Floats; written by [`KvMemory::write`] and [`KvMemory::import`] only; what fills up rows stays zero.
    memory: MmapMut,
}

impl KvMemory {
    /// Whether the system would give address space for `blocks` blocks now.
    pub fn is_granted(layout: KvLayout, blocks: usize) -> bool {
        blocks
            .checked_mul(layout.bytes_per_block())
            .is_some_and(|bytes| MmapMut::map_anon(bytes.max(1)).is_ok())
    }

    /// Memory for `blocks` blocks, all zero. Panics when the system does not give it: ask [`KvMemory::is_granted`] first.
    pub fn new(layout: KvLayout, blocks: usize) -> KvMemory {
        let KvLayout { kv_heads, key_dim, value_dim, block_size, .. } = layout;
        let sizes = [kv_heads, key_dim, value_dim, block_size];
        assert!(sizes.iter().all(|&size| size > 0), "KV memory of nothing: {layout:?}");
        let bytes = blocks.checked_mul(layout.bytes_per_block()).expect("KV memory fits the address space");
        let memory = MmapMut::map_anon(bytes.max(1)).expect("the system gives address space for KV memory");
        // Attention jumps from block to block: with small pages, most of its time would go into finding them. Where the
        // system has no large ones, small ones do.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        KvMemory { layout, blocks, memory }
    }

    /// All floats.
    fn floats(&self) -> &[f32] {
        let size = self.blocks * self.layout.bytes_per_block();
        bytemuck::cast_slice(&self.memory[..size])
    }

    /// All floats, to be written.
    fn floats_mut(&mut self) -> &mut [f32] {
        let size = self.blocks * self.layout.bytes_per_block();
        bytemuck::cast_slice_mut(&mut self.memory[..size])
    }

    /// Shape of a block.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Stores one token's `k [kv_heads, key_dim]` and `v [kv_heads, value_dim]` at place `offset` of `block`.
    #[expect(
        clippy::too_many_arguments,
        reason = "a struct would be made for each token only to be taken apart"
    )]
    pub fn write(&mut self, layer: usize, block: u32, offset: usize, k: &[f32], v: &[f32]) {
        let layout = self.layout;
        let KvLayout { kv_heads, key_dim, value_dim, block_size, .. } = layout;
        assert!(offset < block_size, "KV write: token {offset} of a block of {block_size}");
        assert_eq!(k.len(), kv_heads * key_dim, "KV write: keys");
        assert_eq!(v.len(), kv_heads * value_dim, "KV write: values");
        let start = self.layer_start(layer, block);
        let place = &mut self.floats_mut()[start..][..layout.floats_per_layer()];
        let (keys, values) = place.split_at_mut(kv_heads * layout.key_floats());
        for (head, k) in keys.chunks_exact_mut(layout.key_floats()).zip(k.chunks_exact(key_dim)) {
            for (lanes, &k) in head.chunks_exact_mut(layout.key_stride()).zip(k) {
                lanes[offset] = k;
            }
        }
        for (head, v) in values.chunks_exact_mut(layout.value_floats()).zip(v.chunks_exact(value_dim)) {
            head[offset * layout.value_stride()..][..value_dim].copy_from_slice(v);
        }
    }

    /// Keys of one block and layer: `[kv_heads, key_dim, key_stride]`, tokens innermost.
    pub fn k(&self, layer: usize, block: u32) -> &[f32] {
        let start = self.layer_start(layer, block);
        &self.floats()[start..][..self.layout.kv_heads * self.layout.key_floats()]
    }

    /// Values of one block and layer: `[kv_heads, block_size, value_stride]`.
    pub fn v(&self, layer: usize, block: u32) -> &[f32] {
        let start = self.layer_start(layer, block) + self.layout.kv_heads * self.layout.key_floats();
        &self.floats()[start..][..self.layout.kv_heads * self.layout.value_floats()]
    }

    /// The bytes of a block, all layers, to be stored or sent to a rank of the same layout.
    pub fn export(&self, block: u32) -> Vec<u8> {
        let start = self.layer_start(0, block) * size_of::<f32>();
        self.memory[start..][..self.layout.bytes_per_block()].to_vec()
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
        let start = self.layer_start(0, block) * size_of::<f32>();
        self.memory[start..][..needed].copy_from_slice(bytes);
        Ok(())
    }

    /// Where the keys of a block and layer start.
    fn layer_start(&self, layer: usize, block: u32) -> usize {
        assert!((block as usize) < self.blocks, "KV block {block} of {}", self.blocks);
        assert!(layer == 0 || layer < self.layout.layers, "KV layer {layer} of {}", self.layout.layers);
        block as usize * self.layout.floats_per_block() + layer * self.layout.floats_per_layer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout { layers: 2, kv_heads: 2, key_dim: 3, value_dim: 5, block_size: 4 };
    const V: [f32; 10] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0];

    #[test]
    fn a_token_is_found_where_the_layout_says() {
        let mut kv = KvMemory::new(LAYOUT, 3);
        let k = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        kv.write(1, 2, 3, &k, &V);
        for (head, value) in [(0, 0), (0, 2), (1, 0), (1, 2)] {
            assert_eq!(kv.k(1, 2)[(head * 3 + value) * 8 + 3], k[head * 3 + value]);
        }
        for (head, value) in [(0, 0), (0, 4), (1, 0), (1, 4)] {
            assert_eq!(kv.v(1, 2)[(head * 4 + 3) * 8 + value], V[head * 5 + value]);
        }
        assert!(kv.k(0, 2).iter().chain(kv.v(1, 1)).all(|&x| x == 0.0));
    }

    #[test]
    fn a_block_travels_as_bytes() {
        let mut from = KvMemory::new(LAYOUT, 2);
        from.write(0, 1, 0, &[1.0; 6], &V);
        from.write(1, 1, 2, &[3.0; 6], &[4.0; 10]);
        let bytes = from.export(1);
        assert_eq!(bytes.len(), LAYOUT.bytes_per_block());
        let mut into = KvMemory::new(LAYOUT, 4);
        into.import(3, &bytes).expect("same layout");
        assert_eq!((into.k(0, 3), into.v(1, 3)), (from.k(0, 1), from.v(1, 1)));
        let error = into.import(3, &bytes[4..]).expect_err("too short");
        assert_eq!(error.to_string(), "a KV block of 892 bytes, this layout needs 896");
    }
}
