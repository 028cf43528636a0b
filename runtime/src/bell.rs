//! One word per seat that says what awaits it, so that a sender wakes only a sleeper and no wake-up is ever lost.
//!
//! Each lane into the seat owns a bit (many lanes share one when there are more lanes than bits). A sender first puts
//! the message on the lane, then raises the bit. The seat lies down with one compare-and-swap that succeeds only while
//! every bit it cares for is down: a bit raised before it keeps the seat up, a bit raised after it finds `ASLEEP` and
//! rings. Of several who find it, the one that takes `ASLEEP` away rings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::Thread;

/// Who sleeps for a seat; rung only when it does.
#[derive(Debug)]
pub(crate) enum Sleeper {
    /// A future of the async runtime.
    Future(Waker),
    /// A parked thread.
    Thread(Thread),
}

/// Bits of lanes.
pub(crate) const LANES: u64 = (1 << 60) - 1;
/// There is a notice or an order to look at.
pub(crate) const ATTENTION: u64 = 1 << 60;
/// A lane that this seat waits to send on has room again.
pub(crate) const ROOM: u64 = 1 << 61;
const ASLEEP: u64 = 1 << 63;

/// Urgent lanes have the lowest bits to themselves.
const URGENT_BITS: usize = 8;
const LANE_BITS: usize = 60;
/// Bits of urgent lanes.
pub(crate) const URGENT: u64 = (1 << URGENT_BITS) - 1;

/// The bit of the `nth` lane (urgent and other lanes are counted apart) into a seat.
pub(crate) fn bit_of(nth: usize, urgent: bool) -> u64 {
    let place = if urgent { nth % URGENT_BITS } else { URGENT_BITS + nth % (LANE_BITS - URGENT_BITS) };
    1 << place
}

/// The word of one seat. On cache lines of its own: senders write it while the seat spins on it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bell {
    /// Raised by senders, lowered by the seat.
    word: AtomicU64,
    /// Set by the driver at each life of the seat.
    sleeper: Mutex<Option<Sleeper>>,
    /// The seat is a future, which mostly sleeps on the very core of who rings: looking first costs nothing there.
    shared: bool,
}

impl Bell {
    pub(crate) fn new(shared: bool) -> Bell {
        Bell { word: AtomicU64::new(0), sleeper: Mutex::new(None), shared }
    }

    fn sleeper(&self) -> MutexGuard<'_, Option<Sleeper>> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_sleeper(&self, sleeper: Option<Sleeper>) {
        *self.sleeper() = sleeper;
    }

    /// Comes when the seat is no longer asleep. The waker is left before the look: who rings after the look finds it.
    /// `known` is the waker that this life of the seat left last, so that it is left again only when it has changed.
    pub(crate) async fn rung(&self, known: &mut Option<Waker>) {
        std::future::poll_fn(|future| {
            if !known.as_ref().is_some_and(|waker| waker.will_wake(future.waker())) {
                let waker = future.waker().clone();
                *known = Some(waker.clone());
                self.set_sleeper(Some(Sleeper::Future(waker)));
            }
            if self.is_asleep() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Raises `bit` after what it stands for has been made visible, and wakes the seat if it sleeps.
    pub(crate) fn raise(&self, bit: u64) {
        // The message was published before this; the seat lowers the bit before it looks a last time. So either this
        // leaves the bit up, or the seat's last look sees the message.
        let seen = if self.shared { self.word.load(Ordering::Relaxed) } else { 0 };
        if seen & ASLEEP != 0 {
            let up = (seen | bit) & !ASLEEP;
            if self.word.compare_exchange(seen, up, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return self.wake();
            }
        }
        let before = self.word.fetch_or(bit, Ordering::SeqCst);
        if before & ASLEEP != 0 && self.word.fetch_and(!ASLEEP, Ordering::SeqCst) & ASLEEP != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        match &*self.sleeper() {
            Some(Sleeper::Future(waker)) => waker.wake_by_ref(),
            Some(Sleeper::Thread(thread)) => thread.unpark(),
            None => {}
        }
    }

    /// What is raised now.
    pub(crate) fn raised(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }

    /// Lowers `bits`; the caller looks at what they stand for after this.
    pub(crate) fn lower(&self, bits: u64) {
        self.word.fetch_and(!bits, Ordering::SeqCst);
    }

    /// Raises `bits` from the seat's own side, where nobody needs waking.
    pub(crate) fn keep(&self, bits: u64) {
        self.word.fetch_or(bits, Ordering::SeqCst);
    }

    /// Falls asleep, unless one of `unless` is raised. False: stay up and look.
    pub(crate) fn sleep(&self, unless: u64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & unless != 0 {
                return false;
            }
            match self.word.compare_exchange_weak(word, word | ASLEEP, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Up again, whoever did the waking (a bell, a timer, or a stray wake-up).
    pub(crate) fn awake(&self) {
        if self.is_asleep() {
            self.word.fetch_and(!ASLEEP, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.word.load(Ordering::SeqCst) & ASLEEP != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    struct Rung(AtomicUsize);

    impl std::task::Wake for Rung {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_raised_bit_keeps_the_seat_up() {
        let bell = Bell::new(true);
        bell.raise(1);
        assert!(!bell.sleep(LANES | ATTENTION));
        bell.lower(1);
        assert!(bell.sleep(LANES | ATTENTION));
    }

    #[test]
    fn only_a_sleeper_is_rung_and_only_once() {
        let bell = Bell::new(true);
        let rung = Arc::new(Rung(AtomicUsize::new(0)));
        bell.set_sleeper(Some(Sleeper::Future(Waker::from(Arc::clone(&rung)))));
        bell.raise(1);
        assert_eq!(rung.0.load(Ordering::SeqCst), 0);
        bell.lower(1);
        assert!(bell.sleep(LANES));
        bell.raise(1);
        bell.raise(2);
        assert_eq!(rung.0.load(Ordering::SeqCst), 1);
        assert!(!bell.is_asleep());
    }

    #[test]
    fn a_seat_that_waits_for_room_sleeps_through_messages() {
        let bell = Bell::new(true);
        bell.raise(1);
        assert!(bell.sleep(ROOM | ATTENTION));
        bell.raise(ROOM);
        assert!(!bell.is_asleep());
    }

    #[test]
    fn urgent_lanes_have_bits_of_their_own() {
        for nth in 0..200 {
            assert_ne!(bit_of(nth, true) & URGENT, 0);
            assert_eq!(bit_of(nth, false) & URGENT, 0);
            assert_ne!(bit_of(nth, false) & LANES, 0);
        }
    }
}
