//! `oracle`: each folder through a graph of its own; a table of differences; exit code 1 when one is out.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use millstream_actors::assemble::Resources;
use millstream_topology::{Plan, Settings};

use super::Done;
use super::files::{say, tell};
use crate::args::OracleArgs;
use crate::oracle::folder::{self, Vectors};
use crate::oracle::{compare, table};
use crate::source::{self, Refused, Source};

/// `oracle FOLDER...`.
pub(super) async fn oracle(args: &OracleArgs) -> anyhow::Result<Done> {
    let mut done = Done::Well;
    for folder in &args.folders {
        match one(args, folder).await {
            Ok(Done::Well) => {}
            Ok(other) => done = worse(done, other),
            Err(error) if error.is::<Refused>() => {
                tell(&error.to_string());
                done = Done::Refused;
            }
            Err(error) => {
                tell(&format!("millstream: {}: {error:#}", folder.display()));
                done = worse(done, Done::Differs);
            }
        }
    }
    Ok(done)
}

fn worse(a: Done, b: Done) -> Done {
    if a.code() >= b.code() { a } else { b }
}

async fn one(args: &OracleArgs, folder: &Path) -> anyhow::Result<Done> {
    let vectors = folder::read(folder).map_err(|error| Refused::Unreadable(format!("{error:#}")))?;
    let model = model(args, folder)?;
    let source = source(args, &model)?;
    let resources = Resources::load(&model)
        .with_context(|| format!("{} cannot be loaded", model.display()))
        .map_err(|error| Refused::Unreadable(format!("{error:#}")))?;
    say(&heading(args, &source.plan, &vectors))?;
    let report = compare(&source.plan, &resources, &vectors, args.batch as usize).await?;
    for line in table::lines(&report) {
        say(&line)?;
    }
    say("")?;
    Ok(if report.passed() { Done::Well } else { Done::Differs })
}

/// The model beside the vectors, or the one named.
fn model(args: &OracleArgs, folder: &Path) -> Result<PathBuf, Refused> {
    if folder.join("config.json").exists() {
        return match &args.model {
            None => Ok(folder.to_path_buf()),
            Some(_) => Err(Refused::Unreadable(format!(
                "{} has a model of its own: --model is for folders that hold vectors only",
                folder.display()
            ))),
        };
    }
    args.model.clone().ok_or_else(|| {
        Refused::Unreadable(format!("{} holds vectors only: name the model with --model", folder.display()))
    })
}

fn source(args: &OracleArgs, model: &Path) -> Result<Source, Refused> {
    let name = model.display().to_string();
    let mut source = match (&args.topology, args.split) {
        (Some(file), _) => source::check(file)?.built()?.with_model(&name),
        (None, split) => source::one_model(&name, split)?,
    };
    if let Some(chunk) = args.chunk {
        cut(&mut source.plan, chunk);
    }
    Ok(source)
}

/// Cuts prompts into chunks of this many tokens. The plan keeps its id: it is not served.
fn cut(plan: &mut Plan, chunk: u32) {
    for actor in &mut plan.actors {
        if let Settings::Prefill(group) | Settings::Decode(group) = &mut actor.settings {
            group.chunk_tokens = chunk;
        }
    }
}

fn heading(args: &OracleArgs, plan: &Plan, vectors: &Vectors) -> String {
    let how = if plan.joined() { "joined" } else { "split" };
    let chunk = args.chunk.map_or_else(|| "the plan's".to_owned(), |chunk| chunk.to_string());
    format!("{}: {how}, chunks {chunk}, {} at once", vectors.model, args.batch)
}
