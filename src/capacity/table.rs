//! A report for the terminal.

use std::fmt::Write as _;

use super::report::{Report, Times, time};
use crate::place::amount;

/// The report in lines.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = write(report, &mut text);
    text.truncate(text.trim_end().len());
    text
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    let outcomes: Vec<String> =
        report.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    writeln!(
        out,
        "{} with {}, seed {}, blocks of {} tokens",
        report.topology, report.model, report.seed, report.block_size
    )?;
    report.assumptions.iter().try_for_each(|assumption| writeln!(out, "  {assumption}"))?;
    writeln!(out, "{} requests in {}: {}", report.requests, time(report.seconds), outcomes.join(", "))?;
    writeln!(out)?;
    writeln!(out, "{:<22} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "mean", "p50", "p90", "p99", "most")?;
    for (name, times) in [
        ("time to first token", report.first_token),
        ("between tokens", report.between_tokens),
        ("per token of an answer", report.per_token),
        ("whole answer", report.whole),
    ] {
        times_line(name, times, out)?;
    }
    writeln!(out)?;
    let (tokens, rates) = (report.tokens, report.rates);
    writeln!(
        out,
        "a second: {:.2} requests, {:.0} prompt tokens, {:.0} tokens of answers",
        rates.requests, rates.prompt_tokens, rates.answer_tokens
    )?;
    writeln!(
        out,
        "found: {:.2} % of {} prompt tokens ({} computed once more)",
        100.0 * report.hit_share,
        tokens.prompt,
        tokens.replayed
    )?;
    if let Some(balance) = report.balance {
        writeln!(out, "tokens held by decode groups, most to mean: {balance:.3}")?;
    }
    actors(report, out)?;
    store(report, out)?;
    if let Some(cost) = report.cost {
        writeln!(
            out,
            "{} {} at {} an hour: {:.2} in all; {:.3} for a million tokens of answers, {:.4} for a million of any",
            cost.devices,
            if cost.devices == 1 { "device" } else { "devices" },
            cost.device_hour,
            cost.total,
            cost.million_answer_tokens,
            cost.million_tokens
        )?;
    }
    report.wrong.iter().try_for_each(|wrong| writeln!(out, "WRONG: {wrong}"))
}

fn times_line(name: &str, times: Times, out: &mut String) -> std::fmt::Result {
    let Times { mean, p50, p90, p99, most, .. } = times;
    let [mean, p50, p90, p99, most] = [mean, p50, p90, p99, most].map(time);
    writeln!(out, "{name:<22} {mean:>10} {p50:>10} {p90:>10} {p99:>10} {most:>10}")
}

fn actors(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out)?;
    writeln!(
        out,
        "{:<16} {:>6} {:>20} {:>10} {:>6} {:>14} {:>14} {:>10} {:>10}",
        "actor",
        "groups",
        "busy (least-most)",
        "steps",
        "rows",
        "prompt tokens",
        "answer tokens",
        "preempted",
        "evicted"
    )?;
    for actor in &report.actors {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let busy = [actor.busy, actor.busy_least, actor.busy_most].map(percent);
        writeln!(
            out,
            "{:<16} {:>6} {:>20} {:>10} {:>6.2} {:>14} {:>14} {:>10} {:>10}",
            actor.name,
            actor.groups,
            format!("{} % ({}-{})", busy[0], busy[1], busy[2]),
            actor.steps,
            actor.rows,
            actor.prompt_tokens,
            actor.answer_tokens,
            actor.preemptions,
            actor.evictions
        )?;
    }
    Ok(())
}

fn store(report: &Report, out: &mut String) -> std::fmt::Result {
    let Some(store) = report.store else { return Ok(()) };
    writeln!(
        out,
        "store: {} of {} blocks brought, {} stored; {} in host memory, {} below; read {}, written {}, {} blocks not",
        store.brought,
        store.sought,
        store.stored,
        amount(store.host_bytes),
        amount(store.lasting_bytes),
        amount(store.read_bytes),
        amount(store.written_bytes),
        store.unwritten_blocks
    )
}
