//! The channel under every lane: a bounded flume channel of which both ends are at hand.
//!
//! Push and pop are critical sections of one lock, so whoever sees a push fail has seen all that the earlier poppers did.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use flume::{Receiver, Sender, TryRecvError, TrySendError};

/// A first-in first-out queue.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    put: Sender<T>,
    take: Receiver<T>,
}

impl<T> Queue<T> {
    /// `capacity: None` is for reply lanes, whose window bounds them before the queue would.
    pub(crate) fn new(capacity: Option<usize>) -> Queue<T> {
        let (put, take) = capacity.map_or_else(flume::unbounded, flume::bounded);
        Queue { put, take }
    }

    /// Gives the item back when the queue is full.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        self.put.try_send(item).map_err(|error| match error {
            TrySendError::Full(item) | TrySendError::Disconnected(item) => item,
        })
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.take.try_recv().map_err(|error| debug_assert_eq!(error, TryRecvError::Empty)).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.take.len()
    }

    /// The next item, or `None` once `end` has come and nothing is left.
    pub(crate) async fn next(&self, end: &End) -> Option<T> {
        let mut item = pin!(self.take.recv_async());
        let mut ended = pin!(end.closed.recv_async());
        std::future::poll_fn(|waker| {
            if let Poll::Ready(item) = item.as_mut().poll(waker) {
                return Poll::Ready(item.ok());
            }
            match ended.as_mut().poll(waker) {
                Poll::Ready(_) => Poll::Ready(self.pop()),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Something that comes once and stays: the end of a lane towards the shell.
#[derive(Debug)]
pub(crate) struct End {
    /// Dropped when the end comes.
    open: Mutex<Option<Sender<()>>>,
    closed: Receiver<()>,
}

impl End {
    pub(crate) fn new() -> End {
        let (open, closed) = flume::bounded(1);
        End { open: Mutex::new(Some(open)), closed }
    }

    pub(crate) fn come(&self) {
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
