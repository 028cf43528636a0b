//! A store in a folder of this machine, or of a mounted file system that several machines share.
//!
//! An object is written as a draft beside its place, synced, renamed, and the folder synced, so it is there whole or not
//! at all. A draft is locked while it is written: one that can be locked belongs to a process that died, and is removed
//! when somebody lists its folder.
//!
//! Others may keep things in the same folder. What is neither a file nor a folder under a name that we could have given is
//! passed over, links are not followed, and a folder that we may not look into has nothing of ours.

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
    /// Opens the folder, and makes it where there is none.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, BlobError> {
        let root = root.into();
        make(&root).map_err(|error| of_io(Doing::Put, &root.to_string_lossy(), error))?;
        Ok(Self { root })
    }

    fn name_of(&self, path: &Path) -> Option<String> {
        let name = path.strip_prefix(&self.root).ok()?.to_str()?;
        Doing::List.checked(name).is_ok().then(|| name.to_owned())
    }

    /// All files of ours below a folder, and drafts; what vanishes meanwhile is left out.
    fn walk(&self, folder: &Path, found: &mut impl FnMut(&Path, &fs::Metadata)) -> io::Result<()> {
        for entry in entries(folder)? {
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            let ours = self.name_of(&path).is_some();
            if kind.is_dir() && ours {
                let denied = |error: io::Error| match error.kind() {
                    ErrorKind::PermissionDenied => Ok(()),
                    _ => Err(error),
                };
                self.walk(&path, found).or_else(denied)?;
            } else if kind.is_file() && (ours || is_draft(&path)) {
                match entry.metadata() {
                    Err(error) if is_absent(&error) => {}
                    file => found(&path, &file?),
                }
            }
        }
        Ok(())
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
        let mut add = |path: &Path, file: &fs::Metadata| match self.name_of(path) {
            Some(name) if name.starts_with(prefix) => {
                let written_s = u64::try_from(file.mtime()).unwrap_or(0);
                found.push(Listed { name, bytes: file.len(), written_s });
            }
            Some(_) => {}
            None => remove_if_left(path),
        };
        self.walk(&folder, &mut add).map_err(|error| of_io(Doing::List, prefix, error))?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn folders(&self) -> Result<Vec<String>, BlobError> {
        let entries = entries(&self.root).map_err(|error| of_io(Doing::List, "", error))?;
        let folders = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut folders: Vec<String> = folders.filter_map(|entry| self.name_of(&entry.path())).collect();
        folders.sort();
        Ok(folders)
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
        // By somebody else just now; or it is something else.
        Err(error) if error.kind() != ErrorKind::AlreadyExists || !folder.is_dir() => Err(error),
        _ => sync(above),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What lies in a folder; nothing where there is none.
fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
