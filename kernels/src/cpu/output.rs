//! Output that several threads write at the same time, each other elements. Products fill columns and attention fills
//! heads: neither is a contiguous part that a slice could be split into.
#![expect(unsafe_code, reason = "disjoint writes through one pointer")]

use std::marker::PhantomData;

/// A mutable slice that is written from several threads.
#[derive(Copy, Clone)]
pub(crate) struct Output<'a, T = f32> {
    /// First value.
    at: *mut T,
    /// Number of values.
    len: usize,
    /// The slice it came from stays borrowed.
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: every access demands that no two threads touch one element.
unsafe impl<T: Send> Sync for Output<'_, T> {}

impl<'a, T> Output<'a, T> {
    /// Output into `out`.
    pub(crate) fn new(out: &'a mut [T]) -> Output<'a, T> {
        Output { at: out.as_mut_ptr(), len: out.len(), of: PhantomData }
    }

    /// Writes the value at `at`.
    ///
    /// # Safety
    /// No other thread touches it while this call lasts.
    #[inline]
    pub(crate) unsafe fn put(&self, at: usize, value: T) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: within the slice; the caller says that nobody else is there.
        unsafe { self.at.add(at).write(value) }
    }

    /// The `len` values from `at` on.
    ///
    /// # Safety
    /// Nobody else touches them while the slice lives.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller promises that parts do not overlap")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "{len} elements from {at} on, of {}", self.len);
        // SAFETY: within the slice; the caller says that nobody else is there.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(at), len) }
    }
}
