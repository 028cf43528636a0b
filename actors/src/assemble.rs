//! From a plan to a graph: the one place that knows which actor a role is, and which lane a wire is. Nothing is started
//! here; the graph runs under either driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_kernels::{Facts, KvLayout, KvMemory, Model, Rings};
use millstream_runtime::blob::Blob;
use millstream_runtime::{Graph, Inlet, Outlet};
use millstream_topology::{
    Activations, ActorPlan, Cache, EncodeSettings, GroupSettings, KvFormat, Plan, Retention, Role, Settings,
    Windows,
};

use crate::balance::Capacity;
use crate::cost::Known;
use crate::disk::DiskCost;
use crate::error::Error;
use crate::gauges::{CacheGauges, EncodeGauges, GroupGauges};
use crate::rank::StepCost;
use crate::rank::predicted::{Predict, Watch};
use crate::request::{Reply, RequestId, Submit};
use crate::sched::StateBounds;
use crate::store::{Class, Stamp, Tenant, TierOptions, WriterId};
use crate::text::{ChatTemplate, Tokenizer};
use crate::tokenizer::Reach;

mod groups;
mod lanes;
mod wiring;

/// What the actors of a process share: the model and how it reads and writes text.
#[derive(Clone)]
pub struct Resources {
    /// Weights and arithmetic.
    pub model: Arc<dyn Model>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Chats to prompts; a base model may have none.
    pub template: Option<Arc<ChatTemplate>>,
    /// Where blocks are kept beyond the life of the process; needed where the plan has a tier that lasts.
    pub store: Option<LastingStore>,
}

/// A byte store for blocks, opened by the shell.
#[derive(Clone)]
pub struct LastingStore {
    /// Where objects are.
    pub blob: Arc<dyn Blob>,
    /// Digest of the model's files ([`millstream_kernels::fingerprint`]).
    pub model: [u8; 32],
    /// A number that no other run of a process on this store has; each life of the cache takes the next one.
    pub writer: Arc<AtomicU64>,
    /// The wall clock when the driver's began.
    pub began: Stamp,
}

impl LastingStore {
    fn next_writer(&self) -> WriterId {
        WriterId(self.writer.fetch_add(1, Ordering::Relaxed))
    }
}

impl Resources {
    /// Reads a model folder or a `.gguf` file; products are exact.
    ///
    /// # Errors
    /// The files cannot be read or are not understood.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::load_with(path, Activations::F32)
    }

    /// The same, with a choice of what quantised weights are multiplied with.
    ///
    /// # Errors
    /// As for [`Resources::load`].
    pub fn load_with(path: &Path, activations: Activations) -> Result<Self, Error> {
        let place = || PathBuf::from(path);
        let activations = match activations {
            Activations::Int8 => millstream_kernels::Activations::Int8,
            Activations::F32 => millstream_kernels::Activations::F32,
        };
        let (loaded, tokenizer) = millstream_kernels::load_beside(path, activations, Tokenizer::load)
            .map_err(|source| Error::Model { path: place(), source: Box::new(source) })?;
        let text = |source| Error::Text { path: place(), source };
        let tokenizer = tokenizer.map_err(text)?;
        let template = ChatTemplate::load(&loaded.text, &tokenizer).map_err(text)?;
        let (tokenizer, template) = (Arc::new(tokenizer), template.map(Arc::new));
        Ok(Self { model: loaded.model, tokenizer, template, store: None })
    }

    /// Ids that end an answer, from the model's files and the tokenizer's.
    fn end_tokens(&self) -> Arc<[u32]> {
        let mut ids = [&self.model.facts().eos, self.tokenizer.end_tokens()].concat();
        ids.sort_unstable();
        ids.dedup();
        ids.into()
    }
}

/// Which driver the graph is for.
#[derive(Clone)]
pub enum Driver {
    /// Real time; ranks use the threads of the plan.
    Live,
    /// Virtual time; ranks compute on one thread and say what a step would have cost.
    Sim(StepCost),
    /// Virtual time, and nothing is computed nor kept but numbers: how much a plan can do is simulated.
    Predicted(Predicted),
}

/// What stands for devices and stores in a simulation of capacity.
#[derive(Clone)]
pub struct Predicted {
    /// How long steps take, by the name of the actor.
    pub predict: BTreeMap<String, Arc<dyn Predict>>,
    /// Who is told of them.
    pub watch: Arc<dyn Watch>,
    /// Steps that come out alike are run as one.
    pub leaps: bool,
    /// What the tier that lasts takes.
    pub disk: DiskCost,
}

impl Driver {
    /// Whether nothing is computed.
    fn predicts(&self) -> bool {
        matches!(self, Self::Predicted(_))
    }
}

/// The lanes between the shell and the graph.
pub struct Doors {
    /// New requests.
    pub submit: Inlet<Submit>,
    /// Clients that went away; served before new requests.
    pub abandon: Inlet<RequestId>,
    /// Everything the clients get.
    pub replies: Outlet<Reply>,
}

/// A graph that is built and not started.
pub struct Assembly {
    /// For a driver.
    pub graph: Graph,
    /// For the shell.
    pub doors: Doors,
    /// One a group, in the order of the plan.
    pub gauges: Vec<Arc<GroupGauges>>,
    /// What is known of the cost of their steps, in the same order. What is told before the graph starts is begun with.
    pub costs: Vec<Arc<Known>>,
    /// One an encode actor; none for a model without eyes.
    pub encoders: Vec<Arc<EncodeGauges>>,
    /// Of the cache, where the plan has a prefix store.
    pub cache: Option<Arc<CacheGauges>>,
    /// How long prompt and answer may be.
    pub reach: Reach,
}

/// Builds the graph of `plan`.
///
/// # Errors
/// The plan asks for what is not built yet, or gives a group less memory than one block takes.
pub fn assemble(plan: &Plan, resources: &Resources, driver: Driver) -> Result<Assembly, Error> {
    if let Some(refusal) = plan.refusal().filter(|_| !driver.predicts()) {
        return Err(Error::NotBuilt(refusal));
    }
    if plan.cache.lasts() && resources.store.is_none() {
        return Err(Error::NoStore);
    }
    let groups = GroupPlan::of(plan, resources, &driver)?;
    let encoders = EncodePlan::of(plan, resources)?;
    wiring::wire(plan, resources, driver, (groups, encoders))
}

/// How images are looked at: as the plan says, or else as is usual; `None` for a model without eyes.
pub fn encode_settings(plan: &Plan, resources: &Resources) -> Option<EncodeSettings> {
    resources.model.vision()?;
    let threads = || plan.actors.iter().filter_map(ActorPlan::group).map(|group| group.threads).max();
    Some(plan.encode().cloned().unwrap_or_else(|| EncodeSettings::standard(threads().unwrap_or(1))))
}

/// Name of the cache, where the plan has a tier beyond the memory of a group, or keeps snapshots. There is one then,
/// whether the file mentions it or not.
fn cache_name(plan: &Plan) -> Option<String> {
    let kept = plan.cache.keeps_blocks() || plan.cache.keeps_snapshots(true);
    let said = plan.actors_of(&Role::Cache).next().map(|actor| actor.name.to_string());
    let free = || if plan.actor("cache").is_some() { "cache.blocks" } else { "cache" }.to_owned();
    kept.then(|| said.unwrap_or_else(free))
}

/// What the tier of a plan that lasts keeps, for whom and how long. Whose it is and what it holds is left open.
pub fn keeping(cache: &Cache) -> TierOptions {
    let class = |(name, retention): (&str, &Retention)| Class {
        name: name.to_owned(),
        ttl_s: u32::try_from(retention.keep.as_secs().max(1)).unwrap_or(u32::MAX),
        bytes: retention.size.unwrap_or(u64::MAX),
    };
    let tenants = cache.tenants.iter();
    let tenants = tenants.filter_map(|(name, tenant)| Some((Tenant::of(Some(name), None), tenant.size?)));
    let mut options = TierOptions::new(WriterId(0), [0; 16]);
    options.classes = cache.classes().map(class).collect();
    options.budget.total = cache.lasting().and_then(|tier| tier.size).unwrap_or(u64::MAX);
    options.budget.tenants = tenants.collect();
    options
}

/// Unit of the seats that read and write for it.
fn disk_unit(cache: &str) -> String {
    format!("{cache}.disk")
}

/// One copy of an encode actor. A model with eyes has one, whether the file mentions it or not.
struct EncodePlan {
    /// Seat and unit.
    name: String,
    settings: EncodeSettings,
}

impl EncodePlan {
    fn of(plan: &Plan, resources: &Resources) -> Result<Vec<Self>, Error> {
        let said = plan.actors_of(&Role::Encode).next();
        let Some(settings) = encode_settings(plan, resources) else {
            return said.map_or(Ok(Vec::new()), |actor| Err(Error::NoEyes(actor.name.to_string())));
        };
        let taken = plan.actor("encode").is_some();
        let name = said.map_or(if taken { "encode.images" } else { "encode" }, |actor| actor.name.as_str());
        let copy = |copy: usize| {
            let name = if settings.groups == 1 { name.to_owned() } else { format!("{name}.{copy}") };
            Self { name, settings: settings.clone() }
        };
        Ok((0..settings.groups).map(copy).collect())
    }
}

/// One group of ranks: a copy of a prefill or decode actor.
struct GroupPlan {
    /// Seat of its scheduler, unit of its seats.
    name: String,
    /// Of which it is a copy.
    actor: String,
    settings: GroupSettings,
    prefill: bool,
    /// Of its KV memory.
    layout: KvLayout,
    /// That many fit.
    blocks: usize,
    /// Set where the model keeps a state beside its blocks.
    state: Option<StateBounds>,
}

impl GroupPlan {
    /// What it can hold.
    fn capacity(&self) -> Capacity {
        let tokens = self.blocks as u64 * u64::from(self.settings.block_size);
        Capacity { requests: self.settings.sequences_max as u64, tokens }
    }

    /// All groups that compute, in the order of the plan. With a joined decode there are no prefill groups.
    fn of(plan: &Plan, resources: &Resources, driver: &Driver) -> Result<Vec<Self>, Error> {
        let mut groups = Vec::new();
        // What the groups will take together, until all have asked.
        let mut granted = Vec::new();
        for actor in &plan.actors {
            let (settings, prefill) = match &actor.settings {
                Settings::Prefill(_) if plan.joined() => continue,
                Settings::Prefill(settings) => (settings, true),
                Settings::Decode(settings) => (settings, false),
                _ => continue,
            };
            let (chunk_tokens, step_time) = cuts(plan, settings);
            let mut settings = GroupSettings { chunk_tokens, step_time, ..settings.clone() };
            if driver.predicts() {
                // Ranks of a group hold a part of its KV memory each. Nobody else has more than one yet.
                settings.memory = settings.memory.saturating_mul(settings.ranks as u64);
            }
            let layout = kv_layout(plan, resources.model.facts(), settings.block_size)?;
            if layout.paired > 0 && !settings.block_size.is_multiple_of(2) {
                let (actor, block_size) = (actor.name.to_string(), settings.block_size);
                return Err(Error::Pairs { actor, block_size });
            }
            let state = state(plan, &settings, prefill, resources, layout);
            let slots = state.map_or(0, |state| state.slots);
            let blocks = blocks(actor, &settings, layout, slots)?;
            for copy in 0..settings.groups {
                if !driver.predicts() {
                    let kv = KvMemory::granted(layout, blocks, slots);
                    granted.push(kv.map_err(|source| not_granted(actor, source))?);
                }
                let alone = settings.groups == 1;
                let name = if alone { actor.name.to_string() } else { format!("{}.{copy}", actor.name) };
                let (settings, actor) = (settings.clone(), actor.name.to_string());
                groups.push(Self { name, actor, settings, prefill, layout, blocks, state });
            }
        }
        Ok(groups)
    }
}

/// A joined decode cuts prompts as its prefill actor says.
fn cuts(plan: &Plan, settings: &GroupSettings) -> (u32, Option<Duration>) {
    let prefill = plan.actors_of(&Role::Prefill).find_map(ActorPlan::group);
    let says = prefill.filter(|_| settings.joined).unwrap_or(settings);
    (says.chunk_tokens, says.step_time)
}

/// Layout of the KV memory of a group, with blocks of `block_size` tokens.
///
/// # Errors
/// The plan keeps windows in the state, or numbers in four bits, and the model was not made for that.
pub fn kv_layout(plan: &Plan, facts: &Facts, block_size: u32) -> Result<KvLayout, Error> {
    let format = match plan.kv {
        KvFormat::F32 => millstream_kernels::KvFormat::F32,
        KvFormat::F16 => millstream_kernels::KvFormat::F16,
        KvFormat::Q8 => millstream_kernels::KvFormat::Q8,
        KvFormat::Fp4 if facts.compressed.is_none() => return Err(Error::FourBits),
        KvFormat::Fp4 => millstream_kernels::KvFormat::Fp4,
    };
    let layout = KvLayout { format, ..facts.kv_layout(block_size as usize) };
    match plan.cache.windows {
        Windows::Blocks => Ok(layout),
        Windows::State if facts.rings == Rings::NONE && facts.state.is_none() => Err(Error::NoWindows),
        Windows::State => Ok(layout.with_rings(facts.rings)),
    }
}

/// What a group keeps to where the model keeps a state. There is a slot for each sequence that owns blocks; in a prefill
/// group for as many leases too, so that it computes on while decode reads. Slots take at most half of the memory, so
/// where that is small, fewer sequences own blocks at once.
fn state(
    plan: &Plan,
    settings: &GroupSettings,
    prefill: bool,
    resources: &Resources,
    layout: KvLayout,
) -> Option<StateBounds> {
    let facts = resources.model.facts().state_in(&layout)?;
    let wanted = settings.sequences_max * if prefill { 2 } else { 1 };
    let fit = settings.memory / 2 / layout.bytes_per_slot().max(1) as u64;
    let slots = wanted.min(usize::try_from(fit).unwrap_or(wanted)).max(1);
    let replay = plan.cache.replay.tokens(facts.window, facts.exact_replay) as usize;
    let keep = facts.decoder_keep.filter(|_| plan.decoder_truncation);
    Some(StateBounds { slots, replay, keep, rewind: facts.rewind as usize })
}

/// Blocks that fit beside `slots` state slots.
fn blocks(
    actor: &ActorPlan,
    settings: &GroupSettings,
    layout: KvLayout,
    slots: usize,
) -> Result<usize, Error> {
    let (block, beside) = (layout.bytes_per_block() as u64, (slots * layout.bytes_per_slot()) as u64);
    let blocks = settings.memory.saturating_sub(beside) / block;
    if blocks == 0 {
        let (given, needed) = (settings.memory, block + beside);
        return Err(Error::Memory { actor: actor.name.to_string(), given, needed });
    }
    Ok(usize::try_from(blocks.min(1 << 24)).unwrap_or(1 << 24))
}

fn not_granted(actor: &ActorPlan, source: millstream_kernels::Error) -> Error {
    Error::NotGranted { actor: actor.name.to_string(), source: Box::new(source) }
}
