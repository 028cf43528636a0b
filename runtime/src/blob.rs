//! The byte store seam: whole objects under names, written at once, read in parts. What outlives a process stands behind
//! it, whether that is a folder, a bucket of a cloud, or memory.
//!
//! Calls block, so they belong on a thread that may wait. [`Memory`] and [`Folder`] are real stores, [`Near`] keeps copies
//! of one that is far away, [`Faulty`] makes any store fail on purpose, and [`conformance`] is what every store must pass.

pub mod conformance;
mod faulty;
mod folder;
mod memory;
mod near;

pub use faulty::{Fault, Faulty};
pub use folder::Folder;
pub use memory::Memory;
pub use near::Near;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// A store of immutable objects. A name is one or more parts joined by `/`, each of letters, digits, `.`, `_` and `-`
/// and none beginning with `.`; anything else is refused.
///
/// ```
/// use millstream_runtime::blob::{Blob, Memory, Part};
///
/// let store = Memory::new();
/// store.put("rivers/long", &[b"Nile ", b"Amazon"])?;
/// let mut word = [0; 6];
/// store.read("rivers/long", &mut [Part { start: 5, into: &mut word }])?;
/// assert_eq!((&word, store.list("riv")?[0].bytes), (b"Amazon", 11));
/// # Ok::<(), millstream_runtime::blob::BlobError>(())
/// ```
pub trait Blob: Send + Sync {
    /// Writes an object of `parts`, one behind the other, in place of what bore the name. Who reads sees all of it or
    /// nothing, and what was said to be written outlives a crash. After an error the object is there whole, or it is
    /// what it was.
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError>;

    /// Fills each of `parts`, in any order, straight from the store. An object that ends too early is
    /// [`BlobErrorKind::Broken`].
    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError>;

    /// All objects whose names begin with `prefix` (which may end inside a part of a name, and may be empty), by name.
    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError>;

    /// The first parts of all names that have several, by name, and maybe of some that are gone.
    fn folders(&self) -> Result<Vec<String>, BlobError> {
        let objects = self.list("")?;
        let folders = objects.iter().filter_map(|object| object.name.split_once('/'));
        let mut folders: Vec<String> = folders.map(|(folder, _)| folder.to_owned()).collect();
        folders.dedup();
        Ok(folders)
    }

    /// Removes an object. That there is none is no error.
    fn delete(&self, name: &str) -> Result<(), BlobError>;
}

/// A part of an object to be read.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where it begins, in bytes from the object's first.
    pub start: u64,
    /// Filled to its end.
    pub into: &'a mut [u8],
}

/// What a store says of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written, by the store's clock, in seconds since the beginning of 1970.
    pub written_s: u64,
}

/// A call that did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} `{name}`: {kind}: {cause}")]
pub struct BlobError {
    /// What was attempted.
    pub doing: Doing,
    /// The object, or the prefix of a list.
    pub name: String,
    /// What a caller can act on.
    pub kind: BlobErrorKind,
    /// What the store said.
    pub cause: String,
}

/// The calls of a [`Blob`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// [`Blob::put`], or making the store itself.
    Put,
    /// [`Blob::read`]
    Read,
    /// [`Blob::list`] and [`Blob::folders`]
    List,
    /// [`Blob::delete`]
    Delete,
}

/// Kinds of failure, as far as a caller acts on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobErrorKind {
    /// There is no such object.
    Missing,
    /// There is no room for it.
    Full,
    /// The store does not allow it, or the name is no name.
    Denied,
    /// Anything else: it may go better later.
    Broken,
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Doing::Put => "put",
            Doing::Read => "read",
            Doing::List => "list",
            Doing::Delete => "delete",
        })
    }
}

impl std::fmt::Display for BlobErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BlobErrorKind::Missing => "there is none",
            BlobErrorKind::Full => "the store is full",
            BlobErrorKind::Denied => "not allowed",
            BlobErrorKind::Broken => "the store failed",
        })
    }
}

impl Doing {
    /// The error of this call on that object.
    pub(crate) fn failed(self, name: &str, kind: BlobErrorKind, cause: impl ToString) -> BlobError {
        BlobError { doing: self, name: name.to_owned(), kind, cause: cause.to_string() }
    }

    /// Refuses what is not the name of an object.
    pub(crate) fn checked(self, name: &str) -> Result<(), BlobError> {
        if name.split('/').all(|part| !part.is_empty()) {
            self.checked_prefix(name)
        } else {
            Err(self.refused(name))
        }
    }

    /// Refuses what no name begins with.
    pub(crate) fn checked_prefix(self, prefix: &str) -> Result<(), BlobError> {
        let letters =
            |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        let mut parts = prefix.split('/').peekable();
        let mut good = prefix.len() <= NAME_BYTES_MAX;
        while let Some(part) = parts.next() {
            good &= letters(part) && !part.starts_with('.') && (!part.is_empty() || parts.peek().is_none());
        }
        if good { Ok(()) } else { Err(self.refused(prefix)) }
    }

    fn refused(self, name: &str) -> BlobError {
        let rule =
            "a name is parts of letters, digits, `.`, `_` and `-`, joined by `/`, none beginning with `.`";
        self.failed(
            name,
            BlobErrorKind::Denied,
            format_args!("{rule}, of at most {NAME_BYTES_MAX} bytes in all"),
        )
    }
}
