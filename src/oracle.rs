//! Compares a model with stored vectors, through the real graph under the live driver: what a client would get is what
//! is judged, whatever the topology, the size of chunks, or who shares the batch.
//!
//! [`folder`] reads the vectors, [`judge`] holds one answer against them, [`words`] the tokenizer, [`table`] prints.

use std::collections::BTreeMap;

use futures::StreamExt;
use millstream_actors::assemble::Resources;
use millstream_actors::request::{Finish, Observe, Outcome, Prompt, Reply, Sampling, Submit};
use millstream_topology::Plan;

use crate::desk::Desk;
use crate::mill::Mill;

pub mod folder;
pub mod judge;
pub mod table;
pub mod words;

use folder::{Case, Vectors};
use judge::{Judge, Verdict};
use std::sync::Arc;

/// Everything that was compared in one folder.
#[derive(Debug)]
pub struct Report {
    /// Prompts, each with its worst differences over all times it was asked.
    pub verdicts: BTreeMap<String, Verdict>,
    /// What the tokenizer got wrong, one sentence each.
    pub words: Vec<String>,
    /// Texts that the tokenizer was asked.
    pub samples: usize,
}

impl Report {
    /// Whether everything is within the tolerances.
    pub fn passed(&self) -> bool {
        self.words.is_empty() && self.verdicts.values().all(Verdict::passed)
    }
}

/// Asks a graph of `plan` every prompt of the vectors, `batch` at once, and judges the answers.
///
/// # Errors
/// The graph cannot be started, or a request ends without an answer.
pub async fn compare(
    plan: &Plan,
    resources: &Resources,
    vectors: &Vectors,
    batch: usize,
) -> anyhow::Result<Report> {
    let longest = vectors.cases.iter().map(|case| case.ids.len() + 2 * case.answer_len()).max().unwrap_or(0);
    let mill = Mill::start(plan, resources, longest + 64).await?;
    let times = vectors.cases.len().max(batch);
    let asked: Vec<&Case> = vectors.cases.iter().cycle().take(times).collect();
    let answers = futures::stream::iter(asked.into_iter().map(|case| ask(mill.desk(), case, vectors)));
    let answers: Vec<anyhow::Result<Verdict>> = answers.buffer_unordered(batch.max(1)).collect().await;
    mill.stop().await;
    let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
    for verdict in answers {
        let verdict = verdict?;
        match verdicts.get_mut(&verdict.name) {
            Some(known) => known.merge(verdict),
            None => drop(verdicts.insert(verdict.name.clone(), verdict)),
        }
    }
    let words = words::compare(&vectors.words, resources);
    Ok(Report { verdicts, words, samples: vectors.words.samples.len() })
}

async fn ask(desk: &Arc<Desk>, case: &Case, vectors: &Vectors) -> anyhow::Result<Verdict> {
    let mut judge = Judge::new(case, vectors.tolerance);
    let mut answer =
        desk.ask(submit(case)).map_err(|closed| anyhow::anyhow!("{}: not taken: {closed:?}", case.name))?;
    loop {
        match answer.next().await.map_err(|cut| anyhow::anyhow!("{}: {cut}", case.name))? {
            Reply::Text { tokens, .. } => judge.tokens(&tokens),
            Reply::Logits { position, logits, .. } => judge.logits(position, &logits),
            Reply::End { outcome: Outcome::Finished(Finish::Length), .. } => return Ok(judge.verdict()),
            Reply::End { outcome, .. } => anyhow::bail!("{}: the answer ended as {outcome:?}", case.name),
        }
    }
}

/// One token more than the vectors hold, so that the last of theirs is computed too and its logits can be seen.
fn submit(case: &Case) -> Submit {
    Submit {
        tokens_max: Some(u32::try_from(case.answer_len() + 1).unwrap_or(u32::MAX)),
        ignore_end: true,
        observe: Observe::At(case.observed()),
        ..Submit::new(Prompt::Tokens(case.ids.clone()), Sampling::GREEDY)
    }
}
