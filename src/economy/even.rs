//! Where groups that do both stop being as cheap as groups of their own for prompts and answers: by how much is asked, and by
//! how fast answers must be.

use super::demand::Demand;
use super::keep::Keep;
use super::search::{Choice, Question};
use super::spec::Goal;

/// Doublings of the demand that are looked at, from a millionth of it to sixteen times as much.
const DOUBLINGS: std::ops::RangeInclusive<i32> = -20..=4;
/// The same of the time from token to token, from a sixteenth of it to 64 times as much, in halves of a doubling.
const PACES: std::ops::RangeInclusive<i32> = -8..=12;

/// The cheapest way of both kinds, in money of an hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Both {
    pub split: Option<f64>,
    pub joined: Option<f64>,
}

/// Who is cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cheaper {
    Joined,
    Split,
    Neither,
}

impl Both {
    /// Of these choices, the cheapest first.
    pub(super) fn of(choices: &[Choice<'_>]) -> Self {
        let first = |joined: bool| {
            choices.iter().find(|choice| choice.groups.are_joined() == joined).map(|choice| choice.hour)
        };
        Self { split: first(false), joined: first(true) }
    }

    pub(super) fn cheaper(&self) -> Cheaper {
        match (self.split, self.joined) {
            (None, None) => Cheaper::Neither,
            (Some(split), Some(joined)) if joined <= split => Cheaper::Joined,
            (None, Some(_)) => Cheaper::Joined,
            (Some(_), _) => Cheaper::Split,
        }
    }
}

/// A point of a line, and who is cheaper there.
pub(super) type Point = (f64, Cheaper);

impl<'a> Question<'a> {
    /// Who is cheaper by requests in a day, all else as it is.
    pub(super) fn by_demand(&self, keep: Keep<'a>) -> Vec<Point> {
        let at = |doubling: i32| {
            let factor = f64::from(doubling).exp2();
            let demand = Demand {
                input_a_day: self.demand.input_a_day * factor,
                output_a_day: self.demand.output_a_day * factor,
                ..self.demand.clone()
            };
            let both = Both::of(&Question { demand: &demand, ..*self }.search(&[keep]).choices);
            (demand.rate() * super::demand::DAY, both.cheaper())
        };
        DOUBLINGS.map(at).filter(|(_, cheaper)| *cheaper != Cheaper::Neither).collect()
    }

    /// Who is cheaper by milliseconds from token to token, all else as it is.
    pub(super) fn by_pace(&self, keep: Keep<'a>) -> Vec<Point> {
        let at = |half: i32| {
            let between_tokens_ms = self.goal.between_tokens_ms * (f64::from(half) / 2.0).exp2();
            let goal = Goal { between_tokens_ms, ..*self.goal };
            let both = Both::of(&Question { goal: &goal, ..*self }.search(&[keep]).choices);
            (between_tokens_ms, both.cheaper())
        };
        PACES.map(at).filter(|(_, cheaper)| *cheaper != Cheaper::Neither).collect()
    }
}

/// The points at which it changes who is cheaper: between which two, and who is behind them.
pub(super) fn changes(line: &[Point]) -> Vec<(f64, f64, Cheaper)> {
    let change = |pair: &[Point]| (pair[0].1 != pair[1].1).then_some((pair[0].0, pair[1].0, pair[1].1));
    line.windows(2).filter_map(change).collect()
}
