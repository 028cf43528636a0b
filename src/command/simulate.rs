//! `simulate`: real tokens on virtual time under faults, one line a seed; or, with a workload, how much a topology can do.
//! Exit code 1 when something that must hold does not.

mod capacity;

use super::Done;
use super::files::{say, tell};
use crate::args::{FaultMix, SimulateArgs};
use crate::simulate::{SimulateOptions, simulate as run};
use crate::source;

/// Requests of a seed, where it is not said.
const REQUESTS: u32 = 32;
const REQUESTS_MAX: u32 = 100_000;

/// `simulate FILE`.
pub(super) fn simulate(args: &SimulateArgs) -> anyhow::Result<Done> {
    if args.trace.is_some() || args.synthetic.is_some() {
        return capacity::simulate(args);
    }
    let requests = match args.requests.map(u32::try_from) {
        None => REQUESTS,
        Some(Ok(requests @ 1..=REQUESTS_MAX)) => requests,
        Some(_) => anyhow::bail!("--requests: a seed has from 1 to {REQUESTS_MAX}"),
    };
    let source = source::check(&args.file)?.built()?;
    let source = match &args.model {
        Some(model) => source.with_model(model),
        None => source,
    };
    let resources = source.load()?;
    say(&format!("model {}", source.plan.model))?;
    let seeds = args.seeds.clone().unwrap_or(args.seed..args.seed.saturating_add(1));
    let mut wrong = 0_u64;
    for seed in seeds.clone() {
        let options = SimulateOptions { seed, requests, faults: args.faults != Some(FaultMix::None) };
        let report = run(&source.plan, &resources, &options)?;
        say(&report.to_string())?;
        wrong += u64::from(!report.wrong().is_empty());
    }
    if wrong > 0 {
        tell(&format!("{wrong} of {} seeds went wrong", seeds.end - seeds.start));
        return Ok(Done::Differs);
    }
    Ok(Done::Well)
}
