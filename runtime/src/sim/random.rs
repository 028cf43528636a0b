//! SplitMix64: a small generator with known constants, so that a seed means the same run in every build.

use std::time::Duration;

#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with probability `chance`; draws nothing when that is zero.
    pub(super) fn chance(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.unit() < chance
    }

    /// Uniform in [0, max]; draws nothing when that is zero.
    pub(super) fn span(&mut self, max: Duration) -> Duration {
        let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX - 1);
        if nanos == 0 { Duration::ZERO } else { Duration::from_nanos(self.next() % (nanos + 1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_are_splitmix64() {
        let mut random = Random::new(1_234_567);
        let drawn: Vec<_> = (0..3).map(|_| random.next()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut random = Random::new(7);
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&random.unit()));
            assert!(random.span(Duration::from_nanos(3)) <= Duration::from_nanos(3));
        }
        assert!(!random.chance(0.0));
        assert!(random.chance(1.0));
    }
}
