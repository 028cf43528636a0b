//! Data for checks and measurements: numbers that look random, and are the same on every machine and in every run.

use crate::dtype::DType;
use crate::kv::{KvLayout, KvMemory};
use crate::matrix::Matrix;

/// A stream of numbers, fixed by its seed (SplitMix64 of Steele, Lea and Flood).
#[derive(Clone, Debug)]
pub struct Sample {
    /// Advances with each number.
    state: u64,
}

impl Sample {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Sample {
        Sample { state: seed }
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// A value between -1 and 1.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `count` values between -1 and 1.
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// A matrix of `dtype`. Its integers are random bits; its scales are such that values stay below a few units. With
    /// F8E4M3 come factors for rectangles that do not divide it. Panics if `cols` is no multiple of the block.
    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> Matrix {
        let row = dtype.row_bytes(cols).expect("whole blocks");
        let bytes = match dtype {
            DType::F32 => self.plain(rows * cols, |v| v.to_le_bytes().to_vec()),
            DType::F16 => self.plain(rows * cols, |v| half::f16::from_f32(v).to_le_bytes().to_vec()),
            DType::BF16 => self.plain(rows * cols, |v| half::bf16::from_f32(v).to_le_bytes().to_vec()),
            DType::F8E4M3 => (0..rows * cols).map(|_| self.eight_bits()).collect(),
            _ => self.blocks(dtype, rows * row / dtype.block_bytes()),
        };
        let matrix = Matrix::from_bytes(dtype, rows, cols, bytes).expect("as many bytes as the format takes");
        if dtype != DType::F8E4M3 {
            return matrix;
        }
        let factors = (0..rows.div_ceil(5) * cols.div_ceil(12)).map(|_| 1.0 + self.value() / 2.0).collect();
        matrix.scaled(factors, (5, 12)).expect("one factor for each rectangle")
    }

    /// A byte of F8E4M3 that stands for a value below 4, so for a number.
    fn eight_bits(&mut self) -> u8 {
        let byte = self.bits() as u8;
        if byte & 127 < 0x48 { byte } else { byte & 0xbf }
    }

    /// Bytes of `count` plain values.
    fn plain(&mut self, count: usize, bytes: impl Fn(f32) -> Vec<u8>) -> Vec<u8> {
        (0..count).flat_map(|_| bytes(self.value())).collect()
    }

    /// Bytes of `count` blocks.
    fn blocks(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count * dtype.block_bytes()).map(|_| self.bits() as u8).collect();
        let (halves, size): (&[usize], f32) = match dtype {
            DType::Q8_0 => (&[0], 1.0 / 128.0),
            DType::Q4_0 => (&[0], 1.0 / 8.0),
            DType::Q4_1 => (&[0, 2], 1.0 / 8.0),
            DType::Q5_0 => (&[0], 1.0 / 16.0),
            DType::Q5_1 => (&[0, 2], 1.0 / 16.0),
            DType::Q2K => (&[80, 82], 1.0 / 32.0),
            DType::Q3K => (&[108], 1.0 / 64.0),
            DType::Q4K | DType::Q5K => (&[0, 2], 1.0 / 512.0),
            DType::Q6K => (&[208], 1.0 / 2_048.0),
            DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3 | DType::MXFP4 => (&[], 1.0),
        };
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            if dtype == DType::MXFP4 {
                // A power of two from 1/32 to 1/4.
                block[0] = 122 + block[0] % 4;
            }
            for &at in halves {
                let scale = half::f16::from_f32(size * (1.0 + self.value() / 2.0));
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }

    /// KV memory in which `positions` tokens of each of `tables` sequences are stored, every layer; and their block
    /// tables, mixed.
    pub fn kv(&mut self, layout: KvLayout, tables: usize, positions: usize) -> (KvMemory, Vec<Vec<u32>>) {
        let per_table = positions.div_ceil(layout.block_size);
        let mut free: Vec<u32> = (0..(tables * per_table) as u32).collect();
        let mut kv = KvMemory::new(layout, free.len());
        let (keys, values) = (layout.kv_heads * layout.key_dim, layout.kv_heads * layout.value_dim);
        let mut take = |_| {
            let table: Vec<u32> = (0..per_table).map(|_| free.swap_remove(self.below(free.len()))).collect();
            for position in 0..positions {
                let block = table[position / layout.block_size];
                for layer in 0..layout.layers {
                    let (k, v) = (self.values(keys), self.values(values));
                    kv.write(layer, block, position % layout.block_size, &k, &v);
                }
            }
            table
        };
        let tables = (0..tables).map(&mut take).collect();
        (kv, tables)
    }
}
