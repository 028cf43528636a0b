//! Gives every seat its actor, as a factory that is called again when the seat is restarted.

use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::{CpuBackend, Facts};
use millstream_runtime::{Budget, GraphBuilder, HoldOut, ReplyOut, Seat};
use millstream_topology::{GatewaySettings, Plan, PrefillRule, Role, Settings};

use super::lanes::{GroupEnds, Lanes, Scheduling, Seats, WISHES};
use super::{Assembly, Doors, Driver, EncodePlan, GroupPlan, Resources, cache_name, disk_unit, keeping};
use crate::balance::Rule;
use crate::cache::{Cache, Lasting};
use crate::cost::Known;
use crate::decode::{Decode, PrefillLane};
use crate::detokenizer::Detokenizer;
use crate::disk::{Disk, DiskCost, HollowDisk, HollowStore};
use crate::encode::{Encode, EncodeBounds, EncodeLanes, Sight};
use crate::error::Error;
use crate::gateway::{Gateway, GatewayBounds, GatewayLanes};
use crate::gauges::{CacheGauges, EncodeGauges, Gauge, GroupGauges};
use crate::group::{Group, GroupLanes};
use crate::kv::{HashChain, Identity};
use crate::message::{
    CacheAnswer, CacheMessage, DecodeMessage, DetokenizerMessage, EncodeMessage, GatewayMessage,
    PrefillMessage, RouterMessage, Text, Tokenize,
};
use crate::prefill::{DecodeLanes, Prefill};
use crate::request::Reply;
use crate::router::{Choosing, EncodeDoor, Router, RouterLanes};
use crate::sched::Bounds;
use crate::store::{Buffers, Payload, TierOptions, Told, Wish};
use crate::tokenizer::{Reach, Reading, TokenizerActor, TokenizerLanes};

/// Host memory for blocks on their way between groups and a store that lasts, where the file does not say.
const HOST_BYTES: u64 = 1 << 28;
/// Memory of blocks on their way between groups that is kept, where nothing stores them.
const BETWEEN_BYTES: u64 = 1 << 26;
/// What a disk takes in the simulator: a fast local one.
const DISK_COST: DiskCost = DiskCost { wish: Duration::from_micros(100), byte: 1.0, written: 0.0 };
/// Messages between shell and gateway.
const DOOR: usize = 1024;

/// The graph as it grows.
pub(super) struct Wiring<'a> {
    pub plan: &'a Plan,
    pub resources: &'a Resources,
    pub driver: Driver,
    pub graph: GraphBuilder,
    /// Memory for blocks on their way.
    pub buffers: Buffers,
    /// What a tier that lasts holds in a simulation of capacity.
    pub hollow: HollowStore,
    /// Digest of the vocabulary, where blocks outlive the process.
    pub vocabulary: Option<[u8; 32]>,
}

/// The whole graph.
pub(super) fn wire(
    plan: &Plan,
    resources: &Resources,
    driver: Driver,
    (groups, encoders): (Vec<GroupPlan>, Vec<EncodePlan>),
) -> Result<Assembly, Error> {
    let buffers = buffers(plan, &groups, &driver)?;
    let vocabulary = resources.store.as_ref().map(|_| resources.tokenizer.digest());
    let (graph, hollow) = (GraphBuilder::new(), HollowStore::default());
    let mut wiring = Wiring { plan, resources, driver, graph, buffers, hollow, vocabulary };
    let seats = Seats::new(&mut wiring, &groups, &encoders)?;
    let lanes = Lanes::new(&mut wiring, &seats, &groups)?;
    let (doors, replies) = wiring.doors(&seats.gateway);
    let (gateway, tokenizer) = (wiring.settings()?.clone(), wiring.name(&Role::Tokenizer)?);
    let reach = wiring.reach(&gateway, &groups);
    wiring.budgets(&groups, &encoders);
    let Lanes { tokenize, cancel, close, tokenizer_failures: failures, prompts, .. } = lanes;
    wiring.gateway(seats.gateway, &gateway, GatewayLanes { tokenize, cancel, close, replies, tokenizer });
    let chain = groups.iter().find_map(|group| wiring.chain(group));
    let keys = chain.clone();
    let about = groups.first().map(|group| wiring.about(group));
    wiring.tokenizer(seats.tokenizer, reach, chain, TokenizerLanes { prompts, failures });
    let (doors_to_eyes, eyes): (Vec<_>, Vec<_>) = lanes.encoders.into_iter().unzip();
    wiring.detokenizer(seats.detokenizer, lanes.texts)?;
    let to_gateway = RouterLanes { failures: lanes.router_failures, gateway: wiring.name(&Role::Gateway)? };
    wiring.router(seats.router, (&lanes.groups, &groups), doors_to_eyes, to_gateway);
    let encoders = seats.encoders.into_iter().zip(encoders).zip(eyes);
    let encoders = encoders.map(|((seat, plan), lanes)| wiring.encode(seat, &plan, lanes)).collect();
    let (mut to_decodes, mut to_prefills) = (lanes.to_decodes.into_iter(), lanes.to_prefills.into_iter());
    let (mut gauges, mut costs, mut prefills, mut to_groups) = (Vec::new(), Vec::new(), 0, Vec::new());
    for (((plan, ends), seat), rank) in
        groups.into_iter().zip(lanes.groups).zip(seats.schedulers).zip(seats.ranks)
    {
        let GroupEnds { lanes, done, answers, .. } = ends;
        to_groups.extend(answers.map(|answers| (plan.name.clone(), answers)));
        if let (Some(rank), Some(done)) = (rank, done) {
            wiring.rank(rank, &plan, done);
        }
        let group = wiring.group(plan, lanes);
        gauges.push(Arc::clone(&group.gauges));
        costs.push(Arc::clone(&group.known));
        match seat {
            Scheduling::Prefill(seat) => {
                wiring.prefill(seat, prefills, group, to_decodes.next().unwrap_or_default());
                prefills += 1;
            }
            Scheduling::Decode(seat) => wiring.decode(seat, group, to_prefills.next().unwrap_or_default()),
        }
    }
    let (wishes, tolds): (Vec<_>, Vec<_>) = lanes.disks.into_iter().unzip();
    seats.disks.into_iter().zip(tolds).for_each(|(seat, told)| wiring.disk(seat, told));
    let cache = seats.cache.map(|seat| wiring.cache(seat, to_groups, (wishes, keys.as_ref(), about)));
    let graph = wiring.graph.finish().map_err(Error::Graph)?;
    Ok(Assembly { graph, doors, gauges, costs, encoders, cache, reach })
}

/// Bytes of blocks in host memory.
fn host_bytes(plan: &Plan) -> u64 {
    let host = plan.cache.tiers.iter().find(|tier| tier.kind == "host");
    let without = if plan.cache.keeps_blocks() { HOST_BYTES } else { 0 };
    host.and_then(|tier| tier.size).unwrap_or(without)
}

/// Whether memory is taken from the system at the start.
pub(super) fn reserves(plan: &Plan, driver: &Driver) -> bool {
    plan.reserve && matches!(driver, Driver::Live)
}

/// Memory for blocks between groups, host memory, and disks.
fn buffers(plan: &Plan, groups: &[GroupPlan], driver: &Driver) -> Result<Buffers, Error> {
    let block = groups.first().map_or(0, |group| group.layout.bytes_per_block());
    let host = host_bytes(plan);
    if plan.cache.keeps_blocks() && host < block as u64 {
        return Err(Error::Host { given: host, needed: block as u64 });
    }
    let stored = cache_name(plan).is_some();
    let buffers = Buffers::new(block, if stored { host } else { BETWEEN_BYTES });
    if stored && reserves(plan, driver) {
        let beside = groups.iter().map(|group| group.blocks * group.layout.bytes_per_block()).sum();
        buffers.reserve(beside).map_err(|source| Error::HostNotGranted { wanted: host, source })?;
    }
    Ok(buffers)
}

/// What a group is made of, each time its unit is started.
pub(super) struct GroupRecipe {
    pub plan: GroupPlan,
    pub bounds: Bounds,
    pub lanes: GroupLanes,
    pub gauges: Arc<GroupGauges>,
    pub known: Arc<Known>,
}

impl GroupRecipe {
    fn group(&self) -> Group {
        let (gauges, known) = (Arc::clone(&self.gauges), Arc::clone(&self.known));
        Group::new(self.bounds.clone(), self.lanes.clone(), gauges, known)
    }
}

impl Wiring<'_> {
    /// Name of the actor of a control role.
    pub(super) fn name(&self, role: &Role) -> Result<String, Error> {
        let actor = self.plan.actors_of(role).next().ok_or_else(|| Error::Missing(role.to_string()))?;
        Ok(actor.name.to_string())
    }

    /// A seat of a control role; it is a unit of its own.
    pub(super) fn control<M: Send + 'static>(&mut self, role: &Role) -> Result<Seat<M>, Error> {
        let name = self.name(role)?;
        Ok(self.graph.seat(&name, &name))
    }

    fn settings(&self) -> Result<&GatewaySettings, Error> {
        let settings = self.plan.actors.iter().find_map(|actor| match &actor.settings {
            Settings::Gateway(settings) => Some(settings),
            _ => None,
        });
        settings.ok_or_else(|| Error::Missing(Role::Gateway.to_string()))
    }

    fn budgets(&mut self, groups: &[GroupPlan], encoders: &[EncodePlan]) {
        let limits = &self.plan.limits;
        let budget = Budget { restarts: limits.restarts, within: limits.restarts_within };
        let control = [Role::Gateway, Role::Tokenizer, Role::Router, Role::Detokenizer];
        let control = control.iter().filter_map(|role| self.name(role).ok()).collect::<Vec<_>>();
        let groups = groups.iter().map(|group| &group.name);
        let lasts = self.resources.store.is_some();
        let disk = cache_name(self.plan).filter(|_| lasts).map(|name| disk_unit(&name));
        let others =
            encoders.iter().map(|encode| encode.name.clone()).chain(cache_name(self.plan)).chain(disk);
        for unit in control.iter().chain(groups).chain(&others.collect::<Vec<_>>()) {
            self.graph.budget(unit, budget);
        }
    }

    /// How long prompt and answer may be together: what the model's context and every group that computes whole
    /// sequences can hold.
    fn reach(&self, gateway: &GatewaySettings, groups: &[GroupPlan]) -> Reach {
        let held = groups.iter().map(|group| group.blocks as u64 * u64::from(group.settings.block_size));
        let least = held.min().unwrap_or(0).min(u64::from(self.resources.model.facts().context));
        Reach { tokens: least as u32, answer: gateway.tokens_max }
    }

    fn doors(&mut self, gateway: &Seat<GatewayMessage>) -> (Doors, HoldOut<Reply>) {
        let abandon = self.graph.urgent_inlet("http.abandon", gateway, DOOR, GatewayMessage::Abandon);
        let submit = self.graph.inlet("http.submit", gateway, DOOR, GatewayMessage::Submit);
        let (out, replies) = self.graph.outlet("gateway.replies", gateway, DOOR);
        (Doors { submit, abandon, replies }, out)
    }

    fn gateway(&mut self, seat: Seat<GatewayMessage>, settings: &GatewaySettings, lanes: GatewayLanes) {
        let bounds = GatewayBounds { requests_max: settings.requests_max, patience: settings.deadline };
        self.graph.actor(seat, move || Gateway::new(bounds, lanes.clone()));
    }

    /// How the blocks of a group are named, when it reuses them: one way for the whole plan, since `block_size` is one
    /// number. As long as blocks stay in the memory of this process, the model's facts tell it from any other; where they
    /// outlive it, so does the digest of its files.
    pub(super) fn chain(&self, group: &GroupPlan) -> Option<HashChain> {
        let model = model(self.resources.model.facts());
        let layout = format!("{:?}", group.layout);
        // What is computed behind a replay depends on its length; products, on how activations are rounded.
        let arithmetic = format!("{} {:?}", self.plan.activations, group.state.map(|state| state.replay));
        let files = self.resources.store.as_ref().map(|store| store.model);
        let identity = Identity {
            model: &model,
            files: files.as_ref(),
            tokenizer: self.vocabulary.as_ref(),
            adapter: None,
            layout: &layout,
            arithmetic: &arithmetic,
        };
        let chain = || HashChain::of(&identity, group.settings.block_size);
        group.settings.prefix_reuse.then(chain)
    }

    /// What the blocks of a group are, for people who look after a store.
    fn about(&self, group: &GroupPlan) -> Vec<u8> {
        let hex = |digest: [u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let about = serde_json::json!({
            "model": self.plan.served_name(),
            "files": self.resources.store.as_ref().map(|store| hex(store.model)),
            "kv": self.plan.kv.as_str(),
            "block_tokens": group.settings.block_size,
            "block_bytes": group.layout.bytes_per_block(),
            "layout": format!("{:?}", group.layout),
            "program": concat!("millstream ", env!("CARGO_PKG_VERSION")),
        });
        about.to_string().into_bytes()
    }

    fn tokenizer(
        &mut self,
        seat: Seat<Tokenize>,
        reach: Reach,
        chain: Option<HashChain>,
        lanes: TokenizerLanes,
    ) {
        let Resources { tokenizer, template, model, .. } = self.resources.clone();
        let reading = Reading { tokenizer, template, model, chain };
        self.graph.actor(seat, move || TokenizerActor::new(reading.clone(), reach, lanes.clone()));
    }

    fn detokenizer(
        &mut self,
        seat: Seat<DetokenizerMessage>,
        texts: HoldOut<Vec<Text>>,
    ) -> Result<(), Error> {
        let (tokenizer, gateway) = (Arc::clone(&self.resources.tokenizer), self.name(&Role::Gateway)?);
        self.graph
            .actor(seat, move || Detokenizer::new(Arc::clone(&tokenizer), texts.clone(), gateway.clone()));
        Ok(())
    }

    fn router(
        &mut self,
        seat: Seat<RouterMessage>,
        (ends, groups): (&[GroupEnds], &[GroupPlan]),
        encoders: Vec<EncodeDoor>,
        lanes: RouterLanes,
    ) {
        let doors = |prefill: bool| {
            let picked = ends.iter().zip(groups).filter(|(_, group)| group.prefill == prefill);
            picked.map(|(ends, _)| ends.door.clone()).collect::<Vec<_>>()
        };
        let (prefills, decodes) = (doors(true), doors(false));
        let sizes = groups.first().map(|group| (group.settings.chunk_tokens, group.settings.block_size));
        let (chunk_tokens, block_size) = sizes.unwrap_or((1, 1));
        let work = self.resources.model.facts().work.clone();
        let choosing = Choosing { rule: rule(self.plan), work, chunk_tokens, block_size };
        self.graph.actor(seat, move || {
            let how = (lanes.clone(), choosing.clone());
            Router::new(prefills.clone(), decodes.clone(), encoders.clone(), how)
        });
    }

    fn encode(
        &mut self,
        seat: Seat<EncodeMessage>,
        plan: &EncodePlan,
        lanes: EncodeLanes,
    ) -> Arc<EncodeGauges> {
        let (threads, cost) = match &self.driver {
            Driver::Live => (plan.settings.threads, Duration::ZERO),
            Driver::Sim(cost) => (1, cost.token),
            Driver::Predicted(_) => (1, Duration::ZERO),
        };
        let (cache, waiting_max) = (plan.settings.cache, plan.settings.waiting_max);
        let bounds = EncodeBounds { cache, waiting_max, cost };
        let gauges = Arc::new(EncodeGauges { name: plan.name.clone(), ..EncodeGauges::default() });
        let (model, shown) = (Arc::clone(&self.resources.model), Arc::clone(&gauges));
        self.graph.actor(seat, move || {
            let sight = Sight { model: Arc::clone(&model), backend: Box::new(CpuBackend::new(threads, &[])) };
            Encode::new(sight, bounds, lanes.clone(), Arc::clone(&shown))
        });
        gauges
    }

    fn cache(
        &mut self,
        seat: Seat<CacheMessage>,
        groups: Vec<(String, ReplyOut<CacheAnswer>)>,
        (disks, chain, about): (Vec<HoldOut<Wish>>, Option<&HashChain>, Option<Vec<u8>>),
    ) -> Arc<CacheGauges> {
        let bytes = (host_bytes(self.plan), self.plan.cache.snapshots.unwrap_or(0));
        let lasts = self.resources.store.is_some();
        let classes = self.plan.cache.classes().filter(|_| lasts);
        let classes = classes.map(|(name, _)| (name.to_owned(), Gauge::default())).collect();
        let gauges = Arc::new(CacheGauges { classes, ..CacheGauges::default() });
        let kept = TierOptions { about: about.map(Payload::from), ..keeping(&self.plan.cache) };
        let (shown, store) = (Arc::clone(&gauges), self.resources.store.clone().zip(chain.cloned()));
        self.graph.actor(seat, move || {
            let lasting = store.as_ref().map(|(store, chain)| {
                let (writer, layout) = (store.next_writer(), *chain.seed().as_bytes());
                let options = TierOptions { writer, layout, wishes: WISHES, ..kept.clone() };
                let (block_size, disks) = (chain.block_size(), disks.clone());
                Lasting { options, block_size, began: store.began, disks }
            });
            Cache::new(bytes, lasting, groups.clone(), Arc::clone(&shown))
        });
        gauges
    }

    fn disk(&mut self, seat: Seat<Wish>, told: ReplyOut<Told>) {
        let Some(store) = self.resources.store.clone() else { return };
        let cost = match &self.driver {
            Driver::Live => DiskCost::default(),
            Driver::Sim(_) => DISK_COST,
            Driver::Predicted(predicted) => {
                let (cost, objects) = (predicted.disk, self.hollow.clone());
                return self.graph.actor(seat, move || HollowDisk::new(objects.clone(), told.clone(), cost));
            }
        };
        let buffers = self.buffers.clone();
        self.graph
            .actor(seat, move || Disk::new(Arc::clone(&store.blob), buffers.clone(), told.clone(), cost));
    }

    fn prefill(
        &mut self,
        seat: Seat<PrefillMessage>,
        number: usize,
        group: GroupRecipe,
        lanes: Vec<DecodeLanes>,
    ) {
        let lease = group.plan.settings.lease;
        self.graph.actor(seat, move || Prefill::new(number, group.group(), lanes.clone(), lease));
    }

    fn decode(&mut self, seat: Seat<DecodeMessage>, group: GroupRecipe, lanes: Vec<PrefillLane>) {
        self.graph.actor(seat, move || Decode::new(group.group(), lanes.clone()));
    }
}

/// How prefill groups are compared.
fn rule(plan: &Plan) -> Rule {
    match plan.prefill_rule() {
        PrefillRule::Earliest => Rule::Earliest,
        PrefillRule::CacheAware => Rule::CacheAware,
        PrefillRule::RoundRobin => Rule::RoundRobin,
        PrefillRule::LeastLoaded => Rule::LeastLoaded,
    }
}

/// What tells a model from others in a process.
pub(super) fn model(facts: &Facts) -> String {
    format!("{} {} {}", facts.family, facts.parameters, facts.bytes)
}

#[cfg(test)]
mod tests {
    use millstream_kernels::{KvFormat, KvLayout};

    use super::*;

    #[test]
    fn blocks_without_windows_have_other_names() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle/tiny-gemma3");
        let resources = Resources::load(folder.as_ref()).expect("the checkpoint is in the tree");
        let facts = resources.model.facts();
        let blocks = facts.kv_layout(16);
        let layouts = [blocks, blocks.with_rings(facts.rings), KvLayout { format: KvFormat::F16, ..blocks }];
        let mut names: Vec<_> = layouts.map(|layout| format!("{layout:?}")).into();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
