//! The two clocks of the shell: a steady one for waits and histograms, and the calendar that the API's `created` wants.
//! Actors have neither; they get the driver's `Time`.

use std::time::Duration;

use tokio::time::Instant;

/// Now, on the steady clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time that this thread has had a processor, where the system says so (Linux), and else any steady time: to tell how fast
/// something was.
pub(crate) fn processor() -> Duration {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = said.and_then(|said| said.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| now().elapsed(), Duration::from_nanos)
}

/// Seconds since 1970, for people and for the API.
#[expect(clippy::disallowed_methods, reason = "the API's `created` is a date; nothing is decided by it")]
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// A number nobody can guess: the seed of a request whose client named none. The standard hasher's random keys are
/// the only randomness of the shell.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
