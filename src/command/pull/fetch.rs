//! One try at one file: what is there already is hashed, the rest is asked for, and the whole is compared with what the
//! hub says. What came stays for the next try, unless it is wrong.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use super::hub::{Failure, Hub, Remote};

/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// The beginning of a file, locked against other processes.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    length: u64,
    hash: Sha256,
}

/// Adds what is missing to the part and compares it. The caller gives it its name.
pub(super) fn attempt(hub: &Hub, remote: &Remote, path: &Path, bar: &ProgressBar) -> Result<(), Failure> {
    let mut part = Part::open(path).map_err(Failure::Lasting)?;
    if remote.size.is_some_and(|size| part.length > size) {
        part.clear().map_err(Failure::Lasting)?;
    }
    bar.set_position(part.length);
    if remote.size != Some(part.length) {
        let Some(mut body) = hub.open(remote, part.length)? else {
            part.clear().map_err(Failure::Lasting)?;
            return Err(Failure::Passing(anyhow!("the server does not go on from where the last try ended")));
        };
        if body.start == 0 {
            part.clear().map_err(Failure::Lasting)?;
            bar.set_position(0);
        }
        part.fill(&mut body.reader, remote.size, bar)?;
    }
    part.check(remote)
}

impl Part {
    /// Opens what is there, or makes an empty one, and hashes it.
    ///
    /// # Errors
    /// It cannot be read, or another process is writing to it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| unwritable(path, error))?;
        }
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| unwritable(path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                anyhow::bail!("another process is pulling it now ({} is locked)", path.display())
            }
            // Some file systems know no locks; then nobody is warned.
            Err(TryLockError::Error(_)) => {}
        }
        let mut part = Self { path: path.to_path_buf(), file, length: 0, hash: Sha256::new() };
        let mut piece = vec![0; PIECE];
        loop {
            let count =
                part.file.read(&mut piece).with_context(|| format!("cannot read {}", path.display()))?;
            if count == 0 {
                return Ok(part);
            }
            part.hash.update(&piece[..count]);
            part.length += count as u64;
        }
    }

    /// SHA-256 of all bytes, in hexadecimal digits.
    pub(super) fn digest(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.rewind());
        cleared.map_err(|error| unwritable(&self.path, error))?;
        (self.length, self.hash) = (0, Sha256::new());
        Ok(())
    }

    /// Writes what the server sends, up to the end.
    fn fill(&mut self, body: &mut dyn Read, size: Option<u64>, bar: &ProgressBar) -> Result<(), Failure> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => {
                    let why = format!("the connection broke off after {} bytes", self.length);
                    return Err(Failure::Passing(anyhow::Error::from(error).context(why)));
                }
            };
            if size.is_some_and(|size| self.length + count as u64 > size) {
                self.clear().map_err(Failure::Lasting)?;
                return Err(Failure::Lasting(anyhow!("the server sends more bytes than it said")));
            }
            let written = self.file.write_all(&piece[..count]);
            written.map_err(|error| Failure::Lasting(unwritable(&self.path, error)))?;
            self.hash.update(&piece[..count]);
            self.length += count as u64;
            bar.set_position(self.length);
        }
        if size.is_some_and(|size| self.length < size) {
            let why =
                format!("the connection broke off after {} of {} bytes", self.length, size.unwrap_or(0));
            return Err(Failure::Passing(anyhow!(why)));
        }
        Ok(())
    }

    /// Compares the whole with the checksum; a wrong one is deleted.
    fn check(self, remote: &Remote) -> Result<(), Failure> {
        let found = self.digest();
        if let Some(expected) = remote.sha256.as_ref().filter(|expected| **expected != found) {
            // Whoever cannot delete it has it compared again next time.
            let _ = std::fs::remove_file(&self.path);
            return Err(Failure::Lasting(anyhow!(
                "the checksum is wrong: SHA-256 {found}, the hub says {expected}; what came was deleted, try again"
            )));
        }
        self.file.sync_all().map_err(|error| Failure::Lasting(unwritable(&self.path, error)))
    }
}

fn unwritable(path: &Path, error: io::Error) -> anyhow::Error {
    let shown = path.display();
    let why = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!(
                "the disk is full at {shown}: make room and run the same command again, it goes on from there"
            )
        }
        _ => format!("cannot write {shown}"),
    };
    anyhow::Error::from(error).context(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_hashed_locked_and_compared() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sub/part");
        let mut part = Part::open(&path).expect("a new part");
        assert!(Part::open(&path).is_err_and(|error| error.to_string().contains("another process")));
        let bar = ProgressBar::hidden();
        let cut = part.fill(&mut &b"ab"[..], Some(3), &bar);
        assert!(matches!(cut, Err(Failure::Passing(_))), "{cut:?}");
        drop(part);
        let mut part = Part::open(&path).expect("what came is there");
        part.fill(&mut &b"c"[..], Some(3), &bar).expect("the rest");
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(part.digest(), digest);
        let long = part.fill(&mut &b"d"[..], Some(3), &bar);
        assert!(matches!(long, Err(Failure::Lasting(_))), "{long:?}");
        assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 0);
    }

    #[test]
    fn a_full_disk_is_said() {
        let error = unwritable(Path::new("/models/a"), io::ErrorKind::StorageFull.into());
        assert!(error.to_string().contains("the disk is full at /models/a"), "{error}");
    }
}
