//! Random numbers that are a function of seed and counter: a token's draw can be repeated anywhere, any time.
//!
//! Philox 2x64 with 10 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

/// A number in [0, 1) for the token at `position` of an answer.
pub fn uniform(seed: u64, position: u32) -> f64 {
    (philox(u64::from(position), 0, seed) >> 11) as f64 / (1u64 << 53) as f64
}

/// The seed of one of several answers to a request, counted from 0. The first has the request's own, so that asking for
/// more answers does not change it.
pub fn choice_seed(seed: u64, choice: u32) -> u64 {
    // The second word of the counter keeps these apart from the draws of the tokens.
    if choice == 0 { seed } else { philox(u64::from(choice), 1, seed) }
}

fn philox(low: u64, high: u64, seed: u64) -> u64 {
    const MULTIPLIER: u64 = 0xD2B7_4407_B1CE_6E93;
    const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;
    let (mut left, mut right, mut key) = (low, high, seed);
    for _ in 0..10 {
        let product = u128::from(left) * u128::from(MULTIPLIER);
        left = (product >> 64) as u64 ^ key ^ right;
        right = product as u64;
        key = key.wrapping_add(WEYL);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the paper's reference implementation (Random123, kat_vectors), whose first output word is `left` here.
    #[test]
    fn the_generator_is_the_published_one() {
        assert_eq!(philox(0, 0, 0), 0xca00_a045_9843_d731);
        assert_eq!(philox(u64::MAX, u64::MAX, u64::MAX), 0x65b0_21d6_0cd8_310f);
        assert_eq!(
            philox(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0),
            0x0a5e_742c_2997_341c
        );
    }

    #[test]
    fn choices_have_seeds_of_their_own() {
        assert_eq!(choice_seed(7, 0), 7);
        let seeds: std::collections::BTreeSet<u64> = (0..16).map(|choice| choice_seed(7, choice)).collect();
        assert_eq!(seeds.len(), 16);
    }
}
