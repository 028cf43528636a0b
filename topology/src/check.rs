//! The rules a file must keep as a whole. One rule is one function; each adds its problems to the findings and leaves
//! the others their turn.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::error::Findings;
use crate::plan::{Devices, Role};
use crate::resolve::{Draft, DraftActor, has_blocks, has_groups};
use crate::section::Section;
use crate::spec::Spec;
use crate::suggest::quote;

pub(crate) mod cache;

/// Ranks that one processor carries at most, all groups of an actor together.
const CPU_RANKS_MAX: u64 = 64;

/// Holds every rule against the draft.
pub(crate) fn rules(spec: &Spec, draft: &Draft, findings: &mut Findings) {
    roles_are_there(spec, draft, findings);
    ranks_have_devices(draft, findings);
    decode_joins_prefill(draft, findings);
    blocks_have_one_size(draft, findings);
    listeners_differ(draft, findings);
    servers_are_names(draft, findings);
    addresses_differ(draft, findings);
    tiers_are_whole(spec, findings);
    cache::classes_are_fit(spec, findings);
    cache::tenants_differ(spec, findings);
    snapshots_are_kept(spec, findings);
}

/// Requests need a door, prompts and answers someone to compute them.
fn roles_are_there(spec: &Spec, draft: &Draft, findings: &mut Findings) {
    if spec.blind {
        return;
    }
    let first = |role: Role| draft.of(role).next();
    let end = spec
        .actors
        .iter()
        .map(|actor| actor.section.span.clone())
        .max_by_key(|span| span.end)
        .unwrap_or(0..0);
    if first(Role::Gateway).is_none() {
        findings.add(&end, "no actor has the role gateway: nothing takes requests", "add [actors.gateway]");
    }
    match (first(Role::Prefill), first(Role::Decode)) {
        (Some(_), Some(_)) => {}
        (None, Some(decode)) => {
            let message = format!(
                "decode without prefill: nothing computes the prompts of {}",
                quote(decode.name.as_str())
            );
            findings.add(
                &decode.at,
                message,
                "add [actors.prefill]; on one host the two are joined by themselves",
            );
        }
        (Some(prefill), None) => {
            let name = quote(prefill.name.as_str());
            findings.add(
                &prefill.at,
                format!("prefill without decode: nothing computes answers after {name}"),
                "add [actors.decode]",
            );
        }
        (None, None) => findings.add(
            &end,
            "no actor has the role prefill or decode: nothing computes",
            "add [actors.prefill] and [actors.decode]",
        ),
    }
}

/// Every rank needs a device of its actor's hosts.
fn ranks_have_devices(draft: &Draft, findings: &mut Findings) {
    for actor in draft.actors.iter().filter(|actor| has_groups(&actor.role) && !actor.hosts.is_empty()) {
        let asked = actor.groups * actor.ranks;
        let gpus = draft.hosts.gpus(&actor.hosts);
        let mixed = |host| draft.hosts.get(host).is_some_and(|host| host.devices != Devices::Cpu);
        if gpus.is_none() && actor.hosts.iter().any(mixed) {
            let message = format!("{} is placed on processors and on GPUs", quote(actor.name.as_str()));
            findings.add(
                &actor.section.span_of("on"),
                message,
                "ranks of one group need devices of one kind",
            );
            continue;
        }
        let (have, what) = match gpus {
            Some(gpus) => (gpus, "GPUs".to_owned()),
            None => {
                let hosts = actor.hosts.len() as u64;
                (hosts * CPU_RANKS_MAX.min(draft.cores.max(1) as u64), format!("cores of {hosts} hosts"))
            }
        };
        let what = if what == "cores of 1 hosts" { "cores".to_owned() } else { what };
        if actor.ranks > have {
            let message = format!(
                "more ranks than devices: {} asks for {} ranks on {have} {what}",
                actor.name, actor.ranks
            );
            findings.add(&actor.section.span_of("ranks"), message, format!("write ranks = {have} at most"));
        } else if gpus.is_some() && asked > have {
            let message = format!(
                "more ranks than devices: {} asks for {} groups of {} ranks on {have} {what}",
                actor.name, actor.groups, actor.ranks
            );
            let help = format!("write groups = {} at most", have / actor.ranks);
            findings.add(&actor.section.span_of("groups"), message, help);
        } else if gpus.is_none() && asked > CPU_RANKS_MAX * actor.hosts.len() as u64 {
            let message =
                format!("{} asks for {asked} ranks; a processor carries {CPU_RANKS_MAX} at most", actor.name);
            let help =
                format!("write groups = {} at most", CPU_RANKS_MAX * actor.hosts.len() as u64 / actor.ranks);
            findings.add(&actor.section.span_of("groups"), message, help);
        }
    }
}

/// A server, this one or one that images are fetched from, is called by its name or address alone.
fn servers_are_names(draft: &Draft, findings: &mut Findings) {
    for actor in draft.of(Role::Encode).chain(draft.of(Role::Gateway)) {
        for host in actor.section.names("hosts").unwrap_or_default() {
            let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let text = host.get_ref();
            let address = text.parse::<IpAddr>().is_ok();
            if text.is_empty() || !(address || text.chars().all(named)) {
                let message = format!("{} is not the name of a server", quote(text));
                findings.add(&host.span(), message, "write it as in hosts = [\"images.example.org\"]");
            }
        }
    }
}

/// Joined means one prefill and one decode at the same place, of as many groups each: they are the same ones.
fn decode_joins_prefill(draft: &Draft, findings: &mut Findings) {
    for decode in draft.of(Role::Decode).filter(|decode| decode.section.flag("joined") == Some(true)) {
        let mut refuse = |span, message: String| findings.add(&span, message, "write joined = false");
        for prefill in draft.of(Role::Prefill).filter(|prefill| prefill.groups != decode.groups) {
            let (own, asked) = (decode.groups, prefill.groups);
            let message = format!(
                "joined decode computes prompts in its own groups: there are {own}, and {} asks for {asked}",
                prefill.name
            );
            refuse(prefill.section.span_of("groups"), message);
        }
        let span = decode.section.span_of("joined");
        if draft.of(Role::Decode).count() > 1 || draft.of(Role::Prefill).count() > 1 {
            refuse(
                span.clone(),
                "joined decode has one actor of the role prefill and one of the role decode".to_owned(),
            );
        }
        if draft.of(Role::Prefill).any(|prefill| prefill.hosts != decode.hosts) {
            refuse(span, "joined decode computes prompts itself, and prefill is placed elsewhere".to_owned());
        }
    }
}

/// Blocks move between groups, so all have the same size.
fn blocks_have_one_size(draft: &Draft, findings: &mut Findings) {
    let saying =
        |actor: &&DraftActor| has_blocks(&actor.role) && actor.section.scalar("block_size").is_some();
    let mut saying = draft.actors.iter().filter(saying);
    let Some(first) = saying.next() else { return };
    let size = first.section.number("block_size");
    for actor in saying.filter(|actor| actor.section.number("block_size") != size) {
        let message = format!("blocks move between groups and have one size: {} says {size}", first.name);
        let help = format!("write block_size = {size}, or leave it out");
        findings.add(&actor.section.span_of("block_size"), message, help);
    }
}

/// No two listeners of one host share an address.
fn listeners_differ(draft: &Draft, findings: &mut Findings) {
    let listens = |actor: &DraftActor| -> Option<SocketAddr> { actor.section.text("listen")?.parse().ok() };
    let gateways: Vec<(&DraftActor, SocketAddr)> =
        draft.of(Role::Gateway).filter_map(|actor| Some((actor, listens(actor)?))).collect();
    for (i, (actor, address)) in gateways.iter().enumerate() {
        let same = |(other, taken): &&(&DraftActor, SocketAddr)| {
            overlap(*taken, *address) && other.hosts.iter().any(|host| actor.hosts.contains(host))
        };
        if let Some((other, taken)) = gateways[..i].iter().find(same) {
            let message = format!(
                "two listeners on one address: {} listens at {taken} too",
                quote(other.name.as_str())
            );
            findings.add(&actor.section.span_of("listen"), message, "choose another port");
        }
        for host in actor.hosts.iter().filter_map(|name| draft.hosts.get(name)) {
            let Some(taken) = host.address.as_ref().and_then(|address| address.parse().ok()) else {
                continue;
            };
            if overlap(taken, *address) {
                let message =
                    format!("two listeners on one address: host {} is reached at {taken}", host.name);
                findings.add(&actor.section.span_of("listen"), message, "choose another port");
                break;
            }
        }
    }
}

/// Whether two listeners would meet: the same port, and the same IP or one that stands for all. Port 0 is any free one.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let wide = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || wide)
}

/// No two hosts are reached at one address.
fn addresses_differ(draft: &Draft, findings: &mut Findings) {
    let mut taken: BTreeMap<&str, &crate::plan::Host> = BTreeMap::new();
    for host in &draft.hosts.list {
        let Some(address) = &host.address else { continue };
        let Some(first) = taken.insert(address, host) else { continue };
        let span = draft.hosts.spans.get(&host.name).cloned().unwrap_or(0..0);
        if draft.hosts.spans.get(&first.name) != Some(&span) {
            let message = format!("{} and {} are two hosts at one address: {address}", first.name, host.name);
            findings.add(&span, message, "a host is one process: give each its own port");
        }
    }
}

/// A tier is one of four kinds, and only stores outside memory take a size of their own.
fn tiers_are_whole(spec: &Spec, findings: &mut Findings) {
    const KINDS: [&str; 4] = ["device", "host", "disk", "shared"];
    let Some(cache) = spec.root.section("cache") else { return };
    let mut kinds = BTreeSet::new();
    for tier in cache.sections("tiers") {
        let said: Vec<&str> = KINDS.into_iter().filter(|kind| tier.has(kind)).collect();
        if let [kind] = said[..]
            && !kinds.insert(kind)
        {
            let message = format!("a second tier of the kind {kind}");
            findings.add(&key_span(tier, kind), message, "there is at most one of each kind: leave one out");
        }
        match said[..] {
            [] => {
                let help = "write one of device, host, disk and shared";
                findings.add(&tier.span, "a tier of no kind", help);
            }
            [kind @ ("device" | "host")] if tier.has("size") => {
                let message = format!("{} says its size already", quote(kind));
                findings.add(&tier.span_of("size"), message, "leave size out");
            }
            [_] => {}
            [_, second, ..] => {
                let message = format!("a tier of two kinds: {}", said.join(", "));
                findings.add(&key_span(tier, second), message, "write a tier for each");
            }
        }
    }
}

/// Room for snapshots is of use only where some are kept.
fn snapshots_are_kept(spec: &Spec, findings: &mut Findings) {
    let Some(cache) = spec.root.section("cache").filter(|cache| cache.has("snapshots")) else { return };
    let tiers = cache.sections("tiers").iter().any(|tier| !tier.has("device"));
    if !tiers && cache.text("replay").as_deref() != Some("snapshot") {
        let help = "write replay = \"snapshot\", or add a tier; or leave snapshots out";
        findings.add(&key_span(cache, "snapshots"), "room for snapshots, and none are kept", help);
    }
}

fn key_span(section: &Section, name: &str) -> std::ops::Range<usize> {
    section.said(name).map_or_else(|| section.span.clone(), |entry| entry.key.clone())
}
