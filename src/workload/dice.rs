//! Random numbers of workloads: SplitMix64, whose numbers are the same everywhere, and the distributions that are drawn from.

/// See the module.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Everything that is drawn follows from the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        let drawn = super::mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        drawn
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with this mean: the time between events that know nothing of each other.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Log-normal with this mean and this deviation of the logarithm: lengths of texts.
    pub fn length(&mut self, mean: f64, spread: f64) -> f64 {
        mean * (spread * self.normal() - spread * spread / 2.0).exp()
    }
}
