//! A plan as a drawing: boxes and lines for a terminal, a Mermaid flowchart, an SVG. All three show the same: actors in
//! the order of a request's road, each wire with its ports, policy and capacity.

mod mermaid;
mod svg;
mod text;

pub use mermaid::draw_mermaid;
pub use svg::draw_svg;
pub use text::draw_text;

use crate::plan::{ActorPlan, Plan, Role, Settings, Wire};
use crate::units;

/// What is worth reading of an actor's settings, in a few short lines.
fn facts(actor: &ActorPlan, plan: &Plan) -> Vec<String> {
    let mut facts = Vec::new();
    if plan.hosts.len() > 1 {
        facts.push(format!("on {}", places(actor)));
    }
    match &actor.settings {
        Settings::Gateway(gateway) => {
            facts.push(format!("listen {}", gateway.listen));
            facts.push(format!(
                "requests {}, deadline {}",
                gateway.requests_max,
                units::write_time(gateway.deadline)
            ));
        }
        Settings::Encode(encode) => {
            facts.push(format!("{} × {}", counted(encode.groups, "group"), counted(encode.ranks, "rank")));
            let (threads, cache) = (counted(encode.threads, "thread"), units::write_size(encode.cache));
            facts.push(format!("{threads}, {cache} cache"));
        }
        Settings::Prefill(_) if plan.joined() => facts.push("joined into decode".to_owned()),
        Settings::Prefill(group) | Settings::Decode(group) => {
            facts.push(format!("{} × {}", counted(group.groups, "group"), counted(group.ranks, "rank")));
            facts.push(format!(
                "{}, {} KV",
                counted(group.threads, "thread"),
                units::write_size(group.memory)
            ));
            let prompts = actor.role == Role::Prefill || group.joined;
            facts.extend(prompts.then(|| chunks(actor, plan)));
            facts.push(format!("{} in a step", counted(group.sequences_max, "sequence")));
        }
        Settings::Tokenizer(_) | Settings::Router(_) | Settings::Detokenizer(_) => {}
        Settings::Other => facts.extend(actor.extra.iter().map(|(key, value)| format!("{key} {value}"))),
    }
    facts
}

/// Chunks of prompts are cut as prefill says, also where decode computes them.
fn chunks(actor: &ActorPlan, plan: &Plan) -> String {
    let prefill = plan.actors_of(&Role::Prefill).next();
    let group = prefill.filter(|_| actor.role == Role::Decode).unwrap_or(actor).group();
    match group.and_then(|group| group.step_time) {
        Some(time) => format!("chunks of {}", units::write_time(time)),
        None => format!("chunks of {} tokens", group.map_or(0, |group| group.chunk_tokens)),
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// `front`, or `p1 … p4 (4 hosts)`.
fn places(actor: &ActorPlan) -> String {
    match &actor.hosts[..] {
        [] => "no host".to_owned(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first} … {last} ({} hosts)", actor.hosts.len()),
    }
}

/// `offer 512`, and the link where it is not local.
fn manner(wire: &Wire) -> String {
    match wire.link {
        crate::plan::Link::Local => format!("{} {}", wire.policy, wire.capacity),
        link => format!("{} {} {link}", wire.policy, wire.capacity),
    }
}

/// The title of any drawing.
fn title(plan: &Plan) -> String {
    format!("{} · model {} · plan {}", tame(&plan.name), tame(&plan.model), plan.id)
}

/// Text that does nothing to a terminal, of a length that fits a line.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect()
}
