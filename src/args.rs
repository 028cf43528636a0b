//! Commands and flags as typed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod cache;
mod choice;
mod plan;
mod simulate;

pub use cache::{
    CacheArgs, CacheCommand, CacheDropArgs, CacheGcArgs, CacheListArgs, CacheLookArgs, CacheWhichArgs,
};
pub use choice::ChoiceArgs;
pub use plan::PlanArgs;
pub use simulate::{DrawnArgs, FaultMix, FormatArg, ShownArgs, SimulateArgs, SpeedArgs, SyntheticArg};

/// An actor-based dataflow runtime that serves large language models.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a topology file, or one model, over HTTP
    Serve(ServeArgs),
    /// Check a topology file; prints every problem with its place
    Check(CheckArgs),
    /// Print a topology file with every default and every wire written out
    Expand(FileArgs),
    /// Draw a topology file
    Graph(GraphArgs),
    /// Say what changes between two topology files, and what each change costs
    Diff(DiffArgs),
    /// Print the JSON Schema of topology files
    Schema,
    /// Talk to a model in the terminal
    Chat(ChatArgs),
    /// Run a topology on virtual time: with faults drawn from a seed, or with a trace, to see how much it can do
    Simulate(SimulateArgs),
    /// Search for the cheapest fleet that answers a workload in time, and say what it costs
    Plan(PlanArgs),
    /// Compare a model with stored vectors, through the real graph
    Oracle(OracleArgs),
    /// Mark a model's answers on cases that are right or wrong
    Eval(EvalArgs),
    /// Measure a model on this machine, beside what the machine can do at most
    Bench(BenchArgs),
    /// Look at this machine: can it serve, and what would make it faster
    Doctor(DoctorArgs),
    /// Say what each rank of a group would hold of a model, from the headers of its files
    Place(PlaceArgs),
    /// Download a model from the Hugging Face hub
    Pull(PullArgs),
    /// Look after a prefix store, also while servers use it
    Cache(CacheArgs),
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The topology file
    #[arg(required_unless_present = "model", value_name = "FILE | --model MODEL")]
    pub file: Option<PathBuf>,
    /// A model folder or .gguf file: alone, or in place of the file's
    #[arg(long)]
    pub model: Option<String>,
    /// Listen here instead of where the file says: an address and a port, or a port of this machine alone
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen)]
    pub listen: Option<SocketAddr>,
}

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The topology file
    pub file: PathBuf,
    /// Print the plan, or the problems, as JSON
    #[arg(long)]
    pub json: bool,
}

/// A topology file alone.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// The topology file
    pub file: PathBuf,
}

/// Flags of `graph`.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// The topology file
    pub file: PathBuf,
    /// What to draw with
    #[arg(long, value_enum, default_value = "text")]
    pub format: GraphFormat,
}

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum GraphFormat {
    /// For terminals
    Text,
    /// For Markdown
    Mermaid,
    /// For browsers
    Svg,
}

/// Flags of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The topology file as it is
    pub before: PathBuf,
    /// The topology file as it shall be
    pub after: PathBuf,
}

/// Flags of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// A model folder or .gguf file: alone, or in place of the topology's
    #[arg(long, conflicts_with = "server")]
    pub model: Option<String>,
    /// A topology file
    #[arg(long, conflicts_with = "server")]
    pub topology: Option<PathBuf>,
    /// A server that runs already, such as http://127.0.0.1:8000
    #[arg(long)]
    pub server: Option<String>,
    /// What to say; without it, a conversation on standard input
    pub prompt: Option<String>,
    /// Standing orders
    #[arg(long)]
    pub system: Option<String>,
    /// An image to look at, with the first thing that is said; may be given several times
    #[arg(long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// How the answer is chosen
    #[command(flatten)]
    pub choice: ChoiceArgs,
}

/// Flags of `oracle`.
#[derive(Debug, Args)]
pub struct OracleArgs {
    /// Folders with vectors.json
    #[arg(required = true)]
    pub folders: Vec<PathBuf>,
    /// The model, for folders that hold vectors only
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// A topology file whose model is replaced by the folder
    #[arg(long, conflicts_with = "split")]
    pub topology: Option<PathBuf>,
    /// Tokens of a prompt in one step
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub chunk: Option<u32>,
    /// Prefill and decode in groups of their own
    #[arg(long)]
    pub split: bool,
    /// Requests at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub batch: u32,
}

/// Flags of `eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A model folder or .gguf file, or builtin
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub path: Option<String>,
    /// The same, as other commands take it
    #[arg(long)]
    pub model: Option<String>,
    /// A topology file; MODEL replaces its model
    #[arg(long, conflicts_with = "split")]
    pub topology: Option<PathBuf>,
    /// Prefill and decode in groups of their own
    #[arg(long)]
    pub split: bool,
    /// Cases, one JSON object a line: task, messages, answer [default: eval.jsonl of the model's folder]
    #[arg(long, value_name = "FILE")]
    pub cases: Option<PathBuf>,
    /// Only this task (may be given several times)
    #[arg(long = "task", value_name = "NAME")]
    pub skills: Vec<String>,
    /// Cases at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=512), allow_negative_numbers = true)]
    pub batch: u32,
    /// Longest answer in tokens
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub max_tokens: u32,
    /// Print so many of the answers that are wrong
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub wrong: usize,
    /// Exit with 1 when fewer than this share of a task's answers are right
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    pub at_least: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A model folder or .gguf file
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub path: Option<String>,
    /// The same, as other commands take it
    #[arg(long)]
    pub model: Option<String>,
    /// A topology file, for its threads and, without MODEL, its model
    #[arg(long)]
    pub topology: Option<PathBuf>,
    /// Compute threads, instead of as many as `serve` takes here
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub prompt: u32,
    /// Tokens that each sequence grows by
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub generate: u32,
    /// Sequences at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Vec<u32>,
    /// Positions before the first generated token
    #[arg(long, value_delimiter = ',', default_values_t = [16], value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub depth: Vec<u32>,
    /// What quantised weights are multiplied with, instead of what the plan says
    #[arg(long, value_enum)]
    pub activations: Option<ActivationsArg>,
    /// Compute the prompt also with later layers on its end only, as `decoder_truncation` of a topology does
    #[arg(long)]
    pub decoder_truncation: bool,
    /// Runs of each measurement; the best counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What quantised weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationsArg {
    /// Activations rounded to 8 bits
    Int8,
    /// Activations as they are
    F32,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `place`.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// A model folder
    pub folder: PathBuf,
    /// Ranks of the group
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536), allow_negative_numbers = true)]
    pub ranks: u32,
    /// Where lookup tables are
    #[arg(long, value_enum, default_value = "file")]
    pub tables: TablesArg,
    /// Where everything but experts and lookup tables is
    #[arg(long, value_enum, default_value = "copy")]
    pub rest: RestArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where lookup tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TablesArg {
    /// On each rank
    Copy,
    /// As many rows on each rank
    Split,
    /// In their files, read row by row when wanted
    File,
}

/// Where what every token needs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RestArg {
    /// On each rank
    Copy,
    /// As many rows on each rank
    Split,
}

/// Flags of `pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// A repository of the hub, and one file of it where several models share the repository
    #[arg(value_name = "REPO[:FILE]")]
    pub repo: String,
    /// Branch, tag or commit
    #[arg(long, default_value = "main", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub revision: String,
    /// Put the files into this folder instead of the cache that Hugging Face tools share
    #[arg(long)]
    pub into: Option<PathBuf>,
    /// Of the files a model needs, only those that match (such as '*Q4_K_M*'; may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
}

/// A port alone is one that only this machine reaches.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let of_this_machine = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    text.parse().or_else(|_| text.parse().map(of_this_machine)).map_err(|_| {
        "must be an address and a port, such as 127.0.0.1:8000 (0.0.0.0:8000 for the network), or a port"
            .to_owned()
    })
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("must be a number from 1 to 1024".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_port_alone_is_one_of_this_machine() {
        assert_eq!(listen("8000"), Ok(SocketAddr::from(([127, 0, 0, 1], 8000))));
        assert_eq!(listen("[::1]:0").map(|address| address.to_string()), Ok("[::1]:0".to_owned()));
        for wrong in ["localhost", "65536", "-1", "", "127.0.0.1", ":8000"] {
            assert!(listen(wrong).is_err_and(|why| why.contains("such as 127.0.0.1:8000")), "{wrong}");
        }
    }

    #[test]
    fn numbers_below_all_ranges_are_told_the_range() {
        for (words, range) in [
            (&["oracle", "x", "--batch", "-1"][..], "1..=1024"),
            (&["simulate", "x", "--requests", "-5"], "1.."),
            (&["eval", "--at-least", "-0.5"], "from 0 to 1"),
            (&["place", "x", "--ranks", "-1"], "1..=65536"),
        ] {
            let refused = Cli::try_parse_from([&["millstream"], words].concat()).expect_err("out of range");
            assert!(refused.to_string().contains(range), "{words:?}: {refused}");
        }
    }
}
