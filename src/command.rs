//! Arguments → one command → how it ended. Only this folder prints.

use crate::args::{Cli, Command};
use crate::source::Refused;

mod bench;
mod cache;
mod chat;
mod doctor;
mod eval;
mod files;
mod oracle;
mod place;
mod plan;
mod pull;
mod serve;
mod signals;
mod simulate;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// As it should: exit code 0.
    Well,
    /// It ran, and what it looked at is not as it should be: exit code 1.
    Differs,
    /// It was not started, since what it was given is wrong; the problems are printed: exit code 2.
    Refused,
    /// A person interrupted it: exit code 130.
    Interrupted,
}

impl Done {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Done::Well => 0,
            Done::Differs => 1,
            Done::Refused => 2,
            Done::Interrupted => 130,
        }
    }
}

/// Runs the command and prints what it has to say; an error is printed too and gives its exit code.
pub async fn run(cli: Cli) -> Done {
    let done = match cli.command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Check(args) => files::check(&args),
        Command::Expand(args) => files::expanded(&args),
        Command::Graph(args) => files::graph(&args),
        Command::Diff(args) => files::changes(&args),
        Command::Schema => files::print_schema(),
        Command::Chat(args) => chat::chat(args).await,
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Oracle(args) => oracle::oracle(&args).await,
        Command::Eval(args) => eval::eval(&args).await,
        Command::Bench(args) => bench::bench(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Place(args) => place::place(&args),
        Command::Pull(args) => pull::pull(args).await,
        Command::Cache(args) => cache::cache(args).await,
    };
    done.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &anyhow::Error) -> Done {
    if let Some(refused) = error.downcast_ref::<Refused>() {
        files::tell(&refused.to_string());
        return Done::Refused;
    }
    let reader_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(reader_gone) {
        return Done::Well;
    }
    files::tell(&format!("millstream: {error:#}"));
    Done::Differs
}
