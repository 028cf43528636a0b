//! The arithmetic of a softmax over a whole vocabulary, written so that the compiler makes vectors of it: eight sums side
//! by side, no branch inside a loop. 262,144 logits take a fraction of a millisecond.

/// Logits that are added up together, before the sums are added up in double precision.
pub(super) const BLOCK: usize = 256;
const LANES: usize = 8;
/// Below, `exp` leaves the normal range of f32 and counts as zero.
const LOWEST: f32 = -87.0;

/// Logits as weights: `exp((logit - peak) * rate)`, so that the best has weight 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// The best logit.
    pub peak: f32,
    /// One over the temperature.
    pub rate: f32,
}

impl Scale {
    /// The weight of a logit that is no larger than the peak.
    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        exp((logit - self.peak) * self.rate)
    }

    /// The weights of all logits together.
    pub(super) fn mass(self, logits: &[f32]) -> f64 {
        logits.chunks(BLOCK).map(|block| f64::from(self.block(block))).sum()
    }

    /// The weights of a block together.
    pub(super) fn block(self, logits: &[f32]) -> f32 {
        let mut sums = [0.0; LANES];
        let (eights, rest) = logits.as_chunks::<LANES>();
        for eight in eights {
            for (sum, &logit) in sums.iter_mut().zip(eight) {
                *sum += self.weight(logit);
            }
        }
        for (sum, &logit) in sums.iter_mut().zip(rest) {
            *sum += self.weight(logit);
        }
        sums.iter().sum()
    }
}

/// The best logit; `None` when one is not a number, or the best is not finite.
pub(super) fn peak(logits: &[f32]) -> Option<f32> {
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut odd = [false; LANES];
    let (eights, rest) = logits.as_chunks::<LANES>();
    for eight in eights {
        for lane in 0..LANES {
            best[lane] = if eight[lane] > best[lane] { eight[lane] } else { best[lane] };
            odd[lane] |= eight[lane].is_nan();
        }
    }
    let peak = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    let odd = odd.contains(&true) || rest.iter().any(|logit| logit.is_nan());
    (!odd && peak.is_finite()).then_some(peak)
}

/// `e^x` for `x <= 0`, to about 2e-7 of its value; 0 below -87.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and `e^r` by its Taylor series up to `r^7 / 7!`, whose remainder is below
/// 5e-9. Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let inside = if x > LOWEST { x } else { LOWEST };
    let shifted = inside * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = inside - n * LN2_HIGH - n * LN2_LOW;
    let mut series = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + term;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    let value = series * f32::from_bits(exponent);
    if x > LOWEST { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range() {
        for step in 0..87_000 {
            let x = -(step as f32) / 1000.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 4e-7, "exp({x}) is {} and not {want}", exp(x));
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(-100.0), exp(f32::NEG_INFINITY)), (0.0, 0.0));
    }

    #[test]
    fn a_mass_is_the_sum_of_its_weights() {
        let logits: Vec<f32> = (0..1003).map(|n| (n as f32 * 0.37).sin() * 9.0).collect();
        let scale = Scale { peak: peak(&logits).unwrap(), rate: 1.0 / 0.8 };
        let want: f64 = logits.iter().map(|&l| (f64::from(l - scale.peak) / f64::from(0.8_f32)).exp()).sum();
        assert!((scale.mass(&logits) / want - 1.0).abs() < 1e-5);
    }

    #[test]
    fn what_is_no_number_has_no_peak() {
        let mut logits = vec![0.5; 37];
        logits[35] = f32::NEG_INFINITY;
        assert_eq!(peak(&logits), Some(0.5));
        for at in [0, 9, 36] {
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut logits = logits.clone();
                logits[at] = wrong;
                assert_eq!(peak(&logits), None, "{wrong} at {at}");
            }
        }
        assert_eq!(peak(&[f32::NEG_INFINITY; 9]), None);
    }
}
