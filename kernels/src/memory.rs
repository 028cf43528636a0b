//! Large stretches of memory, of which a system may have too little: weights, keys and values, states. Asking for one is
//! the moment to hear that, in an error that says how much was wanted for what; the system gives the memory itself when it
//! is first written.

use memmap2::MmapMut;

use crate::error::Error;

/// What must be left beside: everything else asks for a few bytes at a time, and where those are refused the process ends.
/// Reading a vocabulary takes most of it.
const REST: usize = 256 << 20;

/// `bytes` bytes, all zero, for `what`. They come in large pages: what is read row by row or block by block would spend
/// much of its time on finding small ones (a page of 2 MiB is found once for thousands of rows).
///
/// # Errors
/// [`Error::Memory`] if the system does not give them.
pub(crate) fn map(bytes: usize, what: &'static str) -> Result<MmapMut, Error> {
    let refused = |source| Error::Memory { what, bytes, source };
    let memory = MmapMut::map_anon(bytes.max(1)).map_err(refused)?;
    MmapMut::map_anon(REST).map_err(refused)?;
    // Where the system has no large pages, small ones do.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Takes all of `memory` from the system, if it has not given it yet. What stands there stays.
pub(crate) fn touch(memory: &mut MmapMut) {
    #[cfg(target_os = "linux")]
    if memory.advise(memmap2::Advice::PopulateWrite).is_ok() {
        return;
    }
    write_each(memory);
}

/// Writes something of each page of `memory`, which is there from then on. What stands there stays.
pub fn write_each(memory: &mut [u8]) {
    memory.iter_mut().step_by(SMALL).for_each(|byte| *byte = std::hint::black_box(*byte));
}

/// Bytes of a page, or fewer.
const SMALL: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_an_error_that_says_how_much_for_what() {
        for bytes in [isize::MAX as usize, usize::MAX] {
            let refused = map(bytes, "weights").expect_err("nobody has that much").to_string();
            assert!(
                refused.contains(&format!("does not give {bytes} bytes of memory for weights")),
                "{refused}"
            );
        }
        assert_eq!(map(0, "nothing").expect("it costs nothing").len(), 1);
    }
}
