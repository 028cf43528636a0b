//! Commands and flags of `cache`.

use std::time::Duration;

use clap::{Args, Subcommand};

/// `cache COMMAND`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// One thing to do with a prefix store.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Say what is in it: blocks and bytes by model, class and tenant, how old, what has expired
    Stat(CacheLookArgs),
    /// Read all of it and compare with its checksums; exit code 1 where something is damaged
    Verify(CacheLookArgs),
    /// Let go of what has expired, of what is beyond the budgets of the topology, and of what is damaged, now
    Gc(CacheGcArgs),
    /// Show chains of blocks, the newest first
    List(CacheListArgs),
    /// Let go of some blocks, or of all
    Drop(CacheDropArgs),
}

/// Which store, and how to print.
#[derive(Debug, Args)]
pub struct CacheLookArgs {
    /// A topology file, or the folder or URL of a store
    #[arg(value_name = "FILE | FOLDER | URL", default_value = "kv")]
    pub store: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which blocks.
#[derive(Debug, Args)]
pub struct CacheWhichArgs {
    /// Of this model: its name, or the first digits of its layout, as `stat` shows them
    #[arg(long)]
    pub model: Option<String>,
    /// Of this tenant: its name, or the first digits of its digest, or - for nobody's
    #[arg(long, value_name = "NAME|DIGEST", allow_hyphen_values = true)]
    pub tenant: Option<String>,
    /// Of this class
    #[arg(long)]
    pub class: Option<String>,
    /// Not used for so long, such as 3d
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub older: Option<Duration>,
}

/// Flags of `cache gc`.
#[derive(Debug, Args)]
pub struct CacheGcArgs {
    /// Which store, and how to print.
    #[command(flatten)]
    pub look: CacheLookArgs,
    /// Keep at most so many bytes of blocks, such as 10GiB, instead of the topology's number
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
    /// Let go of what was not used for so long, such as 12h, whatever its class
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub ttl: Option<Duration>,
    /// Do not read all of it to find damaged blocks, which go too
    #[arg(long)]
    pub quick: bool,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `cache list`.
#[derive(Debug, Args)]
pub struct CacheListArgs {
    /// Which store, and how to print.
    #[command(flatten)]
    pub look: CacheLookArgs,
    /// Which blocks.
    #[command(flatten)]
    pub which: CacheWhichArgs,
    /// Only chains of at least so many bytes, such as 10MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub larger: Option<u64>,
    /// So many chains at most
    #[arg(long, default_value_t = 50)]
    pub limit: usize,
}

/// Flags of `cache drop`.
#[derive(Debug, Args)]
pub struct CacheDropArgs {
    /// Which store, and how to print.
    #[command(flatten)]
    pub look: CacheLookArgs,
    /// Which blocks.
    #[command(flatten)]
    pub which: CacheWhichArgs,
    /// Everything
    #[arg(long, conflicts_with_all = ["model", "tenant", "class", "older"])]
    pub all: bool,
    /// Do not ask
    #[arg(long, short = 'y')]
    pub yes: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    millstream_topology::time_of(text)
        .ok_or_else(|| "must be a duration with its unit, such as 3d".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    millstream_topology::size_of(text).ok_or_else(|| "must be a size with its unit, such as 10GiB".to_owned())
}
