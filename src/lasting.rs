//! Opens the tier of a plan in which blocks outlive the process: a folder, or a store that many hosts reach, of which a
//! folder of this host may keep copies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_actors::assemble::LastingStore;
use millstream_actors::store::{Stamp, is_pack};
use millstream_runtime::blob::{Blob, BlobError, Folder, Listed, Near, Part};
use millstream_topology::{Cache, Tier};

use crate::clock;
use crate::source::Refused;

/// What is written once to see whether anything can be.
const TRIAL: &str = "millstream-trial";

/// Where copies of what lies in a shared tier are, in the folder of the disk tier. No folder of a store is called so.
const COPIES: &str = ".copies";

/// Opens the tier of `cache` that lasts, if it has one, for blocks of the model at `model`. A folder that is not absolute
/// lies in `beside`.
///
/// # Errors
/// The store cannot be opened, nothing can be written into its folder, or the model's files cannot be read.
pub fn open(cache: &Cache, beside: &Path, model: &Path) -> Result<Option<LastingStore>, Refused> {
    let Some(tier) = cache.lasting() else { return Ok(None) };
    let blob = writable(tier, beside).map_err(|error| refused(tier, &error))?;
    let blob: Arc<dyn Blob> = Arc::new(Watched::over(blob, tier.place()));
    let blob = match cache.near() {
        Some(disk) => near(blob, disk, beside).map_err(|error| refused(disk, &error))?,
        None => blob,
    };
    let model = millstream_kernels::fingerprint(model).map_err(|error| refused(tier, &error))?;
    // No other run of a process has this number; the lives of its cache count on from there.
    let writer = Arc::new(AtomicU64::new(clock::fresh_seed()));
    let began = Stamp(u32::try_from(clock::unix_seconds()).unwrap_or(u32::MAX));
    Ok(Some(LastingStore { blob, model, writer, began }))
}

fn refused(tier: &Tier, cause: &dyn std::fmt::Display) -> Refused {
    Refused::Unreadable(format!("millstream: cache.tiers, {} = \"{}\": {cause}", tier.kind, tier.place()))
}

/// Opens a tier; where it lies in a file system, what cannot be written today cannot be written tomorrow either.
fn writable(tier: &Tier, beside: &Path) -> anyhow::Result<Arc<dyn Blob>> {
    let (blob, folder) = opened(&tier.kind, tier.place(), beside)?;
    if folder {
        blob.put(TRIAL, &[]).and_then(|()| blob.delete(TRIAL))?;
    }
    Ok(blob)
}

/// `far`, with copies on this host.
fn near(far: Arc<dyn Blob>, disk: &Tier, beside: &Path) -> anyhow::Result<Arc<dyn Blob>> {
    writable(disk, beside)?;
    let (root, room) = (beside.join(disk.place()).join(COPIES), disk.size.unwrap_or(u64::MAX));
    match Near::open(far.clone(), root, room, is_pack)? {
        Some(near) => Ok(Arc::new(near)),
        None => {
            let folder = disk.place();
            tracing::warn!(folder, "another process keeps its copies there: this one keeps none");
            Ok(far)
        }
    }
}

/// Opens the byte store of a tier of this kind.
///
/// # Errors
/// There is none, or it does not let us.
pub(crate) fn blob(kind: &str, place: &str, beside: &Path) -> anyhow::Result<Arc<dyn Blob>> {
    opened(kind, place, beside).map(|(blob, _)| blob)
}

/// The store, and whether it lies in a file system.
fn opened(kind: &str, place: &str, beside: &Path) -> anyhow::Result<(Arc<dyn Blob>, bool)> {
    match (kind, place.strip_prefix("file://")) {
        ("disk", _) => Ok((Arc::new(Folder::open(beside.join(place))?), true)),
        (_, Some(path)) if path.starts_with('/') => Ok((Arc::new(Folder::open(path)?), true)),
        (_, Some(_)) => {
            anyhow::bail!("it must be file:// and the whole path of a folder, such as file:///mnt/kv")
        }
        (_, None) => Ok((bucket(place)?, false)),
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
