//! Where a prompt is computed first: for each group, how long what was sent there and has not left will take, and then the
//! prompt itself, behind what is found of it. Times are predicted from the work and what is known of the group's speed.

use millstream_kernels::work::{RowShape, WorkFacts};

use crate::cost::{Coefficients, FEATURES, in_chunks};

/// How groups are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// By when the prompt would be computed, wherever its beginning lies: for groups that share a store.
    Earliest,
    /// By when the prompt would be computed, where only the group that computed its beginning finds it.
    #[default]
    CacheAware,
    /// One after the other.
    RoundRobin,
    /// By the prompt tokens that wait there.
    LeastLoaded,
}

/// A prompt, as far as the choice goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: u32,
    /// Those of them, from the first, that were computed before.
    pub known: u32,
    /// By this group.
    pub by: Option<usize>,
}

/// What a prompt adds to a group until it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Its tokens.
    tokens: u64,
    /// Predicted; whole numbers, so that what is added and taken away leaves nothing.
    nanos: u64,
}

#[derive(Default)]
struct Group {
    coefficients: Option<Coefficients>,
    tokens: u64,
    nanos: u64,
}

/// See the module.
pub struct Prefills {
    rule: Rule,
    work: WorkFacts,
    /// Tokens of a chunk.
    chunk: u32,
    groups: Vec<Group>,
    /// How fast a group is that was not measured: as fast as the last one that was.
    usual: Coefficients,
    /// The next in turn.
    next: usize,
}

/// What is known of a group that nobody has measured: multiply-adds take time, 10⁹ of them a second, all alike. Groups
/// are only compared with each other.
const MULTIPLY_ADDS: Coefficients = Coefficients {
    step: 0.0,
    row: 0.0,
    token: 0.0,
    gemm_few: 1.0,
    gemm: 1.0,
    pairs: 1.0,
    scores: 1.0,
    head: 1.0,
    weights: 0.0,
    kv: 0.0,
    longest: 0.0,
};

impl Prefills {
    /// Over `groups` that compute a model, up to `chunk` tokens of a prompt in a step. The first prompt goes to the first
    /// group.
    pub fn new(rule: Rule, groups: usize, (work, chunk): (WorkFacts, u32)) -> Self {
        let groups = (0..groups).map(|_| Group::default()).collect();
        Self { rule, work, chunk: chunk.max(1), groups, usual: MULTIPLY_ADDS, next: 0 }
    }

    /// The turn begins at this group: not the same for all of many routers.
    #[must_use]
    pub fn starting_at(self, number: usize) -> Self {
        Self { next: number % self.groups.len().max(1), ..self }
    }

    /// The group for a prompt and what it will add there; none where there are no groups.
    pub fn pick(&mut self, prompt: Prompt) -> Option<(usize, Sent)> {
        self.pick_beside(prompt, |_| 0.0)
    }

    /// The same where groups are busy with answers too: that share of theirs (of 1) makes prompts take as much longer, and
    /// a group that is full, all the time there is.
    pub fn pick_beside(&mut self, prompt: Prompt, busy: impl Fn(usize) -> f64) -> Option<(usize, Sent)> {
        if self.groups.is_empty() {
            return None;
        }
        // Among equals the next in turn.
        let count = self.groups.len();
        let least = |key: &dyn Fn(usize) -> u64| {
            (self.next..self.next + count).map(|number| number % count).min_by_key(|&number| key(number))
        };
        let number = match self.rule {
            Rule::Earliest | Rule::CacheAware => {
                let asks = self.asks(prompt);
                let alone = |number: usize| {
                    let own = self.nanos(number, &asks[usize::from(self.is_found(number, prompt))]);
                    self.groups[number].nanos.saturating_add(own)
                };
                least(&|number| (alone(number) as f64 * (1.0 + busy(number))) as u64)
            }
            Rule::LeastLoaded => least(&|number| self.groups[number].tokens),
            Rule::RoundRobin => Some(self.next % count),
        }?;
        self.next = (number + 1) % count;
        Some((number, self.sent(number, prompt)))
    }

    /// What a prompt would add to a group.
    pub fn sent(&self, number: usize, prompt: Prompt) -> Sent {
        let asks = self.asks(prompt)[usize::from(self.is_found(number, prompt))];
        Sent { tokens: u64::from(prompt.tokens), nanos: self.nanos(number, &asks) }
    }

    /// It was sent there.
    pub fn add(&mut self, number: usize, sent: Sent) {
        let group = &mut self.groups[number];
        group.tokens += sent.tokens;
        group.nanos = group.nanos.saturating_add(sent.nanos);
    }

    /// It has left.
    pub fn remove(&mut self, number: usize, sent: Sent) {
        let group = &mut self.groups[number];
        group.tokens = group.tokens.saturating_sub(sent.tokens);
        group.nanos = group.nanos.saturating_sub(sent.nanos);
    }

    /// How fast a group is, by its own measure.
    pub fn report(&mut self, number: usize, coefficients: Coefficients) {
        if coefficients.is_sound() {
            self.groups[number].coefficients = Some(coefficients);
            self.usual = coefficients;
        }
    }

    /// Predicted time of all that was sent to a group and has not left.
    pub fn waits(&self, number: usize) -> std::time::Duration {
        std::time::Duration::from_nanos(self.groups[number].nanos)
    }

    /// Whether a group finds what is known of a prompt.
    fn is_found(&self, number: usize, prompt: Prompt) -> bool {
        self.rule == Rule::Earliest || prompt.by == Some(number)
    }

    /// What a prompt asks where nothing of it is found, and where what is known is.
    fn asks(&self, prompt: Prompt) -> [[f64; FEATURES]; 2] {
        let last = prompt.tokens.saturating_sub(1);
        [0, prompt.known.min(last)].map(|known| {
            let count = prompt.tokens - known;
            in_chunks(&self.work.row(&RowShape::plain(known, count, 1)), count.div_ceil(self.chunk) as usize)
        })
    }

    /// Predicted time of that in a group.
    fn nanos(&self, number: usize, asks: &[f64; FEATURES]) -> u64 {
        (self.groups[number].coefficients.unwrap_or(self.usual).of(asks) * 1e9) as u64
    }
}
