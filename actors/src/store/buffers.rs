//! Memory for the bytes of blocks, used again and again. What a system has to give anew it clears page by page, which takes
//! longer than reading a block from a disk's cache does.

use std::collections::TryReserveError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes that are worth keeping the memory of; smaller pieces are left to the allocator.
pub(super) const LARGE: usize = 64 << 10;

/// Pieces of memory of one size that nobody uses now. Clones are the same one.
#[derive(Clone, Default)]
pub struct Buffers(Option<Arc<Free>>);

struct Free {
    /// Bytes of a piece.
    size: usize,
    /// The most that are kept.
    most: usize,
    pieces: Mutex<Vec<Box<[u8]>>>,
}

/// Some bytes. When it is dropped its memory goes back to where it came from.
#[derive(Default)]
pub struct Buffer {
    bytes: Box<[u8]>,
    home: Weak<Free>,
}

impl Buffers {
    /// Keeps pieces of `size` bytes, in all at most `bytes`; nothing if they are small.
    pub fn new(size: usize, bytes: u64) -> Self {
        if size < LARGE {
            return Self::default();
        }
        let most = usize::try_from(bytes / size as u64).unwrap_or(usize::MAX);
        Self(Some(Arc::new(Free { size, most, pieces: Mutex::default() })))
    }

    /// Takes all that may be kept from the system now; nothing of small pieces.
    ///
    /// # Errors
    /// The system does not give as much, with `beside` bytes for others.
    pub fn reserve(&self, beside: usize) -> Result<(), TryReserveError> {
        let Some(free) = &self.0 else { return Ok(()) };
        let missing = free.most.saturating_sub(free.pieces().len());
        // It is asked for in one piece first: of many small ones a system may promise more than it has.
        let all = missing.saturating_mul(free.size).saturating_add(beside);
        let mut whole = Vec::<u8>::new();
        whole.try_reserve_exact(all)?;
        drop(std::hint::black_box(whole));
        for _ in 0..missing {
            let mut piece = Vec::new();
            piece.try_reserve_exact(free.size)?;
            piece.resize(free.size, 0);
            let mut piece = piece.into_boxed_slice();
            millstream_kernels::write_each(&mut piece);
            free.put(piece);
        }
        Ok(())
    }

    /// `size` bytes, whatever is in them.
    pub fn take(&self, size: usize) -> Buffer {
        let known = self.0.as_ref().filter(|free| free.size == size);
        let piece = known.and_then(|free| free.pieces().pop());
        let bytes = piece.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Buffer { bytes, home: known.map(Arc::downgrade).unwrap_or_default() }
    }

    /// Pieces that nobody uses.
    pub fn free(&self) -> usize {
        self.0.as_ref().map_or(0, |free| free.pieces().len())
    }
}

impl Free {
    fn pieces(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, piece: Box<[u8]>) {
        let mut pieces = self.pieces();
        if pieces.len() < self.most {
            pieces.push(piece);
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.as_ref().map_or(0, |free| free.size);
        write!(f, "{} pieces of {size} bytes", self.free())
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into_boxed_slice(), home: Weak::new() }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.put(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_bounded() {
        let buffers = Buffers::new(LARGE, 2 * LARGE as u64 + 1);
        let held: Vec<Buffer> = (0..3).map(|_| buffers.take(LARGE)).collect();
        assert_eq!((held[2].len(), buffers.free()), (LARGE, 0));
        let first = held[0].as_ptr();
        drop(held);
        assert_eq!(buffers.free(), 2, "and no more");
        let (one, other) = (buffers.take(LARGE), buffers.take(LARGE));
        assert!(one.as_ptr() == first || other.as_ptr() == first, "it is the same memory");
        drop((buffers.take(LARGE - 1), buffers.take(0)));
        assert_eq!(buffers.free(), 0, "another size is not kept");
        let outlives = { Buffers::new(LARGE, 1 << 30).take(LARGE) };
        assert_eq!(outlives.len(), LARGE);
    }

    #[test]
    fn what_is_reserved_is_all_that_may_be_kept() {
        let buffers = Buffers::new(LARGE, 3 * LARGE as u64);
        let held = buffers.take(LARGE);
        buffers.reserve(0).expect("it is little");
        drop(held);
        assert_eq!(buffers.free(), 3);
        let small = Buffers::new(100, 1 << 20);
        small.reserve(0).expect("it is nothing");
        assert_eq!((small.free(), small.take(100).len()), (0, 100));
        let endless = Buffers::new(1 << 20, 1 << 62);
        assert!(endless.reserve(0).is_err() && endless.free() == 0, "more than there is");
        assert!(Buffers::new(LARGE, LARGE as u64).reserve(1 << 62).is_err(), "with what others take");
    }
}
