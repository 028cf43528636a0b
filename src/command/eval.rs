//! `eval`: the cases of a model through a graph; a table of marks; exit code 1 when one is below what was asked.

use std::path::Path;

use anyhow::Context as _;

use super::Done;
use super::files::say;
use crate::args::EvalArgs;
use crate::builtin;
use crate::eval::{self, Case, Report, Score};
use crate::source::{self, Refused, Source};

/// The cases that come with a model.
const CASES: &str = "eval.jsonl";

/// `eval [MODEL]`.
pub(super) async fn eval(args: &EvalArgs) -> anyhow::Result<Done> {
    let source = source(args)?;
    let place = source.model_place()?;
    let cases = chosen(args, read(args, &place.path)?)?;
    let resources = source.load_from(&place)?;
    let how = (args.batch as usize, args.max_tokens);
    let report = eval::mark(&source.plan, &resources, &cases, how).await?;
    if args.json {
        say(&serde_json::to_string_pretty(&report).context("a report is JSON")?)?;
    } else {
        table(&report, args.wrong)?;
    }
    let well = report.scores.values().all(|score| score.share() >= args.at_least);
    Ok(if well { Done::Well } else { Done::Differs })
}

fn unusable(error: anyhow::Error) -> Refused {
    Refused::Unreadable(format!("millstream: {error:#}"))
}

fn source(args: &EvalArgs) -> Result<Source, Refused> {
    let model = args.path.as_deref().or(args.model.as_deref());
    match (&args.topology, model) {
        (Some(file), None) => source::check(file)?.built(),
        (Some(file), Some(model)) => Ok(source::check(file)?.built()?.with_model(model)),
        (None, model) => source::one_model(model.unwrap_or(builtin::NAME), args.split),
    }
}

/// The cases of the file that was named, or those that come with the model.
fn read(args: &EvalArgs, model: &Path) -> Result<Vec<(usize, Case)>, Refused> {
    if let Some(file) = &args.cases {
        return eval::read(file).map_err(unusable);
    }
    let beside = model.join(CASES);
    if beside.is_file() {
        return eval::read(&beside).map_err(unusable);
    }
    let beside = beside.display();
    let why =
        format!("millstream: this model brings no cases (there is no {beside}): name a file with --cases");
    Err(Refused::Unreadable(why))
}

/// The cases of the tasks that were named, or all.
fn chosen(args: &EvalArgs, cases: Vec<(usize, Case)>) -> Result<Vec<(usize, Case)>, Refused> {
    if let Some(unknown) =
        args.skills.iter().find(|skill| cases.iter().all(|(_, case)| case.skill != **skill))
    {
        let mut known: Vec<&str> = cases.iter().map(|(_, case)| case.skill.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        let why = format!("millstream: there is no task {unknown:?}; the cases have {}", known.join(", "));
        return Err(Refused::Unreadable(why));
    }
    let wanted = |case: &Case| args.skills.is_empty() || args.skills.contains(&case.skill);
    Ok(cases.into_iter().filter(|(_, case)| wanted(case)).collect())
}

fn table(report: &Report, wrong: usize) -> std::io::Result<()> {
    say(&format!(
        "{:<16} {:>6} {:>6} {:>8} {:>8} {:>8} {:>5}",
        "task", "right", "of", "share", "prompt", "answer", "cut"
    ))?;
    for (skill, score) in &report.scores {
        let Score { right, of, cut, .. } = score;
        let each = |tokens: u64| tokens as f64 / *of as f64;
        say(&format!(
            "{skill:<16} {right:>6} {of:>6} {:>7.1}% {:>8.1} {:>8.1} {cut:>5}",
            100.0 * score.share(),
            each(score.prompt_tokens),
            each(score.answer_tokens),
        ))?;
    }
    for wrong in report.wrong.iter().take(wrong) {
        say(&format!(
            "line {} ({}): wanted {:?}, got {:?}",
            wrong.line, wrong.skill, wrong.answer, wrong.said
        ))?;
    }
    Ok(())
}
