//! `place`: what each rank of a group would hold of a model. Only headers are read, so it takes seconds for a model that
//! no machine here could load.

use millstream_kernels::survey;
use serde_json::json;

use super::Done;
use super::files::say;
use crate::args::{PlaceArgs, RestArg, TablesArg};
use crate::place::{Held, Part, Placement, Share, Spread, Wish, amount};

/// `place FOLDER`.
pub(super) fn place(args: &PlaceArgs) -> anyhow::Result<Done> {
    let survey = survey(&args.folder)?;
    let wish = wish(args);
    let placement = Placement::new(&survey, wish);
    if args.json {
        let facts = &survey.facts;
        let mut body = placement.json();
        body["model"] = json!({
            "family": facts.family, "parameters": facts.parameters, "bytes": facts.bytes,
            "tensors": survey.tensors.len(), "context": facts.context,
        });
        say(&serde_json::to_string_pretty(&body)?)?;
        return Ok(Done::Well);
    }
    let facts = &survey.facts;
    say(&format!(
        "{}: {}, {} tensors as config.json asks for them, {:.1} B numbers in {}",
        args.folder.display(),
        facts.family,
        survey.tensors.len(),
        facts.parameters as f64 / 1e9,
        amount(facts.bytes)
    ))?;
    say("")?;
    for (part, held) in &placement.parts {
        say(&row(part.name(), held, how(*part, wish)))?;
    }
    if placement.unused.tensors > 0 {
        say(&row("not used", &placement.unused, "on no rank"))?;
    }
    say("")?;
    lines(&placement.ranks).iter().try_for_each(|line| say(line))?;
    say("")?;
    for kv in &placement.kv {
        say(&kv.line(facts.context))?;
    }
    Ok(Done::Well)
}

/// What was typed.
fn wish(args: &PlaceArgs) -> Wish {
    let tables = match args.tables {
        TablesArg::Copy => Spread::Copied,
        TablesArg::Split => Spread::Split,
        TablesArg::File => Spread::InFile,
    };
    let rest = match args.rest {
        RestArg::Copy => Spread::Copied,
        RestArg::Split => Spread::Split,
    };
    Wish { ranks: args.ranks as usize, tables, rest }
}

/// How a part is held.
fn how(part: Part, wish: Wish) -> &'static str {
    let spread = match part {
        Part::Experts => Spread::Split,
        Part::Tables => wish.tables,
        Part::Ends | Part::Drafter | Part::Eyes | Part::Layers => wish.rest,
    };
    match spread {
        Spread::Copied => "copied to each rank",
        Spread::Split => "split over the ranks",
        Spread::InFile => "read from the file, row by row",
    }
}

fn row(name: &str, held: &Held, how: &str) -> String {
    format!("{name:<18} {:>7} tensors {:>10}  {how}", held.tensors, amount(held.bytes))
}

/// A line for each run of ranks that hold as much.
fn lines(ranks: &[Share]) -> Vec<String> {
    let mut first = 0;
    let line = |run: &[Share]| {
        let (from, to) = (first, first + run.len() - 1);
        first = to + 1;
        let name = if from == to { format!("rank {from}") } else { format!("ranks {from} to {to}") };
        let Share { experts, tables, rest } = run[0];
        format!(
            "{name:<18} {:>10}: experts {}, tables {}, rest {}",
            amount(run[0].total()),
            amount(experts),
            amount(tables),
            amount(rest)
        )
    };
    ranks.chunk_by(|a, b| a == b).map(line).collect()
}
