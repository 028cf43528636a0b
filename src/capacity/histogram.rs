//! How times are distributed, in little memory: exact in number, sum and extremes, and to a hundred-and-twenty-eighth part in
//! between. What is counted are whole nanoseconds, so the order in which they come changes nothing.

use std::time::Duration;

/// Steps between a number and its double.
const STEPS: u64 = 128;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// By place; no longer than needed.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    most: u64,
}

impl Histogram {
    /// Counts a time `times` times.
    pub fn add(&mut self, time: Duration, times: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let place = place(nanos);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += times;
        self.count += times;
        self.sum += u128::from(nanos) * u128::from(times);
        self.most = self.most.max(nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean in seconds; 0 of none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1e9 }
    }

    /// The longest, in seconds.
    pub fn most(&self) -> f64 {
        self.most as f64 / 1e9
    }

    /// What this share of them is not longer than, in seconds; 0 of none.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (middle(place) as f64).min(self.most as f64) / 1e9;
            }
        }
        0.0
    }

    /// Shares up to times, for a curve: `(seconds, share)`, ascending.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut seen = 0;
        let mut points = Vec::new();
        for (place, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            points
                .push(((middle(place) as f64).min(self.most as f64) / 1e9, seen as f64 / self.count as f64));
        }
        points
    }
}

fn place(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + (nanos >> shift) - STEPS) as usize
}

/// The middle of what is counted at a place.
fn middle(place: usize) -> u64 {
    let (shift, rest) = (place as u64 / STEPS, place as u64 % STEPS);
    if shift == 0 {
        return rest;
    }
    let (low, width) = ((STEPS + rest) << (shift - 1), 1_u64 << (shift - 1));
    low + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_ascend_and_lie_near_what_is_counted_there() {
        let mut last = 0;
        for bits in 0..57 {
            for part in [0_u64, 1, 37, 77, 127] {
                let nanos = (1_u64 << bits) + (part << bits) / 128;
                let (place, error) = (place(nanos), middle(place(nanos)).abs_diff(nanos));
                assert!(place >= last && error as f64 <= nanos as f64 / 128.0, "{nanos}: {place}, {error}");
                last = place;
            }
        }
    }

    #[test]
    fn shares_are_right_in_any_order() {
        let mut all = Histogram::default();
        (1..=1000_u64).rev().for_each(|ms| all.add(Duration::from_millis(ms), 1));
        assert_eq!((all.count(), all.mean(), all.most()), (1000, 0.5005, 1.0));
        assert!((all.quantile(0.5) - 0.5).abs() < 0.005 && (all.quantile(0.99) - 0.99).abs() < 0.01);
        let mut once = Histogram::default();
        (1..=1000_u64).for_each(|ms| once.add(Duration::from_millis(ms), 1));
        assert_eq!(all, once);
        let (mut twice, mut each) = (Histogram::default(), Histogram::default());
        twice.add(Duration::from_millis(3), 2);
        (0..2).for_each(|_| each.add(Duration::from_millis(3), 1));
        assert_eq!(twice, each);
        assert_eq!((Histogram::default().quantile(0.9), Histogram::default().mean()), (0.0, 0.0));
    }
}
