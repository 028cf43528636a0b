//! What this machine can do at most with the threads of a backend. A speed is worth something only beside the limit it
//! runs into, measured in the same run: machines differ, and most have other work too.

use std::hint::black_box;
use std::time::Duration;

use millstream_kernels::CpuBackend;

use crate::clock;

/// Words that are read in turn: more bytes than the caches of most machines hold.
const WORDS: usize = 32 << 20;
/// Words of one reading.
const PART: usize = 1 << 20;
/// Each figure is the best of so many tries: short ones, so that some fall between the turns of other programs.
const TRIES: usize = 50;
/// What a try takes at least.
const TRY: Duration = Duration::from_millis(1);

/// What the machine can do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes per second that can be read from memory.
    pub read: f64,
    /// Floating-point operations per second; a multiply-add counts two.
    pub arithmetic: f64,
    /// Operations on 8-bit integers per second; a multiply-add counts two.
    pub integer: f64,
}

/// Measures limits again and again, and keeps the best: another program can only make a figure smaller.
pub struct Probe {
    data: Vec<u64>,
    best: Limits,
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}

impl Probe {
    /// With memory to read, and nothing measured yet.
    pub fn new() -> Self {
        let best = Limits { read: 0.0, arithmetic: 0.0, integer: 0.0 };
        Self { data: vec![1; WORDS], best }
    }

    /// Bytes that it keeps in memory for that.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.data.as_slice()) as u64
    }

    /// Measures all three, and gives the best so far.
    pub fn measure(&mut self, backend: &mut CpuBackend) -> Limits {
        let mut parts = self.data.chunks_exact(PART).cycle();
        let read = seconds(&mut || parts.next().into_iter().for_each(|part| backend.probe_read(part)));
        let operations = backend.probe_multiply_adds() as f64;
        let arithmetic = seconds(&mut || {
            black_box(backend.probe_multiply_adds());
        });
        let integers = backend.probe_integers() as f64;
        let integer = seconds(&mut || {
            black_box(backend.probe_integers());
        });
        self.best = Limits {
            read: self.best.read.max((8 * PART) as f64 / read),
            arithmetic: self.best.arithmetic.max(operations / arithmetic),
            integer: self.best.integer.max(integers / integer),
        };
        self.best
    }
}

/// Seconds that one call takes, in the best of many tries.
pub fn seconds(call: &mut dyn FnMut()) -> f64 {
    let mut repeat = 1_u32;
    let mut time = |repeat: u32| {
        let start = clock::now();
        (0..repeat).for_each(|_| call());
        start.elapsed()
    };
    while time(repeat) < TRY {
        repeat *= 2;
    }
    (0..TRIES).map(|_| time(repeat).as_secs_f64() / f64::from(repeat)).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_and_only_grow() {
        let mut backend = CpuBackend::new(1, &[]);
        let mut probe = Probe::new();
        let first = probe.measure(&mut backend);
        // Every machine reads more than 100 MB and computes more than 100 million operations a second.
        assert!(first.read > 1e8 && first.arithmetic > 1e8 && first.integer > 1e8, "{first:?}");
        let second = probe.measure(&mut backend);
        assert!(second.read >= first.read && second.integer >= first.integer, "{first:?} {second:?}");
    }
}
