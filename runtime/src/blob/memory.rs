//! A store in memory: the simplest one, for tests, simulations, and a shared tier within one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Blob, BlobError, BlobErrorKind, Doing, Listed, Part};

/// Objects in memory, up to a number of bytes. It has no clock: it is told the time.
#[derive(Debug)]
pub struct Memory {
    room: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    objects: BTreeMap<String, (Arc<[u8]>, u64)>,
    bytes: u64,
    now_s: u64,
}

impl Memory {
    /// Without a bound of its own.
    pub fn new() -> Self {
        Self::with_room(u64::MAX)
    }

    /// Holds at most `bytes`, names not counted.
    pub fn with_room(bytes: u64) -> Self {
        Self { room: bytes, held: Mutex::default() }
    }

    /// From now on objects are written at this time, in seconds since the beginning of 1970; 0 before the first call.
    pub fn set_time(&self, now_s: u64) {
        self.held().now_s = now_s;
    }

    /// A lock is never held while something can panic, so what it guards is whole.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Blob for Memory {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        Doing::Put.checked(name)?;
        let object: Arc<[u8]> = parts.concat().into();
        let mut held = self.held();
        let before = held.objects.get(name).map_or(0, |(old, _)| old.len() as u64);
        let bytes = held.bytes - before + object.len() as u64;
        if bytes > self.room {
            let cause = format_args!("{bytes} bytes are more than {}", self.room);
            return Err(Doing::Put.failed(name, BlobErrorKind::Full, cause));
        }
        held.bytes = bytes;
        let now_s = held.now_s;
        held.objects.insert(name.to_owned(), (object, now_s));
        Ok(())
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        Doing::Read.checked(name)?;
        let object = self.held().objects.get(name).map(|(object, _)| object.clone());
        let object = object
            .ok_or_else(|| Doing::Read.failed(name, BlobErrorKind::Missing, "never put, or deleted"))?;
        for part in parts {
            let start = usize::try_from(part.start).unwrap_or(usize::MAX);
            let found = start.checked_add(part.into.len()).and_then(|end| object.get(start..end));
            let short = || {
                Doing::Read.failed(name, BlobErrorKind::Broken, format_args!("it ends at {}", object.len()))
            };
            part.into.copy_from_slice(found.ok_or_else(short)?);
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        Doing::List.checked_prefix(prefix)?;
        let held = self.held();
        let from = held.objects.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        let listed = |(name, (object, written_s)): (&String, &(Arc<[u8]>, u64))| Listed {
            name: name.clone(),
            bytes: object.len() as u64,
            written_s: *written_s,
        };
        Ok(from.map(listed).collect())
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        Doing::Delete.checked(name)?;
        let mut held = self.held();
        if let Some((object, _)) = held.objects.remove(name) {
            held.bytes -= object.len() as u64;
        }
        Ok(())
    }
}
