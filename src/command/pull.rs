//! `pull`: a model from the Hugging Face hub. First what is there, then which of it a model needs, then file after file:
//! resumed where a try ended, compared with the checksum of the hub, and shown under its name only when it is whole.
//!
//! The crate `hf-hub` knows the layout of the cache that Hugging Face tools share, and is used for that. Its downloads
//! compare no checksums, and would bring a second asynchronous HTTP client (0.5) or half a thousand crates (1.0); so what
//! goes over the wire is ours, with `ureq`: blocking, with TLS and root certificates of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::Done;
use super::files::{say, tell};
use crate::args::PullArgs;
use crate::source::Refused;
use fetch::Part;
use hub::{Failure, Hub, Remote};
use place::Place;
use wish::Wish;

mod fetch;
mod hub;
mod place;
mod wish;

pub(super) use place::cache_folder;

/// Tries in a row that may bring nothing new.
const TRIES_MAX: u32 = 5;
/// Before the second try; twice as long before each that follows.
const WAIT: Duration = Duration::from_millis(500);

/// `pull REPO`.
pub(super) async fn pull(args: PullArgs) -> anyhow::Result<Done> {
    let wish = Wish::read(&args)?;
    online()?;
    let place = Arc::new(Place::find(&wish, args.into)?);
    let hub = Arc::new(Hub::from_env()?);
    let (commit, files) = {
        let (hub, wish) = (Arc::clone(&hub), wish.clone());
        blocking(move || {
            let listing = hub.list(&wish)?;
            let names = wish.choose(&listing.files)?;
            let look = |name: &String| hub.look(&wish, &listing.commit, name);
            let files = names.iter().map(look).collect::<anyhow::Result<Vec<Remote>>>()?;
            Ok((listing.commit, files))
        })
        .await?
    };
    for file in &files {
        bring(&hub, file, &place, &commit).await.with_context(|| format!("cannot pull {}", file.name))?;
    }
    place.remember(&commit).context("cannot write the cache")?;
    let single = if let [file] = files.as_slice() { Some(file.name.as_str()) } else { None };
    let path = place.shown(&commit, single.filter(|name| wish::is_gguf(name)));
    say(&path.display().to_string())?;
    tell(&format!("talk to it:  millstream chat --model {}", path.display()));
    tell(&format!("serve it:    millstream serve --model {}", path.display()));
    Ok(Done::Well)
}

/// Refuses where a person has said, as for all Hugging Face tools, that the network is not to be used.
fn online() -> Result<(), Refused> {
    let said = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    if !["1", "ON", "YES", "TRUE"].contains(&said.to_ascii_uppercase().as_str()) {
        return Ok(());
    }
    let cache = cache_folder();
    Err(Refused::Unreadable(format!(
        "millstream: HF_HUB_OFFLINE={said} says that the network is not to be used: unset it to pull (what was pulled \
         before is in {})",
        cache.display()
    )))
}

/// Runs what waits for the network or a disk, beside the asynchronous part.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(run).await.context("a download died")?
}

/// One file, tried until it is whole or nothing new comes any more.
async fn bring(hub: &Arc<Hub>, file: &Remote, place: &Arc<Place>, commit: &str) -> anyhow::Result<()> {
    if !is_there(file, place).await? {
        let part = place.part(file);
        let bar = bar(file)?;
        let (mut furthest, mut tries) = (length(&part), 0);
        loop {
            let (hub, file, path, shown) = (Arc::clone(hub), file.clone(), part.clone(), bar.clone());
            let tried = blocking(move || Ok(fetch::attempt(&hub, &file, &path, &shown))).await?;
            let error = match tried {
                Ok(()) => break,
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing(error)) => error,
            };
            let now = length(&part);
            tries = if now > furthest { 0 } else { tries + 1 };
            furthest = furthest.max(now);
            if tries >= TRIES_MAX {
                return Err(
                    error.context(format!("{now} bytes are kept: run the same command again to go on"))
                );
            }
            tokio::time::sleep(WAIT * 2_u32.pow(tries)).await;
        }
        bar.finish_and_clear();
        place.keep(&part, file)?;
    }
    place.show(commit, file).context("cannot link the file into the cache")
}

/// Whether the whole file is there already.
async fn is_there(file: &Remote, place: &Arc<Place>) -> anyhow::Result<bool> {
    let (whole, named_by_content) = (place.whole(file), place.named_by_content());
    if !whole.is_file() || file.size.is_some_and(|size| size != length(&whole)) {
        return Ok(false);
    }
    match file.sha256.clone() {
        _ if named_by_content => Ok(true),
        None => Ok(false),
        Some(sha256) => blocking(move || Ok(Part::open(&whole)?.digest() == sha256)).await,
    }
}

fn length(path: &PathBuf) -> u64 {
    std::fs::metadata(path).map_or(0, |facts| facts.len())
}

/// Shown on a terminal only.
fn bar(file: &Remote) -> anyhow::Result<ProgressBar> {
    let bar = file.size.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let form = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(form).context("a progress bar")?);
    bar.set_message(file.name.clone());
    Ok(bar)
}
