//! A store in a folder of this machine, or of a mounted file system that several machines share.
//!
//! An object is written as a draft beside its place, synced, renamed, and the folder synced, so it is there whole or not
//! at all. A draft is locked while it is written: one that can be locked belongs to a process that died, and is removed
//! when somebody opens the store.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Blob, BlobError, BlobErrorKind, Doing, Listed, Part};

/// What the names of drafts begin with; no object's name does.
const DRAFT: &str = ".draft-";

/// Objects as files below a folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Opens the folder, makes it where there is none, and removes what writers that died have left.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, BlobError> {
        let root = root.into();
        let failed = |error| of_io(Doing::Put, &root.to_string_lossy(), error);
        make(&root).map_err(failed)?;
        let mut drafts = Vec::new();
        walk(&root, &mut |path, _| drafts.extend(is_draft(path).then(|| path.to_owned()))).map_err(failed)?;
        drafts.iter().for_each(|draft| remove_if_left(draft));
        Ok(Self { root })
    }

    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let place = self.root.join(name);
        let folder = place.parent().unwrap_or(&self.root);
        make(folder)?;
        let draft = Draft::new(folder)?;
        parts.iter().try_for_each(|part| (&draft.file).write_all(part))?;
        draft.file.sync_all()?;
        fs::rename(&draft.path, &place)?;
        sync(folder)
    }
}

impl Blob for Folder {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        Doing::Put.checked(name)?;
        // Between its making and its locking a draft looks like one that was left; once is bad luck.
        let again = |error: io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::WouldBlock => self.write(name, parts),
            _ => Err(error),
        };
        self.write(name, parts).or_else(again).map_err(|error| of_io(Doing::Put, name, error))
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        Doing::Read.checked(name)?;
        let file = File::open(self.root.join(name));
        let read =
            |file: File| parts.iter_mut().try_for_each(|part| file.read_exact_at(part.into, part.start));
        file.and_then(read).map_err(|error| of_io(Doing::Read, name, error))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        Doing::List.checked_prefix(prefix)?;
        let folder = prefix.rsplit_once('/').map_or(self.root.clone(), |(folder, _)| self.root.join(folder));
        let mut found = Vec::new();
        let mut add = |path: &Path, file: &fs::Metadata| {
            let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
            if name.starts_with(prefix) && Doing::List.checked(&name).is_ok() {
                let written_s = u64::try_from(file.mtime()).unwrap_or(0);
                found.push(Listed { name: name.into_owned(), bytes: file.len(), written_s });
            }
        };
        walk(&folder, &mut add).map_err(|error| of_io(Doing::List, prefix, error))?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        Doing::Delete.checked(name)?;
        match fs::remove_file(self.root.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(of_io(Doing::Delete, name, error)),
            _ => Ok(()),
        }
    }
}

/// An object that is being written. Whatever is left of it goes with it.
struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    fn new(folder: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{DRAFT}{}-{number}", std::process::id()));
            match File::create_new(&path) {
                // The number of a process on another machine, or of one that died.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return Self { path, file: made? }.locked(),
            }
        }
    }

    fn locked(self) -> io::Result<Self> {
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(ErrorKind::WouldBlock.into()),
            // Where nothing can be locked, nobody removes drafts either.
            Err(TryLockError::Error(_)) | Ok(()) => Ok(self),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename there is none, which is as it should be; what cannot be removed is swept later.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_draft(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(DRAFT.as_bytes()))
}

/// Removes a draft whose writer does not live. Where that cannot be found out it stays, which costs room only.
fn remove_if_left(draft: &Path) {
    if File::open(draft).is_ok_and(|file| file.try_lock().is_ok()) {
        let _ = fs::remove_file(draft);
    }
}

/// Makes a folder and those above it, so that they outlive a crash.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| above.as_os_str() != OsStr::new("")).unwrap_or(Path::new("."));
    make(above)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync(above),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// All files below a folder; what vanishes meanwhile is left out.
fn walk(folder: &Path, found: &mut impl FnMut(&Path, &fs::Metadata)) -> io::Result<()> {
    let absent = |error: &io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let entries = match fs::read_dir(folder) {
        Err(error) if absent(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        match fs::metadata(&path) {
            Ok(file) if file.is_dir() => walk(&path, found)?,
            Ok(file) => found(&path, &file),
            Err(error) if absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn of_io(doing: Doing, name: &str, error: io::Error) -> BlobError {
    let kind = match error.kind() {
        ErrorKind::NotFound => BlobErrorKind::Missing,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => BlobErrorKind::Full,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::IsADirectory => {
            BlobErrorKind::Denied
        }
        _ => BlobErrorKind::Broken,
    };
    doing.failed(name, kind, error)
}
