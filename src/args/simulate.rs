//! Flags of `simulate`, in both of its ways: real tokens under faults, and how much a plan can do.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The topology file
    pub file: PathBuf,
    /// A model in place of the file's; with a workload, a folder with a config.json is enough
    #[arg(long)]
    pub model: Option<String>,
    /// The seed of everything random
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    pub seed: u64,
    /// Several seeds, as 1..100 (the last one is left out)
    #[arg(long, value_parser = seeds, conflicts_with_all = ["trace", "synthetic"])]
    pub seeds: Option<Range<u64>>,
    /// Requests of one run [default: 32; with a workload, all of it]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    pub requests: Option<u64>,
    /// What goes wrong [default: seed; with a workload, none]
    #[arg(long, value_enum)]
    pub faults: Option<FaultMix>,
    /// Take requests from this trace, - for standard input, and say how much the topology can do: nothing is computed
    #[arg(long, conflicts_with = "synthetic", help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// The trace's format, where its first line does not tell
    #[arg(long, value_enum, requires = "trace", help_heading = "Workload")]
    pub format: Option<FormatArg>,
    /// Draw requests, and say how much the topology can do: nothing is computed
    #[arg(long, value_enum, help_heading = "Workload")]
    pub synthetic: Option<SyntheticArg>,
    /// What is drawn
    #[command(flatten)]
    pub drawn: DrawnArgs,
    /// Requests come so many times as fast as the workload says
    #[arg(long, default_value_t = 1.0, value_parser = positive, help_heading = "Workload")]
    pub faster: f64,
    /// Talks of a trace that does not say when they begin, as those of agents, begin so long after each other
    #[arg(long, default_value = "60s", value_parser = span, help_heading = "Workload")]
    pub gap: Duration,
    /// How fast things are
    #[command(flatten)]
    pub speeds: SpeedArgs,
    /// What is shown
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// What `--synthetic` draws.
#[derive(Debug, Args)]
pub struct DrawnArgs {
    /// Talks that begin in a second
    #[arg(long, default_value_t = 1.0, value_parser = positive, help_heading = "Workload")]
    pub rate: f64,
    /// For so long talks begin
    #[arg(long = "for", default_value = "10m", value_parser = span, help_heading = "Workload")]
    pub lasts: Duration,
    /// Tokens of a first prompt, in the mean
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1 << 24), help_heading = "Workload")]
    pub input: u32,
    /// Tokens of an answer, in the mean
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=1 << 24), help_heading = "Workload")]
    pub output: u32,
    /// Deviation of the logarithm of lengths; 0: all are alike
    #[arg(long, default_value_t = 0.7, value_parser = share_up, help_heading = "Workload")]
    pub spread: f64,
    /// Tokens that all prompts begin with
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1 << 24), help_heading = "Workload")]
    pub shared: u32,
    /// Requests of a talk, in the mean [default: 1; of agents 20]
    #[arg(long, value_parser = positive, help_heading = "Workload")]
    pub rounds: Option<f64>,
    /// From an answer to the next prompt of a talk, in the mean
    #[arg(long, default_value = "10s", value_parser = span, help_heading = "Workload")]
    pub think: Duration,
    /// Tokens that the next prompt of a talk has beside the last one and its answer, in the mean
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(..=1 << 24), help_heading = "Workload")]
    pub growth: u32,
    /// With bursts: half of the talks begin in the first tenth of each of these
    #[arg(long, default_value = "60s", value_parser = span, help_heading = "Workload")]
    pub period: Duration,
}

/// How fast things are.
#[derive(Debug, Args)]
pub struct SpeedArgs {
    /// A device of the table, such as h100 [default: that of the figures, which is h100 where they name none]
    #[arg(long, help_heading = "Speeds")]
    pub device: Option<String>,
    /// Coefficients of steps, in JSON, such as serve keeps below $MILLSTREAM_CACHE/costs or ~/.cache/millstream/costs
    #[arg(long, value_name = "FILE", conflicts_with = "device", help_heading = "Speeds")]
    pub costs: Option<PathBuf>,
    /// Figures of devices, links, stores and prices, in place of the table's
    #[arg(long, value_name = "FILE", help_heading = "Speeds")]
    pub figures: Option<PathBuf>,
    /// What a device costs for an hour
    #[arg(long, value_parser = positive, help_heading = "Speeds")]
    pub price: Option<f64>,
    /// Run every step by itself: slower, and the same report
    #[arg(long, help_heading = "Speeds")]
    pub single_steps: bool,
}

/// What is shown of a workload's run.
#[derive(Debug, Args)]
pub struct ShownArgs {
    /// Print JSON
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// Write drawings into this folder
    #[arg(long, value_name = "FOLDER", help_heading = "Report")]
    pub svg: Option<PathBuf>,
    /// Write a page for a browser
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub html: Option<PathBuf>,
}

/// What goes wrong in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultMix {
    /// Nothing
    None,
    /// A mix drawn from the seed
    Seed,
}

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Mooncake's JSON lines
    Mooncake,
    /// Bailian's JSON lines
    Bailian,
    /// Azure's tables
    Azure,
    /// BurstGPT's tables
    Burstgpt,
    /// Talks of agents, JSON lines
    Agentic,
    /// Records of dynamo.request.trace.v1
    Dynamo,
}

/// What a drawn workload is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyntheticArg {
    /// Requests that know nothing of each other
    Poisson,
    /// Half of them in a tenth of the time
    Bursts,
    /// Talks of many rounds, with time to think and a context that grows
    Agents,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || "must look like 1..100".to_owned();
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let (from, to): (u64, u64) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
    if from < to { Ok(from..to) } else { Err("holds no seed".to_owned()) }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be in 1..".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "must be a number above 0".to_owned())
}

fn share_up(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=4.0).contains(number));
    number.ok_or_else(|| "must be a number from 0 to 4".to_owned())
}

/// A time with its unit.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a time such as 250ms, 30s, 10m, 2h or 1d".to_owned();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').ok_or_else(wrong)?;
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * unit)
        .ok()
        .filter(|span| span.as_secs() <= 366 * 86_400)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seeds_are_read() {
        assert_eq!(seeds("1..4"), Ok(1..4));
        assert!(seeds("4..4").is_err());
        assert!(seeds("4").is_err());
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(span("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "s", "5 s", "-1s", "1w", "99999999d", "1..5s"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
