//! `cache`: looks after a prefix store, with the code that servers use for it. It needs no server and takes no lock: to
//! servers that use the store meanwhile this is one more process, and a block that went is a miss.

use serde_json::{Value, json};

use super::Done;
use super::files::say;
use crate::args::{CacheArgs, CacheCommand, CacheLookArgs};

mod change;
mod look;
mod opened;
mod verify;
mod which;
mod words;

use opened::Opened;

/// `cache COMMAND`, on a thread that may wait for a store.
pub(super) async fn cache(args: CacheArgs) -> anyhow::Result<Done> {
    tokio::task::spawn_blocking(move || run(args)).await?
}

fn run(args: CacheArgs) -> anyhow::Result<Done> {
    match args.command {
        CacheCommand::Stat(args) => look::stat(&args),
        CacheCommand::Verify(args) => verify::verify(&args),
        CacheCommand::Gc(args) => change::gc(&args),
        CacheCommand::List(args) => look::list(&args),
        CacheCommand::Drop(args) => change::discard(&args),
    }
}

/// Prints rows as JSON, or each of `lines`.
fn print(
    args: &CacheLookArgs,
    opened: &Opened,
    (key, rows): (&str, Vec<Value>),
    lines: &[String],
) -> anyhow::Result<()> {
    if args.json {
        say(&serde_json::to_string_pretty(&json!({ "store": opened.place, key: rows }))?)?;
        return Ok(());
    }
    lines.iter().try_for_each(|line| say(line))?;
    Ok(())
}
