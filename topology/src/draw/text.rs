//! Boxes and lines for a terminal of a hundred columns: one box per actor, its outgoing wires below it.

use std::fmt::Write as _;

use crate::plan::{ActorPlan, Plan, Wire};

/// The least width of a box, in characters.
const WIDTH_MIN: usize = 44;

/// The plan for a terminal.
pub fn draw_text(plan: &Plan) -> String {
    let mut out = super::title(plan);
    out.push('\n');
    for host in plan.hosts.iter().filter(|_| plan.hosts.len() > 1) {
        let address = host.address.as_deref().unwrap_or("no address");
        let supernode =
            host.supernode.as_ref().map(|name| format!(" in {}", super::tame(name))).unwrap_or_default();
        line(&mut out, format_args!("  host {} at {address}: {}{supernode}", host.name, host.devices));
    }
    out.push('\n');
    for actor in &plan.actors {
        draw_actor(&mut out, actor, plan);
    }
    for note in &plan.notes {
        line(&mut out, format_args!("{note}"));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all text");
}

fn draw_actor(out: &mut String, actor: &ActorPlan, plan: &Plan) {
    let name = match actor.name == *actor.role.as_str() {
        true => actor.name.to_string(),
        false => format!("{} ({})", actor.name, actor.role),
    };
    let facts = super::facts(actor, plan);
    let widest = facts.iter().map(|fact| fact.chars().count()).chain([name.chars().count() + 2]).max();
    let width = widest.unwrap_or(0).max(WIDTH_MIN);
    let fill = "─".repeat(width - name.chars().count() - 1);
    line(out, format_args!("┌─ {name} {fill}┐"));
    for fact in &facts {
        let pad = " ".repeat(width - fact.chars().count());
        line(out, format_args!("│ {fact}{pad} │"));
    }
    let wires: Vec<&Wire> = plan.wires.iter().filter(|wire| wire.from.actor == actor.name).collect();
    let (corner, after) = if wires.is_empty() { ("─", "") } else { ("┬", "") };
    line(out, format_args!("└─{corner}{}┘{after}", "─".repeat(width)));
    let ports = wires.iter().map(|wire| wire.from.port.as_str().len()).max().unwrap_or(0);
    let targets = wires.iter().map(|wire| wire.to.to_string().len()).max().unwrap_or(0);
    for (i, wire) in wires.iter().enumerate() {
        let branch = if i + 1 == wires.len() { "└" } else { "├" };
        let dashes = "─".repeat(ports - wire.from.port.as_str().len() + 2);
        let pad = " ".repeat(targets - wire.to.to_string().len());
        let (port, to, manner) = (&wire.from.port, &wire.to, super::manner(wire));
        line(out, format_args!("  {branch}─ {port} {dashes}▶ {to}{pad}  {manner}"));
    }
    out.push('\n');
}
