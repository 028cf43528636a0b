//! Requests whose images are being looked at: which encode actor has which. An actor is picked by the first image, so
//! that the same image always comes to the same one, which then knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_runtime::{OfferOut, Time};

use crate::message::{Cancel, SequenceId};
use crate::outbox::Outbox;
use crate::request::{Request, RequestId};

/// Lanes to one encode actor.
#[derive(Clone)]
pub struct EncodeDoor {
    /// The seat at the other end.
    pub seat: String,
    /// Requests with images.
    pub look: OfferOut<Arc<Request>>,
    /// Cancels.
    pub cancel: OfferOut<Cancel>,
}

/// A request that an encode actor has.
#[derive(Clone, Copy)]
pub(super) struct Away {
    pub(super) attempt: u32,
    pub(super) deadline: Time,
    eyes: usize,
}

struct Eyes {
    seat: String,
    look: OfferOut<Arc<Request>>,
    cancel: Outbox<Cancel>,
}

/// See the module.
pub(super) struct Looks {
    eyes: Vec<Eyes>,
    away: BTreeMap<RequestId, Away>,
}

impl Looks {
    pub(super) fn new(doors: Vec<EncodeDoor>) -> Self {
        let eyes =
            |door: EncodeDoor| Eyes { seat: door.seat, look: door.look, cancel: Outbox::new(door.cancel) };
        Self { eyes: doors.into_iter().map(eyes).collect(), away: BTreeMap::new() }
    }

    /// Whether this request has images that nobody has looked at.
    pub(super) fn needs(request: &Request) -> bool {
        request.images.iter().any(|image| image.embeddings.is_none())
    }

    /// Sends it to be looked at; false when there is no room.
    pub(super) fn send(&mut self, request: &Arc<Request>) -> bool {
        let Some(first) = request.images.first() else { return false };
        let Some(eyes) = usize::from(first.picture.digest().as_bytes()[0]).checked_rem(self.eyes.len())
        else {
            return false;
        };
        let sent = self.eyes[eyes].look.offer(Arc::clone(request)).is_ok();
        if sent {
            let away = Away { attempt: request.attempt, deadline: request.deadline, eyes };
            self.away.insert(request.id, away);
        }
        sent
    }

    pub(super) fn get(&self, request: RequestId) -> Option<&Away> {
        self.away.get(&request)
    }

    pub(super) fn remove(&mut self, request: RequestId) -> Option<Away> {
        self.away.remove(&request)
    }

    /// Says that a request that is away is not wanted any more.
    pub(super) fn cancel(&mut self, away: Away, cancel: Cancel) {
        self.eyes[away.eyes].cancel.send(cancel);
    }

    /// Every request that is away, or those with a dead actor.
    pub(super) fn sequences(&self, dead: Option<usize>) -> Vec<SequenceId> {
        let there = self.away.iter().filter(|(_, away)| dead.is_none_or(|eyes| away.eyes == eyes));
        there.map(|(&request, away)| SequenceId { request, attempt: away.attempt }).collect()
    }

    /// The actor in this seat, which has died: what was to be said to it is forgotten.
    pub(super) fn died(&mut self, seat: &str) -> Option<usize> {
        let eyes = self.eyes.iter().position(|eyes| eyes.seat == seat)?;
        self.eyes[eyes].cancel.clear();
        Some(eyes)
    }

    /// Says what there was no room for; false when something is left.
    pub(super) fn flush(&mut self) -> bool {
        self.eyes.iter_mut().fold(true, |through, eyes| through & eyes.cancel.flush())
    }
}
