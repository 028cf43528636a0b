//! Arguments → one command → exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use millstream::args::Cli;
use millstream::command;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("MILLSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("millstream: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(command::run(cli));
    // A thread that waits for standard input would hold a normal shutdown back until the next key.
    runtime.shutdown_background();
    ExitCode::from(done.code())
}
