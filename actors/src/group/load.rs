//! What a group tells the router of itself: how fast its steps are, whenever that was measured anew, and what it holds,
//! whenever that has moved by a share of what it can hold. The router counts what it sends itself; the rest of its picture
//! is therefore never wrong by more than that share and a message on its way. No timer, and nothing from a group at rest.

use millstream_runtime::LatestOut;

use crate::balance::{Capacity, Held, Report};
use crate::message::Load;

/// The picture may be wrong by one part in so many of what the group can hold.
const PARTS: u64 = 32;

/// To the router.
#[derive(Clone)]
pub struct LoadLane {
    /// The lane.
    pub out: LatestOut<Load>,
    /// What the group can hold.
    pub capacity: Capacity,
}

/// See the module.
pub(super) struct Loads {
    lane: LoadLane,
    /// What the router was told last, and how often the coefficients had changed by then.
    told: Option<(Held, u64)>,
}

impl Loads {
    pub fn new(lane: LoadLane) -> Self {
        Self { lane, told: None }
    }

    /// The router has forgotten what it was told.
    pub fn forget(&mut self) {
        self.told = None;
    }

    /// Tells what the group holds and, by the number of times that it changed, how fast it is, if there is news.
    pub fn tell(&mut self, load: Load, changed: u64) {
        let others = load.held.others();
        let moved = self.told.is_none_or(|(held, times)| times != changed || self.has_moved(held, others));
        if moved {
            self.told = Some((others, changed));
            self.lane.out.put(load);
        }
    }

    /// Steps, each of which adds so many tokens to what the group holds, up to the first that brings news.
    pub fn steps_to_news(&self, held: Report, tokens: u64) -> u32 {
        let told = self.told.map_or(0, |(held, _)| held.tokens);
        let news = told + self.lane.capacity.tokens / PARTS + 1;
        let steps = news.saturating_sub(held.others().tokens).div_ceil(tokens.max(1));
        u32::try_from(steps).unwrap_or(u32::MAX).max(1)
    }

    fn has_moved(&self, from: Held, to: Held) -> bool {
        let Capacity { requests, tokens } = self.lane.capacity;
        let far = |from: u64, to: u64, room: u64| from.abs_diff(to).saturating_mul(PARTS) > room;
        let emptied = to == Held::default() && from != to;
        emptied || far(from.requests, to.requests, requests) || far(from.tokens, to.tokens, tokens)
    }
}
