//! Memory for packed weights: one stretch of large pages for a whole model.
#![expect(unsafe_code, reason = "regions of one mapping are written separately, then shared")]

use std::sync::Arc;

use memmap2::MmapMut;

use crate::error::Error;
use crate::memory;

/// Start of every region, in bytes: a cache line.
const ALIGN: usize = 64;

/// Address space that regions are taken from.
pub(crate) struct Arena {
    map: Arc<Map>,
    /// Bytes taken.
    used: usize,
}

/// The mapping, which outlives all regions.
struct Map {
    /// First byte; the mapping below is only touched through this.
    start: *mut u8,
    len: usize,
    /// Unmapped when the last region goes.
    _memory: MmapMut,
}

// SAFETY: the bytes are reached through regions alone, which do not overlap; a region that is written is not shared.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

/// A part of an arena that nobody else has.
pub(crate) struct RegionMut {
    map: Arc<Map>,
    start: usize,
    len: usize,
}

/// A part of an arena that does not change any more.
pub(crate) struct Region(RegionMut);

impl Arena {
    /// Room for regions of `len` bytes together, if each is a multiple of a cache line. The system gives memory when it
    /// is first written.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not have it.
    pub fn new(len: usize) -> Result<Arena, Error> {
        let mut memory = memory::map(len, "weights")?;
        let start = memory.as_mut_ptr();
        Ok(Arena { map: Arc::new(Map { start, len, _memory: memory }), used: 0 })
    }

    /// The next `len` bytes, all zero. A new arena takes the place of one that is full.
    ///
    /// # Errors
    /// As for [`Arena::new`]; this one is as it was then.
    pub fn take(&mut self, len: usize) -> Result<RegionMut, Error> {
        if len > self.map.len - self.used {
            *self = Arena::new(len)?;
        }
        let start = self.used;
        self.used = (start + len).next_multiple_of(ALIGN).min(self.map.len);
        Ok(RegionMut { map: Arc::clone(&self.map), start, len })
    }
}

impl RegionMut {
    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: within the mapping, initialised by the system, and no other region has these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.map.start.add(self.start), self.len) }
    }
}

impl Region {
    /// The region as it is now.
    pub fn freeze(region: RegionMut) -> Region {
        Region(region)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, initialised, and nobody writes a frozen region.
        unsafe { std::slice::from_raw_parts(self.0.map.start.add(self.0.start), self.0.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_outlive_their_arena() {
        let mut arena = Arena::new(300).expect("little memory");
        let mut regions: Vec<RegionMut> =
            [100, 1, 0, 100, 500].into_iter().map(|len| arena.take(len).expect("little memory")).collect();
        for (i, region) in regions.iter_mut().enumerate() {
            assert!(region.bytes_mut().iter().all(|&byte| byte == 0));
            region.bytes_mut().fill(i as u8 + 1);
        }
        drop(arena);
        for (i, region) in regions.into_iter().map(Region::freeze).enumerate() {
            assert!(region.bytes().iter().all(|&byte| byte == i as u8 + 1));
        }
    }

    #[test]
    fn an_arena_that_cannot_grow_is_as_it_was() {
        let mut arena = Arena::new(100).expect("little memory");
        assert!(matches!(arena.take(isize::MAX as usize), Err(Error::Memory { .. })));
        assert_eq!(arena.take(100).expect("it is all there").bytes_mut().len(), 100);
        assert!(Arena::new(isize::MAX as usize).is_err());
    }
}
