//! From spec to plan: implied actors added, names looked up, defaults filled in. All that is wrong is collected; a plan
//! comes out only of a file without problems.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde_spanned::Spanned;

use crate::error::{Findings, Problems};
use crate::id::{ActorName, HostName, PlanId};
use crate::keys;
use crate::lanes;
use crate::place::{self, Hosts};
use crate::plan::{
    Activations, ActorPlan, CLASSES, Cache, DetokenizerSettings, Devices, EncodeSettings, GatewaySettings,
    GroupSettings, KvFormat, Limits, Note, Plan, PrefillRule, Retention, Role, RouterSettings, Settings,
    Tenant, Tier, TokenizerSettings, Windows, quoted,
};
use crate::read::Later;
use crate::section::Section;
use crate::spec::{self, ActorSpec, Spec};
use crate::suggest::quote;

/// Sequences that wait for a place, at least, where the file says no number.
const WAITING_LEAST: usize = 512;
const DAY: Duration = Duration::from_hours(24);

/// What the machine and this build have, as far as a plan depends on it. Passed in: this crate looks at no machine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Cores of each host.
    pub cores: usize,
    /// Whether stores at other URLs than `file://` can be opened.
    pub buckets: bool,
}

/// Reads and resolves a file; `file` is its name in messages.
///
/// # Errors
/// All problems of the file in one run, ordered by place.
///
/// # Examples
/// ```
/// use millstream_topology::{HostFacts, check, laptop};
///
/// let host = HostFacts { cores: 8, buckets: true };
/// let plan = check(&laptop("builtin"), "laptop.toml", &host).expect("a good file");
/// assert!(plan.joined());
///
/// let text = laptop("builtin").replace("[actors.decode]", "[actors.decode]\nlease = 30\nchunk_token = 64");
/// let problems = check(&text, "bad.toml", &host).unwrap_err();
/// assert_eq!(problems.len(), 2);
/// assert!(problems.to_string().contains("help: did you mean \"chunk_tokens\"?"));
/// ```
pub fn check(text: &str, file: &str, host: &HostFacts) -> Result<Plan, Problems> {
    let (read, mut findings) = spec::read(text, file);
    let plan = read.sound.then(|| build(&read.spec, host, &mut findings));
    let plan = findings.into_result(plan)?;
    Ok(plan.expect("a file that is not sound has problems"))
}

/// Resolves a spec that was read before.
///
/// # Errors
/// All problems of looking names up and of the rules, ordered by place.
pub fn resolve(spec: &Spec, host: &HostFacts) -> Result<Plan, Problems> {
    let mut findings = Findings::new(spec.source.clone());
    let plan = build(spec, host, &mut findings);
    findings.into_result(plan)
}

/// The minimal file for one model: everything on this machine.
pub fn laptop(model: &str) -> String {
    format!("model = {}\n\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n", quoted(model))
}

/// What is known while a plan is made.
pub(crate) struct Draft {
    pub(crate) hosts: Hosts,
    pub(crate) actors: Vec<DraftActor>,
    pub(crate) cores: usize,
    pub(crate) joined: bool,
    /// Blocks outlive the group that computed them.
    pub(crate) outlives: bool,
}

/// An actor whose place is known.
pub(crate) struct DraftActor {
    pub(crate) name: ActorName,
    pub(crate) role: Role,
    pub(crate) section: Section,
    /// Where its name stands; empty for an implied one.
    pub(crate) at: Range<usize>,
    pub(crate) hosts: Vec<HostName>,
    /// Copies and ranks, for the roles that have them.
    pub(crate) groups: u64,
    pub(crate) ranks: u64,
}

impl Draft {
    pub(crate) fn of(&self, role: Role) -> impl Iterator<Item = &DraftActor> {
        self.actors.iter().filter(move |actor| actor.role == role)
    }

    /// The most requests that a gateway admits at once.
    pub(crate) fn crowd(&self) -> usize {
        self.of(Role::Gateway).map(|gateway| gateway.section.count("requests_max")).max().unwrap_or(0)
    }
}

fn build(spec: &Spec, facts: &HostFacts, findings: &mut Findings) -> Plan {
    let hosts = place::hosts(&spec.root, findings);
    let mut actors: Vec<ActorSpec> = spec.actors.clone();
    imply(&mut actors, findings);
    let placed = actors.into_iter().filter_map(|actor| place_actor(actor, &hosts, findings)).collect();
    let outlives = cache(&spec.root).keeps_blocks();
    let mut draft = Draft { hosts, actors: placed, cores: facts.cores.max(1), joined: false, outlives };
    beside_the_gateway(&mut draft);
    draft.actors.sort_by(|a, b| (&a.role, &a.name).cmp(&(&b.role, &b.name)));
    draft.joined = joined(&draft);
    if draft.joined {
        share_groups(&mut draft.actors);
    }
    crate::check::rules(spec, &draft, findings);
    let mut later = spec.later.clone();
    later.extend(not_built(spec, &draft));
    later.extend(crate::check::cache::not_built(spec, facts.buckets));
    let wires = lanes::wires(spec, &draft, findings, &mut later);
    let mut plan = Plan {
        id: PlanId(0),
        name: spec.root.text("name").unwrap_or_default(),
        model: spec.root.text("model").unwrap_or_default(),
        activations: activations(&spec.root),
        kv: kv(&spec.root),
        decoder_truncation: spec.root.flag("decoder_truncation").unwrap_or(false),
        reserve: spec.root.flag("reserve").unwrap_or(false),
        actors: draft.actors.iter().map(|actor| actor_plan(actor, &draft)).collect(),
        wires,
        limits: limits(&spec.root),
        cache: cache(&spec.root),
        notes: notes(later, findings),
        hosts: draft.hosts.list,
    };
    plan.id = crate::diff::id(&plan);
    plan
}

/// What quantised weights are multiplied with; a word that is none was found before.
fn activations(root: &Section) -> Activations {
    root.text("activations").and_then(|word| Activations::from_word(&word)).unwrap_or(Activations::Int8)
}

/// How keys and values are stored; a word that is none was found before.
fn kv(root: &Section) -> KvFormat {
    root.text("kv").and_then(|word| KvFormat::from_word(&word)).unwrap_or(KvFormat::F32)
}

/// Adds the roles that every file needs and few files mention.
fn imply(actors: &mut Vec<ActorSpec>, findings: &mut Findings) {
    for role in [Role::Tokenizer, Role::Router, Role::Detokenizer] {
        if actors.iter().any(|actor| actor.role.as_ref() == Some(&role)) {
            continue;
        }
        let name = role.as_str().to_owned();
        if let Some(taken) = actors.iter().find(|actor| *actor.name.get_ref() == name) {
            if taken.role.is_some() {
                let message = format!("the implied actor of the role {role} would have this name too");
                findings.add(&taken.name.span(), message, "give this table another name");
            }
            continue;
        }
        let section = Section::new(keys::of_role(&role), 0..0);
        actors.push(ActorSpec { name: Spanned::new(0..0, name), role: Some(role), section });
    }
}

fn place_actor(actor: ActorSpec, hosts: &Hosts, findings: &mut Findings) -> Option<DraftActor> {
    let role = actor.role?;
    let implied = actor.name.span().is_empty();
    let on = match actor.section.names("on") {
        Some(names) => hosts.matching(names, findings),
        None if hosts.list.len() == 1 => vec![hosts.list[0].name.clone()],
        None if implied || actor.section.has("on") => Vec::new(),
        None => {
            let known: Vec<&str> = hosts.list.iter().map(|host| host.name.as_str()).collect();
            let message =
                format!("missing key \"on\" in [actors.{}]: there are several hosts", actor.name.get_ref());
            findings.add(&actor.section.span, message, crate::suggest::listed("hosts", &known));
            Vec::new()
        }
    };
    let ranks = if has_groups(&role) { actor.section.number("ranks").max(1) } else { 1 };
    let groups = match has_groups(&role) {
        true if actor.section.scalar("groups").is_some() => actor.section.number("groups"),
        true => (hosts.gpus(&on).unwrap_or(on.len() as u64) / ranks).max(1),
        false => 1,
    };
    let name = ActorName(actor.name.get_ref().clone());
    Some(DraftActor { name, role, at: actor.name.span(), section: actor.section, hosts: on, groups, ranks })
}

pub(crate) fn has_groups(role: &Role) -> bool {
    matches!(role, Role::Encode | Role::Prefill | Role::Decode)
}

/// Implied actors run where the gateway runs.
fn beside_the_gateway(draft: &mut Draft) {
    let first = draft.hosts.list.first().map(|host| host.name.clone());
    let beside = draft.of(Role::Gateway).find_map(|gateway| gateway.hosts.first().cloned()).or(first);
    for actor in draft.actors.iter_mut().filter(|actor| actor.at.is_empty() && actor.hosts.is_empty()) {
        actor.hosts.extend(beside.clone());
    }
}

/// The groups of a joined decode are those of prefill too: as many as either of them says, or one.
fn share_groups(actors: &mut [DraftActor]) {
    let says = |role: Role| {
        let mut of = actors.iter().filter(move |actor| actor.role == role && actor.section.has("groups"));
        of.next().map(|actor| actor.groups)
    };
    let groups = says(Role::Decode).or_else(|| says(Role::Prefill)).unwrap_or(1);
    for actor in actors.iter_mut().filter(|actor| has_blocks(&actor.role) && !actor.section.has("groups")) {
        actor.groups = groups;
    }
}

/// Said, or true when prefill and decode are each one group of one rank at the same place.
fn joined(draft: &Draft) -> bool {
    if let Some(said) = draft.of(Role::Decode).find_map(|decode| decode.section.flag("joined")) {
        return said;
    }
    let both: Vec<&DraftActor> = draft.of(Role::Prefill).chain(draft.of(Role::Decode)).collect();
    match both[..] {
        [prefill, decode] => {
            let alone = |actor: &DraftActor| actor.groups == 1 && actor.ranks == 1;
            prefill.role != decode.role && alone(prefill) && alone(decode) && prefill.hosts == decode.hosts
        }
        _ => false,
    }
}

fn actor_plan(actor: &DraftActor, draft: &Draft) -> ActorPlan {
    let section = &actor.section;
    let settings = match actor.role {
        Role::Gateway => Settings::Gateway(gateway(section)),
        Role::Tokenizer => Settings::Tokenizer(TokenizerSettings {}),
        Role::Router => Settings::Router(router(section, draft)),
        Role::Detokenizer => Settings::Detokenizer(DetokenizerSettings {}),
        Role::Prefill => Settings::Prefill(group(actor, draft)),
        Role::Decode => Settings::Decode(group(actor, draft)),
        Role::Encode => Settings::Encode(EncodeSettings {
            groups: usize::try_from(actor.groups).unwrap_or(usize::MAX),
            ranks: usize::try_from(actor.ranks).unwrap_or(usize::MAX),
            ..encode(section, threads_of(actor, draft))
        }),
        Role::Cache | Role::Experts | Role::Custom(_) => Settings::Other,
    };
    let mut extra = BTreeMap::new();
    for (key, entry) in section.entries().filter(|(key, _)| key.later.is_some()) {
        match section.section(key.name) {
            Some(inner) => inner.flat(key.name, &mut extra),
            None => {
                extra.extend(section.scalar(key.name).map(|scalar| (key.name.to_owned(), scalar.clone())))
            }
        }
        debug_assert!(!entry.key.is_empty());
    }
    ActorPlan {
        name: actor.name.clone(),
        role: actor.role.clone(),
        hosts: actor.hosts.clone(),
        settings,
        extra,
    }
}

fn gateway(section: &Section) -> GatewaySettings {
    let listen = section.text("listen").and_then(|text| text.parse().ok());
    GatewaySettings {
        listen: listen.expect("addresses are parsed when they are read"),
        requests_max: section.count("requests_max"),
        body_max: section.scalar("body_max").map(|_| section.number("body_max")),
        deadline: section.time("deadline"),
        tokens_max: section.count32("tokens_max"),
        hosts: lower(section, "hosts"),
    }
}

fn router(section: &Section, draft: &Draft) -> RouterSettings {
    let said = section.text("prefill").and_then(|word| PrefillRule::from_word(&word));
    let found = if draft.outlives { PrefillRule::Earliest } else { PrefillRule::CacheAware };
    RouterSettings { prefill: said.unwrap_or(found) }
}

/// Names of servers, which are the same in capitals.
fn lower(section: &Section, key: &str) -> Vec<String> {
    let names = section.names(key).unwrap_or_default();
    names.iter().map(|name| name.get_ref().to_ascii_lowercase()).collect()
}

/// One copy; `threads` where the file says no number.
fn encode(section: &Section, threads: usize) -> EncodeSettings {
    let said = section.scalar("threads").map(|_| section.count("threads"));
    EncodeSettings {
        groups: 1,
        ranks: 1,
        threads: said.unwrap_or(threads),
        cache: section.number("cache"),
        waiting_max: section.count("waiting_max"),
        images_max: section.count("images_max"),
        image_bytes: section.number("image_bytes"),
        pixels_max: section.number("pixels_max"),
        hosts: lower(section, "hosts"),
    }
}

/// The encode actor that no file mentions.
pub(crate) fn standard_encode(threads: usize) -> EncodeSettings {
    encode(&Section::new(keys::ENCODE, 0..0), threads)
}

/// Tokens in one step where its time is what cuts prompts: the memory that a step computes in is bounded by it.
const TIMED_CHUNK: u32 = 2_048;

fn group(actor: &DraftActor, draft: &Draft) -> GroupSettings {
    let section = &actor.section;
    let threads = section.scalar("threads").map(|_| section.count("threads"));
    let waiting = section.scalar("waiting_max").map(|_| section.count("waiting_max"));
    let chunk = section.scalar("chunk_tokens").map(|_| section.count32("chunk_tokens"));
    let step_time = section.scalar("step_time").map(|_| section.time("step_time"));
    GroupSettings {
        groups: usize::try_from(actor.groups).unwrap_or(usize::MAX),
        ranks: usize::try_from(actor.ranks).unwrap_or(usize::MAX),
        threads: threads.unwrap_or_else(|| threads_of(actor, draft)),
        chunk_tokens: chunk.unwrap_or(if step_time.is_some() {
            TIMED_CHUNK
        } else {
            section.count32("chunk_tokens")
        }),
        step_time,
        plan_ahead: section.flag("plan_ahead").unwrap_or(false),
        sequences_max: section.count("sequences_max"),
        block_size: block_size(section, draft),
        memory: section.number("memory"),
        waiting_max: waiting.unwrap_or_else(|| draft.crowd().max(WAITING_LEAST)),
        waiting_tokens_max: section.number("waiting_tokens_max"),
        lease: section.time("lease"),
        pinned: section.flag("pinned").unwrap_or(false),
        prefix_reuse: section.flag("prefix_reuse").unwrap_or(true),
        joined: draft.joined && actor.role == Role::Decode,
    }
}

/// The cores of a host, shared evenly by the ranks that compute there; the busiest host of the actor counts.
fn threads_of(actor: &DraftActor, draft: &Draft) -> usize {
    let computes = |other: &&DraftActor| match other.role {
        Role::Decode => true,
        Role::Prefill => !draft.joined,
        _ => false,
    };
    let on = |host: &HostName| -> u64 {
        let here = draft.actors.iter().filter(computes).filter(|other| other.hosts.contains(host));
        here.map(|other| (other.groups * other.ranks).div_ceil(other.hosts.len().max(1) as u64)).sum()
    };
    let busiest = actor.hosts.iter().map(on).max().unwrap_or(1).max(1);
    (draft.cores / usize::try_from(busiest).unwrap_or(usize::MAX)).max(1)
}

/// One number for the whole plan: said anywhere, it holds everywhere.
fn block_size(section: &Section, draft: &Draft) -> u32 {
    let saying =
        |actor: &&DraftActor| has_blocks(&actor.role) && actor.section.scalar("block_size").is_some();
    draft.actors.iter().find(saying).map_or(section, |actor| &actor.section).count32("block_size")
}

pub(crate) fn has_blocks(role: &Role) -> bool {
    matches!(role, Role::Prefill | Role::Decode)
}

fn limits(root: &Section) -> Limits {
    let empty = Section::new(keys::LIMITS, 0..0);
    let section = root.section("limits").unwrap_or(&empty);
    Limits { restarts: section.count32("restarts"), restarts_within: section.time("restarts_within") }
}

fn cache(root: &Section) -> Cache {
    let empty = Section::new(keys::CACHE, 0..0);
    let section = root.section("cache").unwrap_or(&empty);
    let tier = |tier: &Section| {
        let (kind, _) = tier.entries().next()?;
        let size = if matches!(kind.name, "device" | "host") { kind.name } else { "size" };
        let size = tier.scalar(size).map(|_| tier.number(size));
        Some(Tier { kind: kind.name.to_owned(), place: tier.text(kind.name), size })
    };
    let tiers = section.sections("tiers").iter().filter_map(tier).collect();
    let replay = section.text("replay").and_then(|text| text.parse().ok()).unwrap_or_default();
    let windows = section.text("windows").and_then(|word| Windows::from_word(&word));
    let windows = windows.unwrap_or(Windows::Blocks);
    let (retention, tenants) = (classes(section), tenants(section));
    let cache = Cache { replay, windows, tiers, snapshots: None, retention, tenants };
    // Whatever the model keeps.
    let snapshots = cache.keeps_snapshots(false).then(|| section.number("snapshots"));
    Cache { snapshots, ..cache }
}

/// The classes of every plan, and those of the file.
fn classes(cache: &Section) -> BTreeMap<String, Retention> {
    let built_in = CLASSES.map(|(name, days)| (name.to_owned(), Retention::of(DAY * days)));
    let said = cache.classes("retention").iter().map(|(name, class)| (name.get_ref().clone(), *class));
    built_in.into_iter().chain(said).collect()
}

fn tenants(cache: &Section) -> BTreeMap<String, Tenant> {
    let tenant = |(name, section): &(Spanned<String>, Section)| {
        let tenant = Tenant {
            key: section.text("key")?,
            retention: section.text("retention")?,
            size: section.scalar("size").map(|_| section.number("size")),
        };
        Some((name.get_ref().clone(), tenant))
    };
    cache.named("tenants").iter().filter_map(tenant).collect()
}

/// What resolving finds to be asked for and not built yet.
fn not_built(spec: &Spec, draft: &Draft) -> Vec<Later> {
    let mut later = Vec::new();
    let mut note = |span: Range<usize>, subject: &str, message: String| {
        later.push(Later { span, subject: subject.to_owned(), message });
    };
    if draft.hosts.list.len() > 1
        && let Some(said) = spec.root.said("hosts")
    {
        let message = format!("several hosts are not built yet: there are {}", draft.hosts.list.len());
        note(said.key.clone(), "several hosts", message);
    }
    for (name, section) in spec.root.named("hosts") {
        if let Some(Devices::Cuda(_)) = section.devices("devices") {
            let message = format!("GPUs are not built yet: host {} computes on them", quote(name.get_ref()));
            note(section.span_of("devices"), "GPUs", message);
        }
    }
    for actor in draft.actors.iter().filter(|actor| actor.ranks > 1) {
        let message = format!("a group has one rank for now: {} asks for {}", actor.name, actor.ranks);
        note(actor.section.span_of("ranks"), "several ranks in a group", message);
    }
    for (i, actor) in draft.actors.iter().enumerate() {
        if actor.role == Role::Experts {
            let message = format!("the role {} is not built yet", actor.role);
            note(actor.at.clone(), &format!("role `{}`", actor.role), message);
        } else if draft.actors[..i].iter().any(|other| other.role == actor.role) {
            let copies = if has_groups(&actor.role) { "; `groups` makes copies" } else { "" };
            let message = format!("several actors of the role {} are not built yet{copies}", actor.role);
            note(actor.at.clone(), "several actors of one role", message);
        }
    }
    later
}

fn notes(mut later: Vec<Later>, findings: &Findings) -> Vec<Note> {
    later.sort_by(|a, b| (a.span.start, &a.message).cmp(&(b.span.start, &b.message)));
    let note = |later: Later| {
        let (line, column) = findings.source.place(later.span.start);
        let file = findings.source.file.clone();
        Note { file, line, column, subject: later.subject, message: later.message }
    };
    later.into_iter().map(note).collect()
}
