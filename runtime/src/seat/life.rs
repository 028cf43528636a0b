//! One life of a seat: an actor made by its factory, and its turns until the seat stops or dies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::inbox::{Inbox, Next, Sources};
use super::{SeatCore, TURN_MESSAGES_MAX};
use crate::actor::{Actor, Ctx};
use crate::bell::ATTENTION;
use crate::time::{Clock, Time};
use crate::trace::Event;

/// What a turn did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turned {
    /// The actor was called at all.
    pub(crate) stirred: bool,
    /// Nothing was left when it ended.
    pub(crate) drained: bool,
    pub(crate) messages: u32,
    /// Sum of the actor's `spend` calls.
    pub(crate) spent: Duration,
}

/// A life as drivers see it, whatever its actor's message is. Panics of the actor come out of both calls.
pub(crate) trait Life: Send {
    /// Notices, the wake time, up to `TURN_MESSAGES_MAX` messages, then settle. Does nothing when nothing is there.
    fn turn(&mut self, clock: &Clock) -> Turned;
    /// The actor's last call.
    fn finish(&mut self, clock: &Clock);
    /// When it wants to be woken.
    fn wake_at(&self) -> Option<Time>;
}

/// Makes the lives of one seat, one after the other.
pub(crate) trait Maker: Send + Sync {
    /// Calls the factory, whose panic comes out.
    fn make(&self) -> Box<dyn Life>;
}

pub(crate) fn maker<A: Actor>(
    core: Arc<SeatCore>,
    sources: Sources<A::Message>,
    factory: impl FnMut() -> A + Send + 'static,
) -> Arc<dyn Maker> {
    Arc::new(Factory { core, sources, factory: Mutex::new(factory) })
}

struct Factory<M, F> {
    core: Arc<SeatCore>,
    sources: Sources<M>,
    factory: Mutex<F>,
}

impl<A: Actor, F: FnMut() -> A + Send> Maker for Factory<A::Message, F> {
    fn make(&self) -> Box<dyn Life> {
        let actor = (self.factory.lock().unwrap_or_else(PoisonError::into_inner))();
        let inbox = Inbox::new(&self.sources);
        Box::new(OneLife {
            core: Arc::clone(&self.core),
            inner: Inner { actor, inbox, wake_at: None, fresh: true },
        })
    }
}

struct OneLife<A: Actor> {
    core: Arc<SeatCore>,
    inner: Inner<A>,
}

/// What only the life itself touches.
struct Inner<A: Actor> {
    actor: A,
    inbox: Inbox<A::Message>,
    wake_at: Option<Time>,
    /// It has not had its first turn, which calls settle in any case.
    fresh: bool,
}

/// The account of a turn while it runs.
struct Account<'a> {
    core: &'a SeatCore,
    clock: &'a Clock,
    turned: Turned,
}

impl Account<'_> {
    fn begin(&mut self) {
        if !self.turned.stirred {
            self.turned.stirred = true;
            self.core.begin();
        }
    }

    /// The next call's `Ctx`; the first call of a turn marks its beginning.
    fn call<'b>(&'b mut self, wake_at: &'b mut Option<Time>) -> Ctx<'b> {
        self.begin();
        Ctx::new(self.core, self.clock, wake_at, &mut self.turned.spent)
    }
}

impl<A: Actor> Inner<A> {
    /// Tells the actor of every loss that is waiting.
    fn hear(&mut self, account: &mut Account<'_>) {
        for notice in account.core.take_notices() {
            for (lane, epoch) in &notice.lanes {
                let facts = &lane.core().facts;
                if facts.to.as_ref().is_some_and(|to| to.index == account.core.index) {
                    lane.core().receiver_learns(*epoch);
                } else {
                    lane.core().sender_learns(*epoch);
                }
            }
            account.core.record(|| Event::Lost { peer: Arc::clone(&notice.peer) });
            self.actor.lost(&notice.peer, &mut account.call(&mut self.wake_at));
        }
    }

    fn wake_if_due(&mut self, account: &mut Account<'_>) {
        if self.wake_at.is_some_and(|at| at <= account.clock.now()) {
            self.wake_at = None;
            account.core.record(|| Event::Woke);
            self.actor.wake(&mut account.call(&mut self.wake_at));
        }
    }

    fn work(&mut self, account: &mut Account<'_>) {
        while account.turned.messages < TURN_MESSAGES_MAX && !account.core.is_held() {
            if account.core.bell.raised() & ATTENTION != 0 {
                account.core.bell.lower(ATTENTION);
                if account.core.ordered().is_some() {
                    return;
                }
                self.hear(account);
                continue;
            }
            match self.inbox.next(&account.core.bell) {
                Next::Message(message) => {
                    account.turned.messages += 1;
                    self.actor.handle(message, &mut account.call(&mut self.wake_at));
                }
                Next::Hear => self.hear(account),
                Next::Empty => {
                    account.turned.drained = true;
                    return;
                }
            }
        }
    }
}

impl<A: Actor> Life for OneLife<A> {
    fn turn(&mut self, clock: &Clock) -> Turned {
        let OneLife { core, inner } = self;
        let mut account = Account { core, clock, turned: Turned::default() };
        if std::mem::take(&mut inner.fresh) {
            account.begin();
        }
        inner.wake_if_due(&mut account);
        inner.work(&mut account);
        inner.inbox.leave(&core.bell);
        if account.turned.stirred {
            inner.actor.settle(&mut account.call(&mut inner.wake_at));
            core.end();
            let messages = account.turned.messages;
            core.record(|| Event::Turn { messages });
        }
        account.turned
    }

    fn finish(&mut self, clock: &Clock) {
        let OneLife { core, inner } = self;
        let mut spent = Duration::ZERO;
        inner.actor.stop(&mut Ctx::new(core, clock, &mut inner.wake_at, &mut spent));
        core.record(|| Event::Stopped);
    }

    fn wake_at(&self) -> Option<Time> {
        self.inner.wake_at
    }
}
