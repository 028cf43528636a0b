//! Flags of `plan`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// What is asked, what answers, what it costs: a TOML file, such as those in examples/plan
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write into this file instead
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,
}
