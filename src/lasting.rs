//! Opens the tier of a plan in which blocks outlive the process: a folder, or a store that many hosts reach.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_actors::assemble::LastingStore;
use millstream_actors::store::Stamp;
use millstream_runtime::blob::{Blob, BlobError, Folder, Listed, Part};
use millstream_topology::Tier;

use crate::clock;
use crate::source::Refused;

/// What is written once to see whether anything can be.
const TRIAL: &str = "millstream-trial";

/// Opens `tier` for blocks of the model at `model`. A folder that is not absolute lies in `beside`.
///
/// # Errors
/// The store cannot be opened, nothing can be written into its folder, or the model's files cannot be read.
pub fn open(tier: &Tier, beside: &Path, model: &Path) -> Result<LastingStore, Refused> {
    let place = tier.place.as_deref().unwrap_or_default();
    let refused = |cause: &dyn std::fmt::Display| {
        Refused::Unreadable(format!("millstream: cache.tiers, {} = \"{place}\": {cause}", tier.kind))
    };
    let blob = blob(&tier.kind, place, beside).map_err(|error| refused(&error))?;
    if is_folder(&tier.kind, place) {
        let written = blob.put(TRIAL, &[]).and_then(|()| blob.delete(TRIAL));
        written.map_err(|error| refused(&error))?;
    }
    let blob = Arc::new(Watched::over(blob, place));
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

/// Whether a tier lies in a file system: there what cannot be written today cannot be written tomorrow either.
fn is_folder(kind: &str, place: &str) -> bool {
    kind == "disk" || place.starts_with("file://")
}

#[cfg(feature = "cloud")]
fn bucket(url: &str) -> anyhow::Result<Arc<dyn Blob>> {
    Ok(millstream_runtime::live::open_store(url, std::env::vars().collect())?)
}

#[cfg(not(feature = "cloud"))]
fn bucket(_url: &str) -> anyhow::Result<Arc<dyn Blob>> {
    anyhow::bail!("only file:// URLs are known to this build: buckets need one with the feature `cloud`")
}

/// A store whose failures are told: the first write or list that fails after one that did not.
struct Watched {
    blob: Arc<dyn Blob>,
    place: String,
    write_fails: AtomicBool,
    list_fails: AtomicBool,
}

impl Watched {
    fn over(blob: Arc<dyn Blob>, place: &str) -> Self {
        let (write_fails, list_fails) = (AtomicBool::default(), AtomicBool::default());
        Self { blob, place: place.to_owned(), write_fails, list_fails }
    }

    fn watch<T>(&self, fails: &AtomicBool, result: Result<T, BlobError>) -> Result<T, BlobError> {
        let failed = result.as_ref().err();
        if let Some(error) = failed.filter(|_| !fails.load(Ordering::Relaxed)) {
            tracing::warn!(store = self.place, %error, "the prefix store fails; what it does not keep is computed");
        }
        fails.store(failed.is_some(), Ordering::Relaxed);
        result
    }
}

impl Blob for Watched {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        self.watch(&self.write_fails, self.blob.put(name, parts))
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        // That an object is gone is daily business here.
        self.blob.read(name, parts)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        self.watch(&self.list_fails, self.blob.list(prefix))
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.blob.delete(name)
    }
}
