//! Copies on this machine of what lies in a store far away: what was written or read once is not fetched again.
//!
//! The far store is the truth: lists come from it, a put is done when it has the object, and what it has no more is
//! forgotten here. Copies are pieces of objects, each a file of its own with a checksum. One that is damaged, cut short or
//! gone is fetched anew, so nothing is synced, and where a copy cannot be written there is none. They take a number of bytes
//! at most: of more, those go first that were used longest ago (after a start: were written longest ago).
//!
//! Only objects that never change may be copied; which those are is the caller's to say.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Blob, BlobError, Doing, Listed, Part};

/// Bytes of a piece; the last one of an object may have fewer.
const PIECE: u64 = 1 << 20;
/// Behind the bytes of a piece: the length of its object, and the checksum of both.
const TRAILER: u64 = 12;
/// Names of pieces begin with it, as no part of an object's name does.
const MARK: &str = ".";

/// See the module.
pub struct Near {
    far: Arc<dyn Blob>,
    root: PathBuf,
    copied: fn(&str) -> bool,
    books: Mutex<Books>,
    drafts: AtomicU64,
    /// Locked as long as this lives.
    _lock: File,
}

/// A piece: its object, and which it is of it.
type Key = (Arc<str>, u64);

/// What is copied. Files are the truth; this follows them.
struct Books {
    room: u64,
    used: u64,
    /// Bytes of each copy's file, and when it was used last.
    pieces: BTreeMap<Key, (u64, u64)>,
    /// By last use.
    order: BTreeMap<u64, Key>,
    clock: u64,
    /// Of the objects that may be copied, as the far store lists them.
    lengths: HashMap<String, u64>,
}

impl Near {
    /// Copies of objects in `far` whose names `copied` picks, as files of at most `room` bytes together below `root`, which
    /// is made where there is none. `None`: another process keeps its copies there.
    ///
    /// # Errors
    /// The folder cannot be made, read or written.
    pub fn open(
        far: Arc<dyn Blob>,
        root: impl Into<PathBuf>,
        room: u64,
        copied: fn(&str) -> bool,
    ) -> io::Result<Option<Self>> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        let lock = File::create(root.join(".lock"))?;
        match lock.try_lock() {
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        let mut books = Books::new(room);
        for (key, bytes) in left(&root)? {
            books.add(key, bytes);
        }
        let near =
            Self { far, root, copied, books: Mutex::new(books), drafts: AtomicU64::new(0), _lock: lock };
        near.shrink();
        Ok(Some(near))
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.books().used
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, (name, number): &Key) -> PathBuf {
        self.root.join(&**name).join(format!("{MARK}{number}"))
    }

    /// Fills a piece from its copy; false where there is none that is whole.
    fn recall(&self, key: &Key, length: u64, into: &mut [u8]) -> bool {
        if !self.books().use_now(key) {
            return false;
        }
        let whole = recall(&self.place(key), length, into);
        if !whole {
            self.forget(key);
        }
        whole
    }

    /// Keeps a copy of a piece, if that can be done.
    fn keep(&self, key: Key, length: u64, piece: &[u8]) {
        let place = self.place(&key);
        let draft = self.root.join(format!(".draft-{}", self.drafts.fetch_add(1, Ordering::Relaxed)));
        if write(&draft, length, piece).and_then(|()| rename(&draft, &place)).is_err() {
            let _ = fs::remove_file(&draft);
            return;
        }
        self.books().add(key, piece.len() as u64 + TRAILER);
        self.shrink();
    }

    fn forget(&self, key: &Key) {
        self.books().remove(key);
        let _ = fs::remove_file(self.place(key));
    }

    /// Forgets all pieces of an object.
    fn forget_object(&self, name: &str) {
        let pieces = self.books().of(name);
        pieces.iter().for_each(|key| self.forget(key));
        if !pieces.is_empty() {
            let _ = fs::remove_dir(self.root.join(name));
        }
    }

    fn shrink(&self) {
        loop {
            let Some(oldest) = self.books().beyond() else { return };
            self.forget(&oldest);
        }
    }

    /// The pieces that `parts` need, each with its bytes: copies, and what the far store gives in one call.
    fn pieces(
        &self,
        name: &str,
        length: u64,
        parts: &[Part<'_>],
    ) -> Result<BTreeMap<u64, Vec<u8>>, BlobError> {
        let object: Arc<str> = name.into();
        let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for number in parts.iter().flat_map(numbers) {
            let bytes = PIECE.min(length - number * PIECE) as usize;
            found.entry(number).or_insert_with(|| vec![0; bytes]);
        }
        let missing = |(number, bytes): (&u64, &mut Vec<u8>)| {
            let recalled = self.recall(&(object.clone(), *number), length, bytes);
            (!recalled).then_some(*number)
        };
        let missing: Vec<u64> = found.iter_mut().filter_map(missing).collect();
        let wanted = found.iter_mut().filter(|(number, _)| missing.binary_search(number).is_ok());
        let mut wanted: Vec<Part<'_>> =
            wanted.map(|(number, into)| Part { start: number * PIECE, into }).collect();
        if !wanted.is_empty() {
            self.far.read(name, &mut wanted)?;
        }
        for number in missing {
            self.keep((object.clone(), number), length, &found[&number]);
        }
        Ok(found)
    }

    /// The length of an object that may be copied and is known.
    fn length(&self, name: &str) -> Option<u64> {
        self.books().lengths.get(name).copied()
    }
}

impl Blob for Near {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        Doing::Put.checked(name)?;
        if !(self.copied)(name) {
            return self.far.put(name, parts);
        }
        self.books().lengths.remove(name);
        self.forget_object(name);
        self.far.put(name, parts)?;
        let whole = parts.concat();
        let (length, object) = (whole.len() as u64, Arc::<str>::from(name));
        for (number, piece) in (0..).zip(whole.chunks(PIECE as usize)) {
            self.keep((object.clone(), number), length, piece);
        }
        self.books().lengths.insert(name.to_owned(), length);
        Ok(())
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        let inside = |length: &u64| {
            parts
                .iter()
                .all(|part| part.start.checked_add(part.into.len() as u64).is_some_and(|end| end <= *length))
        };
        // What is not known to be there is the far store's to say.
        let Some(length) = self.length(name).filter(inside) else { return self.far.read(name, parts) };
        let pieces = self.pieces(name, length, parts)?;
        for part in parts {
            fill(part, &pieces);
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        let listed = self.far.list(prefix)?;
        let lengths = listed.iter().filter(|object| (self.copied)(&object.name));
        let lengths: HashMap<String, u64> =
            lengths.map(|object| (object.name.clone(), object.bytes)).collect();
        let gone = self.books().renew(prefix, lengths);
        gone.iter().for_each(|name| self.forget_object(name));
        Ok(listed)
    }

    fn folders(&self) -> Result<Vec<String>, BlobError> {
        self.far.folders()
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        Doing::Delete.checked(name)?;
        self.books().lengths.remove(name);
        self.forget_object(name);
        self.far.delete(name)
    }
}

impl Books {
    fn new(room: u64) -> Self {
        let (pieces, order, lengths) = Default::default();
        Self { room, used: 0, pieces, order, clock: 0, lengths }
    }

    fn add(&mut self, key: Key, bytes: u64) {
        self.remove(&key);
        self.clock += 1;
        self.used += bytes;
        self.order.insert(self.clock, key.clone());
        self.pieces.insert(key, (bytes, self.clock));
    }

    fn remove(&mut self, key: &Key) {
        if let Some((bytes, used)) = self.pieces.remove(key) {
            self.used -= bytes;
            self.order.remove(&used);
        }
    }

    /// Whether there is such a copy; if so, it was used now.
    fn use_now(&mut self, key: &Key) -> bool {
        let bytes = self.pieces.get(key).map(|(bytes, _)| *bytes);
        bytes.inspect(|&bytes| self.add(key.clone(), bytes)).is_some()
    }

    /// What must go next so that the others have room.
    fn beyond(&self) -> Option<Key> {
        let oldest = self.order.first_key_value().map(|(_, key)| key.clone());
        oldest.filter(|_| self.used > self.room)
    }

    fn of(&self, name: &str) -> Vec<Key> {
        let all = (Arc::from(name), 0)..=(Arc::from(name), u64::MAX);
        self.pieces.range(all).map(|(key, _)| key.clone()).collect()
    }

    /// Takes over what a list says; returns the objects that are gone, or are others than those copied.
    fn renew(&mut self, prefix: &str, lengths: HashMap<String, u64>) -> Vec<String> {
        let mut copied: Vec<Arc<str>> = self.pieces.keys().map(|(name, _)| name.clone()).collect();
        copied.dedup();
        let known =
            |name: &str| self.lengths.get(name).is_none_or(|length| lengths.get(name) == Some(length));
        let stays = |name: &str| lengths.contains_key(name) && known(name);
        let gone = copied.iter().filter(|name| name.starts_with(prefix) && !stays(name));
        let gone = gone.map(|name| name.to_string()).collect();
        self.lengths.retain(|name, _| !name.starts_with(prefix));
        self.lengths.extend(lengths);
        gone
    }
}

/// Numbers of the pieces that a part touches.
fn numbers(part: &Part<'_>) -> std::ops::Range<u64> {
    let end = part.start + part.into.len() as u64;
    if part.into.is_empty() { 0..0 } else { part.start / PIECE..end.div_ceil(PIECE) }
}

/// Fills a part from pieces, all of which are there.
fn fill(part: &mut Part<'_>, pieces: &BTreeMap<u64, Vec<u8>>) {
    let mut done = 0;
    while done < part.into.len() {
        let at = part.start + done as u64;
        let piece = &pieces[&(at / PIECE)][(at % PIECE) as usize..];
        let count = piece.len().min(part.into.len() - done);
        part.into[done..done + count].copy_from_slice(&piece[..count]);
        done += count;
    }
}

fn sum(piece: &[u8], length: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(piece), &length.to_le_bytes())
}

/// Reads a copy; false where it is not what was written for an object of this length.
fn recall(place: &Path, length: u64, into: &mut [u8]) -> bool {
    let mut trailer = [0; TRAILER as usize];
    let read = |mut file: File| {
        file.read_exact(into)?;
        file.read_exact(&mut trailer)
    };
    let expected = |into: &[u8]| [&length.to_le_bytes()[..], &sum(into, length).to_le_bytes()].concat();
    File::open(place).and_then(read).is_ok() && trailer[..] == expected(into)
}

fn write(draft: &Path, length: u64, piece: &[u8]) -> io::Result<()> {
    let trailer = [&length.to_le_bytes()[..], &sum(piece, length).to_le_bytes()].concat();
    let mut file = File::create(draft)?;
    io::Write::write_all(&mut file, piece)?;
    io::Write::write_all(&mut file, &trailer)
}

fn rename(draft: &Path, place: &Path) -> io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    fs::create_dir_all(folder)?;
    fs::rename(draft, place)
}

/// Copies that an earlier process left, with the bytes of their files, the oldest first. Drafts are removed.
fn left(root: &Path) -> io::Result<Vec<(Key, u64)>> {
    let mut found: Vec<((i64, i64), Key, u64)> = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let number = entry.file_name().to_str().and_then(|name| name.strip_prefix(MARK)?.parse().ok());
            let object =
                folder.strip_prefix(root).ok().and_then(Path::to_str).filter(|name| !name.is_empty());
            match (object, number) {
                (Some(object), Some(number)) => {
                    let file = entry.metadata()?;
                    let written = (file.mtime(), file.mtime_nsec());
                    found.push((written, (object.into(), number), file.len()));
                }
                _ if entry.file_name().as_encoded_bytes().starts_with(b".draft-") => fs::remove_file(&path)?,
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, key, bytes)| (key, bytes)).collect())
}
