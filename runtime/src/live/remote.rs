//! Stores behind a URL: buckets of the clouds, by way of `object_store`. Its calls are async, and a [`Blob`] blocks: a
//! small runtime of its own runs on whichever threads are in a call, and on none in between.

use std::future::Future;
use std::sync::{Arc, Once};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::{Builder, Runtime};

use crate::blob::{Blob, BlobError, BlobErrorKind, Doing, Folder, Listed, Part};

/// Opens `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, or `file:///FOLDER`. `options` are what the clouds' own tools take from
/// the environment (`AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, …); what a store does not know is passed over.
///
/// Calls must come from threads that run no async code.
pub fn open_store(url: &str, options: Vec<(String, String)>) -> Result<Arc<dyn Blob>, BlobError> {
    let denied = |cause: &dyn ToString| Doing::Put.failed(url, BlobErrorKind::Denied, cause.to_string());
    let parsed = url::Url::parse(url).map_err(|error| denied(&error))?;
    if parsed.scheme() == "file" {
        let folder = parsed.to_file_path().map_err(|()| denied(&"it must be file:///, then a folder"))?;
        return Ok(Arc::new(Folder::open(folder)?));
    }
    ready_tls();
    let (store, root) = object_store::parse_url_opts(&parsed, options).map_err(|error| denied(&error))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Doing::Put.failed(url, BlobErrorKind::Broken, error))?;
    Ok(Arc::new(Remote { store, root, runtime: Some(runtime) }))
}

/// Says which cryptography TLS is made of, which whoever builds an HTTP client in this program must have done before.
pub fn ready_tls() {
    static ONCE: Once = Once::new();
    // Where somebody has said so already, theirs stays.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

struct Remote {
    store: Box<dyn ObjectStore>,
    /// What stands before every name.
    root: Path,
    /// There until the end.
    runtime: Option<Runtime>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The last one to hold the store may run async code, where nothing may wait for a runtime's end.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Remote {
    fn place(&self, name: &str) -> Path {
        self.root.parts().chain(Path::from(name).parts()).collect()
    }

    /// What has another name than ours was put by somebody else.
    fn listed(&self, object: &ObjectMeta) -> Option<Listed> {
        let parts: Vec<_> = object.location.prefix_match(&self.root)?.collect();
        let name = parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("/");
        Doing::List.checked(&name).ok()?;
        let written_s = u64::try_from(object.last_modified.timestamp()).unwrap_or(0);
        Some(Listed { name, bytes: object.size, written_s })
    }

    fn wait<T>(
        &self,
        doing: Doing,
        name: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BlobError> {
        let runtime = self.runtime.as_ref().expect("the store is there");
        runtime.block_on(call).map_err(|error| failed(doing, name, &error))
    }
}

impl Blob for Remote {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        Doing::Put.checked(name)?;
        let object: PutPayload = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
        self.wait(Doing::Put, name, self.store.put(&self.place(name), object)).map(drop)
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        Doing::Read.checked(name)?;
        let ends = |part: &Part<'_>| Some(part.start..part.start.checked_add(part.into.len() as u64)?);
        let wanted = parts.iter().filter(|part| !part.into.is_empty()).map(ends);
        let short = |cause: &str| Doing::Read.failed(name, BlobErrorKind::Broken, cause);
        let wanted: Vec<_> = wanted.collect::<Option<_>>().ok_or_else(|| short("no object is that long"))?;
        let place = self.place(name);
        if wanted.is_empty() {
            return self.wait(Doing::Read, name, self.store.head(&place)).map(drop);
        }
        let found = self.wait(Doing::Read, name, self.store.get_ranges(&place, &wanted))?;
        for (part, bytes) in parts.iter_mut().filter(|part| !part.into.is_empty()).zip(found) {
            if bytes.len() != part.into.len() {
                return Err(short("it ends too early"));
            }
            part.into.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        Doing::List.checked_prefix(prefix)?;
        let folder = self.place(prefix.rsplit_once('/').map_or("", |(folder, _)| folder));
        let folder = Some(&folder).filter(|folder| !folder.as_ref().is_empty());
        let found: Vec<ObjectMeta> = self.wait(Doing::List, prefix, self.store.list(folder).try_collect())?;
        let named = found.iter().filter_map(|object| self.listed(object));
        let mut listed: Vec<Listed> = named.filter(|object| object.name.starts_with(prefix)).collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        Doing::Delete.checked(name)?;
        match self.wait(Doing::Delete, name, self.store.delete(&self.place(name))) {
            Err(error) if error.kind == BlobErrorKind::Missing => Ok(()),
            result => result,
        }
    }
}

fn failed(doing: Doing, name: &str, error: &Error) -> BlobError {
    let kind = match error {
        Error::NotFound { .. } => BlobErrorKind::Missing,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } | Error::InvalidPath { .. } => {
            BlobErrorKind::Denied
        }
        _ if error.to_string().contains("507 Insufficient Storage") => BlobErrorKind::Full,
        _ => BlobErrorKind::Broken,
    };
    doing.failed(name, kind, error)
}
