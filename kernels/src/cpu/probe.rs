//! What the machine can do at most: a measurement is worth something only beside the limit it runs into. A bench times
//! these two, with the same threads that compute.

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
}
