//! The lanes into a seat, served round-robin, urgent ones first; what they carry becomes the actor's message here.

use std::sync::{Arc, Mutex, PoisonError};

use crate::bell::{Bell, LANES, URGENT};
use crate::lane::{Lane, LaneCore, Take};

/// The receiving end of a lane, seen as a source of the actor's messages.
pub(crate) trait Source<M>: Send + Sync {
    fn take(&self) -> Take<M>;
    fn core(&self) -> &LaneCore;
}

/// A lane and the way from what it carries to the actor's message.
pub(crate) struct LaneIn<T, F> {
    pub(crate) lane: Arc<Lane<T>>,
    pub(crate) wrap: F,
}

impl<T: Send + 'static, M, F: Fn(T) -> M + Send + Sync> Source<M> for LaneIn<T, F> {
    fn take(&self) -> Take<M> {
        match self.lane.take() {
            Take::Empty => Take::Empty,
            Take::Message(message) => Take::Message((self.wrap)(message)),
            Take::Early(message, epoch) => Take::Early((self.wrap)(message), epoch),
        }
    }

    fn core(&self) -> &LaneCore {
        &self.lane.core
    }
}

/// All sources of a seat; the graph's builder adds to it, every life of the seat reads it.
pub(crate) type Sources<M> = Arc<Mutex<Vec<Arc<dyn Source<M>>>>>;

/// The lanes into one life of a seat.
pub(crate) struct Inbox<M> {
    /// By bit; most bits have one lane.
    sources: Vec<Vec<Arc<dyn Source<M>>>>,
    /// Bits that were lowered before their lanes were seen empty: as good as raised.
    open: u64,
    /// Bits of which one message was taken while they were still up.
    served: u64,
    /// The bit served last.
    last: u32,
    /// Rotates among the lanes that share a bit.
    skew: usize,
    /// A message that came before the notice of its life, with its lane's bit and place; handled right after the notice.
    early: Option<(M, Arc<dyn Source<M>>, u32)>,
}

/// What the inbox offers next.
pub(crate) enum Next<M> {
    Message(M),
    /// A message is at hand whose sender's loss was not heard yet.
    Hear,
    Empty,
}

impl<M> Inbox<M> {
    pub(crate) fn new(sources: &Sources<M>) -> Inbox<M> {
        let mut by_bit: Vec<Vec<Arc<dyn Source<M>>>> = Vec::new();
        by_bit.resize_with(LANES.count_ones() as usize, Vec::new);
        for source in sources.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            by_bit[source.core().facts.bit.trailing_zeros() as usize].push(Arc::clone(source));
        }
        // The life before may have left in the middle of a turn: every lane is looked at once.
        let bits = by_bit.iter().enumerate().filter(|(_, sources)| !sources.is_empty());
        let open = bits.fold(0, |open, (bit, _)| open | 1 << bit);
        Inbox { sources: by_bit, open, served: 0, last: 0, skew: 0, early: None }
    }

    /// The next message: urgent lanes first, then the lane after the one served last.
    pub(crate) fn next(&mut self, bell: &Bell) -> Next<M> {
        if let Some(next) = self.settled_early() {
            return next;
        }
        loop {
            let up = bell.raised() & LANES | self.open;
            let up = if up & URGENT != 0 { up & URGENT } else { up };
            if up == 0 {
                return Next::Empty;
            }
            let after = up & !((2 << self.last) - 1);
            let place = if after != 0 { after } else { up }.trailing_zeros();
            let bit = 1 << place;
            // The first message is taken at once. Before the lane may be called empty its bit goes down, so that what
            // comes after the look raises it again.
            if self.open & bit == 0 && self.served & bit != 0 {
                self.lower(bell, bit);
            }
            self.served |= bit;
            if let Some(next) = self.take(place) {
                return next;
            }
            if self.open & bit == 0 {
                self.lower(bell, bit);
            } else {
                self.open &= !bit;
                self.served &= !bit;
            }
        }
    }

    fn lower(&mut self, bell: &Bell, bit: u64) {
        bell.lower(bit);
        self.open |= bit;
    }

    /// The turn ends: what is open and may hold messages is raised for the next one.
    pub(crate) fn leave(&mut self, bell: &Bell) {
        if self.open != 0 {
            bell.keep(std::mem::take(&mut self.open));
        }
    }

    fn take(&mut self, bit: u32) -> Option<Next<M>> {
        let sources = &self.sources[bit as usize];
        let mut place = if sources.len() == 1 { 0 } else { self.skew % sources.len() };
        for _ in 0..sources.len() {
            let source = &sources[place];
            place = if place + 1 == sources.len() { 0 } else { place + 1 };
            // The bit is down: what is not counted yet raises it after it is counted, so the count can be trusted, and
            // is cheaper than a look into the queue.
            if self.open & (1 << bit) != 0 && source.core().depth() == 0 {
                continue;
            }
            match source.take() {
                Take::Empty => {}
                Take::Message(message) => {
                    self.last = bit;
                    self.skew = place;
                    return Some(Next::Message(message));
                }
                Take::Early(message, epoch) => {
                    self.early = Some((message, Arc::clone(source), epoch));
                    return Some(Next::Hear);
                }
            }
        }
        None
    }

    /// The message that waited for its notice: handled now, or stale by a later notice.
    fn settled_early(&mut self) -> Option<Next<M>> {
        let (message, source, epoch) = self.early.take()?;
        let accepted = source.core().accepted();
        match epoch.cmp(&accepted) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(Next::Message(message)),
            std::cmp::Ordering::Greater => {
                self.early = Some((message, source, epoch));
                Some(Next::Hear)
            }
        }
    }
}
