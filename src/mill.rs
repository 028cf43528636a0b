//! A running graph with its desk: what `serve`, `chat` and `oracle` start and stop. The keeper, a slow tick, watches for
//! what no message tells: a gateway that died with its streams, a request that everyone forgot, a group that stands still.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::assemble::{Driver, Resources, assemble};
use millstream_actors::gauges::{CacheGauges, EncodeGauges, GroupGauges};
use millstream_runtime::live::{self, LiveOptions, Running};
use millstream_topology::{GatewaySettings, Plan, Role, Settings};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock;
use crate::costs::Costs;
use crate::desk::{Desk, DeskBounds};
use crate::meters::Meters;
use crate::source::Refused;

/// Between two looks of the keeper.
const TICK: Duration = Duration::from_millis(250);
/// Between two times that the costs of steps are kept.
const KEEPING: Duration = Duration::from_secs(300);
/// A stream may outlive the longest deadline by this much before the desk forgets it.
const DEADLINE_SLACK: Duration = Duration::from_secs(30);
/// Between two looks whether all is written.
const WRITTEN_TICK: Duration = Duration::from_millis(20);
/// For messages still under way after the last stream has ended.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// A running graph. Stop or drain it before it is dropped.
pub struct Mill {
    running: Arc<Running>,
    desk: Arc<Desk>,
    gauges: Vec<Arc<GroupGauges>>,
    encoders: Vec<Arc<EncodeGauges>>,
    cache: Option<Arc<CacheGauges>>,
    reach: u32,
    progress: Arc<Progress>,
    costs: Arc<Costs>,
    keeper: JoinHandle<()>,
}

impl Mill {
    /// Assembles the plan and starts it on the current tokio runtime. `replies_max` bounds what a slow reader may leave
    /// unread.
    ///
    /// # Errors
    /// The plan cannot be built with this model, or a seat cannot be started.
    pub async fn start(plan: &Plan, resources: &Resources, replies_max: usize) -> anyhow::Result<Self> {
        Self::start_with(plan, resources, (replies_max, None)).await
    }

    /// The same; what steps cost is read from a folder, and kept there for the next run.
    ///
    /// # Errors
    /// As for [`Mill::start`].
    pub async fn start_with(
        plan: &Plan,
        resources: &Resources,
        (replies_max, costs): (usize, Option<PathBuf>),
    ) -> anyhow::Result<Self> {
        let gateway = gateway(plan)?;
        let unbuildable = |error| Refused::NotBuilt(format!("millstream: {:#}", anyhow::Error::from(error)));
        let assembly = assemble(plan, resources, Driver::Live).map_err(unbuildable)?;
        let costs = Arc::new(Costs::read(costs, assembly.costs));
        let running =
            live::start(assembly.graph, LiveOptions::default()).await.context("cannot start the graph")?;
        let running = Arc::new(running);
        let bounds = DeskBounds {
            streams_max: gateway.settings.requests_max,
            replies_max,
            age_max: gateway.settings.deadline + DEADLINE_SLACK,
        };
        let desk = Desk::open(assembly.doors, bounds, Meters::new().context("cannot make the meters")?);
        let progress = Arc::new(Progress::new(assembly.gauges.len()));
        let keeper = Keeper {
            running: Arc::clone(&running),
            desk: Arc::clone(&desk),
            gauges: assembly.gauges.clone(),
            progress: Arc::clone(&progress),
            costs: Arc::clone(&costs),
            gateway: gateway.seat,
        };
        let (gauges, encoders, cache) = (assembly.gauges, assembly.encoders, assembly.cache);
        let (reach, keeper) = (assembly.reach.tokens, tokio::spawn(keeper.keep()));
        Ok(Self { running, desk, gauges, encoders, cache, reach, progress, costs, keeper })
    }

    /// The graph itself: its seats and lanes, and how to kill a seat.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Where requests are handed in.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Tokens of prompt and answer together that a request may have.
    pub fn reach(&self) -> u32 {
        self.reach
    }

    /// What the groups show of themselves.
    pub fn gauges(&self) -> &[Arc<GroupGauges>] {
        &self.gauges
    }

    /// What the encode actors show of themselves; none for a model without eyes.
    pub fn encoders(&self) -> &[Arc<EncodeGauges>] {
        &self.encoders
    }

    /// What the cache shows of itself, where the plan has a prefix store.
    pub fn cache(&self) -> Option<&Arc<CacheGauges>> {
        self.cache.as_ref()
    }

    /// Waits until what is to be kept is written, or for too long.
    async fn written(&self) {
        let Some(cache) = &self.cache else { return };
        let mut ticks = tokio::time::interval(WRITTEN_TICK);
        let written = async {
            // What was sealed last may be on its way to the cache still.
            for _ in 0..3 {
                ticks.tick().await;
            }
            while cache.unwritten_bytes.get() > 0 {
                ticks.tick().await;
            }
        };
        if tokio::time::timeout(SETTLE_MAX, written).await.is_err() {
            tracing::warn!("stopped before all blocks were written to the prefix store");
        }
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Takes no new requests, waits at most `limit` for those inside, then stops. True when all of them ended by
    /// themselves.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.desk.close();
        let emptied = tokio::time::timeout(limit, self.desk.empty()).await.is_ok();
        if emptied {
            self.written().await;
            self.running.drain(SETTLE_MAX).await;
        }
        self.stop().await;
        emptied
    }

    /// Stops now; open streams are cut.
    pub async fn stop(&self) {
        self.desk.close();
        self.keeper.abort();
        self.running.stop().await;
        self.costs.write();
    }
}

impl Drop for Mill {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// The gateway of a plan: its seat and settings.
pub(crate) struct GatewayFacts {
    pub(crate) seat: String,
    pub(crate) settings: GatewaySettings,
}

/// A request's body where the topology does not say how large it may be...
const BODY_MAX: u64 = 4 << 20;
/// ...and where the model has eyes: a few photographs, which a body holds a third larger than their files.
const BODY_MAX_IMAGES: u64 = 32 << 20;

impl GatewayFacts {
    /// Bytes of a request's body, and of all of its images.
    pub(crate) fn body_max(&self, resources: &Resources) -> u64 {
        let usual = if resources.model.vision().is_some() { BODY_MAX_IMAGES } else { BODY_MAX };
        self.settings.body_max.unwrap_or(usual)
    }
}

/// Finds the gateway of a plan.
///
/// # Errors
/// There is none, which `check` rules out for files.
pub(crate) fn gateway(plan: &Plan) -> anyhow::Result<GatewayFacts> {
    let actor = plan.actors_of(&Role::Gateway).next().context("the plan has no gateway")?;
    match &actor.settings {
        Settings::Gateway(settings) => {
            Ok(GatewayFacts { seat: actor.name.to_string(), settings: settings.clone() })
        }
        _ => anyhow::bail!("the gateway's settings are missing"),
    }
}

/// Since when each group has stood still with work to do. Written by the keeper, read by `/health`.
#[derive(Debug)]
pub(crate) struct Progress {
    groups: Mutex<Vec<Seen>>,
}

#[derive(Clone, Debug)]
struct Seen {
    steps: u64,
    /// The last moment at which the group had advanced, or had nothing to do.
    well: Instant,
}

impl Progress {
    fn new(groups: usize) -> Self {
        Self { groups: Mutex::new(vec![Seen { steps: 0, well: clock::now() }; groups]) }
    }

    fn look(&self, gauges: &[Arc<GroupGauges>]) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for (seen, gauges) in groups.iter_mut().zip(gauges) {
            let steps = gauges.steps.get();
            let idle = gauges.running.get() + gauges.waiting.get() == 0;
            if idle || steps != seen.steps {
                *seen = Seen { steps, well: clock::now() };
            }
        }
    }

    /// How long a group, by its place, has had work and made no step.
    pub(crate) fn still(&self, group: usize) -> Duration {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.get(group).map_or(Duration::ZERO, |seen| clock::now().duration_since(seen.well))
    }
}

/// What the slow tick looks after.
struct Keeper {
    running: Arc<Running>,
    desk: Arc<Desk>,
    gauges: Vec<Arc<GroupGauges>>,
    progress: Arc<Progress>,
    costs: Arc<Costs>,
    /// The seat whose death loses all streams.
    gateway: String,
}

impl Keeper {
    async fn keep(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut lives = 0;
        let mut kept = clock::now();
        loop {
            ticks.tick().await;
            if clock::now().duration_since(kept) >= KEEPING {
                kept = clock::now();
                let costs = Arc::clone(&self.costs);
                tokio::task::spawn_blocking(move || costs.write());
            }
            self.progress.look(&self.gauges);
            self.desk.sweep();
            let now = self.gateway_lives();
            if now != lives {
                lives = now;
                self.desk.cut_all();
            }
        }
    }

    /// How often the gateway was built again; one more when it is dead for good.
    fn gateway_lives(&self) -> u64 {
        let seats = self.running.seats();
        let gateway = seats.iter().find(|seat| seat.name == self.gateway);
        gateway.map_or(0, |seat| seat.restarts + u64::from(seat.dead))
    }
}
