//! Stored blocks as integers: the codes and scales that [`dequantize`](crate::dequantize) multiplies, before it does.

use crate::dtype::DType;

/// One stored block of a row: 32 or 256 columns.
pub(super) struct Block {
    /// Codes, in order; the first 32 of a block of 32.
    pub codes: [u8; 256],
    /// Bits of the f16 scale.
    pub scale: u16,
    /// Bits of the f16 minimum, or of the factor of nested minima; zero where the format has none.
    pub min: u16,
    /// Nested scales of each 16 or 32 columns.
    pub scales: [u8; 16],
    /// Nested minima.
    pub mins: [u8; 16],
}

impl Block {
    /// All zero.
    pub fn new() -> Block {
        Block { codes: [0; 256], scale: 0, min: 0, scales: [0; 16], mins: [0; 16] }
    }

    /// Reads the block `b` of `dtype`, which is a format that can be packed.
    #[inline(always)]
    pub fn read(&mut self, dtype: DType, b: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        match dtype {
            DType::Q8_0 => {
                self.scale = half(0);
                let q: [u8; 32] = array(&b[2..]);
                self.codes[..32].copy_from_slice(&q.map(|q| q ^ 0x80));
            }
            DType::Q4_0 => {
                self.scale = half(0);
                self.nibbles(&b[2..18]);
            }
            DType::Q4_1 => {
                (self.scale, self.min) = (half(0), half(2));
                self.nibbles(&b[4..20]);
            }
            DType::Q5_0 => {
                self.scale = half(0);
                self.nibbles(&b[6..22]);
                self.fifth(&b[2..6]);
            }
            DType::Q5_1 => {
                (self.scale, self.min) = (half(0), half(2));
                self.nibbles(&b[8..24]);
                self.fifth(&b[4..8]);
            }
            DType::MXFP4 => {
                self.scales[0] = b[0];
                self.nibbles(&b[1..17]);
            }
            DType::Q2K => self.q2k(b, half(80), half(82)),
            DType::Q3K => self.q3k(b, half(108)),
            DType::Q4K => {
                (self.scale, self.min) = (half(0), half(2));
                self.sixes(&b[4..16]);
                self.pairs_of_rows(&b[16..144]);
            }
            DType::Q5K => {
                (self.scale, self.min) = (half(0), half(2));
                self.sixes(&b[4..16]);
                self.pairs_of_rows(&b[48..176]);
                let high: [u8; 32] = array(&b[16..]);
                for (i, codes) in self.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    *codes = std::array::from_fn(|l| codes[l] | (high[l] >> i & 1) << 4);
                }
            }
            DType::Q6K => self.q6k(b, half(208)),
            other => unreachable!("{other:?} is not packed"),
        }
    }

    /// Low nibbles are values 0 to 15, high ones 16 to 31.
    #[inline(always)]
    fn nibbles(&mut self, q: &[u8]) {
        let q: [u8; 16] = array(q);
        self.codes[..16].copy_from_slice(&q.map(|q| q & 15));
        self.codes[16..32].copy_from_slice(&q.map(|q| q >> 4));
    }

    /// Fifth bits of 32 values.
    #[inline(always)]
    fn fifth(&mut self, high: &[u8]) {
        for (codes, high) in self.codes[..32].as_chunks_mut::<8>().0.iter_mut().zip(high) {
            // Bit i of eight copies, moved to bit 4 of byte i: what is left of bit i is set or not.
            let bits = (u64::from(*high) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
            let ones = ((bits + 0x007f_7f7f_7f7f_7f7f) | bits) >> 7 & 0x0101_0101_0101_0101;
            *codes = (u64::from_le_bytes(*codes) | ones << 4).to_le_bytes();
        }
    }

    /// Of each 32 bytes, the low nibbles are 32 values and the high ones the next 32.
    #[inline(always)]
    fn pairs_of_rows(&mut self, q: &[u8]) {
        for (codes, q) in self.codes.as_chunks_mut::<64>().0.iter_mut().zip(q.as_chunks::<32>().0) {
            codes[..32].copy_from_slice(&q.map(|q| q & 15));
            codes[32..].copy_from_slice(&q.map(|q| q >> 4));
        }
    }

    /// Scales and minima of six bits, eight of each in twelve bytes.
    #[inline(always)]
    fn sixes(&mut self, packed: &[u8]) {
        for i in 0..4 {
            (self.scales[i], self.mins[i]) = (packed[i] & 63, packed[i + 4] & 63);
            self.scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
            self.mins[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
        }
    }

    /// Two bits, and scales and minima of four.
    #[inline(always)]
    fn q2k(&mut self, b: &[u8], scale: u16, min: u16) {
        (self.scale, self.min) = (scale, min);
        let both: [u8; 16] = array(b);
        (self.scales, self.mins) = (both.map(|both| both & 15), both.map(|both| both >> 4));
        self.twos(&b[16..80]);
    }

    /// Three bits, and scales of six, less 32.
    #[inline(always)]
    fn q3k(&mut self, b: &[u8], scale: u16) {
        self.scale = scale;
        let packed = &b[96..108];
        for i in 0..16 {
            let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
            let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            self.scales[i] = (low | high << 4).wrapping_sub(32);
        }
        self.twos(&b[32..96]);
        let third: [u8; 32] = array(b);
        for (i, codes) in self.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *codes = std::array::from_fn(|l| codes[l] | (third[l] >> i & 1) << 2);
        }
    }

    /// Bit pairs: of each 32 bytes, pair `s` are the values `32 s` and on.
    #[inline(always)]
    fn twos(&mut self, q: &[u8]) {
        for (codes, q) in self.codes.chunks_exact_mut(128).zip(q.as_chunks::<32>().0) {
            for (s, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                *codes = q.map(|q| q >> (2 * s) & 3);
            }
        }
    }

    /// Six bits, and signed scales.
    #[inline(always)]
    fn q6k(&mut self, b: &[u8], scale: u16) {
        self.scale = scale;
        self.scales.copy_from_slice(&b[192..208]);
        for (half, codes) in self.codes.chunks_exact_mut(128).enumerate() {
            let (low, high) = (&b[64 * half..][..64], &b[128 + 32 * half..][..32]);
            let high: [u8; 32] = array(high);
            for (g, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let low: [u8; 32] = array(&low[32 * (g % 2)..]);
                let (shift, up) = (4 * (g / 2), 2 * g);
                *codes = std::array::from_fn(|l| low[l] >> shift & 15 | (high[l] >> up & 3) << 4);
            }
        }
    }
}

/// The first `N` bytes: of a fixed number, loops become vectors.
#[inline(always)]
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("a whole block")
}
