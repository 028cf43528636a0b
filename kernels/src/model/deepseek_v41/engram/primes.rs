//! Sizes of the tables that a layer's hashes point into: primes, so that two heads seldom collide on the same pairs.

/// Bases that tell primes from other numbers below 2^64, with certainty (Miller and Rabin's test).
const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

/// The `count` smallest primes from `first` on.
pub(super) fn primes_from(first: u64, count: usize) -> Vec<u64> {
    (first..).filter(|&number| is_prime(number)).take(count).collect()
}

fn is_prime(number: u64) -> bool {
    if number < 2 {
        return false;
    }
    match BASES.iter().find(|&&base| number.is_multiple_of(base)) {
        Some(&base) => number == base,
        None => BASES.iter().all(|&base| may_be_prime(number, base)),
    }
}

/// False if `base` proves that an odd number is none.
fn may_be_prime(number: u64, base: u64) -> bool {
    let square = |x: u64| (u128::from(x) * u128::from(x) % u128::from(number)) as u64;
    let twos = (number - 1).trailing_zeros();
    let odd = (number - 1) >> twos;
    let mut power = 1;
    for bit in (0..u64::BITS - odd.leading_zeros()).rev() {
        power = square(power);
        if odd >> bit & 1 == 1 {
            power = (u128::from(power) * u128::from(base) % u128::from(number)) as u64;
        }
    }
    if power == 1 {
        return true;
    }
    std::iter::successors(Some(power), |&power| Some(square(power)))
        .take(twos as usize)
        .any(|power| power == number - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_those_that_division_leaves() {
        let by_division = |n: u64| n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        for number in (0..20_000).chain(16_000_000..16_000_300) {
            assert_eq!(is_prime(number), by_division(number), "{number}");
        }
        // Products of two primes that few bases tell from primes, and the largest prime of 64 bits.
        for number in [3_215_031_751, 3_474_749_660_383, 341_550_071_728_321, u64::MAX] {
            assert!(!is_prime(number), "{number}");
        }
        assert!(is_prime(18_446_744_073_709_551_557));
    }
}
