//! Marks a model on cases that are right or wrong: a conversation and the one answer that counts. Cases go through the
//! real graph, many at once, as a client's would; only the best token is taken each time, so that a mark can be
//! repeated.
//!
//! A file of cases has one JSON object a line: `task` names the skill that is examined; `messages`, as the chat interface
//! takes them; `answer`. A reasoning section that the model writes before its answer does not count.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use millstream_actors::assemble::{Resources, encode_settings};
use millstream_actors::request::{Finish, Outcome, Reply, Submit};
use millstream_topology::Plan;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::desk::Desk;
use crate::http::{self, Images};
use crate::mill::{self, Mill};

/// The largest file of cases that is read, in bytes.
const FILE_LEN_MAX: u64 = 256 << 20;
/// What ends a reasoning section.
const REASONED: &str = "</think>";

/// One question and its answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What is examined.
    #[serde(rename = "task")]
    pub skill: String,
    /// The conversation, as the chat interface takes it.
    pub messages: Value,
    /// What the model must say, white space at both ends left out.
    pub answer: String,
}

/// How the cases of one skill went.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Score {
    /// Answers that were right.
    pub right: usize,
    /// Cases.
    pub of: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub answer_tokens: u64,
    /// Answers that were cut at their longest.
    pub cut: usize,
}

impl Score {
    /// The part that was right, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.right as f64 / self.of.max(1) as f64
    }
}

/// A case that went wrong, to be looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Wrong {
    /// Its line in the file, from 1.
    pub line: usize,
    /// What is examined.
    #[serde(rename = "task")]
    pub skill: String,
    /// What should have been said.
    pub answer: String,
    /// What was said, reasoning and all.
    pub said: String,
}

/// What came out.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// By skill.
    pub scores: BTreeMap<String, Score>,
    /// In the order of the file.
    pub wrong: Vec<Wrong>,
}

/// Reads cases, with the numbers of their lines; empty lines are passed over.
///
/// # Errors
/// The file cannot be read or holds nothing, or a line is no case: which one, and why.
pub fn read(file: &Path) -> anyhow::Result<Vec<(usize, Case)>> {
    let name = file.display();
    let open = std::fs::File::open(file).with_context(|| format!("cannot read {name}"))?;
    let mut cases = Vec::new();
    for (line, text) in (1..).zip(BufReader::new(open.take(FILE_LEN_MAX)).lines()) {
        let text = text.with_context(|| format!("{name}:{line}: cannot read"))?;
        if !text.trim().is_empty() {
            let case = serde_json::from_str(&text).with_context(|| format!("{name}:{line}: not a case"))?;
            cases.push((line, case));
        }
    }
    if cases.is_empty() {
        bail!("{name} holds no cases");
    }
    Ok(cases)
}

/// Asks a graph of `plan` every case, `batch` at once, each answer at most `tokens_max` long.
///
/// # Errors
/// The graph cannot be started, a case is no conversation, or a request ends without an answer.
pub async fn mark(
    plan: &Plan,
    resources: &Resources,
    cases: &[(usize, Case)],
    (batch, tokens_max): (usize, u32),
) -> anyhow::Result<Report> {
    let body_max = mill::gateway(plan)?.body_max(resources);
    let images = encode_settings(plan, resources).map(|settings| Images::new(&settings, body_max));
    let submit = |(line, case): &(usize, Case)| submit(*line, case, images.as_ref(), tokens_max);
    let asked: Vec<Submit> = cases.iter().map(submit).collect::<anyhow::Result<_>>()?;
    let mill = Mill::start(plan, resources, tokens_max as usize + 64).await?;
    let answers = cases.iter().zip(asked).map(|((line, _), submit)| ask(mill.desk(), *line, submit));
    let answers: Vec<anyhow::Result<Said>> =
        futures::stream::iter(answers).buffered(batch.max(1)).collect().await;
    mill.stop().await;
    let mut report = Report::default();
    for ((line, case), said) in cases.iter().zip(answers) {
        report.add(*line, case, said?);
    }
    Ok(report)
}

/// What a model said to one case.
struct Said {
    text: String,
    prompt_tokens: u64,
    answer_tokens: u64,
    cut: bool,
}

impl Report {
    fn add(&mut self, line: usize, case: &Case, said: Said) {
        let score = self.scores.entry(case.skill.clone()).or_default();
        score.of += 1;
        score.prompt_tokens += said.prompt_tokens;
        score.answer_tokens += said.answer_tokens;
        score.cut += usize::from(said.cut);
        if is_right(&said.text, &case.answer) {
            score.right += 1;
        } else {
            let (skill, answer) = (case.skill.clone(), case.answer.clone());
            self.wrong.push(Wrong { line, skill, answer, said: said.text });
        }
    }
}

/// Whether what was said after the reasoning is the answer.
fn is_right(said: &str, answer: &str) -> bool {
    said.rsplit(REASONED).next().unwrap_or_default().trim() == answer.trim()
}

/// The request of a case, by the same road as a client's.
fn submit(line: usize, case: &Case, images: Option<&Images>, tokens_max: u32) -> anyhow::Result<Submit> {
    let body =
        json!({"model": "default", "messages": case.messages, "temperature": 0, "max_tokens": tokens_max});
    http::one_chat(&body, images).map_err(|why| anyhow::anyhow!("line {line}: {why}"))
}

async fn ask(desk: &Arc<Desk>, line: usize, submit: Submit) -> anyhow::Result<Said> {
    let mut answer =
        desk.ask(submit).map_err(|closed| anyhow::anyhow!("line {line}: not taken: {closed:?}"))?;
    let mut said = Said { text: String::new(), prompt_tokens: 0, answer_tokens: 0, cut: false };
    loop {
        match answer.next().await.map_err(|cut| anyhow::anyhow!("line {line}: {cut}"))? {
            Reply::Text { text, .. } => said.text.push_str(&text),
            Reply::Logits { .. } => {}
            Reply::End { outcome: Outcome::Finished(finish), usage, .. } => {
                said.cut = finish == Finish::Length;
                said.prompt_tokens = usage.prompt_tokens.into();
                said.answer_tokens = usage.completion_tokens.into();
                return Ok(said);
            }
            Reply::End { outcome, .. } => bail!("line {line}: the answer ended as {outcome:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_said_after_the_reasoning() {
        assert!(is_right("<think>7+5=12</think>\n82\n", "82"));
        assert!(is_right(" 82", "82"));
        for wrong in ["<think>82</think>83", "<think>82", "", "82.", "</think>82</think>"] {
            assert!(!is_right(wrong, "82"), "{wrong}");
        }
    }

    #[test]
    fn a_line_that_is_no_case_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("cases.jsonl");
        let good = r#"{"task": "sum", "messages": [], "answer": "2"}"#;
        std::fs::write(&file, format!("{good}\n\n{good}\n{{\"task\": 1}}\n")).expect("written");
        let error = format!("{:#}", read(&file).expect_err("line 4 is no case"));
        assert!(error.contains("cases.jsonl:4: not a case: "), "{error}");
        std::fs::write(&file, format!("\n{good}\n")).expect("written");
        assert_eq!(read(&file).expect("one case").iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2]);
        std::fs::write(&file, "\n").expect("written");
        assert!(format!("{:#}", read(&file).expect_err("nothing")).ends_with("holds no cases"));
    }
}
