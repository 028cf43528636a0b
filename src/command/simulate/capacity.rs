//! `simulate FILE --trace` and `--synthetic`: a workload through a plan, and what that says of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::assemble::Resources;
use millstream_actors::cost::Coefficients;
use millstream_actors::rank::predicted::Predict;
use millstream_kernels::KvFormat;
use millstream_topology::{KvFormat as Stored, Plan, Settings};

use crate::args::{DrawnArgs, FaultMix, FormatArg, ShownArgs, SimulateArgs, SyntheticArg};
use crate::capacity::figures::{Device, Figures};
use crate::capacity::{Options, REQUESTS_MAX, Report, Setting, charts, html, run, table, with_blocks};
use crate::clock;
use crate::command::Done;
use crate::command::files::{say, tell};
use crate::source;
use crate::workload::synthetic::{Arrivals, Synthetic};
use crate::workload::{Format, Talk, Trace, TraceError, TraceOptions};

type Talks = Box<dyn Iterator<Item = Result<Talk, TraceError>>>;

/// Runs the workload that was asked for.
pub(super) fn simulate(args: &SimulateArgs) -> anyhow::Result<Done> {
    let source = source::check(&args.file)?;
    let source = match &args.model {
        Some(model) => source.with_model(model),
        None => source,
    };
    let (talks, block_size) = workload(args, &source.plan)?;
    let plan = block_size.map_or_else(|| source.plan.clone(), |tokens| with_blocks(&source.plan, tokens));
    let resources = source.outline()?;
    let figures = figures(args)?;
    let predict = predictions(&plan, &resources, &figures);
    let setting = Setting { plan: &plan, resources: &resources, predict, figures: &figures };
    let options = Options {
        seed: args.seed,
        faults: args.faults == Some(FaultMix::Seed),
        requests: args.requests.unwrap_or(REQUESTS_MAX),
        speed: args.faster,
        leaps: !args.speeds.single_steps,
    };
    let began = clock::processor();
    let report = run(&setting, talks, &options)?;
    let took = clock::processor().saturating_sub(began);
    show(&report, &args.shown)?;
    tell(&pace(&report, took));
    Ok(if report.wrong.is_empty() { Done::Well } else { Done::Differs })
}

/// The talks, and the size of blocks that a trace names.
fn workload(args: &SimulateArgs, plan: &Plan) -> anyhow::Result<(Talks, Option<u32>)> {
    if let Some(file) = &args.trace {
        let format = args.format.map(format);
        let trace = Trace::open(file, TraceOptions { format, gap: args.gap })?;
        let block_size = trace.block_size;
        return Ok((Box::new(trace), block_size));
    }
    let block_size = plan.actors.iter().find_map(|actor| actor.group()).map_or(16, |group| group.block_size);
    let kind = args.synthetic.unwrap_or(SyntheticArg::Poisson);
    let talks = synthetic(kind, &args.drawn, (args.seed, block_size)).talks();
    Ok((Box::new(talks.map(Ok)), None))
}

fn format(format: FormatArg) -> Format {
    match format {
        FormatArg::Mooncake => Format::Mooncake,
        FormatArg::Bailian => Format::Bailian,
        FormatArg::Azure => Format::Azure,
        FormatArg::Burstgpt => Format::BurstGpt,
        FormatArg::Agentic => Format::Agentic,
        FormatArg::Dynamo => Format::Dynamo,
    }
}

fn synthetic(kind: SyntheticArg, drawn: &DrawnArgs, (seed, block_size): (u64, u32)) -> Synthetic {
    let (arrivals, rounds) = match kind {
        SyntheticArg::Poisson => (Arrivals::Poisson, 1.0),
        SyntheticArg::Bursts => (Arrivals::Bursts(drawn.period), 1.0),
        SyntheticArg::Agents => (Arrivals::Poisson, 20.0),
    };
    let &DrawnArgs { rate, lasts, input, output, spread, shared, think, growth, .. } = drawn;
    let rounds = drawn.rounds.unwrap_or(rounds);
    Synthetic {
        seed,
        arrivals,
        rate,
        lasts,
        input,
        output,
        spread,
        shared,
        rounds,
        think,
        growth,
        block_size,
    }
}

fn figures(args: &SimulateArgs) -> anyhow::Result<Figures> {
    let mut figures = args.speeds.figures.as_deref().map(Figures::read).transpose()?.unwrap_or_default();
    if let Some(name) = &args.speeds.device {
        let known =
            || format!("there is no device {name} in the table: it has {}", Device::names().join(", "));
        figures.device = Device::of(name).with_context(known)?;
    }
    if let Some(file) = &args.speeds.costs {
        figures.coefficients = Some(coefficients(file)?);
        figures.source = format!("of {}", file.display());
    }
    figures.price = args.speeds.price.or(figures.price);
    Ok(figures)
}

/// The coefficients in a file, by themselves or as `serve` keeps them.
fn coefficients(file: &Path) -> anyhow::Result<Coefficients> {
    let place = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
    let mut value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{place} is no JSON"))?;
    if value["coefficients"].is_object() {
        value = value["coefficients"].take();
    }
    let found: Coefficients =
        serde_json::from_value(value).with_context(|| format!("{place} holds no coefficients of steps"))?;
    anyhow::ensure!(found.is_sound(), "{place}: coefficients are seconds, none below 0, and not all 0");
    Ok(found)
}

/// What steps of each actor take.
fn predictions(plan: &Plan, resources: &Resources, figures: &Figures) -> BTreeMap<String, Arc<dyn Predict>> {
    let format = match plan.kv {
        Stored::F32 => KvFormat::F32,
        Stored::F16 => KvFormat::F16,
        Stored::Q8 => KvFormat::Q8,
        Stored::Fp4 => KvFormat::Fp4,
    };
    let facts = resources.model.facts().work.clone().with_kv(format);
    let of = |actor: &millstream_topology::ActorPlan| match &actor.settings {
        Settings::Prefill(group) | Settings::Decode(group) => {
            Some((actor.name.to_string(), figures.predict(&facts, group.ranks)))
        }
        _ => None,
    };
    plan.actors.iter().filter_map(of).collect()
}

fn show(report: &Report, shown: &ShownArgs) -> anyhow::Result<()> {
    say(&if shown.json { report.json() } else { table::text(report) })?;
    if let Some(folder) = &shown.svg {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for chart in charts::charts(report) {
            write(&folder.join(format!("{}.svg", chart.name)), &chart.svg())?;
        }
    }
    if let Some(file) = &shown.html {
        write(file, &html::html(report))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// How fast the simulation was: not in the report, which is the same whenever it is made.
fn pace(report: &Report, took: Duration) -> String {
    let seconds = took.as_secs_f64().max(1e-9);
    format!(
        "simulated in {seconds:.2} s of processor time: {:.0} requests a second, {:.0} times as fast as real time",
        report.requests as f64 / seconds,
        report.seconds / seconds
    )
}
