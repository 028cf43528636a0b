//! A file mapped read-only into memory: the one place that asks the operating system for it, and its proof.
#![expect(unsafe_code, reason = "mapping a file is unsafe: its contents may change under the reader")]

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::{Advice, UncheckedAdvice};

use crate::error::Error;

/// A multiple of any page size in use.
#[cfg(unix)]
const GRANULE: usize = 1 << 16;
/// What systems read at least.
#[cfg(unix)]
const SMALL: usize = 1 << 12;

/// A mapped file. Empty files are held as an empty slice (they cannot be mapped).
#[derive(Debug)]
pub struct Mapped {
    /// Where it was opened, for messages.
    path: PathBuf,
    /// None: the file is empty.
    map: Option<Mmap>,
}

impl Mapped {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// [`Error::Open`] if it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mapped, Error> {
        let failed = |source| Error::Open { path: path.to_owned(), source };
        // Before it is opened: opening a pipe waits for someone who writes.
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        if !kind.is_file() {
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is no regular file")));
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.len() == 0 {
            return Ok(Mapped { path: path.to_owned(), map: None });
        }
        // SAFETY: the map is private to this value and read-only, so no safe code of this process writes to it. That
        // the file is not truncated or rewritten while mapped is required of the operator (header of `weights`): every
        // byte is plain data, so a rewrite changes numbers but breaks no invariant of a type.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Mapped { path: path.to_owned(), map: Some(map) })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Tells the system that these bytes are not needed for now: they stop counting as memory of this process, and are
    /// read again when someone looks.
    pub(crate) fn forget(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            // Pages at the ends belong to others too.
            let (start, end) = (range.start.next_multiple_of(GRANULE), range.end / GRANULE * GRANULE);
            if start < end && end <= map.len() {
                // SAFETY: the map is a file's, read-only: its pages hold nothing that the file does not.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            }
        }
    }

    /// Asks the system to read these bytes soon, and does not wait: whoever looks then finds them in memory. Ranges that
    /// lie close together become one question.
    pub(crate) fn prefetch(&self, ranges: impl Iterator<Item = Range<usize>>) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            let granules = |range: Range<usize>| range.start / SMALL..range.end.div_ceil(SMALL);
            let mut granules: Vec<_> = ranges.map(granules).collect();
            granules.sort_unstable_by_key(|range| range.start);
            for run in granules.chunk_by(|a, b| b.start <= a.end) {
                let end = run.iter().map(|range| range.end).max().unwrap_or_default() * SMALL;
                let (start, end) = (run[0].start * SMALL, end.min(map.len()));
                if start < end {
                    // A system that cannot do it reads when it must.
                    let _ = map.advise_range(Advice::WillNeed, start, end - start);
                }
            }
        }
        #[cfg(not(unix))]
        let _ = ranges;
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
