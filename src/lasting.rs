//! Opens the tier of a plan in which blocks outlive the process: a folder, or a store that many hosts reach.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use millstream_actors::assemble::LastingStore;
use millstream_actors::store::Stamp;
use millstream_runtime::blob::{Blob, Folder};
use millstream_topology::Tier;
use sha2::{Digest, Sha256};

use crate::source::Refused;

/// Opens `tier` for blocks of the model at `model`. A folder that is not absolute lies in `beside`.
///
/// # Errors
/// The store cannot be opened, or the model's files cannot be read.
pub fn open(tier: &Tier, beside: &Path, model: &Path) -> Result<LastingStore, Refused> {
    let place = tier.place.as_deref().unwrap_or_default();
    let refused = |cause: &dyn std::fmt::Display| {
        Refused::Unreadable(format!("millstream: cache.tiers, {} = \"{place}\": {cause}", tier.kind))
    };
    let blob = blob(tier, &beside.join(place)).map_err(|error| refused(&error))?;
    let model = millstream_kernels::fingerprint(model).map_err(|error| refused(&error))?;
    let (began, writer) = identity();
    Ok(LastingStore { blob, model, writer: Arc::new(AtomicU64::new(writer)), began })
}

fn blob(tier: &Tier, folder: &PathBuf) -> anyhow::Result<Arc<dyn Blob>> {
    let place = tier.place.as_deref().unwrap_or_default();
    match (tier.kind.as_str(), place.strip_prefix("file://")) {
        ("disk", _) => Ok(Arc::new(Folder::open(folder)?)),
        (_, Some(path)) if path.starts_with('/') => Ok(Arc::new(Folder::open(path)?)),
        (_, Some(_)) => anyhow::bail!("it must be file:// and the whole path of a folder, such as file:///mnt/kv"),
        (_, None) => bucket(place),
    }
}

#[cfg(feature = "cloud")]
fn bucket(url: &str) -> anyhow::Result<Arc<dyn Blob>> {
    Ok(millstream_runtime::live::open_store(url, std::env::vars().collect())?)
}

#[cfg(not(feature = "cloud"))]
fn bucket(_url: &str) -> anyhow::Result<Arc<dyn Blob>> {
    anyhow::bail!("only file:// URLs are known to this build: buckets need one with the feature `cloud`")
}

/// The wall clock, and a number that no other process has: when this one opened its store, to the nanosecond, with the
/// number of the process below. The lives of its cache count on from there.
fn identity() -> (Stamp, u64) {
    #[expect(clippy::disallowed_methods, reason = "retention counts in days, across processes")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let own = Sha256::digest(format!("{} {}", since.as_nanos(), std::process::id()));
    let mut number = [0; 8];
    number.copy_from_slice(&own[..8]);
    (Stamp(u32::try_from(since.as_secs()).unwrap_or(u32::MAX)), u64::from_le_bytes(number))
}
