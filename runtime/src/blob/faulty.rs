//! A store that fails on purpose: around any other, for tests and simulations.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Blob, BlobError, BlobErrorKind, Doing, Listed, Part};

/// What befalls one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and does nothing.
    Fail(BlobErrorKind),
    /// A put or delete is done and reported as failed.
    Unheard,
    /// The process dies in the call, before or after the store has `done` it: this call and all others fail until
    /// [`Faulty::revive`].
    Crash {
        /// Whether the call had its effect.
        done: bool,
    },
    /// A put writes this many bytes only, as a store does that keeps no promise, and the process dies.
    Cut(u64),
    /// A list says of each object that it is longer by so much, or shorter.
    Lie(i64),
    /// A read has this bit of all it reads flipped, counted over its parts; the last one where there are fewer.
    Flip(u64),
    /// The call does not go on before [`Faulty::release`].
    Stall,
}

impl Fault {
    fn befalls(self, doing: Doing) -> bool {
        match self {
            Fault::Fail(_) | Fault::Crash { .. } | Fault::Stall => true,
            Fault::Unheard => matches!(doing, Doing::Put | Doing::Delete),
            Fault::Cut(_) => doing == Doing::Put,
            Fault::Lie(_) => doing == Doing::List,
            Fault::Flip(_) => doing == Doing::Read,
        }
    }
}

/// A store with faults.
///
/// ```
/// use millstream_runtime::blob::{Blob, BlobErrorKind, Fault, Faulty, Memory};
///
/// let store = Faulty::new(Memory::new());
/// store.at(1, Fault::Fail(BlobErrorKind::Full));
/// assert!(store.put("a", &[b"fits"]).is_ok());
/// assert_eq!(store.put("b", &[b"does not"]).unwrap_err().kind, BlobErrorKind::Full);
/// assert!(store.put("b", &[b"fits again"]).is_ok());
/// ```
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    script: Mutex<Script>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Script {
    /// Faults to come, each with the number of the call from which on it strikes.
    faults: Vec<(u64, Fault)>,
    calls: u64,
    crashed: Option<u64>,
    releases: u64,
}

impl<B> Faulty<B> {
    /// Nothing goes wrong yet.
    pub fn new(inner: B) -> Self {
        Self { inner, script: Mutex::default(), released: Condvar::new() }
    }

    /// `fault` strikes once, at the first call from number `call` on (the first call ever is 0) that it can befall.
    pub fn at(&self, call: u64, fault: Fault) {
        self.script().faults.push((call, fault));
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.script().calls
    }

    /// The call in which a crash has struck.
    pub fn crashed(&self) -> Option<u64> {
        self.script().crashed
    }

    /// The process is started again; faults that have not struck are forgotten.
    pub fn revive(&self) {
        *self.script() = Script::default();
    }

    /// Lets every stalled call go on.
    pub fn release(&self) {
        self.script().releases += 1;
        self.released.notify_all();
    }

    /// The store itself.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, waits through a stall, and says what else befalls it.
    fn enter(&self, doing: Doing, name: &str) -> Result<Option<Fault>, BlobError> {
        let mut script = self.script();
        let call = script.calls;
        script.calls += 1;
        if script.crashed.is_some() {
            return Err(crashed(doing, name));
        }
        let due = script.faults.iter().position(|&(from, fault)| from <= call && fault.befalls(doing));
        match due.map(|index| script.faults.remove(index).1) {
            Some(Fault::Fail(kind)) => Err(doing.failed(name, kind, INJECTED)),
            Some(Fault::Crash { done: false }) => {
                script.crashed = Some(call);
                Err(crashed(doing, name))
            }
            Some(Fault::Stall) => {
                let before = script.releases;
                let waited = self.released.wait_while(script, |script| script.releases == before);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                Ok(None)
            }
            fault => {
                let dies = matches!(fault, Some(Fault::Crash { .. } | Fault::Cut(_)));
                script.crashed = dies.then_some(call);
                Ok(fault)
            }
        }
    }

    /// What a call reports that had its effect.
    fn leave<T>(&self, fault: Option<Fault>, doing: Doing, name: &str, result: T) -> Result<T, BlobError> {
        match fault {
            Some(Fault::Unheard) => Err(doing.failed(name, BlobErrorKind::Broken, INJECTED)),
            Some(Fault::Crash { .. } | Fault::Cut(_)) => Err(crashed(doing, name)),
            _ => Ok(result),
        }
    }
}

const INJECTED: &str = "injected";

fn crashed(doing: Doing, name: &str) -> BlobError {
    doing.failed(name, BlobErrorKind::Broken, "the process has died")
}

impl<B: Blob> Blob for Faulty<B> {
    fn put(&self, name: &str, parts: &[&[u8]]) -> Result<(), BlobError> {
        let fault = self.enter(Doing::Put, name)?;
        if let Some(Fault::Cut(bytes)) = fault {
            let mut whole = parts.concat();
            whole.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.inner.put(name, &[&whole])?;
        } else {
            self.inner.put(name, parts)?;
        }
        self.leave(fault, Doing::Put, name, ())
    }

    fn read(&self, name: &str, parts: &mut [Part<'_>]) -> Result<(), BlobError> {
        let fault = self.enter(Doing::Read, name)?;
        self.inner.read(name, parts)?;
        if let Some(Fault::Flip(bit)) = fault {
            flip(parts, bit);
        }
        self.leave(fault, Doing::Read, name, ())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, BlobError> {
        let fault = self.enter(Doing::List, prefix)?;
        let mut listed = self.inner.list(prefix)?;
        if let Some(Fault::Lie(more)) = fault {
            listed.iter_mut().for_each(|object| object.bytes = object.bytes.saturating_add_signed(more));
        }
        self.leave(fault, Doing::List, prefix, listed)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        let fault = self.enter(Doing::Delete, name)?;
        self.inner.delete(name)?;
        self.leave(fault, Doing::Delete, name, ())
    }
}

fn flip(parts: &mut [Part<'_>], bit: u64) {
    let bytes: u64 = parts.iter().map(|part| part.into.len() as u64).sum();
    let mut byte = (bit / 8).min(bytes.saturating_sub(1)) as usize;
    for part in parts {
        match part.into.get_mut(byte) {
            Some(found) => return *found ^= 1 << (bit % 8),
            None => byte -= part.into.len(),
        }
    }
}
