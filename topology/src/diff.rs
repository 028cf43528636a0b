//! What changes between two plans, as ordered lines for people, each with what it costs. The same flat form of a plan,
//! path → value, is what its id is the digest of: two plans without a difference have one id.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::PlanId;
use crate::plan::{
    EncodeSettings, GatewaySettings, GroupSettings, Limits, Plan, Scalar, Settings, Tenant, Tier, Wire,
};

/// One difference between two plans.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Where, as a dotted path.
    pub path: String,
    /// The value in the first plan; nothing if the second adds it.
    pub before: Option<String>,
    /// The value in the second plan; nothing if it is gone.
    pub after: Option<String>,
    /// What the change costs.
    pub effect: Effect,
}

/// What a change costs when it is made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Only what people see.
    Nothing,
    /// These units stop and start.
    Restarts(Vec<String>),
    /// The whole graph stops and starts.
    StartsAnew,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{}: {before} → {after}", self.path)?,
            (Some(before), None) => write!(f, "{}: {before} → gone", self.path)?,
            (None, after) => write!(f, "{}: new, {}", self.path, after.as_deref().unwrap_or_default())?,
        }
        match &self.effect {
            Effect::Nothing => Ok(()),
            Effect::StartsAnew => f.write_str(" (starts anew)"),
            Effect::Restarts(units) if units.len() == 1 => write!(f, " (restarts unit {})", units[0]),
            Effect::Restarts(units) => write!(f, " (restarts units {})", units.join(", ")),
        }
    }
}

/// The changes that lead from `a` to `b`, ordered by path; notes and places do not count.
///
/// # Examples
/// ```
/// use millstream_topology::{HostFacts, check, diff, laptop};
///
/// let host = HostFacts { cores: 8, buckets: true };
/// let a = check(&laptop("builtin"), "a.toml", &host).expect("a good file");
/// let b = laptop("builtin").replace("[actors.prefill]", "[actors.prefill]\nchunk_tokens = 512");
/// let b = check(&b, "b.toml", &host).expect("a good file");
/// let changes = diff(&a, &b);
/// assert_eq!(changes.len(), 1);
/// assert_eq!(changes[0].to_string(), "actors.prefill.chunk_tokens: 256 → 512 (restarts unit decode)");
/// ```
/// Decode is joined here and computes prompts itself, so its unit is the one that restarts.
pub fn diff(a: &Plan, b: &Plan) -> Vec<Change> {
    let (before, after) = (flat(a), flat(b));
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let changed = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    let change = |path: &String| Change {
        path: path.clone(),
        before: before.get(path).cloned(),
        after: after.get(path).cloned(),
        effect: effect(path, a, b),
    };
    changed.map(change).collect()
}

/// The digest of everything the plan holds but its notes.
pub(crate) fn id(plan: &Plan) -> PlanId {
    let lines = flat(plan);
    PlanId::of(lines.iter().map(|(path, value)| (path.as_str(), value.as_str())))
}

/// The settings of a role under the keys of the file.
pub(crate) fn settings(settings: &Settings) -> Vec<(&'static str, Scalar)> {
    match settings {
        Settings::Gateway(gateway) => gateway_settings(gateway),
        Settings::Encode(encode) => encode_settings(encode),
        Settings::Prefill(group) => group_settings(group),
        Settings::Decode(group) => {
            let mut list = group_settings(group);
            list.push(("joined", Scalar::Flag(group.joined)));
            list
        }
        Settings::Router(router) => vec![("prefill", Scalar::Text(router.prefill.to_string()))],
        Settings::Tokenizer(_) | Settings::Detokenizer(_) | Settings::Other => Vec::new(),
    }
}

fn gateway_settings(gateway: &GatewaySettings) -> Vec<(&'static str, Scalar)> {
    let mut list = vec![
        ("listen", Scalar::Text(gateway.listen.to_string())),
        ("requests_max", Scalar::Count(gateway.requests_max as u64)),
        ("deadline", Scalar::Time(gateway.deadline)),
        ("tokens_max", Scalar::Count(gateway.tokens_max.into())),
    ];
    list.extend(gateway.body_max.map(|most| ("body_max", Scalar::Bytes(most))));
    list.extend(named(&gateway.hosts));
    list
}

/// Servers, where some are named.
fn named(hosts: &[String]) -> Option<(&'static str, Scalar)> {
    (!hosts.is_empty()).then(|| ("hosts", Scalar::List(hosts.to_vec())))
}

fn encode_settings(encode: &EncodeSettings) -> Vec<(&'static str, Scalar)> {
    let mut list = vec![
        ("groups", Scalar::Count(encode.groups as u64)),
        ("ranks", Scalar::Count(encode.ranks as u64)),
        ("threads", Scalar::Count(encode.threads as u64)),
        ("cache", Scalar::Bytes(encode.cache)),
        ("waiting_max", Scalar::Count(encode.waiting_max as u64)),
        ("images_max", Scalar::Count(encode.images_max as u64)),
        ("image_bytes", Scalar::Bytes(encode.image_bytes)),
        ("pixels_max", Scalar::Count(encode.pixels_max)),
    ];
    list.extend(named(&encode.hosts));
    list
}

fn group_settings(group: &GroupSettings) -> Vec<(&'static str, Scalar)> {
    let mut list = vec![
        ("groups", Scalar::Count(group.groups as u64)),
        ("ranks", Scalar::Count(group.ranks as u64)),
        ("threads", Scalar::Count(group.threads as u64)),
        ("chunk_tokens", Scalar::Count(group.chunk_tokens.into())),
        ("sequences_max", Scalar::Count(group.sequences_max as u64)),
        ("block_size", Scalar::Count(group.block_size.into())),
        ("memory", Scalar::Bytes(group.memory)),
        ("waiting_max", Scalar::Count(group.waiting_max as u64)),
        ("waiting_tokens_max", Scalar::Count(group.waiting_tokens_max)),
        ("lease", Scalar::Time(group.lease)),
        ("pinned", Scalar::Flag(group.pinned)),
        ("plan_ahead", Scalar::Flag(group.plan_ahead)),
        ("prefix_reuse", Scalar::Flag(group.prefix_reuse)),
    ];
    list.extend(group.step_time.map(|time| ("step_time", Scalar::Time(time))));
    list
}

/// The restart budget under the keys of the file.
pub(crate) fn limits(limits: &Limits) -> [(&'static str, Scalar); 2] {
    [
        ("restarts", Scalar::Count(limits.restarts.into())),
        ("restarts_within", Scalar::Time(limits.restarts_within)),
    ]
}

/// A tenant under the keys of the file.
pub(crate) fn tenant(tenant: &Tenant) -> Vec<(&'static str, Scalar)> {
    let mut list = vec![
        ("key", Scalar::Text(tenant.key.clone())),
        ("retention", Scalar::Text(tenant.retention.clone())),
    ];
    list.extend(tenant.size.map(|size| ("size", Scalar::Bytes(size))));
    list
}

fn flat(plan: &Plan) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let mut line = |path: String, value: String| {
        lines.insert(path, value);
    };
    line("name".to_owned(), Scalar::Text(plan.name.clone()).to_string());
    line("model".to_owned(), Scalar::Text(plan.model.clone()).to_string());
    line("activations".to_owned(), Scalar::Text(plan.activations.to_string()).to_string());
    line("kv".to_owned(), Scalar::Text(plan.kv.to_string()).to_string());
    line("decoder_truncation".to_owned(), plan.decoder_truncation.to_string());
    line("reserve".to_owned(), plan.reserve.to_string());
    for host in &plan.hosts {
        line(format!("hosts.{}.devices", host.name), host.devices.to_string());
        for (key, value) in [("address", &host.address), ("supernode", &host.supernode)] {
            if let Some(value) = value {
                line(format!("hosts.{}.{key}", host.name), Scalar::Text(value.clone()).to_string());
            }
        }
    }
    for actor in &plan.actors {
        let hosts = actor.hosts.iter().map(|host| host.as_str().to_owned()).collect();
        line(format!("actors.{}.role", actor.name), actor.role.to_string());
        line(format!("actors.{}.on", actor.name), Scalar::List(hosts).to_string());
        for (key, value) in settings(&actor.settings) {
            line(format!("actors.{}.{key}", actor.name), value.to_string());
        }
        for (key, value) in &actor.extra {
            line(format!("actors.{}.{key}", actor.name), value.to_string());
        }
    }
    for wire in &plan.wires {
        line(wire_path(wire), format!("{} {} {}", wire.policy, wire.capacity, wire.link));
    }
    for (key, value) in limits(&plan.limits) {
        line(format!("limits.{key}"), value.to_string());
    }
    line("cache.replay".to_owned(), Scalar::Text(plan.cache.replay.to_string()).to_string());
    line("cache.windows".to_owned(), Scalar::Text(plan.cache.windows.to_string()).to_string());
    if let Some(bytes) = plan.cache.snapshots {
        line("cache.snapshots".to_owned(), Scalar::Bytes(bytes).to_string());
    }
    for (i, tier) in plan.cache.tiers.iter().enumerate() {
        line(format!("cache.tiers.{i}"), tier_line(tier));
    }
    for (class, retention) in &plan.cache.retention {
        line(format!("cache.retention.{class}"), crate::expand::class_value(retention));
    }
    for (name, settings) in &plan.cache.tenants {
        for (key, value) in tenant(settings) {
            line(format!("cache.tenants.{name}.{key}"), value.to_string());
        }
    }
    lines
}

fn wire_path(wire: &Wire) -> String {
    format!("wires.{} -> {}", wire.from, wire.to)
}

fn tier_line(tier: &Tier) -> String {
    let place = tier.place.as_ref().map(|place| format!(" {}", Scalar::Text(place.clone())));
    let size = tier.size.map(|size| format!(" {}", Scalar::Bytes(size)));
    format!("{}{}{}", tier.kind, place.unwrap_or_default(), size.unwrap_or_default())
}

fn effect(path: &str, a: &Plan, b: &Plan) -> Effect {
    let mut actors: Vec<&str> = Vec::new();
    if path == "name" {
        return Effect::Nothing;
    } else if let Some(rest) = path.strip_prefix("actors.") {
        actors.extend(rest.split('.').next());
    } else if let Some(ends) = path.strip_prefix("wires.") {
        actors.extend(ends.split(" -> ").filter_map(|end| end.split('.').next()));
    } else {
        return Effect::StartsAnew;
    }
    let mut units: Vec<String> = Vec::new();
    for plan in [a, b] {
        units.extend(actors.iter().filter_map(|name| plan.unit(name)).map(str::to_owned));
    }
    units.sort_unstable();
    units.dedup();
    Effect::Restarts(units)
}
