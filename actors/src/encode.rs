//! encode: makes the embeddings of a prompt's images and gives the request back to the router with them. Decoding a file
//! and looking at it take long, so the actor has a compute seat of its own, and one turn looks at one image: a cancel or
//! a deadline counts between two images.
//!
//! Requests are served in order of arrival. An image that was looked at is known by its digest (`encode/album.rs`), so
//! the same one in many requests, or in the next attempt of one, is looked at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use album::Album;
use millstream_kernels::{Backend, Error, Model, Pixels};
use millstream_runtime::{Actor, Ctx, Event, HoldOut, Time};

use crate::drain::Drain;
use crate::gauges::EncodeGauges;
use crate::message::{Cancel, Cause, Departure, EncodeMessage, Ended, SequenceId};
use crate::outbox::Tombstones;
use crate::request::{Embeddings, PromptImage, Refusal, Request};

mod album;

/// What an encode actor looks with.
pub struct Sight {
    /// The model, which has eyes.
    pub model: Arc<dyn Model>,
    /// The arithmetic.
    pub backend: Box<dyn Backend>,
}

/// Bounds of an encode actor, from the plan.
#[derive(Clone, Copy, Debug)]
pub struct EncodeBounds {
    /// Bytes of embeddings that are kept for the next request with the same image.
    pub cache: u64,
    /// Requests that may wait.
    pub waiting_max: usize,
    /// Virtual time that a token of an image takes in the simulator.
    pub cost: Duration,
}

/// Where an encode actor speaks to.
#[derive(Clone)]
pub struct EncodeLanes {
    /// To the router: requests whose images were looked at.
    pub spans: HoldOut<Arc<Request>>,
    /// To the router: requests that cannot be.
    pub ended: HoldOut<Vec<Ended>>,
    /// The router's seat: when it dies, nobody is left who waits for a request here.
    pub router: String,
}

/// A request and what is known of its images so far, from the first.
struct Looking {
    request: Arc<Request>,
    seen: Vec<Embeddings>,
}

impl Looking {
    fn next(&self) -> Option<&PromptImage> {
        self.request.images.get(self.seen.len())
    }

    /// The request with its embeddings.
    fn finish(self) -> Request {
        let with = |(image, seen): (&PromptImage, Embeddings)| PromptImage {
            embeddings: Some(seen),
            ..image.clone()
        };
        let images = self.request.images.iter().zip(self.seen).map(with).collect();
        Request { images, ..(*self.request).clone() }
    }
}

/// See the module.
pub struct Encode {
    sight: Sight,
    bounds: EncodeBounds,
    lanes: EncodeLanes,
    gauges: Arc<EncodeGauges>,
    queue: VecDeque<Looking>,
    album: Album,
    tombstones: Tombstones,
    ended: Vec<Ended>,
    /// Requests given back.
    given_back: u64,
    /// How fast that goes.
    drain: Drain,
}

impl Encode {
    /// Nothing to look at yet, nothing known.
    pub fn new(sight: Sight, bounds: EncodeBounds, lanes: EncodeLanes, gauges: Arc<EncodeGauges>) -> Self {
        let (queue, album) = (VecDeque::new(), Album::new(bounds.cache));
        let (tombstones, ended) = (Tombstones::default(), Vec::new());
        let (given_back, drain) = (0, Drain::default());
        Self { sight, bounds, lanes, gauges, queue, album, tombstones, ended, given_back, drain }
    }

    fn look(&mut self, request: Arc<Request>, now: Time) {
        let sequence = request.sequence();
        if self.tombstones.covers(sequence) {
            return;
        }
        self.drain.tell(now, [self.given_back, 0]);
        if self.queue.len() >= self.bounds.waiting_max {
            let refusal =
                Refusal::Overload { retry_after: self.drain.predict(now, [self.queue.len() as u64, 0]) };
            return self.leave(sequence, Departure::Failed(Cause::Refused(refusal)));
        }
        self.queue.push_back(Looking { request, seen: Vec::new() });
    }

    fn cancel(&mut self, cancel: Cancel, now: Time) {
        self.tombstones.add(cancel, now);
        let SequenceId { request, attempt } = cancel.sequence;
        self.queue.retain(|looking| looking.request.id != request || looking.request.attempt > attempt);
    }

    fn leave(&mut self, sequence: SequenceId, how: Departure) {
        self.ended.push(Ended { sequence, how });
    }

    /// Drops what is past its deadline.
    fn expire(&mut self, now: Time) {
        let late = |looking: &Looking| looking.request.deadline <= now;
        let over: Vec<SequenceId> =
            self.queue.iter().filter(|looking| late(looking)).map(|l| l.request.sequence()).collect();
        self.queue.retain(|looking| !late(looking));
        over.into_iter().for_each(|sequence| self.leave(sequence, Departure::Dropped));
    }

    /// Goes on with the queue until one image was looked at, or nothing waits.
    fn advance(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(looking) = self.queue.front_mut() {
            while let Some(known) = looking.next().and_then(|next| self.album.find(next.picture.digest())) {
                looking.seen.push(known);
                self.gauges.hits.add(1);
            }
            let Some(image) = looking.next().cloned() else {
                self.give_back(ctx);
                continue;
            };
            match self.sight.look(&image) {
                Ok(seen) => {
                    self.album.keep(image.picture.digest(), &seen);
                    looking.seen.push(seen);
                    self.gauges.images.add(1);
                    ctx.spend(self.bounds.cost * image.plan.tokens as u32);
                }
                Err(cause) => {
                    let sequence = looking.request.sequence();
                    self.queue.pop_front();
                    self.leave(sequence, Departure::Failed(cause));
                }
            }
            break;
        }
        // What that was the last image of need not wait for another turn.
        if self.queue.front().is_some_and(|looking| looking.next().is_none()) {
            self.give_back(ctx);
        }
    }

    /// The first request has all its embeddings.
    fn give_back(&mut self, ctx: &mut Ctx<'_>) {
        let Some(looking) = self.queue.pop_front() else { return };
        self.given_back += 1;
        self.drain.tell(ctx.now(), [self.given_back, 0]);
        let request = looking.finish();
        let tokens: usize = request.images.iter().map(|image| image.plan.tokens).sum();
        ctx.event(Event::Stage { request: request.id.0, stage: "encode", value: tokens as u64 });
        self.lanes.spans.send(Arc::new(request));
    }
}

impl Sight {
    /// Embeddings of an image.
    ///
    /// # Errors
    /// Its file is broken, the model does not take it, or gives what it did not promise.
    fn look(&mut self, image: &PromptImage) -> Result<Embeddings, Cause> {
        let (plan, picture) = (&image.plan, &image.picture);
        let unseen = |why: String| Cause::Refused(Refusal::Image { place: picture.place().to_owned(), why });
        let vision =
            self.model.vision().ok_or_else(|| unseen("this model has no eyes: it reads text only".into()))?;
        let rgb =
            picture.pixels(plan.width, plan.height).map_err(|error| unseen(format!("this image {error}")))?;
        let pixels = Pixels { width: plan.width, height: plan.height, rgb: &rgb };
        let seen = vision.encode(plan, pixels, self.backend.as_mut()).map_err(|error| match error {
            Error::Image(why) => unseen(format!("this image {why}")),
            error => Cause::Failed(format!("an image cannot be encoded: {error}")),
        })?;
        if seen.len() != plan.tokens * vision.width() {
            return Err(Cause::Failed(format!(
                "the model gives {} values for an image of {} tokens of {}",
                seen.len(),
                plan.tokens,
                vision.width()
            )));
        }
        Ok(seen.into())
    }
}

impl Actor for Encode {
    type Message = EncodeMessage;

    fn handle(&mut self, message: EncodeMessage, ctx: &mut Ctx<'_>) {
        match message {
            EncodeMessage::Look(request) => self.look(request, ctx.now()),
            EncodeMessage::Cancel(cancel) => self.cancel(cancel, ctx.now()),
        }
    }

    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        let began = ctx.now();
        self.expire(began);
        self.advance(ctx);
        self.gauges.nanoseconds.add(ctx.now().saturating_since(began).as_nanos() as usize);
        self.gauges.waiting.set(self.queue.len());
        self.gauges.cached_bytes.set(self.album.bytes() as usize);
        if !self.ended.is_empty() {
            self.lanes.ended.send(std::mem::take(&mut self.ended));
        }
        if !self.queue.is_empty() {
            ctx.wake_at(began);
        }
    }

    fn lost(&mut self, peer: &str, _ctx: &mut Ctx<'_>) {
        if peer == self.lanes.router {
            self.queue.clear();
            self.ended.clear();
        }
    }
}
