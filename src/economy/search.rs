//! Everything that may be chosen is tried: a small grid, in a fixed order, so the same file gives the same answer. For each
//! size of groups the fewest groups that reach the goal are counted, and the ratio of prefill to decode follows.

use super::decode::{Answers, Decode};
use super::demand::Demand;
use super::group::{Group, Hardware};
use super::joined::Joined;
use super::keep::{Held, Keep};
use super::model::Prompt;
use super::prefill::{Prefill, Prompts};
use super::spec::{Goal, Search};

/// Shares of hits in tables; less than what is found may be fetched, where fetching would be slower than computing.
pub(super) const SHARES: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.96];

/// What is searched for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub of: Hardware<'a>,
    pub demand: &'a Demand,
    pub goal: &'a Goal,
    pub search: &'a Search,
}

/// Groups of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Groups {
    /// Prompts in some (of so many devices, with chunks of so many tokens), answers in others.
    Split { prefill: (u32, u32, Prefill), decode: (u32, Decode) },
    /// Both in all of them, of so many devices.
    Joined(u32, Joined),
}

/// One way to reach the goal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub groups: Groups,
    pub keep: Keep<'a>,
    /// The share of prompt tokens that is fetched, replayed ones among them.
    pub fetched: f64,
    pub held: Held,
    /// In all.
    pub devices: f64,
    /// Money of an hour.
    pub hour: f64,
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found<'a> {
    /// The cheapest first.
    pub choices: Vec<Choice<'a>>,
    /// How many were tried.
    pub tried: u64,
    /// The least milliseconds that some group needs to a first token, and from token to token.
    pub least_ms: (f64, f64),
}

impl<'a> Question<'a> {
    /// Tries everything with each of these ways to keep.
    pub(super) fn search(&self, keeps: &[Keep<'a>]) -> Found<'a> {
        let decodes = self.decodes();
        let mut found = Found { least_ms: (f64::INFINITY, f64::INFINITY), ..Found::default() };
        for (_, decode) in &decodes {
            let between = decode.map_or_else(|least| least, |decode| decode.between_ms);
            found.least_ms.1 = found.least_ms.1.min(between);
        }
        for keep in keeps {
            let fewer = SHARES.iter().copied().filter(|share| *share < keep.found);
            for share in fewer.chain([keep.found]) {
                self.with(keep, share, &decodes, &mut found);
            }
        }
        found.choices.sort_by(|a, b| a.hour.total_cmp(&b.hour).then(a.devices.total_cmp(&b.devices)));
        found
    }

    fn decodes(&self) -> Vec<(u32, Result<Decode, f64>)> {
        let answers = self.answers();
        let of = |&devices: &u32| (devices, Group { of: self.of, devices }.decode(&answers));
        self.search.decode.iter().map(of).collect()
    }

    fn answers(&self) -> Answers<'a> {
        let Demand { prompt, answer, .. } = *self.demand;
        Answers { lengths: (prompt, answer), rate: self.demand.busiest(), goal: self.goal }
    }

    /// Adds the choices that fetch this share.
    fn with(
        &self,
        keep: &Keep<'a>,
        share: f64,
        decodes: &[(u32, Result<Decode, f64>)],
        found: &mut Found<'a>,
    ) {
        let prompt = self.of.model.prompt(self.demand.prompt, share * self.demand.prompt);
        let fetched = prompt.fetched * self.of.model.kv_bytes;
        let handed = self.demand.prompt * self.of.model.kv_bytes;
        let (rate, spread) = (self.demand.busiest(), self.demand.spread);
        let (goal, busy) = (self.goal, self.search.busy);
        let prompts = Prompts { prompt: &prompt, fetched, handed, keep, rate, spread, goal, busy };
        for &devices in &self.search.prefill {
            let group = Group { of: self.of, devices };
            let all = self.search.chunks.iter().map(|&chunk| (chunk, group.prefill(&prompts, chunk)));
            let all: Vec<(u32, Result<Prefill, f64>)> = all.collect();
            let least = all.iter().filter_map(|(_, prefill)| prefill.err()).fold(f64::INFINITY, f64::min);
            found.least_ms.0 = found.least_ms.0.min(least);
            found.tried += (all.len() * decodes.len()) as u64;
            let of =
                |(chunk, prefill): &(u32, Result<Prefill, f64>)| Some((devices, *chunk, (*prefill).ok()?));
            // Of chunks with as few groups the one with the earliest first token.
            let Some(prefill) = all.iter().filter_map(of).min_by(|a, b| {
                a.2.groups.cmp(&b.2.groups).then(a.2.first_token_ms.total_cmp(&b.2.first_token_ms))
            }) else {
                continue;
            };
            for (size, decode) in decodes.iter().filter_map(|(size, decode)| Some((*size, (*decode).ok()?))) {
                let groups = Groups::Split { prefill, decode: (size, decode) };
                found.choices.extend(self.choice(groups, keep, (&prompt, share)));
            }
        }
        let joined = Prompts { handed: 0.0, ..prompts };
        for &devices in &self.search.joined {
            found.tried += 1;
            let most = self.search.chunks.iter().copied().max().unwrap_or(1);
            let group = Group { of: self.of, devices };
            let groups = group.joined(&joined, &self.answers(), most);
            let groups = groups.map(|joined| Groups::Joined(devices, joined));
            found.choices.extend(groups.and_then(|groups| self.choice(groups, keep, (&prompt, share))));
        }
    }

    fn choice(&self, groups: Groups, keep: &Keep<'a>, (prompt, share): (&Prompt, f64)) -> Option<Choice<'a>> {
        let devices = groups.devices();
        let held = keep.held(self.demand, self.of.model, prompt.fetched);
        let fetched = if prompt.fetched > 0.0 { share } else { 0.0 };
        let hour = devices * self.of.spec.hour + held.hour;
        keep.has_room(&held, devices).then_some(Choice { groups, keep: *keep, fetched, held, devices, hour })
    }
}

impl Groups {
    /// In all.
    pub(super) fn devices(&self) -> f64 {
        match self {
            Self::Split { prefill, decode } => {
                prefill.2.groups as f64 * f64::from(prefill.0) + decode.1.groups as f64 * f64::from(decode.0)
            }
            Self::Joined(devices, joined) => joined.groups as f64 * f64::from(*devices),
        }
    }

    /// Whether prompts and answers share groups.
    pub(super) fn are_joined(&self) -> bool {
        matches!(self, Self::Joined(..))
    }

    /// Milliseconds to the first token.
    pub(super) fn first_token_ms(&self) -> f64 {
        match self {
            Self::Split { prefill, .. } => prefill.2.first_token_ms,
            Self::Joined(_, joined) => joined.first_token_ms,
        }
    }
}
