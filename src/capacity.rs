//! How much a plan can do: the graph that `serve` runs on virtual time, with a trace or a drawn workload instead of clients.
//! Nothing is computed: steps take as long as a cost model says, tokens are made up, and blocks are numbers of bytes. What is
//! scheduled, routed, kept and evicted is what the real actors schedule, route, keep and evict.
//!
//! `crowd` is the clients, `meter` and `histogram` count, `report` says what came of it; `table`, `charts` and
//! `html` show that. `figures` are the speeds of devices, links and stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use millstream_actors::assemble::{Assembly, Doors, Driver, LastingStore, Predicted, Resources, assemble};
use millstream_actors::rank::predicted::Predict;
use millstream_actors::store::Stamp;
use millstream_runtime::blob::Memory;
use millstream_runtime::{Faults, Outcome, Sim, SimOptions, Time};
use millstream_topology::{Plan, Settings};

use crate::mill;
use crate::workload::{Talk, TraceError};

pub mod charts;
mod crowd;
pub mod figures;
mod histogram;
pub mod html;
mod meter;
pub mod report;
pub mod table;

use crowd::Crowd;
use figures::Figures;
pub use histogram::Histogram;
use meter::{Groups, Meter};
pub use report::Report;

/// After the last answer the graph must come to rest within this: a lease, a sweep of the cache.
const REST: Duration = Duration::from_secs(65);

/// How a simulation runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of everything random but the workload.
    pub seed: u64,
    /// Whether a mix of faults is drawn from the seed.
    pub faults: bool,
    /// The most requests that come.
    pub requests: u64,
    /// Talks come so many times as fast as the workload says.
    pub speed: f64,
    /// Steps that come out alike are run as one. It changes how long the simulation takes, and nothing else.
    pub leaps: bool,
}

/// The most requests of one simulation.
pub const REQUESTS_MAX: u64 = 1 << 40;

impl Default for Options {
    /// Seed 1, no faults, all requests as they come.
    fn default() -> Self {
        Self { seed: 1, faults: false, requests: REQUESTS_MAX, speed: 1.0, leaps: true }
    }
}

/// What is simulated.
pub struct Setting<'a> {
    /// The plan; its `block_size` should be that of the workload.
    pub plan: &'a Plan,
    /// Of its model nothing but the facts is asked.
    pub resources: &'a Resources,
    /// How long steps take, by the name of the actor.
    pub predict: BTreeMap<String, Arc<dyn Predict>>,
    /// Of links and stores.
    pub figures: &'a Figures,
}

/// The plan with blocks of another size.
pub fn with_blocks(plan: &Plan, tokens: u32) -> Plan {
    let mut plan = plan.clone();
    for actor in &mut plan.actors {
        if let Settings::Prefill(group) | Settings::Decode(group) = &mut actor.settings {
            group.block_size = tokens;
        }
    }
    plan
}

/// Runs a workload through a plan.
///
/// # Errors
/// The plan cannot be built, or a line of the trace is wrong.
pub fn run(
    setting: &Setting<'_>,
    talks: impl Iterator<Item = Result<Talk, TraceError>>,
    options: &Options,
) -> anyhow::Result<Report> {
    let Setting { plan, figures, predict, .. } = setting;
    let meter = Arc::new(Meter::default());
    let disk = figures.disk(plan.cache.lasting().map(|tier| tier.kind.as_str()));
    let predicted = Predicted { predict: predict.clone(), watch: meter.clone(), leaps: options.leaps, disk };
    let resources = hollow(plan, setting.resources);
    let assembly = assemble(plan, &resources, Driver::Predicted(predicted))?;
    let Assembly { graph, doors, gauges, cache, .. } = assembly;
    let groups = Groups::of(plan, &gauges);
    meter.set_groups(groups.count());
    let mut sim = Sim::new(graph, sim_options(plan, figures, options)?);
    let block_size = plan.actors.iter().find_map(|actor| actor.group()).map_or(1, |group| group.block_size);
    let mut crowd = Crowd::new(talks, (options.speed, options.requests), (block_size, Arc::clone(&meter)));
    let deadline = mill::gateway(plan)?.settings.deadline;
    serve(&mut sim, &mut crowd, &doors, deadline)?;
    sim.run_until(sim.now() + REST);
    // What came after the last answer, if anything.
    crowd.hear(&doors.replies, sim.now());
    let failed = sim.failed().map(|exit| format!("{exit:?}"));
    Ok(Report::new(report::Finished {
        setting,
        options,
        crowd,
        meter: &meter,
        groups,
        gauges,
        cache,
        failed,
    }))
}

/// The same resources with a store for the tier that lasts, which holds numbers.
fn hollow(plan: &Plan, resources: &Resources) -> Resources {
    let (model, writer, began) = ([0; 32], Arc::new(AtomicU64::new(1)), Stamp(0));
    let store =
        plan.cache.lasts().then(|| LastingStore { blob: Arc::new(Memory::new()), model, writer, began });
    Resources { store, ..resources.clone() }
}

fn sim_options(plan: &Plan, figures: &Figures, options: &Options) -> anyhow::Result<SimOptions> {
    let spare = vec![mill::gateway(plan)?.seat];
    let faults = match options.faults {
        true => Faults { spare, lossless: vec!["*".to_owned()], ..Faults::from_seed(options.seed) },
        false => Faults::none(),
    };
    Ok(SimOptions {
        seed: options.seed,
        faults,
        journal: false,
        links: figures.links(),
        ..SimOptions::default()
    })
}

/// Lets everybody come, and waits until all are answered.
fn serve<T>(sim: &mut Sim, crowd: &mut Crowd<T>, doors: &Doors, deadline: Duration) -> anyhow::Result<()>
where
    T: Iterator<Item = Result<Talk, TraceError>>,
{
    loop {
        let Some(next) = crowd.next()? else {
            let limit = sim.now() + deadline + REST;
            let outcome = sim.run_until_heard(limit);
            crowd.hear(&doors.replies, sim.now());
            if crowd.is_answered() && crowd.next()?.is_none() || outcome != Outcome::Heard {
                return Ok(());
            }
            continue;
        };
        if sim.now() < next && sim.run_until_heard(next) == Outcome::Idle {
            sim.run_until(next);
        }
        crowd.hear(&doors.replies, sim.now());
        crowd.come(&doors.submit, sim.now());
    }
}

/// So many seconds.
fn seconds(time: Time) -> f64 {
    time.as_nanos() as f64 / 1e9
}
