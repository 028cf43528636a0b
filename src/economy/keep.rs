//! What is kept, where and for how long: its bytes, how fast they are read and written, and what that costs.

use super::demand::{DAY, Demand, Hits};
use super::model::Model;
use super::spec::{TierSpec, Tiers};

/// Bytes of a GiB.
const GIB: f64 = (1_u64 << 30) as f64;
/// Hours of a month: a twelfth of 365 days.
const MONTH: f64 = 730.0;

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep<'a> {
    /// Its name, and the tier; none keeps nothing beyond a group's own memory, in which nothing is counted as found.
    pub tier: Option<(&'static str, &'a TierSpec)>,
    /// Seconds after the last use.
    pub kept_s: f64,
    /// The share of prompt tokens that is found.
    pub found: f64,
}

/// What keeping takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Held {
    /// Bytes, copies among them.
    pub bytes: f64,
    /// Read in a second, in the mean.
    pub read: f64,
    /// Written in a second, in the mean, one copy.
    pub written: f64,
    /// Money of an hour.
    pub hour: f64,
}

/// The tiers that a file names.
pub(super) fn named(tiers: &Tiers) -> Vec<(&'static str, &TierSpec)> {
    let Tiers { host, disk, shared } = tiers;
    [("host", host), ("disk", disk), ("shared", shared)]
        .into_iter()
        .filter_map(|(name, tier)| Some((name, tier.as_ref()?)))
        .collect()
}

impl<'a> Keep<'a> {
    /// Nothing is kept and nothing found.
    pub(super) const NOTHING: Keep<'static> = Keep { tier: None, kept_s: 0.0, found: 0.0 };

    /// What a tier keeps so long.
    pub(super) fn new(tier: (&'static str, &'a TierSpec), kept_s: f64, demand: &Demand) -> Self {
        Self { tier: Some(tier), kept_s, found: demand.hits.share(kept_s) }
    }

    /// What it takes if so many tokens of each prompt are fetched. Blocks are written once and go when nobody has used them for
    /// so long: by Little's law there are as many bytes as are written a second, times how long they are there.
    pub(super) fn held(&self, demand: &Demand, model: &Model, fetched: f64) -> Held {
        let Some((_, tier)) = self.tier else { return Held::default() };
        let written = |found: f64| {
            let tokens = (1.0 - found) * demand.input_a_day + demand.output_a_day;
            tokens / DAY * model.kv_bytes
        };
        let of = |kept: f64, found: f64| written(found) * (kept + demand.used_s) * tier.copies;
        // What is kept for less long is there too, until just before a time from which on more is found.
        let shorter = match &demand.hits {
            Hits::Always(_) => 0.0,
            Hits::ByTime(points) => {
                let pairs = points.windows(2).take_while(|pair| pair[1].kept.0 <= self.kept_s);
                pairs.map(|pair| of(pair[1].kept.0, pair[0].share)).fold(0.0, f64::max)
            }
        };
        let counted = |there: f64| {
            let second = demand.input_a_day * there + demand.output_a_day * self.kept_s;
            second / DAY * model.kv_bytes * tier.copies
        };
        let there = demand.hits.there_s(self.kept_s);
        let bytes = there.map_or_else(|| of(self.kept_s, self.found).max(shorter), counted);
        Held {
            bytes,
            read: demand.rate() * fetched * model.kv_bytes,
            written: written(self.found),
            hour: bytes / GIB * tier.gib_month / MONTH,
        }
    }

    /// Seconds until so many bytes have come to a group.
    pub(super) fn fetch_s(&self, bytes: f64, devices: u32) -> f64 {
        match self.tier {
            Some((_, tier)) if bytes > 0.0 => {
                tier.latency_us / 1e6 + bytes / (tier.bytes_per_second * f64::from(devices))
            }
            _ => 0.0,
        }
    }

    /// Whether so many devices have room for it.
    pub(super) fn has_room(&self, held: &Held, devices: f64) -> bool {
        let size = self.tier.and_then(|(_, tier)| tier.size);
        size.is_none_or(|size| held.bytes <= size.0 * devices)
    }

    /// Whether so many devices read so many bytes a second.
    pub(super) fn reads(&self, bytes: f64, devices: f64) -> bool {
        self.tier.is_none_or(|(_, tier)| bytes <= tier.bytes_per_second * devices)
    }
}
