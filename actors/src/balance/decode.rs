//! Where fewest requests run, with the fewest keys and values, by what a group can hold of both. Each counts as far as the
//! request to be placed asks for it: a long one goes where keys and values have room, a short one where requests are few.
//! That is the choice that adds least to the sum of the squares of both, and so keeps both even.
//!
//! A router counts its own requests itself: it sends them, and is told when each has left. Of other routers' it knows what a
//! group reported last, and *expects* that since then they have sent what it sent, each of them, to the groups that it would
//! have chosen. Who all take the least loaded group of the same old report are a herd. Therefore a router of several does
//! not take the least one: it works out how the requests that all of them send now would fill the groups up evenly, like
//! water, and takes each group as often as water comes to it. Alone, that is the least loaded group.

use std::iter::Sum;
use std::ops::{Add, AddAssign, SubAssign};

/// What a group can hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests.
    pub requests: u64,
    /// Tokens whose keys and values it has room for.
    pub tokens: u64,
}

/// What a group holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Requests that run there or are on their way.
    pub requests: u64,
    /// Their tokens.
    pub tokens: u64,
}

impl Held {
    /// One request of so many tokens.
    pub fn one(tokens: u64) -> Self {
        Self { requests: 1, tokens }
    }

    fn without(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
        }
    }
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
    }
}

impl SubAssign for Held {
    fn sub_assign(&mut self, other: Self) {
        self.requests -= other.requests;
        self.tokens -= other.tokens;
    }
}

impl Add for Held {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sum for Held {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// What a group says of itself to one router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything it holds, tokens of answers included.
    pub all: Held,
    /// What of it this router sent, by the tokens that it was sent with.
    pub yours: Held,
}

impl Report {
    /// What the router that it is meant for does not know without being told.
    pub fn others(self) -> Held {
        self.all.without(self.yours)
    }
}

struct Group {
    capacity: Capacity,
    /// Written by this router's own sends and departures.
    own: Held,
    /// From the last report: what others sent, and how far answers have grown.
    others: Held,
    /// What of the capacity others are expected to have taken since.
    expected: Share,
}

/// Parts of what a group can hold.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    requests: f64,
    tokens: f64,
}

impl Share {
    fn plus(self, more: Self, times: f64) -> Self {
        Self { requests: self.requests + times * more.requests, tokens: self.tokens + times * more.tokens }
    }

    /// One number of the two, which count as much as `by` has of them.
    fn weighed(self, by: Self) -> f64 {
        (self.requests * by.requests + self.tokens * by.tokens)
            / (by.requests + by.tokens).max(f64::MIN_POSITIVE)
    }
}

impl Group {
    /// Which share of the group this is.
    fn share(&self, held: Held) -> Share {
        let of = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        Share {
            requests: of(held.requests, self.capacity.requests),
            tokens: of(held.tokens, self.capacity.tokens),
        }
    }

    fn load(&self) -> Share {
        self.share(self.own + self.others).plus(self.expected, 1.0)
    }
}

/// See the module.
pub struct Decodes {
    groups: Vec<Group>,
    /// All that send to these groups.
    routers: u64,
    /// What the next choice among several is drawn by: a fixed sequence that fills the unit interval evenly.
    turn: f64,
}

/// The golden ratio's fraction: multiples of it, whole parts left out, lie as evenly as any.
const GOLDEN: f64 = 0.618_033_988_749_895;

impl Decodes {
    /// Of `routers`, the one with number `me`.
    pub fn new(capacities: impl IntoIterator<Item = Capacity>, (me, routers): (u64, u64)) -> Self {
        let group = |capacity| Group {
            capacity,
            own: Held::default(),
            others: Held::default(),
            expected: Share::default(),
        };
        let turn = me as f64 / routers.max(1) as f64;
        Self { groups: capacities.into_iter().map(group).collect(), routers: routers.max(1), turn }
    }

    /// The group for one more request; none where there are no groups. It is not counted before it is sent.
    pub fn pick(&self, one: Held) -> Option<usize> {
        if self.routers == 1 {
            let mean = self.mean(one);
            let load = |group: &Group| group.load().plus(group.share(one), 1.0).weighed(mean);
            let loads: Vec<f64> = self.groups.iter().map(load).collect();
            return (0..loads.len()).min_by(|&a, &b| loads[a].total_cmp(&loads[b]));
        }
        let mut left = self.turn;
        let shares = self.shares(one);
        let drawn = shares.iter().position(|share| {
            left -= share;
            left < 0.0
        });
        drawn.or_else(|| shares.iter().rposition(|&share| share > 0.0))
    }

    /// The share of a group that is taken, of requests and of keys and values together; infinite where one more has no room.
    pub fn taken(&self, number: usize, one: Held) -> f64 {
        let group = &self.groups[number];
        let all = group.own + group.others + one;
        let fits = all.requests <= group.capacity.requests && all.tokens <= group.capacity.tokens;
        let Share { requests, tokens } = group.load();
        if fits { requests + tokens } else { f64::INFINITY }
    }

    /// It was sent to this group, by this router.
    pub fn add(&mut self, number: usize, one: Held) {
        if self.routers > 1 {
            let shares = self.shares(one);
            let others = (self.routers - 1) as f64;
            for (group, share) in self.groups.iter_mut().zip(shares) {
                group.expected = group.expected.plus(group.share(one), others * share);
            }
            self.turn = (self.turn + GOLDEN).fract();
        }
        self.groups[number].own += one;
    }

    /// A request that this router sent has left.
    pub fn remove(&mut self, number: usize, one: Held) {
        self.groups[number].own -= one;
    }

    /// What a group says of itself.
    pub fn report(&mut self, number: usize, report: Report) {
        let group = &mut self.groups[number];
        (group.others, group.expected) = (report.others(), Share::default());
    }

    /// How one request of each router is shared out, so that groups are as even as can be afterwards; sums up to 1.
    fn shares(&self, one: Held) -> Vec<f64> {
        let mean = self.mean(one);
        let loads: Vec<f64> = self.groups.iter().map(|group| group.load().weighed(mean)).collect();
        let poured = (mean.weighed(mean) * self.routers as f64).max(f64::MIN_POSITIVE);
        let level = level(&loads, poured);
        loads.iter().map(|load| (level - load).max(0.0) / poured).collect()
    }

    /// Which share of a group one request is, on average.
    fn mean(&self, one: Held) -> Share {
        let part = 1.0 / self.groups.len().max(1) as f64;
        self.groups.iter().fold(Share::default(), |sum, group| sum.plus(group.share(one), part))
    }
}

/// Up to where water rises that is poured over these heights.
fn level(heights: &[f64], poured: f64) -> f64 {
    let mut sorted = heights.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let mut sum = poured;
    for (count, height) in (1..).zip(&sorted) {
        sum += height;
        let level = sum / f64::from(count);
        if sorted.get(count as usize).is_none_or(|&next| next >= level) {
            return level;
        }
    }
    poured
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Capacity = Capacity { requests: 10, tokens: 1_000 };

    #[test]
    fn water_fills_the_lowest_first() {
        assert!((level(&[1.0, 3.0, 2.0], 0.5) - 1.5).abs() < 1e-12);
        assert!((level(&[1.0, 3.0, 2.0], 3.0) - 3.0).abs() < 1e-12);
        assert!((level(&[1.0, 3.0, 2.0], 6.0) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn alone_it_takes_the_least_by_what_a_group_can_hold() {
        let large = Capacity { requests: 20, tokens: 2_000 };
        let mut decodes = Decodes::new([SMALL, large, SMALL], (0, 1));
        let mut taken = [0; 3];
        for _ in 0..8 {
            let number = decodes.pick(Held::one(100)).expect("there are groups");
            decodes.add(number, Held::one(100));
            taken[number] += 1;
        }
        assert_eq!(taken, [2, 4, 2]);
        decodes.remove(2, Held::one(100));
        assert_eq!(decodes.pick(Held::one(100)), Some(2));
        decodes.add(2, Held::one(900));
        assert_eq!(decodes.pick(Held::one(100)), Some(1), "keys and values count beside requests");
        decodes.report(
            1,
            Report { all: Held { requests: 18, tokens: 1_800 }, yours: Held { requests: 4, tokens: 400 } },
        );
        assert_eq!(decodes.pick(Held::one(100)), Some(0), "and so does what others have sent");
        assert_eq!(Decodes::new([], (0, 1)).pick(Held::one(1)), None);
    }

    /// All see the same: one group is much emptier than the others, and room for a few.
    #[test]
    fn many_who_see_the_same_are_no_herd() {
        let mut taken = [0usize; 16];
        for me in 0..16 {
            let mut decodes = Decodes::new([SMALL; 16], (me, 16));
            for number in 0..16 {
                let requests = if number == 5 { 2 } else { 6 };
                let all = Held { requests, tokens: 100 * requests };
                decodes.report(number, Report { all, yours: Held::default() });
            }
            for _ in 0..4 {
                let number = decodes.pick(Held::one(100)).expect("there are groups");
                decodes.add(number, Held::one(100));
                taken[number] += 1;
            }
        }
        // 64 requests come to 94 that are there: all groups should have 9 or 10.
        taken.iter_mut().enumerate().for_each(|(number, taken)| *taken += if number == 5 { 2 } else { 6 });
        assert_eq!(taken.iter().sum::<usize>(), 156);
        assert!(taken.iter().all(|taken| (7..=13).contains(taken)), "{taken:?}");
    }
}
