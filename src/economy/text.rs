//! A report for the terminal, and numbers as people read them.

use std::fmt::Write as _;

use super::report::{Line, Report, Table};

/// Bytes, in units of 1,024.
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = bytes;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(scaled < 100.0 && scaled.fract() != 0.0) * 2;
    format!("{scaled:.digits$}{}{}", if unit == 0 { " " } else { "" }, units[unit])
}

/// Seconds, in the largest unit that divides them.
pub fn span(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0)];
    let whole = units.iter().find(|(_, unit)| seconds >= *unit && seconds % unit == 0.0);
    whole.map_or_else(|| format!("{seconds:.1}s"), |(name, unit)| format!("{}{name}", seconds / unit))
}

/// A count, with a word for its size.
pub fn count(value: f64) -> String {
    match value.abs() {
        1e15.. => format!("{value:.3e}"),
        1e12..1e15 => format!("{:.2} T", value / 1e12),
        1e9..1e12 => format!("{:.2} B", value / 1e9),
        1e6..1e9 => format!("{:.2} M", value / 1e6),
        1e4..1e6 => format!("{:.1} k", value / 1e3),
        _ if value.fract() == 0.0 => format!("{value}"),
        100.0..1e4 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Money; small amounts with all digits that count.
pub fn money(value: f64) -> String {
    match value.abs() {
        1000.0.. => grouped(value.round()),
        1.0..1000.0 => format!("{value:.2}"),
        0.1..1.0 => format!("{value:.4}"),
        0.01..0.1 => format!("{value:.5}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.6}"),
    }
}

/// A whole number with a comma at each thousand.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The report in lines.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a text does not fail.
    let _ = write(report, &mut out);
    out.truncate(out.trim_end().len());
    out
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    if !report.title.is_empty() {
        writeln!(out, "{}\n", report.title)?;
    }
    report.demand.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    if let Some(best) = &report.best {
        writeln!(out, "\nthe cheapest of {} that were tried", report.tried)?;
        line(best, out)?;
        if !report.others.is_empty() {
            writeln!(out, "\nbehind it")?;
        }
        report.others.iter().try_for_each(|other| writeln!(out, "  {}", short(other)))?;
    }
    section("why there is none", &report.why_none, out)?;
    section("joined or apart", &report.parting, out)?;
    if let Some(table) = &report.table {
        costs(table, out)?;
    }
    if !report.kept.is_empty() {
        kept(report, out)?;
    }
    section("money of a day", &money_lines(report), out)?;
    published(report, out)?;
    section("how it is counted", &report.method, out)?;
    writeln!(out, "\nassumptions, and where they are from")?;
    for of in &report.assumptions {
        writeln!(out, "  {:<32} {:<24} {}", of.name, of.value, of.source)?;
    }
    Ok(())
}

fn section(title: &str, lines: &[String], out: &mut String) -> std::fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
}

fn line(of: &Line, out: &mut String) -> std::fmt::Result {
    of.groups.iter().try_for_each(|group| writeln!(out, "  {group}"))?;
    writeln!(
        out,
        "  {} devices; first token {:.0} ms, {:.2} ms between tokens",
        grouped(of.devices),
        of.first_token_ms,
        of.between_tokens_ms
    )?;
    writeln!(
        out,
        "  {}: {:.1} % of prompt tokens found, {:.1} % fetched; {} held, {}/s read, {}/s written",
        of.keeps(),
        100.0 * of.found,
        100.0 * of.fetched,
        bytes(of.held_bytes),
        bytes(of.read_per_second),
        bytes(of.written_per_second)
    )?;
    writeln!(
        out,
        "  {} a day: {} for devices, {} for what is kept; {} for a million tokens",
        money(of.cost_a_day),
        money(of.cost_a_day - of.held_a_day),
        money(of.held_a_day),
        money(of.million_tokens)
    )
}

fn short(of: &Line) -> String {
    format!(
        "{:>9} a million  {:>9} devices  {:<46} {}",
        money(of.million_tokens),
        grouped(of.devices),
        of.shape,
        of.keeps()
    )
}

fn costs(table: &Table, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\na million tokens cost, by hit share and by how long blocks are kept ({})", table.tier)?;
    write!(out, "  {:>6}", "hits")?;
    table.kept_s.iter().try_for_each(|kept| write!(out, " {:>10}", span(*kept)))?;
    writeln!(out)?;
    for row in &table.rows {
        write!(out, "  {:>4.0} %", 100.0 * row.hit_share)?;
        for cost in &row.million_tokens {
            write!(out, " {:>10}", cost.map_or_else(|| "-".to_owned(), money))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn kept(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\nwhat is kept, by where and for how long")?;
    writeln!(
        out,
        "  {:<8} {:>6} {:>8} {:>12} {:>14} {:>14} {:>12} {:>10} {:>10}",
        "tier", "kept", "found", "held", "read", "written", "a day", "devices", "a million"
    )?;
    for of in &report.kept {
        writeln!(
            out,
            "  {:<8} {:>6} {:>7.1}% {:>12} {:>12}/s {:>12}/s {:>12} {:>10} {:>10}",
            of.tier,
            span(of.kept_s),
            100.0 * of.found,
            bytes(of.held_bytes),
            bytes(of.read_per_second),
            bytes(of.written_per_second),
            money(of.held_a_day),
            of.devices.map_or_else(|| "-".to_owned(), grouped),
            of.million_tokens.map_or_else(|| "-".to_owned(), money)
        )?;
    }
    Ok(())
}

fn money_lines(report: &Report) -> Vec<String> {
    let Some(of) = &report.money else { return Vec::new() };
    let mut lines = vec![format!(
        "cost {}: {} device hours; {} for a million tokens, {} for a million of answers",
        money(of.cost),
        grouped(of.device_hours),
        money(of.million_tokens),
        money(of.million_answer_tokens)
    )];
    if let Some(income) = &of.income {
        lines.push(format!(
            "revenue {}: {} of hits, {} of misses, {} of answers",
            money(income.revenue),
            money(income.hits),
            money(income.misses),
            money(income.answers)
        ));
        lines.push(format!("margin {:.1} % of the cost", income.margin_percent));
    }
    lines
}

fn published(report: &Report, out: &mut String) -> std::fmt::Result {
    if report.published.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nbeside what is published")?;
    for of in &report.published {
        let computed = of.computed.map_or_else(|| "not computed".to_owned(), count);
        let ratio = of.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.3} of it"));
        writeln!(
            out,
            "  {}: {} published, {computed} here{ratio} ({})",
            of.name,
            count(of.value),
            of.source
        )?;
        if let Some(rest) = &of.rest {
            writeln!(out, "    {rest}")?;
        }
    }
    Ok(())
}
