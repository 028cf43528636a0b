//! A Mermaid flowchart, for documents that draw it: a box per actor, an arrow per wire, a frame per set of hosts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::plan::{ActorPlan, Plan, Policy, Wire};

/// The plan as a Mermaid flowchart.
pub fn draw_mermaid(plan: &Plan) -> String {
    let mut out = format!("---\ntitle: \"{}\"\n---\nflowchart LR\n", escaped(&super::title(plan)));
    let mut frames: BTreeMap<String, Vec<&ActorPlan>> = BTreeMap::new();
    for actor in &plan.actors {
        frames.entry(super::places(actor)).or_default().push(actor);
    }
    for (i, (place, actors)) in frames.iter().enumerate() {
        let framed = plan.hosts.len() > 1;
        if framed {
            line(&mut out, format_args!("  subgraph frame{i}[\"{}\"]", escaped(place)));
        }
        for actor in actors {
            line(&mut out, format_args!("    {}[\"{}\"]", id(actor.name.as_str()), label(actor, plan)));
        }
        if framed {
            line(&mut out, format_args!("  end"));
        }
    }
    for wire in &plan.wires {
        line(&mut out, format_args!("  {}", arrow(wire)));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all text");
}

/// Some names, such as `end`, are words of Mermaid: a prefix keeps all apart.
fn id(name: &str) -> String {
    format!("a_{}", name.replace('-', "_m"))
}

fn label(actor: &ActorPlan, plan: &Plan) -> String {
    let mut lines = vec![format!("<b>{}</b>", escaped(actor.name.as_str()))];
    if actor.name != *actor.role.as_str() {
        lines.push(format!("role {}", escaped(actor.role.as_str())));
    }
    lines.extend(super::facts(actor, plan).iter().map(|fact| escaped(fact)));
    lines.join("<br/>")
}

/// Thick where the sender waits, plain where the message may come back, dotted for the rest.
fn arrow(wire: &Wire) -> String {
    let arrow = match wire.policy {
        Policy::Hold => "==>",
        Policy::Offer => "-->",
        Policy::Latest | Policy::Reply => "-.->",
    };
    let (from, to) = (id(wire.from.actor.as_str()), id(wire.to.actor.as_str()));
    let ports = match wire.from.port == wire.to.port {
        true => escaped(wire.from.port.as_str()),
        false => format!("{} → {}", escaped(wire.from.port.as_str()), escaped(wire.to.port.as_str())),
    };
    format!("{from} {arrow}|\"{ports}<br/>{}\"| {to}", super::manner(wire))
}

/// Text as Mermaid takes it in quotes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' => out.push_str("#quot;"),
            '#' => out.push_str("#35;"),
            '<' => out.push_str("#lt;"),
            '>' => out.push_str("#gt;"),
            '&' => out.push_str("#amp;"),
            '\\' => out.push_str("#92;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
