//! What makes a graph unfit to run, found all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Draft;
use crate::error::Problem;
use crate::lane::{Path, Policy};
use crate::supervise::{Budget, Unit};

pub(super) fn problems(
    drafts: &[Draft],
    lanes: &[Arc<dyn Path>],
    budgets: &BTreeMap<String, Budget>,
) -> Vec<Problem> {
    let mut problems = twice(drafts.iter().map(|draft| &*draft.core.name));
    problems.extend(twice(lanes.iter().map(|lane| &*lane.core().facts.name)));
    let without = drafts.iter().filter(|draft| draft.maker.is_none());
    problems.extend(without.map(|draft| Problem::NoActor(draft.core.name.to_string())));
    let units: BTreeSet<&str> = drafts.iter().map(|draft| draft.core.unit.as_str()).collect();
    let idle = budgets.keys().filter(|unit| !units.contains(unit.as_str()));
    problems.extend(idle.map(|unit| Problem::NoUnit(unit.clone())));
    problems.extend(hold_cycle(drafts, lanes).map(Problem::HoldCycle));
    problems
}

fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).map(|name| Problem::NameTwice(name.to_owned())).collect()
}

/// One cycle of hold lanes as a list of seats, the first repeated at the end.
fn hold_cycle(drafts: &[Draft], lanes: &[Arc<dyn Path>]) -> Option<Vec<String>> {
    let mut after = vec![BTreeSet::new(); drafts.len()];
    for facts in lanes.iter().map(|lane| &lane.core().facts).filter(|facts| facts.policy == Policy::Hold) {
        if let (Some(from), Some(to)) = (&facts.from, &facts.to) {
            after[from.index].insert(to.index);
        }
    }
    let mut search = Search { after, state: vec![Visit::New; drafts.len()], trail: Vec::new() };
    let cycle = (0..drafts.len()).find_map(|seat| search.visit(seat))?;
    Some(cycle.into_iter().map(|seat| drafts[seat].core.name.to_string()).collect())
}

#[derive(Clone, Copy, PartialEq)]
enum Visit {
    New,
    OnTrail,
    Done,
}

struct Search {
    after: Vec<BTreeSet<usize>>,
    state: Vec<Visit>,
    trail: Vec<usize>,
}

impl Search {
    /// Depth first; a seat met again while on the trail closes a cycle.
    fn visit(&mut self, seat: usize) -> Option<Vec<usize>> {
        match self.state[seat] {
            Visit::Done => return None,
            Visit::OnTrail => {
                let start = self.trail.iter().position(|on| *on == seat)?;
                let mut cycle = self.trail[start..].to_vec();
                cycle.push(seat);
                return Some(cycle);
            }
            Visit::New => {}
        }
        self.state[seat] = Visit::OnTrail;
        self.trail.push(seat);
        let next: Vec<usize> = self.after[seat].iter().copied().collect();
        if let Some(cycle) = next.into_iter().find_map(|next| self.visit(next)) {
            return Some(cycle);
        }
        self.trail.pop();
        self.state[seat] = Visit::Done;
        None
    }
}

/// Units in the order their first seat was made.
pub(super) fn units(drafts: &[Draft], budgets: &BTreeMap<String, Budget>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for draft in drafts {
        let name = &draft.core.unit;
        match units.iter_mut().find(|unit| unit.name == *name) {
            Some(unit) => unit.seats.push(draft.core.index),
            None => units.push(Unit {
                name: name.clone(),
                seats: vec![draft.core.index],
                budget: budgets.get(name).copied().unwrap_or_default(),
            }),
        }
    }
    units
}
