//! The report for a terminal: one line a prompt, differences beside their tolerances.

use super::Report;
use super::judge::Verdict;

/// The whole report of one folder.
pub fn lines(report: &Report) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<14} {:>6} {:>11} {:>10} {:>10} {:>10} {:>8} {:>7} {:>7} {:>10}  {}",
        "prompt",
        "tokens",
        "positions",
        "logits",
        "max",
        "logsumexp",
        "within",
        "argmax",
        "greedy",
        "last",
        "verdict"
    )];
    lines.extend(report.verdicts.values().map(line));
    if report.samples > 0 {
        let (wrong, samples) = (report.words.len(), report.samples);
        lines.push(format!("tokenizer: {samples} texts, {wrong} differences"));
    }
    lines.extend(report.words.iter().map(|wrong| format!("  {wrong}")));
    lines
}

fn line(verdict: &Verdict) -> String {
    let seen = format!("{}/{}", verdict.seen.0, verdict.seen.1);
    let greedy = format!("{}/{}", verdict.greedy, verdict.greedy_of);
    let last = verdict.last.map_or_else(|| "-".to_owned(), |last| format!("{last:.2e}"));
    let said = match (verdict.passed(), verdict.greedy_margin) {
        (true, None) => "ok".to_owned(),
        (true, Some(margin)) => format!("ok (greedy token {} won by {margin:.1e} only)", verdict.greedy),
        (false, _) => "OUT".to_owned(),
    };
    format!(
        "{:<14} {:>6} {:>11} {:>10.2e} {:>10.2e} {:>10.2e} {:>8.0e} {:>7} {:>7} {:>10}  {said}",
        verdict.name,
        verdict.tokens,
        seen,
        verdict.logits,
        verdict.max,
        verdict.logsumexp,
        verdict.tolerance().logits,
        verdict.argmax,
        greedy,
        last,
    )
}
