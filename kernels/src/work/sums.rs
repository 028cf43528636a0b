//! Sums over the positions of a row, without going through them.

/// Positions that tokens `from..end` see together in a window that knows positions from `first` on; none: all of them.
pub(super) fn seen(window: Option<u32>, (first, from, end): (u32, u32, u32)) -> f64 {
    let upto = |position: u32| ramp(window, f64::from(position.saturating_sub(first)));
    upto(end) - upto(from)
}

/// Sum of `min(window, k)` for `k` from 1 to `count`.
fn ramp(window: Option<u32>, count: f64) -> f64 {
    let rising = window.map_or(count, |window| count.min(f64::from(window)));
    rising * (rising + 1.0) / 2.0 + (count - rising) * rising
}

/// How many different positions tokens `from..end` see in a window.
pub(super) fn spread(window: u32, (first, from, end): (u32, u32, u32)) -> f64 {
    f64::from(end - from.saturating_sub(window - 1).max(first).min(end))
}

/// Sum of `min(most, k / ratio)` in whole numbers for `k` from 1 to `count`: entries that the first `count` tokens see
/// together, where every `ratio` tokens complete one.
pub(super) fn entries(ratio: u32, most: u32, count: u32) -> f64 {
    let full = u64::from(count).min(u64::from(most) * u64::from(ratio));
    let (ratio, whole) = (f64::from(ratio), (full / u64::from(ratio)) as f64);
    let rest = full as f64 - whole * ratio;
    ratio * whole * (whole - 1.0) / 2.0
        + whole * (rest + 1.0)
        + (f64::from(count) - full as f64) * f64::from(most)
}
