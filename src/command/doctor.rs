//! `doctor`: what this machine has, line by line, and what to do about what is missing. Only looking: nothing is loaded
//! and nothing stays open. Exit code 1 when something prevents serving.

use serde_json::{Value, json};

use super::Done;
use super::files::say;
use crate::args::DoctorArgs;

mod devices;
mod memory;
mod places;
mod processor;

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// As it should be.
    Well,
    /// Serving works, and would be better or could do more with a change.
    Note,
    /// Serving does not work like this.
    Problem,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Well => "ok",
            State::Note => "note",
            State::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    state: State,
    /// What is there.
    found: String,
    /// What to do about it, if anything.
    cure: Option<String>,
}

impl Finding {
    fn well(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Well, found: found.into(), cure: None }
    }

    fn note(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { name, state: State::Note, found: found.into(), cure: Some(cure.into()) }
    }

    fn problem(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { name, state: State::Problem, found: found.into(), cure: Some(cure.into()) }
    }

    fn lines(&self) -> Vec<String> {
        let head = format!("{:<8} {:<16} {}", self.state.word(), self.name, self.found);
        let cure = self.cure.as_ref().map(|cure| format!("{:<25} → {cure}", ""));
        std::iter::once(head).chain(cure).collect()
    }

    fn json(&self) -> Value {
        json!({"name": self.name, "state": self.state.word(), "found": self.found, "do": self.cure})
    }
}

/// `doctor`.
pub(super) fn doctor(args: &DoctorArgs) -> anyhow::Result<Done> {
    let findings: Vec<Finding> =
        [processor::look(), memory::look(), places::look()?, devices::look()].into_iter().flatten().collect();
    let serves = findings.iter().all(|finding| finding.state != State::Problem);
    if args.json {
        let rows: Vec<Value> = findings.iter().map(Finding::json).collect();
        say(&serde_json::to_string_pretty(&json!({"serves": serves, "findings": rows}))?)?;
    } else {
        findings.iter().flat_map(Finding::lines).try_for_each(|line| say(&line))?;
    }
    Ok(if serves { Done::Well } else { Done::Differs })
}

/// The text of a file of the system; none where there is no such file.
fn text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The rest of the first line that begins with `name`, without spaces around it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
