//! When a queue that is full will have room: what waits in it, over what has left it lately. For those who are refused: every
//! refusal says when to come back.

use std::time::Duration;

use millstream_runtime::Time;

/// The least and the most that anybody is told to wait.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);
/// What left so long ago counts half.
const HALF_LIFE: f64 = 10.0;

/// How fast a queue drains.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// Of requests and tokens that have left, those of long ago less.
    left: [f64; 2],
    /// The totals when it was told last.
    total: [u64; 2],
    /// When that was.
    at: Option<Time>,
    /// When it was told first.
    since: Option<Time>,
}

impl Drain {
    /// So many requests and tokens have left since the beginning.
    pub fn tell(&mut self, now: Time, total: [u64; 2]) {
        self.since.get_or_insert(now);
        if total == self.total {
            return;
        }
        let fades = fade(self.at.unwrap_or(now), now);
        for ((left, before), total) in self.left.iter_mut().zip(&mut self.total).zip(total) {
            *left = *left * fades + total.saturating_sub(*before) as f64;
            *before = total;
        }
        self.at = Some(now);
    }

    /// When so many requests and tokens that wait will have left, as it went lately.
    pub fn predict(&self, now: Time, waiting: [u64; 2]) -> Duration {
        let (Some(since), Some(at)) = (self.since, self.at) else { return LEAST };
        let fades = fade(at, now);
        // Seconds that what is counted comes from, those of long ago less.
        let seconds = HALF_LIFE / std::f64::consts::LN_2 * (1.0 - fade(since, now)).max(1e-2);
        let time = |(left, waiting): (&f64, u64)| match waiting {
            0 => 0.0,
            waiting => waiting as f64 / (left * fades / seconds).max(1e-9),
        };
        let longest = self.left.iter().zip(waiting).map(time).fold(0.0, f64::max);
        Duration::from_secs_f64(longest.min(MOST.as_secs_f64())).max(LEAST)
    }
}

/// What is left of the weight of something after that time.
fn fade(from: Time, to: Time) -> f64 {
    let nanos = to.as_nanos().saturating_sub(from.as_nanos());
    0.5_f64.powf(nanos as f64 / 1e9 / HALF_LIFE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn it_says_how_long_it_went_lately() {
        let mut drain = Drain::default();
        assert_eq!(drain.predict(at(0), [9, 900]), LEAST, "nothing is known");
        for n in 1..=1_000 {
            drain.tell(at(n * 100), [n, n * 50]);
        }
        let close = |wait: Duration, seconds: f64| (wait.as_secs_f64() / seconds - 1.0).abs() < 0.05;
        assert!(close(drain.predict(at(100_000), [100, 0]), 10.0), "ten a second");
        assert!(close(drain.predict(at(100_000), [100, 10_000]), 20.0), "500 tokens a second");
        assert_eq!(drain.predict(at(100_000), [1, 0]), LEAST);
        assert_eq!(drain.predict(at(100_000), [10_000, 0]), MOST);
        assert!(drain.predict(at(130_000), [100, 0]) > Duration::from_secs(50), "it stands still");
    }
}
