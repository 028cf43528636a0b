//! Commands that only look at topology files: `check`, `expand`, `graph`, `diff`, `schema`.

use std::io::Write;

use millstream_topology::{Plan, Problems, diff, draw_mermaid, draw_svg, draw_text, expand, schema};
use serde_json::{Value, json};

use super::Done;
use crate::args::{CheckArgs, DiffArgs, FileArgs, GraphArgs, GraphFormat};
use crate::source::{self, Refused};

/// `check FILE`.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<Done> {
    let checked = source::check(&args.file);
    if args.json {
        return check_json(checked.map(|source| source.plan));
    }
    let plan = checked?.plan;
    for note in &plan.notes {
        tell(&note.to_string());
    }
    let (actors, wires) = (plan.actors.len(), plan.wires.len());
    let hosts = plan.hosts.len();
    say(&format!(
        "{}: plan {}: {hosts} hosts, {actors} actors, {wires} wires",
        args.file.display(),
        plan.id
    ))?;
    Ok(Done::Well)
}

fn check_json(checked: Result<Plan, Refused>) -> anyhow::Result<Done> {
    let (body, done) = match checked {
        Ok(plan) => (json!({"ok": true, "plan": plan}), Done::Well),
        Err(Refused::Problems(problems)) => {
            (json!({"ok": false, "problems": rows(&problems)}), Done::Refused)
        }
        Err(Refused::Unreadable(why) | Refused::NotBuilt(why)) => {
            (json!({"ok": false, "problems": [{"message": why}]}), Done::Refused)
        }
    };
    say(&serde_json::to_string_pretty(&body)?)?;
    Ok(done)
}

fn rows(problems: &Problems) -> Vec<Value> {
    let row = |problem: &millstream_topology::Problem| {
        json!({
            "file": problem.file,
            "line": problem.line,
            "column": problem.column,
            "span": [problem.span.start, problem.span.end],
            "message": problem.message,
            "help": problem.help,
        })
    };
    problems.iter().map(row).collect()
}

/// `expand FILE`.
pub(super) fn expanded(args: &FileArgs) -> anyhow::Result<Done> {
    say(expand(&source::check(&args.file)?.plan).trim_end())?;
    Ok(Done::Well)
}

/// `graph FILE`.
pub(super) fn graph(args: &GraphArgs) -> anyhow::Result<Done> {
    let plan = source::check(&args.file)?.plan;
    let drawn = match args.format {
        GraphFormat::Text => draw_text(&plan),
        GraphFormat::Mermaid => draw_mermaid(&plan),
        GraphFormat::Svg => draw_svg(&plan),
    };
    say(drawn.trim_end())?;
    Ok(Done::Well)
}

/// `diff A B`: both files are checked before anything is said, so that all problems show.
pub(super) fn changes(args: &DiffArgs) -> anyhow::Result<Done> {
    let (before, after) = match (source::check(&args.before), source::check(&args.after)) {
        (Ok(before), Ok(after)) => (before.plan, after.plan),
        (Err(one), Err(other)) => {
            tell(&format!("{one}\n"));
            return Err(other.into());
        }
        (Err(one), Ok(_)) | (Ok(_), Err(one)) => return Err(one.into()),
    };
    let changes = diff(&before, &after);
    for change in &changes {
        say(&change.to_string())?;
    }
    if changes.is_empty() {
        say(&format!("no difference: both are plan {}", before.id))?;
    }
    Ok(Done::Well)
}

/// `schema`.
pub(super) fn print_schema() -> anyhow::Result<Done> {
    say(&serde_json::to_string_pretty(&schema())?)?;
    Ok(Done::Well)
}

/// Tells a person something on standard error. Who has closed it, or filled its disk, does not want to know.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a line; a reader that has gone away (`| head`) ends the program quietly, as an error of its own kind.
pub(super) fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
