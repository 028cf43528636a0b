//! What came of a simulation: outcomes counted, and everything that must hold after any run, held.

use std::collections::BTreeMap;
use std::fmt;

use millstream_actors::gauges::{EncodeGauges, GroupGauges};
use millstream_actors::request::Outcome;
use millstream_actors::sched::Reused;
use millstream_runtime::Time;

use super::{Heard, Run};
use crate::meters::outcome_name;

/// What a group owns when everything is over; it should be nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    group: String,
    blocks: u64,
    slots: u64,
    leases: u64,
    sequences: u64,
}

impl Ledger {
    pub(super) fn of(group: &GroupGauges) -> Self {
        Self {
            group: group.name.clone(),
            blocks: group.blocks_used.get(),
            slots: group.slots_used.get(),
            leases: group.leases.get(),
            sequences: group.running.get() + group.waiting.get(),
        }
    }

    /// Of an encode actor, which owns nothing but the requests that wait.
    pub(super) fn of_eyes(encode: &EncodeGauges) -> Self {
        Self { group: encode.name.clone(), blocks: 0, slots: 0, leases: 0, sequences: encode.waiting.get() }
    }

    fn is_zero(&self) -> bool {
        self.blocks + self.slots + self.leases + self.sequences == 0
    }
}

/// One seed's result.
#[derive(Clone, Debug)]
pub struct Report {
    seed: u64,
    outcomes: BTreeMap<&'static str, usize>,
    restarts: u64,
    time: Time,
    reused: Reused,
    digest: u64,
    /// A unit died more often than its budget allows: live, the graph ends here and says so.
    spent: Option<String>,
    wrong: Vec<String>,
}

impl Report {
    /// Judges a run; `calm` is the same load without faults.
    pub(super) fn new(seed: u64, calm: &Run, run: Run) -> Self {
        let mut outcomes = BTreeMap::new();
        for heard in run.heard.values() {
            let name = heard.outcome.as_ref().map_or("no_end", outcome_name);
            *outcomes.entry(name).or_default() += 1;
        }
        let mut wrong = faults_of(&run, "");
        wrong.extend(faults_of(calm, " (without faults)"));
        for (request, heard) in run.heard.iter().filter(|_| !run.approximate) {
            let calm = calm.heard.get(request);
            wrong.extend(
                calm.and_then(|calm| compare(calm, heard)).map(|why| format!("request {}: {why}", request.0)),
            );
        }
        let Run { restarts, time, reused, digest, failed: spent, .. } = run;
        Self { seed, outcomes, restarts, time, reused, digest, spent, wrong }
    }

    /// What must not be, one sentence each.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Tokens that were not computed, since they were known.
    pub fn found(&self) -> u64 {
        self.reused.found
    }

    /// Digest of the ordered event log: equal for equal plans, seeds and programs.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let seconds = self.time.as_nanos() as f64 / 1e9;
        let ledgers = if self.wrong.iter().any(|wrong| wrong.contains("still owns")) {
            "NOT at zero"
        } else {
            "at zero"
        };
        write!(
            f,
            "seed {}: {}; {} restarts; {seconds:.3} s of virtual time; {} of {} tokens found; ledgers {ledgers}; \
             log {:016x}",
            self.seed,
            counts.join(", "),
            self.restarts,
            self.reused.found,
            self.reused.sought,
            self.digest,
        )?;
        if let Some(spent) = &self.spent {
            write!(f, "\n  a unit spent its restarts, as the budget of the plan says: {spent}")?;
        }
        for wrong in &self.wrong {
            write!(f, "\n  {wrong}")?;
        }
        Ok(())
    }
}

/// What must hold whatever happened.
fn faults_of(run: &Run, when: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !run.at_rest && run.failed.is_none() {
        wrong.push(format!("the graph did not come to rest{when}"));
    }
    for ledger in run.ledgers.iter().filter(|ledger| !ledger.is_zero()) {
        let Ledger { group, blocks, slots, leases, sequences } = ledger;
        wrong.push(format!(
            "{group} still owns {blocks} blocks, {slots} slots, {leases} leases, {sequences} sequences{when}"
        ));
    }
    for (request, heard) in &run.heard {
        if heard.outcome.is_none() && run.failed.is_none() {
            wrong.push(format!("request {} never ended{when}", request.0));
        }
        if heard.patient && heard.outcome == Some(Outcome::Expired) && run.failed.is_none() {
            wrong.push(format!("request {} was forgotten until its deadline{when}", request.0));
        }
        if heard.again > 0 {
            wrong.push(format!("request {} ended {} times{when}", request.0, heard.again + 1));
        }
    }
    wrong
}

/// Whatever went wrong on the way, the text is that of the calm run, or a beginning of it.
fn compare(calm: &Heard, heard: &Heard) -> Option<String> {
    if !matches!(calm.outcome, Some(Outcome::Finished(_))) {
        return None;
    }
    if !calm.text.starts_with(&heard.text) {
        return Some(format!("the text is {:?} instead of {:?}", heard.text, calm.text));
    }
    let finished = matches!(heard.outcome, Some(Outcome::Finished(_)));
    (finished && heard != calm).then(|| format!("finished as {heard:?} instead of {calm:?}"))
}

impl PartialEq for Heard {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.outcome == other.outcome
    }
}
