//! `bench`: how fast a model runs here, with the arithmetic and the memory that a rank uses and without HTTP, beside what
//! the machine can do at most.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use millstream_actors::assemble::kv_layout;
use millstream_kernels::{Activations, Backend, Facts, Model, load_with};
use millstream_topology::{self as topology, ActorPlan};

use super::Done;
use super::files::{say, tell};
use crate::args::{ActivationsArg, BenchArgs};
use crate::clock;
use crate::limits::{Limits, Probe};
use crate::source::{self, Refused, Source};
use report::{Report, Row};
use rig::{Case, Rig, Run, memory};

mod report;
mod rig;

/// Tokens of a chunk in the second reading of a prompt: what a group computes at once while others decode.
const CHUNK: usize = 256;

/// `bench MODEL`.
pub(super) fn bench(args: &BenchArgs) -> anyhow::Result<Done> {
    let source = chosen(args)?;
    let place = source.model_place()?;
    let path = &place.path;
    let group = source.plan.actors.iter().find_map(ActorPlan::group).context("the plan computes nothing")?;
    let threads = args.threads.unwrap_or(group.threads);
    let activations = match (args.activations, source.plan.activations) {
        (Some(ActivationsArg::Int8), _) | (None, topology::Activations::Int8) => Activations::Int8,
        (Some(ActivationsArg::F32), _) | (None, topology::Activations::F32) => Activations::F32,
    };
    let before = memory();
    let start = clock::now();
    let model = load(path, activations)?;
    let load_s = start.elapsed().as_secs_f64();
    let truncates = args.decoder_truncation || source.plan.decoder_truncation;
    let cases = cases(args, model.facts(), truncates)?;
    let layout = kv_layout(&source.plan, model.facts(), group.block_size)
        .map_err(|error| Refused::NotBuilt(format!("millstream: {error}")))?;
    let mut rig = Rig::new(Arc::clone(&model), threads, layout);
    let mut report = Report {
        model: path.display().to_string(),
        facts: model.facts().clone(),
        layout,
        backend: rig.backend().name(),
        threads,
        activations,
        load_s,
        loaded_bytes: memory().saturating_sub(before),
        limits: Limits { read: 0.0, arithmetic: 0.0, integer: 0.0 },
        peak_bytes: 0,
        rows: Vec::new(),
    };
    measure(args, &mut rig, &cases, &mut report)?;
    if args.json {
        say(&serde_json::to_string_pretty(&report.json())?)?;
    } else {
        report.lines().iter().try_for_each(|line| say(line))?;
    }
    Ok(Done::Well)
}

/// The plan that says how many threads: the file's, or the one `serve --model` would run.
fn chosen(args: &BenchArgs) -> Result<Source, Refused> {
    match (&args.topology, args.path.as_ref().or(args.model.as_ref())) {
        (Some(file), None) => source::check(file),
        (Some(file), Some(model)) => Ok(source::check(file)?.with_model(model)),
        (None, Some(model)) => source::laptop(model),
        (None, None) => {
            Err(Refused::Unreadable("name a model (a folder or a .gguf file) or a --topology".to_owned()))
        }
    }
}

fn load(path: &Path, activations: Activations) -> Result<Arc<dyn Model>, Refused> {
    let loaded = load_with(path, activations)
        .map_err(|error| Refused::Unreadable(format!("millstream: {:#}", anyhow::Error::from(error))))?;
    Ok(loaded.model)
}

/// What is measured, in the order of the report.
fn cases(args: &BenchArgs, facts: &Facts, truncates: bool) -> Result<Vec<Case>, Refused> {
    let (tokens, steps) = (args.prompt as usize, args.generate as usize);
    let keep = facts.state.and_then(|state| state.decoder_keep).filter(|_| truncates);
    if args.decoder_truncation && keep.is_none() {
        return Err(Refused::Unreadable(
            "--decoder-truncation: every layer of this model needs all of a prompt, leave it out".to_owned(),
        ));
    }
    let mut cases = Vec::new();
    for chunk in [tokens, CHUNK].into_iter().take(1 + usize::from(tokens > CHUNK)) {
        cases.push(Case::Prefill { tokens, chunk, keep: None });
        cases.extend(keep.map(|keep| Case::Prefill { tokens, chunk, keep: Some(keep) }));
    }
    for &depth in &args.depth {
        let case = |&batch: &u32| Case::Decode { batch: batch as usize, depth: depth as usize, steps };
        cases.extend(args.batch.iter().map(case));
    }
    let longest = cases.iter().map(Case::positions).max().unwrap_or(0);
    if longest > facts.context as usize {
        return Err(Refused::Unreadable(format!(
            "the model was made for {} positions, and this asks for {longest}: take a smaller --prompt, --depth or --generate",
            facts.context
        )));
    }
    Ok(cases)
}

/// Runs every case; the limits are looked at before the first and after each, for other programs come and go.
fn measure(args: &BenchArgs, rig: &mut Rig, cases: &[Case], report: &mut Report) -> anyhow::Result<()> {
    let mut probe = Probe::new();
    report.limits = probe.measure(rig.backend());
    rig.warm_up()?;
    for case in cases {
        if !args.json {
            tell(&format!("measuring {case}, {} times", args.repeat));
        }
        let runs = (0..args.repeat).map(|_| rig.run(case)).collect::<anyhow::Result<Vec<Run>>>()?;
        let peak = runs.iter().map(|run| run.memory).max().unwrap_or(0).saturating_sub(probe.bytes());
        report.peak_bytes = report.peak_bytes.max(peak);
        let kv_bytes = runs.iter().map(|run| run.kv_bytes).max().unwrap_or(0);
        report.rows.push(Row { case: *case, runs: runs.iter().map(|run| run.seconds).collect(), kv_bytes });
        report.limits = probe.measure(rig.backend());
    }
    Ok(())
}
