//! Threads that share the chunks of one operation. A model step is hundreds of operations of a few microseconds to a few
//! milliseconds; handing each to a general pool would cost as much as the short ones take. So the calling thread takes
//! part, the extra threads spin for a moment between operations, and nobody waits for a thread that did not join in.
//!
//! One word, the gate, holds the whole protocol:
//! 1. The caller writes the job, then opens the gate for a new round and wakes whoever sleeps.
//! 2. A thread that finds the gate open for a round it has not seen enters by adding one to the gate; this fails if the
//!    gate has closed meanwhile. It then takes chunk after chunk from a counter, and leaves by subtracting one.
//! 3. The caller takes chunks too. When none is left it closes the gate and waits until everyone inside has left; only
//!    then does the job, which borrows from the caller's stack, end.
#![expect(unsafe_code, reason = "a job borrows from its caller's stack while other threads run it")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::output::Output;

/// Looks at the gate before an idle thread parks: about 50 microseconds.
const SPINS: u32 = 3_000;
/// Set in the gate while threads may enter.
const OPEN: u64 = 1 << 31;
/// Bits of the gate that count who is inside.
const INSIDE: u64 = OPEN - 1;
/// One round, in the upper half of the gate.
const ROUND: u64 = 1 << 32;

/// Computes chunk after chunk of an operation; called from several threads at once, with each number once.
type Job = dyn Fn(usize) + Sync;

/// The calling thread and `threads - 1` others.
pub(crate) struct Pool {
    /// What all of them see.
    shared: Arc<Shared>,
    /// The others; joined on drop.
    extra: Vec<JoinHandle<()>>,
}

/// State of the protocol.
struct Shared {
    /// Round, open, number of threads inside. Opened and closed by the caller only.
    gate: AtomicU64,
    /// Written by the caller while the gate is closed and nobody is inside; read by those inside.
    job: UnsafeCell<(*const Job, usize)>,
    /// Next chunk that nobody has taken.
    next: AtomicUsize,
    /// One per extra thread: it is about to park, or has.
    asleep: Vec<AtomicBool>,
    /// The pool is being dropped.
    stop: AtomicBool,
    /// First panic of a job in an extra thread; taken by the caller.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only part that is not `Sync` by itself. The caller writes it while the gate is closed with nobody
// inside, and opens the gate by a release; threads read it only after they entered by an acquire of that same word. The
// closure behind the pointer is `Sync`, and outlives the round because `Pool::run` waits for everyone inside.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed inside a round.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` in all. Extra thread `i` (from 1) runs on core `pin[i]`, if there is one; the calling thread
    /// stays where it is.
    pub(crate) fn new(threads: usize, pin: &[usize]) -> Pool {
        let count = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new((&nothing as *const Job, 0)),
            next: AtomicUsize::new(0),
            asleep: (0..count).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let extra = (0..count).map(|i| spawn(Arc::clone(&shared), i, pin.get(i + 1).copied())).collect();
        Pool { shared, extra }
    }

    /// Threads in all.
    pub(crate) fn threads(&self) -> usize {
        self.extra.len() + 1
    }

    /// Runs `job` once for each chunk below `chunks`, in any order and on any thread; returns when all are done. A panic
    /// of the job goes on in the caller, after every thread has left.
    pub(crate) fn run(&mut self, chunks: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.extra.is_empty() || chunks < 2 {
            (0..chunks).for_each(job);
            return;
        }
        self.open(chunks, job);
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.take_chunks(job, chunks)));
        if own.is_err() {
            self.shared.next.store(chunks, Ordering::Relaxed);
        }
        self.close();
        let others = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cause) = own.err().or(others) {
            resume_unwind(cause);
        }
    }

    /// Runs `job` on consecutive parts of `x` of `size` values (the last may be shorter), with the place where each part
    /// starts.
    pub(crate) fn run_parts(&mut self, x: &mut [f32], size: usize, job: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let (len, size) = (x.len(), size.max(1));
        let x = Output::new(x);
        self.run(len.div_ceil(size), &|chunk| {
            let start = chunk * size;
            // SAFETY: each chunk is run once, and parts of different chunks do not overlap.
            job(start, unsafe { x.part(start, size.min(len - start)) });
        });
    }

    /// Step 1 of the protocol.
    fn open(&mut self, chunks: usize, job: &(dyn Fn(usize) + Sync)) {
        let job: *const (dyn Fn(usize) + Sync + '_) = job;
        // SAFETY: only the lifetime changes. `close` waits until nobody can follow the pointer any more, and is called
        // before the borrow of `job` ends, also if the job panics.
        let job: *const Job = unsafe { std::mem::transmute(job) };
        // SAFETY: the gate is closed and nobody is inside: `close` ended the last round, and `&mut self` says there is
        // no other caller.
        unsafe { *self.shared.job.get() = (job, chunks) };
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.gate.fetch_add(ROUND | OPEN, Ordering::SeqCst);
        self.wake();
    }

    /// Unparks whoever is asleep. What they are to see was stored before, in the one total order that `rest` relies on.
    fn wake(&self) {
        for (asleep, thread) in self.shared.asleep.iter().zip(&self.extra) {
            if asleep.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
    }

    /// Step 3 of the protocol.
    fn close(&mut self) {
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.shared.gate.load(Ordering::Acquire) & INSIDE > 0 {
            spins += 1;
            if spins < SPINS { spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.wake();
        for thread in self.extra.drain(..) {
            // A thread has nothing left to report: panics of jobs went to the caller.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Takes chunks until none is left.
    fn take_chunks(&self, job: &(dyn Fn(usize) + Sync), chunks: usize) {
        loop {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return;
            }
            job(chunk);
        }
    }

    /// Step 2 of the protocol: the life of an extra thread.
    fn serve(&self, number: usize) {
        let (mut seen, mut spins) = (0, 0);
        while !self.stop.load(Ordering::SeqCst) {
            let gate = self.gate.load(Ordering::Relaxed);
            if self.is_new(gate, seen) {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    self.join_in();
                    (seen, spins) = (gate / ROUND, 0);
                }
            } else if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                self.rest(number, seen);
                spins = 0;
            }
        }
    }

    /// The gate is open for a round other than `seen`.
    fn is_new(&self, gate: u64, seen: u64) -> bool {
        gate & OPEN > 0 && gate / ROUND != seen
    }

    /// Works on the round this thread has entered, and leaves it.
    fn join_in(&self) {
        // SAFETY: this thread is inside, so the job was written before the gate it entered by and stays as it is.
        let (job, chunks) = unsafe { *self.job.get() };
        // SAFETY: the caller does not return before this thread has left, so the closure is alive.
        let job = unsafe { &*job };
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| self.take_chunks(job, chunks))) {
            self.next.store(chunks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
        }
        self.gate.fetch_sub(1, Ordering::Release);
    }

    /// Parks, unless there is something new already. Either this thread sees the new gate or stop here, or the caller
    /// sees it asleep and unparks it, for both store first and load then.
    fn rest(&self, number: usize, seen: u64) {
        let asleep = &self.asleep[number];
        asleep.store(true, Ordering::SeqCst);
        let new = self.is_new(self.gate.load(Ordering::SeqCst), seen) || self.stop.load(Ordering::SeqCst);
        if !new {
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

/// The job before the first.
fn nothing(_chunk: usize) {}

/// Starts extra thread `number`.
fn spawn(shared: Arc<Shared>, number: usize, core: Option<usize>) -> JoinHandle<()> {
    let serve = move || {
        if let Some(id) = core {
            // A core that is not there is no reason to stop: the thread then runs where the system puts it.
            let _ = core_affinity::set_for_current(core_affinity::CoreId { id });
        }
        shared.serve(number);
    };
    let name = format!("kernels-{}", number + 1);
    std::thread::Builder::new().name(name).spawn(serve).expect("the system gives a thread at start")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_chunk_runs_once_in_every_round() {
        for threads in 1..=4 {
            let mut pool = Pool::new(threads, &[]);
            assert_eq!(pool.threads(), threads);
            for round in 0..2_000 {
                let counts: Vec<AtomicUsize> = (0..round % 23).map(|_| AtomicUsize::new(0)).collect();
                pool.run(counts.len(), &|chunk| {
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the threads must have time to park")]
    fn parked_threads_come_back() {
        let mut pool = Pool::new(3, &[0, 0, 0]);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            let inside = AtomicUsize::new(0);
            // Ends only if all three threads are in the round at the same time.
            pool.run(3, &|_| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3, &[]);
        for bad in 0..50 {
            let run =
                catch_unwind(AssertUnwindSafe(|| pool.run(50, &|chunk| assert_ne!(chunk, bad, "chunk"))));
            assert!(run.is_err());
            let done = AtomicUsize::new(0);
            pool.run(50, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
        }
    }
}
