//! The wires of a plan: those that follow from the roles, changed or joined by those of the file; and the rule that no
//! lanes hold each other in a circle, for then everyone waits and nobody moves.

mod cycle;
mod standard;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Findings;
use crate::id::{ActorName, PortName};
use crate::plan::{Link, Policy, Port, Role, Wire};
use crate::read::Later;
use crate::resolve::{Draft, DraftActor};
use crate::section::Section;
use crate::spec::Spec;
use crate::suggest::{self, quote};
use standard::{STANDARD, Standard};

/// Capacity of a wire between an actor of an own role and another, where the file says none.
const CAPACITY: usize = 64;

type Ends = (Port, Port);

/// One wire of the file, its ends looked up.
struct Written<'s> {
    section: &'s Section,
    ends: Ends,
    standard: bool,
}

/// All wires of the plan, in the order of a request's road.
pub(crate) fn wires(
    spec: &Spec,
    draft: &Draft,
    findings: &mut Findings,
    later: &mut Vec<Later>,
) -> Vec<Wire> {
    let mut wires = implied(draft);
    let mut spans: BTreeMap<Ends, Range<usize>> = BTreeMap::new();
    let sections = spec.root.sections("wires");
    if let Some(first) = sections.get(crate::keys::WIRES_MAX) {
        findings.add(&first.span, "too many wires", format!("{} are the most", crate::keys::WIRES_MAX));
        return Vec::new();
    }
    for section in sections {
        let Some(written) = look_up(section, spec, draft, findings) else { continue };
        if spans.insert(written.ends.clone(), section.span_of("policy")).is_some() {
            let message = format!("the wire {} -> {} is written twice", written.ends.0, written.ends.1);
            findings.add(&section.span, message, "leave one of the two out");
            continue;
        }
        let wire = wires.entry(written.ends.clone()).or_insert_with(|| added(&written.ends, draft));
        change(wire, &written, draft, findings, later);
    }
    let mut wires: Vec<Wire> = wires.into_values().collect();
    let on_the_road = |end: &Port| draft.actors.iter().position(|actor| actor.name == end.actor);
    wires.sort_by_key(|wire| (on_the_road(&wire.from), on_the_road(&wire.to)));
    cycle::no_hold_cycle(&wires, &spans, findings);
    wires
}

fn implied(draft: &Draft) -> BTreeMap<Ends, Wire> {
    let mut wires = BTreeMap::new();
    let crowd = draft.crowd();
    for standard in STANDARD.iter().filter(|standard| standard.holds(draft.joined)) {
        for from in draft.of(standard.from.0.clone()) {
            for to in draft.of(standard.to.0.clone()) {
                let ends = (port(&from.name, standard.from.1), port(&to.name, standard.to.1));
                let (policy, capacity) = (standard.policy, standard.room.capacity(crowd));
                let link = usual_link(from, to);
                let wire =
                    Wire { from: ends.0.clone(), to: ends.1.clone(), policy, capacity, link, standard: true };
                wires.insert(ends, wire);
            }
        }
    }
    wires
}

fn port(actor: &ActorName, port: &str) -> Port {
    Port { actor: actor.clone(), port: PortName(port.to_owned()) }
}

fn usual_link(from: &DraftActor, to: &DraftActor) -> Link {
    match from.hosts == to.hosts && from.hosts.len() <= 1 {
        true => Link::Local,
        false => Link::Tcp,
    }
}

fn actor<'d>(name: &ActorName, draft: &'d Draft) -> Option<&'d DraftActor> {
    draft.actors.iter().find(|actor| actor.name == *name)
}

/// A wire that no role implies.
fn added(ends: &Ends, draft: &Draft) -> Wire {
    let link = match (actor(&ends.0.actor, draft), actor(&ends.1.actor, draft)) {
        (Some(from), Some(to)) => usual_link(from, to),
        _ => Link::Local,
    };
    let (from, to) = ends.clone();
    Wire { from, to, policy: Policy::Offer, capacity: CAPACITY, link, standard: false }
}

/// Finds both ends of a wire of the file; tells what is not there.
fn look_up<'s>(
    section: &'s Section,
    spec: &Spec,
    draft: &Draft,
    findings: &mut Findings,
) -> Option<Written<'s>> {
    let from = end(section, "from", spec, draft, findings);
    let to = end(section, "to", spec, draft, findings);
    let ((sender, out), (receiver, into)) = (from?, to?);
    // Sequences come into decode by `admit` when it is joined, and by `handover` when it is not: either name will do.
    let handed_over = (&sender.role, &*out) == (&Role::Prefill, "handover");
    let into = if handed_over && receiver.role == Role::Decode && into == "admit" {
        "handover".to_owned()
    } else {
        into
    };
    let ends = (port(&sender.name, &out), port(&receiver.name, &into));
    if is_own(&sender.role) || is_own(&receiver.role) {
        return Some(Written { section, ends, standard: false });
    }
    let leads = |standard: &&Standard| {
        standard.from == (sender.role.clone(), &*out) && standard.to == (receiver.role.clone(), &*into)
    };
    let Some(standard) = STANDARD.iter().find(leads) else {
        let leads = |standard: &&Standard| standard.from == (sender.role.clone(), &*out);
        let targets: Vec<String> =
            STANDARD.iter().filter(leads).map(|s| format!("{}.{}", s.to.0, s.to.1)).collect();
        let message = format!("no lane leads from {} to {}", ends.0, ends.1);
        findings.add(&section.span_of("to"), message, format!("{} leads to {}", ends.0, targets.join(", ")));
        return None;
    };
    if !standard.holds(draft.joined) {
        let message = match draft.joined {
            true => format!(
                "there is no wire from {} to {}: decode is joined and computes prompts itself",
                ends.0, ends.1
            ),
            false => format!("there is no wire from {} to {}: decode is not joined", ends.0, ends.1),
        };
        let help = format!("write joined = {} in the table of decode, or leave the wire out", !draft.joined);
        findings.add(&section.span_of("from"), message, help);
        return None;
    }
    Some(Written { section, ends, standard: true })
}

fn is_own(role: &Role) -> bool {
    matches!(role, Role::Custom(_))
}

/// One end: its actor and the name of its port.
fn end<'d>(
    section: &Section,
    key: &str,
    spec: &Spec,
    draft: &'d Draft,
    findings: &mut Findings,
) -> Option<(&'d DraftActor, String)> {
    let text = section.text(key)?;
    let (name, port) = text.split_once('.')?;
    let span = section.span_of(key);
    let Some(actor) = draft.actors.iter().find(|actor| actor.name == name) else {
        let known = || draft.actors.iter().map(|actor| actor.name.as_str());
        let unread = spec.blind && suggest::nearest(name, known()).is_none();
        if !unread && !spec.actors.iter().any(|actor| actor.name.get_ref() == name) {
            let known = known();
            let help = suggest::help(name, "actors", known);
            findings.add(&span, format!("unknown actor {}", quote(name)), help);
        }
        return None;
    };
    if is_own(&actor.role) {
        return Some((actor, port.to_owned()));
    }
    let ports = |out: bool| {
        let ends = STANDARD.iter().map(move |standard| if out { &standard.from } else { &standard.to });
        let mut ports: Vec<&str> =
            ends.filter(|(role, _)| *role == actor.role).map(|(_, port)| *port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    let sends = key == "from";
    let known = ports(sends);
    if known.contains(&port) {
        return Some((actor, port.to_owned()));
    }
    let verb = if sends { "sends" } else { "receives" };
    let message = format!("{} {verb} nothing by a port {}", actor.name, quote(port));
    let help = match ports(!sends).contains(&port) {
        true => format!("{}.{port} is the other end of a wire", actor.name),
        false => suggest::help(port, "ports", known),
    };
    findings.add(&span, message, help);
    None
}

/// What the file says of a wire takes the place of what the roles say.
fn change(
    wire: &mut Wire,
    written: &Written<'_>,
    draft: &Draft,
    findings: &mut Findings,
    later: &mut Vec<Later>,
) {
    let section = written.section;
    if section.scalar("capacity").is_some() {
        wire.capacity = section.count("capacity");
    }
    if let Some(policy) = section.text("policy").and_then(|word| Policy::from_word(&word))
        && policy != wire.policy
    {
        if written.standard {
            let message = format!("another policy than {} is not built yet for {}", wire.policy, wire.from);
            let subject = "another policy of a standard wire".to_owned();
            later.push(Later { span: section.span_of("policy"), subject, message });
        }
        wire.policy = policy;
    }
    if let Some(link) = section.text("link").and_then(|word| Link::from_word(&word)) {
        if link == Link::Local && wire.link != Link::Local {
            let message =
                format!("a local link joins actors of one host: {} and {}", wire.from.actor, wire.to.actor);
            findings.add(&section.span_of("link"), message, "write link = \"tcp\", or leave it out");
        }
        if link == Link::Shm && !on_one_machine(wire, draft) {
            let message = "shared memory joins hosts of one machine only".to_owned();
            findings.add(&section.span_of("link"), message, "write link = \"tcp\", or leave it out");
        }
        if link != Link::Local {
            let message = format!("the link {link} is not built yet");
            later.push(Later { span: section.span_of("link"), subject: format!("link `{link}`"), message });
        }
        wire.link = link;
    }
}

/// Whether all hosts of both ends have addresses on one machine, as far as the file tells.
fn on_one_machine(wire: &Wire, draft: &Draft) -> bool {
    let ends = [&wire.from.actor, &wire.to.actor];
    let hosts = ends.into_iter().filter_map(|name| actor(name, draft)).flat_map(|actor| &actor.hosts);
    let machine = |host| Some(draft.hosts.get(host)?.address.as_ref()?.rsplit_once(':')?.0.to_owned());
    let mut machines: Vec<String> = hosts.filter_map(machine).collect();
    machines.sort_unstable();
    machines.dedup();
    machines.len() <= 1
}
