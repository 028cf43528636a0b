//! `simulate`: what model it runs, then one line a seed; exit code 1 when something that must hold does not.

use super::Done;
use super::files::{say, tell};
use crate::args::{FaultMix, SimulateArgs};
use crate::simulate::{SimulateOptions, simulate as run};
use crate::source;

/// `simulate FILE`.
pub(super) fn simulate(args: &SimulateArgs) -> anyhow::Result<Done> {
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
        let options =
            SimulateOptions { seed, requests: args.requests, faults: args.faults == FaultMix::Seed };
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
