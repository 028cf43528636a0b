//! The numbers that a layer's hashes multiply with. They are stored nowhere: whoever made the tables drew them from NumPy's
//! default generator, so they are drawn from it again, bit for bit. The generator is PCG64 (O'Neill, XSL-RR output),
//! its seed is spread by NumPy's `SeedSequence`, and bounded numbers are made by Lemire's method.

/// Steps of the generator from state to state.
const STEP: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// Odd multipliers of a layer, newest token first. With classes below `classes` no product overflows 63 bits.
pub(super) fn multipliers(layer: usize, classes: usize, count: usize) -> Vec<u64> {
    let bound = (i64::MAX.unsigned_abs() / (classes as u64).max(1) / 2).max(1);
    let mut generator = Generator::new(10_007 * layer as u64);
    (0..count).map(|_| 2 * generator.below(bound) + 1).collect()
}

/// PCG64.
struct Generator {
    state: u128,
    /// Odd; which of the sequences it is.
    step: u128,
}

impl Generator {
    fn new(seed: u64) -> Generator {
        let [a, b, c, d] = spread(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let step = wide(c, d) << 1 | 1;
        // The state steps once from zero, takes the seed in, and steps again.
        let mut generator = Generator { state: step.wrapping_add(wide(a, b)), step };
        generator.advance();
        generator
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(STEP).wrapping_add(self.step);
    }

    /// 64 bits.
    fn draw(&mut self) -> u64 {
        self.advance();
        let (high, low) = ((self.state >> 64) as u64, self.state as u64);
        (high ^ low).rotate_right((high >> 58) as u32)
    }

    /// A number below `bound`, all equally likely. NumPy takes this road for bounds above 2^32.
    fn below(&mut self, bound: u64) -> u64 {
        let rest = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.draw()) * u128::from(bound);
            if product as u64 >= rest {
                return (product >> 64) as u64;
            }
        }
    }
}

/// A seed spread over 256 bits, as four words, the most significant halves first.
fn spread(seed: u64) -> [u64; 4] {
    let mut hash = Hash { key: 0x43b0_d7e5, step: 0x931e_8875 };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(|word| hash.of(word));
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let word = hash.of(pool[from]);
            pool[to] = mix(pool[to], word);
        }
    }
    let mut hash = Hash { key: 0x8b51_f9dd, step: 0x58f3_8ded };
    let mut half = |word: u32| u64::from(hash.of(word));
    let [a, b, c, d] = pool;
    [(a, b), (c, d), (a, b), (c, d)].map(|(low, high)| half(low) | half(high) << 32)
}

/// Scrambles words, with a key that changes from one to the next.
struct Hash {
    key: u32,
    step: u32,
}

impl Hash {
    fn of(&mut self, word: u32) -> u32 {
        let mixed = word ^ self.key;
        self.key = self.key.wrapping_mul(self.step);
        let product = mixed.wrapping_mul(self.key);
        product ^ product >> 16
    }
}

/// Two words as one.
fn mix(a: u32, b: u32) -> u32 {
    let sum = a.wrapping_mul(0xca01_f9dd).wrapping_sub(b.wrapping_mul(0x4973_f715));
    sum ^ sum >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_generator_they_are_named_after() {
        // Drawn with NumPy 2: `default_rng(10007 * layer).integers(0, bound, size=4) * 2 + 1`.
        let cases = [
            (1, 99_092, [76_632_096_046_245, 4_839_876_093_313, 35_959_672_319_349, 73_987_337_458_391]),
            (14, 99_092, [67_716_810_739_261, 51_510_806_800_915, 30_921_347_202_721, 82_619_226_485_591]),
            (
                0,
                446,
                [13_172_499_137_642_459, 5_579_244_914_001_403, 847_340_930_323_987, 341_794_913_383_773],
            ),
            // A seed of more than 32 bits.
            (
                500_000,
                1000,
                [728_381_625_417, 7_477_702_397_431_315, 4_449_180_685_889_699, 7_140_926_627_570_911],
            ),
        ];
        for (layer, classes, want) in cases {
            assert_eq!(multipliers(layer, classes, 4), want, "layer {layer}");
        }
    }
}
