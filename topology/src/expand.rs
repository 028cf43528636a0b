//! A plan written as a file again, with every default and every wire, so that a person sees what holds.

use std::fmt::Write as _;

use crate::diff::settings;
use crate::plan::{ActorPlan, Cache, Devices, Host, Plan, Retention, Scalar, quoted};

/// The file that says everything the plan holds; checking it gives a plan of the same id.
///
/// # Examples
/// ```
/// use millstream_topology::{HostFacts, check, expand, laptop};
///
/// let plan = check(&laptop("builtin"), "laptop.toml", &HostFacts { cores: 8, buckets: true }).expect("a good file");
/// let text = expand(&plan);
/// assert!(text.contains("chunk_tokens = 256"));
/// let again = check(&text, "expanded.toml", &HostFacts { cores: 2, buckets: true }).expect("what is written is good");
/// assert_eq!(again.id, plan.id);
/// ```
pub fn expand(plan: &Plan) -> String {
    let (name, model) = (quoted(&plan.name), quoted(&plan.model));
    let mut out = format!("name = {name}\nmodel = {model}\n");
    line(&mut out, format_args!("activations = \"{}\"\nkv = \"{}\"", plan.activations, plan.kv));
    line(&mut out, format_args!("decoder_truncation = {}", plan.decoder_truncation));
    line(&mut out, format_args!("reserve = {}\n\n[hosts]", plan.reserve));
    for host in &plan.hosts {
        line(&mut out, format_args!("{} = {}", host.name, host_table(host)));
    }
    for actor in &plan.actors {
        write_actor(&mut out, actor);
    }
    write_cache(&mut out, &plan.cache);
    for wire in &plan.wires {
        line(&mut out, format_args!("\n[[wires]]\nfrom = \"{}\"\nto = \"{}\"", wire.from, wire.to));
        line(
            &mut out,
            format_args!(
                "policy = \"{}\"\ncapacity = {}\nlink = \"{}\"",
                wire.policy, wire.capacity, wire.link
            ),
        );
    }
    line(&mut out, format_args!("\n[limits]"));
    for (key, value) in crate::diff::limits(&plan.limits) {
        line(&mut out, format_args!("{key} = {value}"));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all text");
}

fn host_table(host: &Host) -> String {
    let mut parts = Vec::new();
    if let Some(address) = &host.address {
        parts.push(format!("address = {}", quoted(address)));
    }
    parts.push(format!("devices = \"{}\"", host.devices));
    if let Some(supernode) = &host.supernode {
        parts.push(format!("supernode = {}", quoted(supernode)));
    }
    debug_assert!(!matches!(&host.devices, Devices::Cuda(numbers) if numbers.is_empty()));
    format!("{{ {} }}", parts.join(", "))
}

fn write_actor(out: &mut String, actor: &ActorPlan) {
    let hosts = actor.hosts.iter().map(|host| host.as_str().to_owned()).collect();
    line(out, format_args!("\n[actors.{}]\nrole = {}", actor.name, quoted(actor.role.as_str())));
    line(out, format_args!("on = {}", Scalar::List(hosts)));
    for (key, value) in settings(&actor.settings) {
        line(out, format_args!("{key} = {value}"));
    }
    for (key, value) in &actor.extra {
        line(out, format_args!("{key} = {value}"));
    }
}

fn write_cache(out: &mut String, cache: &Cache) {
    line(out, format_args!("\n[cache]\nreplay = \"{}\"\nwindows = \"{}\"", cache.replay, cache.windows));
    if let Some(bytes) = cache.snapshots {
        line(out, format_args!("snapshots = {}", Scalar::Bytes(bytes)));
    }
    for tier in &cache.tiers {
        line(out, format_args!("\n[[cache.tiers]]"));
        let size = tier.size.map(|size| Scalar::Bytes(size).to_string());
        match (&tier.place, size) {
            (Some(place), size) => {
                line(out, format_args!("{} = {}", tier.kind, quoted(place)));
                if let Some(size) = size {
                    line(out, format_args!("size = {size}"));
                }
            }
            (None, Some(size)) => line(out, format_args!("{} = {size}", tier.kind)),
            (None, None) => {}
        }
    }
    line(out, format_args!("\n[cache.retention]"));
    for (class, retention) in cache.classes() {
        line(out, format_args!("{class} = {}", class_value(retention)));
    }
    for (name, tenant) in &cache.tenants {
        line(out, format_args!("\n[cache.tenants.{name}]"));
        for (key, value) in crate::diff::tenant(tenant) {
            line(out, format_args!("{key} = {value}"));
        }
    }
}

/// A class as the file would write it.
pub(crate) fn class_value(retention: &Retention) -> String {
    let keep = Scalar::Time(retention.keep);
    match retention.size {
        Some(size) => format!("{{ for = {keep}, size = {} }}", Scalar::Bytes(size)),
        None => keep.to_string(),
    }
}
