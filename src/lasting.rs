//! Opens the tier of a plan in which blocks outlive the process: a folder, or a store that many hosts reach.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use millstream_actors::assemble::LastingStore;
use millstream_actors::store::Stamp;
use millstream_runtime::blob::{Blob, Folder};
use millstream_topology::Tier;

use crate::clock;
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
    let blob = blob(&tier.kind, place, beside).map_err(|error| refused(&error))?;
    let model = millstream_kernels::fingerprint(model).map_err(|error| refused(&error))?;
    // No other run of a process has this number; the lives of its cache count on from there.
    let writer = Arc::new(AtomicU64::new(clock::fresh_seed()));
    let began = Stamp(u32::try_from(clock::unix_seconds()).unwrap_or(u32::MAX));
    Ok(LastingStore { blob, model, writer, began })
}

/// Opens the byte store of a tier of this kind.
///
/// # Errors
/// There is none, or it does not let us.
pub(crate) fn blob(kind: &str, place: &str, beside: &Path) -> anyhow::Result<Arc<dyn Blob>> {
    match (kind, place.strip_prefix("file://")) {
        ("disk", _) => Ok(Arc::new(Folder::open(beside.join(place))?)),
        (_, Some(path)) if path.starts_with('/') => Ok(Arc::new(Folder::open(path)?)),
        (_, Some(_)) => {
            anyhow::bail!("it must be file:// and the whole path of a folder, such as file:///mnt/kv")
        }
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
