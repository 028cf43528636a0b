//! `plan`: what a fleet for a workload and a goal would be and cost. Exit code 1 where no choice reaches the goal, 2 where the
//! file is wrong.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Done;
use super::files::{say, tell};
use crate::args::PlanArgs;
use crate::builtin;
use crate::economy::spec::{Hit, ModelSpec, Span};
use crate::economy::{Demand, Model, Seen, Setting, Spec, check, plan as run, text};
use crate::workload::reuse::{Reuse, prompts};

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Times for which hits are counted in a trace, in seconds, beside those of the search.
const TIMES: [f64; 8] = [30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0];

/// `plan FILE`.
pub(super) fn plan(args: &PlanArgs) -> anyhow::Result<Done> {
    let setting = match setting(&args.file)? {
        Ok(setting) => setting,
        Err(problems) => {
            problems.iter().for_each(|problem| tell(&format!("{}: {problem}", args.file.display())));
            return Ok(Done::Refused);
        }
    };
    let report = run(&setting);
    let text = if args.json { report.json() } else { text::text(&report) };
    match &args.output {
        Some(file) => {
            std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?
        }
        None => say(&text)?,
    }
    Ok(if report.why_none.is_empty() { Done::Well } else { Done::Differs })
}

/// A file and what it names, or what is wrong with it.
fn setting(file: &Path) -> anyhow::Result<Result<Setting, Vec<String>>> {
    let place = file.display();
    let length = std::fs::metadata(file).with_context(|| format!("cannot read {place}"))?.len();
    anyhow::ensure!(length <= FILE_BYTES_MAX, "{place} is larger than {FILE_BYTES_MAX} bytes: no plan is");
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
    let (spec, written) = match Spec::read(&text) {
        Ok(read) => read,
        Err(why) => return Ok(Err(vec![why.trim_end().to_owned()])),
    };
    let problems = check(&spec);
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let seen = spec.workload.trace.as_ref().map(|trace| seen(&folder.join(trace), &spec)).transpose()?;
    let demand = match Demand::new(&spec.workload, seen.as_ref()) {
        Ok(demand) => demand,
        Err(why) => return Ok(Err(vec![why])),
    };
    if spec.model.is_some() {
        let lengths = "[workload] must say prompt and answer, in tokens, for groups to be counted";
        let short = (demand.prompt == 0.0).then(|| lengths.to_owned());
        if let Some(why) = short.or_else(|| demand.unknown(&spec.search.retention)) {
            return Ok(Err(vec![why]));
        }
    }
    let model = spec.model.as_ref().map(|model| read(model, folder)).transpose()?;
    Ok(Ok(Setting { spec, written, demand, model }))
}

/// What a trace says of itself.
fn seen(file: &Path, spec: &Spec) -> anyhow::Result<Seen> {
    let prompts = prompts(file)?;
    let mut times = TIMES.to_vec();
    times.extend(spec.search.retention.iter().map(|kept| kept.0));
    times.sort_by(f64::total_cmp);
    times.dedup();
    let reuse = Reuse::of(&prompts, &times);
    let mean = |of: fn(&(u64, u64)) -> u64| {
        prompts.iter().map(|prompt| of(&prompt.tokens)).sum::<u64>() as f64 / prompts.len() as f64
    };
    let there = reuse.there_s.iter().map(|seconds| Some(seconds / reuse.blocks.max(1) as f64));
    let hits = times.iter().zip(reuse.shares()).zip(there);
    let hits = hits.map(|((&kept, share), there_s)| Hit { kept: Span(kept), share, there_s });
    Ok(Seen {
        prompt: mean(|tokens| tokens.0).max(1.0),
        answer: mean(|tokens| tokens.1).max(1.0),
        hits: hits.collect(),
        used_s: reuse.used_s,
    })
}

/// What a file says of its model, and the settings that it names.
fn read(spec: &ModelSpec, folder: &Path) -> anyhow::Result<Model> {
    if let Some(figures) = &spec.figures {
        return Ok(Model::of_figures(figures, spec));
    }
    let name = spec.config.clone().unwrap_or_default();
    let (place, _folder) = settings(&name, folder)?;
    let model = millstream_kernels::outline(&place).with_context(|| format!("model.config {name}"))?;
    let facts = model.facts();
    Ok(Model::of_facts(format!("{} ({})", facts.family, name), facts, spec))
}

/// A folder with the settings of that name as its `config.json`, and what must live as long as it is read.
fn settings(name: &str, folder: &Path) -> anyhow::Result<(PathBuf, Option<tempfile::TempDir>)> {
    if name == builtin::NAME {
        let folder = builtin::folder()?;
        return Ok((folder.path().to_owned(), Some(folder)));
    }
    let path = folder.join(name);
    if path.is_dir() {
        return Ok((path, None));
    }
    let copy = tempfile::Builder::new().prefix("millstream-plan-").tempdir();
    let copy = copy.context("cannot make a folder for the settings of a model")?;
    std::fs::copy(&path, copy.path().join("config.json"))
        .with_context(|| format!("model.config: cannot read {}", path.display()))?;
    Ok((copy.path().to_owned(), Some(copy)))
}
