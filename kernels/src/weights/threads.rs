//! How many threads prepare weights: as many as there are cores for. While one of them has something else to do that
//! everybody waits for, packing with all of them would only hold that up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of threads that changes.
#[derive(Clone)]
pub(crate) struct Threads {
    most: usize,
    /// Cores that others use now.
    others: Arc<AtomicUsize>,
}

/// One thread less, as long as this lives.
pub(crate) struct Busy(Arc<AtomicUsize>);

impl Threads {
    /// As many as the machine has cores, at most `most`.
    pub fn new(most: usize) -> Threads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Threads { most: cores.min(most), others: Arc::default() }
    }

    /// One less until what is returned is dropped.
    pub fn but_one(&self) -> Busy {
        self.others.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.others))
    }

    /// How many there are now; always one.
    pub fn now(&self) -> usize {
        self.most.saturating_sub(self.others.load(Ordering::Relaxed)).max(1)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_less_while_something_else_is_done() {
        let threads = Threads { most: 3, others: Arc::default() };
        let same = threads.clone();
        let busy = threads.but_one();
        assert_eq!((same.now(), Threads { most: 1, ..same.clone() }.now()), (2, 1));
        drop(busy);
        assert_eq!(same.now(), 3);
    }
}
