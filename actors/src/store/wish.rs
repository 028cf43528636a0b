//! What a tier wishes of a byte store, and what it is told: values that ride in lanes.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, LazyLock};

use millstream_runtime::blob::{Blob, BlobError, Listed, Part};

use super::buffers::{Buffer, Buffers, LARGE};

/// Bytes that several may hold: all or a part of what was read or made at once.
#[derive(Clone, Default)]
pub struct Payload {
    whole: Arc<Buffer>,
    start: usize,
    end: usize,
    /// Checksum of these bytes, where they were summed when they were read.
    sum: Option<u32>,
    /// There are no bytes, only a number of them.
    hollow: bool,
}

/// What lies behind hollow payloads.
static NOTHING: LazyLock<Arc<Buffer>> = LazyLock::new(Arc::default);

impl Payload {
    /// So many bytes that nobody may look at, and that take no memory: what blocks are in a simulation of capacity.
    pub fn hollow(bytes: usize) -> Self {
        Self { start: 0, end: bytes, whole: Arc::clone(&NOTHING), sum: None, hollow: true }
    }

    /// Whether there are no bytes behind it.
    pub fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// A part of it, without a copy. Panics beyond its end.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let sum = self.sum.filter(|_| range.len() == self.len());
        let (start, end) = (self.start + range.start, self.start + range.end);
        Self { whole: self.whole.clone(), start, end, sum, hollow: self.hollow }
    }

    /// Its CRC-32C (RFC 3720, appendix B.4).
    pub fn sum(&self) -> u32 {
        if self.hollow { 0 } else { self.sum.unwrap_or_else(|| crc32c::crc32c(self)) }
    }

    /// The same bytes, summed here and now: by a thread that has just read them, and not by the one that is told.
    fn summed(self) -> Self {
        Self { sum: Some(self.sum()), ..self }
    }
}

impl From<Buffer> for Payload {
    fn from(bytes: Buffer) -> Self {
        Self { start: 0, end: bytes.len(), whole: Arc::new(bytes), sum: None, hollow: false }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Buffer::from(bytes).into()
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        if self.hollow { &[] } else { &self.whole[self.start..self.end] }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.hollow == other.hollow && self.len() == other.len() && self[..] == other[..]
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Number of a wish, from 0 in the order of wishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WishId(pub u64);

/// Something to be done with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Comes back with the answer.
    pub id: WishId,
    /// What is to be done.
    pub io: Io,
}

/// The calls of a byte store, as values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// List what begins with `prefix`.
    List {
        /// See there.
        prefix: String,
    },
    /// Read parts of an object.
    Read {
        /// The object.
        name: String,
        /// Ascending, none empty, none overlapping another.
        ranges: Vec<Range<u64>>,
    },
    /// Write an object.
    Put {
        /// The object.
        name: String,
        /// One behind the other.
        parts: Vec<Payload>,
    },
    /// Remove an object.
    Delete {
        /// The object.
        name: String,
    },
}

/// What came of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The wish.
    pub id: WishId,
    /// What it brought, or why not.
    pub result: Result<Got, BlobError>,
}

/// What a wish brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// Of a list.
    Listed(Vec<Listed>),
    /// Of a read: a payload for each range.
    Bytes(Vec<Payload>),
    /// Of a put or a delete.
    Done,
}

impl Wish {
    /// Bytes that it reads.
    pub fn reads(&self) -> u64 {
        match &self.io {
            Io::Read { ranges, .. } => ranges.iter().map(|range| range.end - range.start).sum(),
            Io::List { .. } | Io::Put { .. } | Io::Delete { .. } => 0,
        }
    }

    /// Bytes that it writes.
    pub fn writes(&self) -> u64 {
        match &self.io {
            Io::Put { parts, .. } => parts.iter().map(|part| part.len() as u64).sum(),
            Io::List { .. } | Io::Read { .. } | Io::Delete { .. } => 0,
        }
    }

    /// Carries it out. This waits for as long as the store takes: for a thread that may.
    pub fn carry_out(self, store: &dyn Blob) -> Told {
        self.carry_out_with(store, &Buffers::default())
    }

    /// The same; what is read comes in memory of `buffers`.
    pub fn carry_out_with(self, store: &dyn Blob, buffers: &Buffers) -> Told {
        let result = match self.io {
            Io::List { prefix } => store.list(&prefix).map(Got::Listed),
            Io::Read { name, ranges } => read(store, &name, (&ranges, buffers)).map(Got::Bytes),
            Io::Put { name, parts } => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                store.put(&name, &parts).map(|()| Got::Done)
            }
            Io::Delete { name } => store.delete(&name).map(|()| Got::Done),
        };
        Told { id: self.id, result }
    }
}

fn read(
    store: &dyn Blob,
    name: &str,
    (ranges, buffers): (&[Range<u64>], &Buffers),
) -> Result<Vec<Payload>, BlobError> {
    let room = |range: &Range<u64>| buffers.take(usize::try_from(range.end - range.start).unwrap_or(0));
    let mut found: Vec<Buffer> = ranges.iter().map(room).collect();
    let parts = found.iter_mut().zip(ranges).map(|(into, range)| Part { start: range.start, into });
    store.read(name, &mut parts.collect::<Vec<_>>())?;
    let sum = |bytes: Payload| if bytes.len() < LARGE { bytes } else { bytes.summed() };
    Ok(found.into_iter().map(|bytes| sum(bytes.into())).collect())
}
