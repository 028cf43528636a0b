//! A plan on virtual time: the same graph that `serve` runs, with requests and faults drawn from a seed. Tokens are
//! computed for real, so that every answer can be held against the one that a run without faults gives.
//!
//! [`load`] draws the requests, [`report`] says what came of them.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_actors::assemble::{Assembly, Doors, Driver, Resources, assemble};
use millstream_actors::rank::StepCost;
use millstream_actors::request::{Outcome, Reply, RequestId, Submit};
use millstream_actors::sched::Reused;
use millstream_runtime::sim::{self, Faults, Sim, SimOptions};
use millstream_runtime::{Inlet, Outlet, Time};
use millstream_topology::{Plan, Settings};

use crate::mill;

pub mod load;
pub mod report;

use load::Visit;
use report::{Ledger, Report};

/// What a step costs on virtual time: a small accelerator's figures.
const COST: StepCost = StepCost { step: Duration::from_millis(4), token: Duration::from_micros(50) };
/// Replies are taken out of the graph at least this often.
const SLICE: Duration = Duration::from_millis(20);
/// After the last deadline, the graph must come to rest within this.
const REST_MAX: Duration = Duration::from_secs(120);
/// A client that found no room to say that it leaves says it again after this.
const AGAIN: Duration = Duration::from_millis(1);

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// Everything random comes from it.
    pub seed: u64,
    /// Requests of the run.
    pub requests: u32,
    /// Whether a mix of faults is drawn from the seed.
    pub faults: bool,
}

/// Runs the plan once, and once more without faults, without impatient clients and with every sequence computing all of
/// its own blocks: whatever it went through, an answer must be the same.
///
/// # Errors
/// The plan cannot be built with this model.
///
/// ```no_run
/// # fn example() -> anyhow::Result<()> {
/// use millstream::simulate::{SimulateOptions, simulate};
///
/// let source = millstream::check("examples/topologies/split.toml".as_ref())?.built()?;
/// let options = SimulateOptions { seed: 7, requests: 16, faults: true };
/// let report = simulate(&source.plan, &source.load()?, &options)?;
/// assert!(report.wrong().is_empty(), "{report}");
/// # Ok(())
/// # }
/// ```
pub fn simulate(plan: &Plan, resources: &Resources, options: &SimulateOptions) -> anyhow::Result<Report> {
    let visits = load::draw(options.seed, options.requests, resources.model.vision().is_some());
    let weather = Weather { seed: options.seed, faults: None };
    let calm = Run::of(&without_reuse(plan), resources, weather, &load::patient(&visits))?;
    let faults = options.faults.then(|| faults(plan, options.seed)).transpose()?;
    let run = Run::of(plan, resources, Weather { seed: options.seed, faults }, &visits)?;
    Ok(Report::new(options.seed, &calm, run))
}

/// The same plan, where nothing is computed for another.
fn without_reuse(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for actor in &mut plan.actors {
        if let Settings::Prefill(group) | Settings::Decode(group) = &mut actor.settings {
            group.prefix_reuse = false;
        }
    }
    plan
}

/// Faults of a seed, on what this graph claims to survive without a client noticing: the gateway holds the streams, so
/// it stays alive, and lanes inside one process lose nothing.
fn faults(plan: &Plan, seed: u64) -> anyhow::Result<Faults> {
    let gateway = mill::gateway(plan)?.seat;
    Ok(Faults { spare: vec![gateway], lossless: vec!["*".to_owned()], ..Faults::from_seed(seed) })
}

/// The seed of a run and what goes wrong in it.
struct Weather {
    seed: u64,
    faults: Option<Faults>,
}

/// One answer as its client saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) outcome: Option<Outcome>,
    /// When the last word came.
    pub(crate) ended: Time,
    /// Its client would have waited for longer than anything may take.
    pub(crate) patient: bool,
    /// Last words after the first, which must not be.
    pub(crate) again: u32,
}

impl Heard {
    fn of(visit: &Visit) -> Self {
        Self { patient: visit.submit.patience.is_none(), ..Self::default() }
    }
}

/// One run that is over.
pub(crate) struct Run {
    pub(crate) heard: BTreeMap<RequestId, Heard>,
    pub(crate) time: Time,
    pub(crate) at_rest: bool,
    pub(crate) restarts: u64,
    pub(crate) failed: Option<String>,
    pub(crate) ledgers: Vec<Ledger>,
    /// Tokens that groups looked for, and those they found.
    pub(crate) reused: Reused,
    pub(crate) digest: u64,
    /// The plan asks for a replay that is not exact, so what is said depends on what was found.
    pub(crate) approximate: bool,
}

impl Run {
    fn of(plan: &Plan, resources: &Resources, weather: Weather, visits: &[Visit]) -> anyhow::Result<Self> {
        let Assembly { graph, doors, gauges, encoders, .. } = assemble(plan, resources, Driver::Sim(COST))?;
        let Doors { submit, abandon, replies } = doors;
        let faults = weather.faults.unwrap_or_else(Faults::none);
        let mut sim = Sim::new(graph, SimOptions { seed: weather.seed, faults, ..SimOptions::default() });
        for visit in visits {
            come(&mut sim, visit, &submit);
            if let Some(after) = visit.leaves_after {
                leave(&mut sim, visit.at + after, visit.submit.request, abandon.clone());
            }
        }
        let mut heard = visits.iter().map(|visit| (visit.submit.request, Heard::of(visit))).collect();
        let last = visits.iter().map(|visit| visit.at).max().unwrap_or(Time::ZERO);
        let limit = last + mill::gateway(plan)?.settings.deadline + REST_MAX;
        let at_rest = run(&mut sim, &replies, limit, &mut heard);
        Ok(Self {
            time: heard.values().map(|heard: &Heard| heard.ended).max().unwrap_or(Time::ZERO),
            at_rest,
            restarts: restarts(&sim),
            failed: sim.failed().map(|exit| format!("{exit:?}")),
            ledgers: gauges
                .iter()
                .map(|group| Ledger::of(group))
                .chain(encoders.iter().map(|encode| Ledger::of_eyes(encode)))
                .collect(),
            reused: Reused {
                sought: gauges.iter().map(|group| group.tokens_sought.get()).sum(),
                found: gauges.iter().map(|group| group.tokens_found.get()).sum(),
                replayed: gauges.iter().map(|group| group.tokens_replayed.get()).sum(),
            },
            digest: sim.digest(),
            approximate: !plan.cache.replay.is_exact()
                && gauges.iter().any(|group| group.slots_total.get() > 0),
            heard,
        })
    }
}

/// A client comes; one that finds no room goes away, as from a full server.
fn come(sim: &mut Sim, visit: &Visit, door: &Inlet<Submit>) {
    let (submit, door) = (visit.submit.clone(), door.clone());
    sim.at(visit.at, move |_| drop(door.offer(submit)));
}

/// A client goes away, and says so until it is heard.
fn leave(sim: &mut Sim, at: Time, request: RequestId, door: Inlet<RequestId>) {
    sim.at(at, move |sim| {
        if door.offer(request).is_err() {
            let again = sim.now() + AGAIN;
            leave(sim, again, request, door);
        }
    });
}

/// Runs until nothing is left to do, taking the replies out; true when the graph came to rest before the limit.
fn run(sim: &mut Sim, replies: &Outlet<Reply>, limit: Time, heard: &mut BTreeMap<RequestId, Heard>) -> bool {
    loop {
        let until = limit.min(sim.now() + SLICE);
        let ended = sim.run_until_idle(until);
        let mut taken = 0;
        while let Some(reply) = replies.try_recv() {
            hear(heard, reply, sim.now());
            taken += 1;
        }
        match ended {
            sim::Outcome::Idle if taken == 0 => return true,
            sim::Outcome::Limit if sim.now() >= limit => return false,
            sim::Outcome::Idle | sim::Outcome::Limit | sim::Outcome::Heard => {}
        }
    }
}

fn hear(heard: &mut BTreeMap<RequestId, Heard>, reply: Reply, now: Time) {
    let Some(heard) = heard.get_mut(&reply.request()) else { return };
    match reply {
        Reply::Text { text, .. } => heard.text.push_str(&text),
        Reply::Logits { .. } => {}
        Reply::End { outcome, .. } => {
            heard.again += u32::from(heard.outcome.is_some());
            heard.outcome = Some(outcome);
            heard.ended = now;
        }
    }
}

/// Deaths of units, each counted once.
fn restarts(sim: &Sim) -> u64 {
    let units: BTreeMap<String, u64> =
        sim.seats().into_iter().map(|seat| (seat.unit, seat.restarts)).collect();
    units.values().sum()
}
