//! What goes wrong in a simulation, and how often.

use std::time::Duration;

use super::random::Random;

/// The faults of a simulation. Chances are between 0 and 1. Names in `spare` and `lossless` may end in `*`, which stands
/// for any rest; `"*"` alone is everything.
///
/// ```
/// use millstream_runtime::Faults;
/// let faults = Faults { lossless: vec!["*".to_owned()], spare: vec!["gateway".to_owned()], ..Faults::from_seed(3) };
/// assert_eq!(Faults::from_seed(3), Faults::from_seed(3));
/// # drop(faults);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Faults {
    /// The longest extra time a message is under way; drawn per message, order is kept.
    pub delay: Duration,
    /// Chance that a message between two seats is lost.
    pub drop: f64,
    /// Chance that a message between two seats is late enough to be overtaken.
    pub reorder: f64,
    /// Chance per turn that the seat sleeps after it.
    pub pause: f64,
    /// The longest such sleep.
    pub pause_max: Duration,
    /// Chance per turn that the seat dies, before or after it.
    pub crash: f64,
    /// Deaths by fault in all.
    pub crashes_max: u32,
    /// Seats or units that never die by a fault.
    pub spare: Vec<String>,
    /// Lanes that never lose or reorder. (Inlets and outlets never do.)
    pub lossless: Vec<String>,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Faults {
        Faults {
            delay: Duration::ZERO,
            drop: 0.0,
            reorder: 0.0,
            pause: 0.0,
            pause_max: Duration::ZERO,
            crash: 0.0,
            crashes_max: 0,
            spare: Vec::new(),
            lossless: Vec::new(),
        }
    }

    /// A mix drawn from the seed: each kind of fault is off half of the time and otherwise anything from rare to frequent,
    /// so that many seeds cover rare combinations too.
    pub fn from_seed(seed: u64) -> Faults {
        // Not the stream the simulation itself draws from.
        let mut random = Random::new(seed ^ 0x6661_756c_7473);
        let mut chance =
            |most: f64| if random.chance(0.5) { most * random.unit() * random.unit() } else { 0.0 };
        let mut faults = Faults {
            drop: chance(0.1),
            reorder: chance(0.2),
            pause: chance(0.2),
            crash: chance(0.05),
            ..Faults::none()
        };
        if random.chance(0.5) {
            // 1 µs to 100 ms, every magnitude as likely.
            faults.delay = Duration::from_nanos(10_f64.powf(3.0 + 5.0 * random.unit()) as u64);
        }
        faults.pause_max = Duration::from_millis(1) + random.span(Duration::from_millis(200));
        faults.crashes_max = 1 + (random.next() % 5) as u32;
        faults
    }

    pub(super) fn spares(&self, name: &str) -> bool {
        self.spare.iter().any(|pattern| matches(pattern, name))
    }

    pub(super) fn is_lossless(&self, lane: &str) -> bool {
        self.lossless.iter().any(|pattern| matches(pattern, lane))
    }
}

impl Default for Faults {
    fn default() -> Faults {
        Faults::none()
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_rest() {
        assert!(matches("*", "decode.steps"));
        assert!(matches("decode.*", "decode.steps"));
        assert!(!matches("decode.*", "prefill.steps"));
        assert!(!matches("decode", "decode.steps"));
    }

    #[test]
    fn seeds_draw_every_kind_and_its_absence() {
        let all: Vec<_> = (0..200).map(Faults::from_seed).collect();
        let kinds = [|f: &Faults| f.drop, |f: &Faults| f.reorder, |f: &Faults| f.pause, |f: &Faults| f.crash];
        for kind in kinds {
            assert!(
                all.iter().any(|faults| kind(faults) > 0.0) && all.iter().any(|faults| kind(faults) == 0.0)
            );
        }
        assert!(all.iter().any(|f| f.delay.is_zero()) && all.iter().any(|f| !f.delay.is_zero()));
    }
}
