//! The tokens among which one is drawn, found without sorting a vocabulary: what takes part is a list of keys, each a
//! logit and its token in one number that orders them, the better the larger, the lower id among equals.

use std::ops::RangeInclusive;

use super::softmax::Scale;

/// Logits that are looked at together: most have none that is good enough.
const GLANCE: usize = 32;
/// A set this small is sorted rather than divided again.
const SMALL: usize = 64;

/// A logit and its token.
pub(super) fn key(logit: f32, id: usize) -> u64 {
    let bits = logit.to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

/// The token of a key.
pub(super) fn id(key: u64) -> u32 {
    !(key as u32)
}

/// The logit of a key.
pub(super) fn logit(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// The `count` best tokens, in no order; fewer when the others are impossible (minus infinity).
pub(super) fn best(logits: &[f32], count: usize, kept: &mut Vec<u64>) {
    kept.clear();
    let room = (4 * count).max(1024);
    let mut floor = f32::NEG_INFINITY;
    for (number, glance) in logits.chunks(GLANCE).enumerate() {
        if highest(glance) <= floor {
            continue;
        }
        // A later token with the same logit is worse than those kept, so that only what is above the floor counts.
        let ids = number * GLANCE..;
        kept.extend(ids.zip(glance).filter(|(_, logit)| **logit > floor).map(|(id, &logit)| key(logit, id)));
        if kept.len() >= room {
            shrink(kept, count);
            floor = kept.iter().min().map_or(floor, |&key| logit(key));
        }
    }
    shrink(kept, count);
}

/// All tokens whose logit is in the range, in order of id; gives up beyond `most` of them, and says so with false.
pub(super) fn within(logits: &[f32], range: RangeInclusive<f32>, most: usize, kept: &mut Vec<u64>) -> bool {
    kept.clear();
    for (number, glance) in logits.chunks(GLANCE).enumerate() {
        if highest(glance) >= *range.start() {
            let ids = number * GLANCE..;
            let good = ids.zip(glance).filter(|(_, logit)| range.contains(logit));
            kept.extend(good.map(|(id, &logit)| key(logit, id)));
        }
        if kept.len() > most {
            return false;
        }
    }
    true
}

/// Keeps the fewest best keys whose weights reach `wanted`, at least one. Takes time linear in the keys: the half that
/// cannot hold the border is put aside each time.
pub(super) fn nucleus(keys: &mut Vec<u64>, scale: Scale, wanted: f64) {
    let (mut low, mut high, mut sum) = (0, keys.len(), 0.0);
    while high - low > SMALL {
        let middle = low + (high - low) / 2;
        keys[low..high].select_nth_unstable_by(middle - low, |a, b| b.cmp(a));
        let left = mass(&keys[low..middle], scale);
        if sum + left >= wanted {
            high = middle;
        } else {
            sum += left;
            low = middle;
        }
    }
    keys[low..high].sort_unstable_by(|a, b| b.cmp(a));
    let border = keys[low..high].iter().position(|&key| {
        sum += f64::from(scale.weight(logit(key)));
        sum >= wanted
    });
    keys.truncate(border.map_or(high, |at| low + at + 1));
}

/// The worst key of the fewest best tokens whose weights reach `wanted`, found without a list of them: a table of sums
/// over ranges of weights says in which range the border lies, and only that one is looked at. `None` when all together do
/// not reach it: their sum differs in its last digits with the order of adding.
pub(super) fn border(logits: &[f32], scale: Scale, wanted: f64, table: &mut Table) -> Option<u64> {
    let Table { sums, keys } = table;
    sums.clear();
    sums.resize(range_of(1.0) + 2, 0.0);
    scale.weights(logits, |weight| sums[range_of(weight)] += f64::from(weight));
    let mut above = 0.0;
    let place = sums.iter().rposition(|&sum| {
        let here = sum > 0.0 && above + sum >= wanted;
        above += if here { 0.0 } else { sum };
        here
    })?;
    let (low, high) = (scale.logit(weight_of(place)), scale.logit(weight_of(place + 1)));
    let slack = 1e-3 * (1.0 + low.abs().min(1e6));
    within(logits, (low - slack).max(f32::MIN)..=high + slack, usize::MAX, keys);
    keys.retain(|&key| range_of(scale.weight(logit(key))) == place);
    nucleus(keys, scale, wanted - above);
    keys.iter().copied().min()
}

/// Room for [`border`].
#[derive(Debug, Default)]
pub(super) struct Table {
    sums: Vec<f64>,
    keys: Vec<u64>,
}

/// The range of weights that this one is in: 64 between a number and its double.
fn range_of(weight: f32) -> usize {
    (weight.to_bits() >> 17) as usize
}

/// The least weight of a range.
fn weight_of(range: usize) -> f32 {
    f32::from_bits((range as u32) << 17)
}

/// The weights of these keys together.
pub(super) fn mass(keys: &[u64], scale: Scale) -> f64 {
    keys.iter().map(|&key| f64::from(scale.weight(logit(key)))).sum()
}

fn shrink(kept: &mut Vec<u64>, count: usize) {
    if kept.len() > count {
        kept.select_nth_unstable_by(count, |a, b| b.cmp(a));
        kept.truncate(count);
    }
}

fn highest(logits: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; 8];
    let (eights, rest) = logits.as_chunks::<8>();
    for eight in eights {
        for (best, &logit) in best.iter_mut().zip(eight) {
            *best = if logit > *best { logit } else { *best };
        }
    }
    best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits with many equal ones, none in order.
    fn logits(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 7919 % 1013) as f32 - 500.0) / 64.0).collect()
    }

    fn sorted(logits: &[f32]) -> Vec<u64> {
        let mut keys: Vec<u64> = logits.iter().enumerate().map(|(id, &logit)| key(logit, id)).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys
    }

    #[test]
    fn keys_order_logits_and_then_ids() {
        let values = [f32::NEG_INFINITY, -2.0, -0.0, 0.0, 1.5, f32::MAX];
        for (n, &value) in values.iter().enumerate() {
            assert_eq!(logit(key(value, 9)).to_bits(), value.to_bits());
            assert_eq!(id(key(value, 9)), 9);
            assert!(values[..n].iter().all(|&less| key(less, 0) < key(value, 70_000)));
            assert!(key(value, 8) > key(value, 9));
        }
    }

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        let mut kept = Vec::new();
        for (size, count) in [(1, 1), (31, 5), (5000, 1), (5000, 40), (5000, 1500), (5000, 5000)] {
            let logits = logits(size);
            best(&logits, count, &mut kept);
            kept.sort_unstable_by(|a, b| b.cmp(a));
            assert_eq!(kept, sorted(&logits)[..count], "{count} of {size}");
        }
        let rising: Vec<f32> = (0..9000).map(|n| n as f32).collect();
        best(&rising, 3, &mut kept);
        kept.sort_unstable();
        assert_eq!(kept.iter().map(|&key| id(key)).collect::<Vec<_>>(), [8997, 8998, 8999]);
        best(&[f32::NEG_INFINITY, 1.0], 2, &mut kept);
        assert_eq!(kept, [key(1.0, 1)]);
    }

    #[test]
    fn a_nucleus_is_that_of_a_full_sort() {
        let logits = logits(5000);
        let scale = Scale::new(super::super::softmax::peak(&logits).unwrap(), 1.0);
        let all = sorted(&logits);
        let total = mass(&all, scale);
        for part in [0.0, 0.001, 0.3, 0.9, 0.999, 1.0] {
            let wanted = part * total;
            let mut sum = 0.0;
            let enough = all.iter().position(|&key| {
                sum += f64::from(scale.weight(logit(key)));
                sum >= wanted
            });
            let mut keys: Vec<u64> = logits.iter().enumerate().map(|(id, &logit)| key(logit, id)).collect();
            nucleus(&mut keys, scale, wanted);
            keys.sort_unstable_by(|a, b| b.cmp(a));
            let expected = enough.map_or(all.len(), |at| at + 1);
            assert!(keys.len().abs_diff(expected) <= 1, "{part}: {} and not {expected}", keys.len());
            assert_eq!(keys, all[..keys.len()]);
            let last = border(&logits, scale, wanted, &mut Table::default());
            let place = last.map_or(4999, |last| all.iter().position(|&key| key == last).unwrap());
            assert!(place.abs_diff(keys.len() - 1) <= 1, "{part}: {place} and not {}", keys.len() - 1);
        }
    }

    #[test]
    fn what_is_in_a_range_comes_in_order() {
        let logits = logits(500);
        let mut kept = Vec::new();
        assert!(within(&logits, 3.0..=4.0, 500, &mut kept));
        let expected: Vec<u32> = (0..500).filter(|&id| (3.0..=4.0).contains(&logits[id as usize])).collect();
        assert_eq!(kept.iter().map(|&key| id(key)).collect::<Vec<_>>(), expected);
        assert!(!within(&logits, 3.0..=4.0, expected.len() - 1, &mut kept));
    }
}
