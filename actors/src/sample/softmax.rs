//! The arithmetic of a softmax over a whole vocabulary, written so that the compiler makes vectors of it: eight sums side
//! by side, no branch inside a loop. 262,144 logits take a fraction of a millisecond.

/// Logits that are added up together, before the sums are added up in double precision.
pub(super) const BLOCK: usize = 256;
const LANES: usize = 8;
/// Below, a power of two leaves the normal range of f32 and counts as zero.
const LOWEST: f32 = -126.0;

/// Logits as weights: `exp((logit - peak) / temperature)`, so that the best has weight 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// The best logit.
    peak: f32,
    temperature: f32,
    /// From differences of logits to powers of two.
    rate: f32,
}

impl Scale {
    pub(super) fn new(peak: f32, temperature: f32) -> Self {
        Self { peak, temperature, rate: std::f32::consts::LOG2_E / temperature }
    }

    /// The weight of a logit that is no larger than the peak.
    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        power((logit - self.peak) * self.rate)
    }

    /// The logit that has this weight.
    pub(super) fn logit(self, weight: f32) -> f32 {
        self.peak + weight.ln() * self.temperature
    }

    /// The weights of all logits together.
    pub(super) fn mass(self, logits: &[f32]) -> f64 {
        logits.chunks(BLOCK).map(|block| f64::from(self.block(block, f32::NEG_INFINITY))).sum()
    }

    /// The weights of those of a block that are at least `floor`, together.
    pub(super) fn block(self, logits: &[f32], floor: f32) -> f32 {
        let mut room = [0.0; BLOCK];
        let weights = self.fill(logits, floor, &mut room);
        let mut sums = [0.0; LANES];
        let (eights, rest) = weights.as_chunks::<LANES>();
        for eight in eights {
            for (sum, &weight) in sums.iter_mut().zip(eight) {
                *sum += weight;
            }
        }
        sums.iter().chain(rest).sum()
    }

    /// Calls `each` with every weight.
    pub(super) fn weights(self, logits: &[f32], mut each: impl FnMut(f32)) {
        let mut room = [0.0; BLOCK];
        for block in logits.chunks(BLOCK) {
            self.fill(block, f32::NEG_INFINITY, &mut room).iter().copied().for_each(&mut each);
        }
    }

    /// The weights of a block, zero below `floor`. One loop with nothing else in it, so that it becomes vectors.
    fn fill<'a>(self, logits: &[f32], floor: f32, room: &'a mut [f32; BLOCK]) -> &'a [f32] {
        for (weight, &logit) in room.iter_mut().zip(logits) {
            let whole = self.weight(logit);
            *weight = if logit >= floor { whole } else { 0.0 };
        }
        &room[..logits.len()]
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

/// `2^x` for `x <= 0`, to about 3e-7 of its value; 0 from -126 on.
///
/// `x = n + r` with `|r| <= 1/2`, and `2^r` by its Taylor series up to `(r ln 2)^6 / 6!`, whose remainder is below 2e-7.
/// Adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits.
#[inline(always)]
fn power(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const SERIES: [f32; 6] = [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];
    let inside = if x > LOWEST { x } else { LOWEST };
    let shifted = inside + ROUND;
    let r = inside - (shifted - ROUND);
    let mut series = 1.540_353e-4;
    for term in SERIES {
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
    fn powers_are_close_over_their_whole_range() {
        for step in 0..126_000 {
            let x = -(step as f32) / 1000.0;
            let want = f64::from(x).exp2();
            assert!((f64::from(power(x)) / want - 1.0).abs() < 4e-7, "2^{x} is {} and not {want}", power(x));
        }
        assert_eq!(power(0.0), 1.0);
        assert_eq!((power(-127.0), power(f32::NEG_INFINITY)), (0.0, 0.0));
    }

    #[test]
    fn a_mass_is_the_sum_of_its_weights() {
        let logits: Vec<f32> = (0..1003).map(|n| (n as f32 * 0.37).sin() * 9.0).collect();
        let scale = Scale::new(peak(&logits).unwrap(), 0.8);
        let exact = |logit: &f32| (f64::from(logit - scale.peak) / f64::from(0.8_f32)).exp();
        let want: f64 = logits.iter().map(exact).sum();
        assert!((scale.mass(&logits) / want - 1.0).abs() < 1e-5);
        let above: f64 = logits.iter().filter(|logit| **logit >= 2.0).map(exact).sum();
        let blocks = logits.chunks(BLOCK).map(|block| f64::from(scale.block(block, 2.0)));
        assert!((blocks.sum::<f64>() / above - 1.0).abs() < 1e-5);
        let (mut sum, mut count) = (0.0, 0);
        scale.weights(&logits, |weight| (sum, count) = (sum + f64::from(weight), count + 1));
        assert!((sum / want - 1.0).abs() < 1e-5 && count == 1003);
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
