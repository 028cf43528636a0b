//! What a scheduler asks of the prefix store, and the shelf of snapshots that answers.

use millstream_actors::message::CacheAsk;

use super::World;

impl World {
    /// The cache is asked what is to be asked.
    pub fn ask(&mut self) {
        self.asks.retain(|ask| self.scheduler.knows(ask.sequence()));
        self.asks.extend(self.scheduler.asks().into_iter().filter(CacheAsk::is_question));
        assert!(self.asks.len() <= self.bounds.store.map_or(0, |store| store.asks_max), "open questions");
    }

    /// It answers the oldest question.
    pub fn answer(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        match self.asks.remove(0) {
            CacheAsk::Seek(id, hashes, _, beginning) => {
                let beginning = beginning.expect("snapshots are kept");
                let promise = self.shelf.find(&hashes, &beginning, (beginning.here, 0.0));
                self.scheduler.sought(id, 0, promise);
            }
            CacheAsk::Bring(id, name) => {
                self.scheduler.brought(id, self.shelf.get(&name).unwrap_or_default())
            }
            CacheAsk::Fetch(..) | CacheAsk::Forget(_) | CacheAsk::Hit(..) => panic!("there are no blocks"),
        }
    }

    /// The oldest question is not waited for any longer.
    pub fn give_up(&mut self) {
        if !self.asks.is_empty() {
            self.scheduler.give_up(self.asks.remove(0).sequence());
        }
    }
}
