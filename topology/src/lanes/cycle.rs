//! Circles of hold lanes: everyone waits for the next and nobody moves, so a file that draws one is refused.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Ends;
use crate::error::Findings;
use crate::id::ActorName;
use crate::plan::{Policy, Wire};

/// Draws every circle of hold lanes that a depth-first walk closes.
pub(super) fn no_hold_cycle(wires: &[Wire], spans: &BTreeMap<Ends, Range<usize>>, findings: &mut Findings) {
    let mut next: BTreeMap<&ActorName, Vec<&Wire>> = BTreeMap::new();
    for wire in wires.iter().filter(|wire| wire.policy == Policy::Hold) {
        next.entry(&wire.from.actor).or_default().push(wire);
    }
    let mut walk = Walk { next, done: Vec::new(), path: Vec::new(), cycles: Vec::new() };
    let starts: Vec<&ActorName> = walk.next.keys().copied().collect();
    for start in starts {
        walk.visit(start);
    }
    for cycle in walk.cycles {
        let written = |wire: &&Wire| spans.get(&(wire.from.clone(), wire.to.clone()));
        let span = cycle.iter().find_map(written).cloned().unwrap_or(0..0);
        let mut drawn: Vec<String> = cycle.iter().map(|wire| wire.from.to_string()).collect();
        drawn.extend(cycle.first().map(|wire| wire.from.to_string()));
        let message = format!("cycle of hold lanes: {}", drawn.join(" -> "));
        findings.add(&span, message, "each waits for the next for ever: make one of them policy = \"offer\"");
    }
}

struct Walk<'w> {
    next: BTreeMap<&'w ActorName, Vec<&'w Wire>>,
    done: Vec<&'w ActorName>,
    path: Vec<&'w Wire>,
    cycles: Vec<Vec<&'w Wire>>,
}

impl<'w> Walk<'w> {
    /// Depth is bounded by the number of actors.
    fn visit(&mut self, actor: &'w ActorName) {
        for wire in self.next.get(actor).cloned().unwrap_or_default() {
            let to = &wire.to.actor;
            self.path.push(wire);
            if let Some(start) = self.path.iter().position(|earlier| earlier.from.actor == *to) {
                self.cycles.push(self.path[start..].to_vec());
            } else if !self.done.contains(&to) {
                self.visit(to);
            }
            self.path.pop();
        }
        self.done.push(actor);
    }
}

#[cfg(test)]
mod tests {
    use super::super::port;
    use super::super::standard::{STANDARD, Standard};
    use super::*;
    use crate::plan::{Link, Role};

    #[test]
    fn standard_wires_are_said_once_and_hold_no_circle() {
        for joined in [true, false] {
            let role = |role: &Role| ActorName(role.to_string());
            let holds = STANDARD.iter().filter(|standard| standard.holds(joined));
            let wire = |s: &Standard| Wire {
                from: port(&role(&s.from.0), s.from.1),
                to: port(&role(&s.to.0), s.to.1),
                policy: s.policy,
                capacity: s.room.capacity(0),
                link: Link::Local,
                standard: true,
            };
            let wires: Vec<Wire> = holds.map(wire).collect();
            let mut findings = Findings::new(crate::error::Source::new("", ""));
            no_hold_cycle(&wires, &BTreeMap::new(), &mut findings);
            assert!(findings.is_empty());
            for (i, wire) in wires.iter().enumerate() {
                assert!(wires[..i].iter().all(|other| (&other.from, &other.to) != (&wire.from, &wire.to)));
            }
        }
    }
}
