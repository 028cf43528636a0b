//! What the machine can do at most: a measurement is worth something only beside the limit it runs into. A bench times
//! these, with the same threads that compute.

use super::{CpuBackend, Level};

/// Multiply-adds of one chunk of [`CpuBackend::probe_multiply_adds`].
const CHUNK: usize = 1 << 20;

impl CpuBackend {
    /// Does nothing but multiply and add in registers, on all threads; returns how many floating-point operations that
    /// were (a multiply-add counts two).
    pub fn probe_multiply_adds(&mut self) -> usize {
        let (level, chunks) = (self.level, 8 * self.pool.threads());
        self.pool.run(chunks, &|_| match level {
            Level::Plain => {
                std::hint::black_box((0..CHUNK).fold(0.5_f32, |sum, _| sum * 0.5 + 0.25));
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::multiply_adds(CHUNK);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX-512")]
                unsafe {
                    avx512::multiply_adds(CHUNK);
                }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot => neon::multiply_adds(CHUNK),
        });
        2 * chunks * CHUNK
    }

    /// Does nothing but multiply bytes and add the products up, on all threads, with what [`Matrix::pack`] is for; returns
    /// how many operations that were (a multiply-add counts two).
    ///
    /// [`Matrix::pack`]: crate::Matrix::pack
    pub fn probe_integers(&mut self) -> usize {
        let (level, chunks) = (self.level, 8 * self.pool.threads());
        self.pool.run(chunks, &|_| match level {
            Level::Plain => {
                std::hint::black_box((0..CHUNK).fold(1_i32, |sum, i| sum.wrapping_mul(3) ^ i as i32));
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX2")]
                unsafe {
                    avx2::integers(CHUNK);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for AVX-512")]
                unsafe {
                    avx512::integers(CHUNK);
                }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::byte_pairs(CHUNK),
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => {
                // SAFETY: the level says that the machine has the features.
                #[expect(unsafe_code, reason = "calls code for dot products")]
                unsafe {
                    neon::integers(CHUNK);
                }
            }
        });
        2 * chunks * CHUNK
    }

    /// Does nothing but read `data`, on all threads.
    pub fn probe_read(&mut self, data: &[u64]) {
        let size = data.len().div_ceil(8 * self.pool.threads()).max(1);
        let parts: Vec<&[u64]> = data.chunks(size).collect();
        self.pool.run(parts.len(), &|part| {
            std::hint::black_box(parts[part].iter().fold(0, |sum, x| sum ^ x));
        });
    }
}

/// Vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Independent chains: more than the latency of a multiply-add times the number of units.
    const CHAINS: usize = 12;

    /// About `count` multiply-adds in registers.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn multiply_adds(count: usize) {
        let (half, quarter) = std::hint::black_box((_mm256_set1_ps(0.5), _mm256_set1_ps(0.25)));
        let mut acc = [half; CHAINS];
        for _ in 0..count / (8 * CHAINS) {
            for acc in &mut acc {
                *acc = _mm256_fmadd_ps(*acc, half, quarter);
            }
        }
        std::hint::black_box(acc);
    }

    /// About `count` multiply-adds of bytes, by pairs and then pairs of pairs.
    #[target_feature(enable = "avx2")]
    pub(super) fn integers(count: usize) {
        let (a, b) = std::hint::black_box((_mm256_set1_epi8(3), _mm256_set1_epi8(-2)));
        let ones = std::hint::black_box(_mm256_set1_epi16(1));
        let mut acc = [a; CHAINS];
        for _ in 0..count / (32 * CHAINS) {
            for acc in &mut acc {
                let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(a, _mm256_xor_si256(b, *acc)), ones);
                *acc = _mm256_add_epi32(*acc, pairs);
            }
        }
        std::hint::black_box(acc);
    }
}

/// Wider vectors.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    /// Independent chains.
    const CHAINS: usize = 12;

    /// About `count` multiply-adds in registers.
    #[target_feature(enable = "avx512f")]
    pub(super) fn multiply_adds(count: usize) {
        let (half, quarter) = std::hint::black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
        let mut acc = [half; CHAINS];
        for _ in 0..count / (16 * CHAINS) {
            for acc in &mut acc {
                *acc = _mm512_fmadd_ps(*acc, half, quarter);
            }
        }
        std::hint::black_box(acc);
    }

    /// About `count` multiply-adds of bytes.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn integers(count: usize) {
        let (a, b) = std::hint::black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(-2)));
        let mut acc = [a; CHAINS];
        for _ in 0..count / (64 * CHAINS) {
            for acc in &mut acc {
                *acc = _mm512_dpbusd_epi32(*acc, a, b);
            }
        }
        std::hint::black_box(acc);
    }
}

/// Vectors of another architecture.
#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use crate::cpu::packed::neon::{Dots, Pairs, Products};

    /// Independent chains.
    const CHAINS: usize = 16;

    /// About `count` multiply-adds in registers.
    pub(super) fn multiply_adds(count: usize) {
        #[target_feature(enable = "neon")]
        fn run(count: usize) {
            let (half, quarter) = std::hint::black_box((vdupq_n_f32(0.5), vdupq_n_f32(0.25)));
            let mut acc = [half; CHAINS];
            for _ in 0..count / (4 * CHAINS) {
                for acc in &mut acc {
                    *acc = vfmaq_f32(quarter, *acc, half);
                }
            }
            std::hint::black_box(acc);
        }
        // SAFETY: every processor of this architecture has NEON.
        #[expect(unsafe_code, reason = "calls code for NEON")]
        unsafe {
            run(count);
        }
    }

    /// About `count` multiply-adds of bytes, by pairs.
    pub(super) fn byte_pairs(count: usize) {
        // SAFETY: every processor of this architecture has NEON, which pairs need.
        #[expect(unsafe_code, reason = "calls code for NEON")]
        unsafe {
            bytes::<Pairs>(count);
        }
    }

    /// About `count` multiply-adds of bytes, with dot products.
    ///
    /// # Safety
    /// The machine has dot products.
    #[expect(unsafe_code, reason = "calls code for dot products")]
    pub(super) unsafe fn integers(count: usize) {
        // SAFETY: the caller's promise.
        unsafe { bytes::<Dots>(count) };
    }

    /// About `count` multiply-adds of bytes.
    ///
    /// # Safety
    /// The machine has what `P` needs.
    #[target_feature(enable = "neon")]
    #[expect(unsafe_code, reason = "calls code for dot products")]
    unsafe fn bytes<P: Products>(count: usize) {
        let (a, b) = std::hint::black_box((vdupq_n_s8(3), vdupq_n_s8(-2)));
        let mut acc = [vdupq_n_s32(1); CHAINS];
        for _ in 0..count / (16 * CHAINS) {
            for acc in &mut acc {
                // SAFETY: the caller's promise.
                *acc = unsafe { P::add(*acc, a, b) };
            }
        }
        std::hint::black_box(acc);
    }
}
