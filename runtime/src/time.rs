//! The only place that asks the machine for the time, so that every actor can run on virtual time as well.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A moment, in nanoseconds since the driver started.
///
/// The live driver counts real nanoseconds, the simulator virtual ones; an actor cannot tell them apart.
///
/// ```
/// use millstream_runtime::Time;
/// use std::time::Duration;
/// let later = Time::ZERO + Duration::from_millis(3);
/// assert_eq!(later.as_nanos(), 3_000_000);
/// assert_eq!(Time::ZERO.saturating_since(later), Duration::ZERO);
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The moment the driver started.
    pub const ZERO: Time = Time(0);
    /// A moment that never comes (584 years after the start).
    pub const MAX: Time = Time(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self + span`, or `None` where the sum does not fit 64 bits of nanoseconds.
    pub fn checked_add(self, span: Duration) -> Option<Time> {
        u64::try_from(span.as_nanos()).ok().and_then(|nanos| self.0.checked_add(nanos)).map(Time)
    }

    /// `self + span`, or [`Time::MAX`] where the sum does not fit.
    pub fn saturating_add(self, span: Duration) -> Time {
        self.checked_add(span).unwrap_or(Time::MAX)
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn saturating_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::MAX`].
    fn add(self, span: Duration) -> Time {
        self.saturating_add(span)
    }
}

/// What a driver reads the time from.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Live: nanoseconds since this instant.
    Real(Instant),
    /// Sim: written by the simulator's loop only.
    Virtual(AtomicU64),
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the machine's clock")]
    pub(crate) fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    pub(crate) fn virtual_zero() -> Clock {
        Clock::Virtual(AtomicU64::new(0))
    }

    pub(crate) fn now(&self) -> Time {
        match self {
            Clock::Real(start) => Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Clock::Virtual(nanos) => Time(nanos.load(Ordering::Relaxed)),
        }
    }

    /// Moves virtual time to `now`; the real clock moves by itself.
    pub(crate) fn set(&self, now: Time) {
        if let Clock::Virtual(nanos) = self {
            nanos.store(now.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate() {
        assert_eq!(Time::MAX + Duration::from_nanos(1), Time::MAX);
        assert_eq!(Time::MAX.checked_add(Duration::from_nanos(1)), None);
        assert_eq!(Time::from_nanos(7).saturating_since(Time::from_nanos(2)), Duration::from_nanos(5));
    }

    #[test]
    fn virtual_time_moves_only_when_set() {
        let clock = Clock::virtual_zero();
        assert_eq!(clock.now(), Time::ZERO);
        clock.set(Time::from_nanos(9));
        assert_eq!(clock.now(), Time::from_nanos(9));
    }
}
