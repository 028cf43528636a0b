//! cache: blocks by hash, for any group of the process. What a group seals is kept here and found by every other one,
//! and by the same one when it has lost its memory.
//!
//! A question is answered in the turn in which it comes. Nothing here waits for a group, and a group never waits long for
//! this: what is not answered is computed.

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, ReplyOut};

use crate::gauges::CacheGauges;
use crate::kv::BlockHash;
use crate::message::{CacheAnswer, CacheAsk, CacheMessage, Kept};

mod host;

pub use host::Host;

/// What a copy from this process's memory is predicted to take, for each byte.
const COPY: Duration = Duration::from_nanos(1);

/// See the module.
pub struct Cache {
    host: Host,
    /// One a group, in order.
    groups: Vec<ReplyOut<CacheAnswer>>,
    gauges: Arc<CacheGauges>,
}

impl Cache {
    /// A cache of `bytes` of host memory that answers these groups.
    pub fn new(bytes: u64, groups: Vec<ReplyOut<CacheAnswer>>, gauges: Arc<CacheGauges>) -> Self {
        let cache = Self { host: Host::new(bytes), groups, gauges };
        cache.show();
        cache
    }

    fn answer(&mut self, ask: CacheAsk, group: usize) {
        let answer = match ask {
            CacheAsk::Seek(sequence, hashes) => {
                let (blocks, bytes) = self.seek(&hashes);
                let time = Duration::from_nanos(COPY.as_nanos() as u64 * bytes);
                CacheAnswer::Sought(sequence, blocks, time)
            }
            CacheAsk::Fetch(sequence, first, hashes) => {
                let data: Vec<_> = hashes.iter().map_while(|hash| self.host.get(hash)).collect();
                self.gauges.hits.add(data.len());
                CacheAnswer::Fetched(sequence, first, data)
            }
            CacheAsk::Forget(_) => return, // every question has its answer already
        };
        self.groups[group].reply(answer);
    }

    /// How many blocks of a beginning are here, and their bytes.
    fn seek(&mut self, hashes: &[BlockHash]) -> (usize, u64) {
        let found: Vec<_> = hashes.iter().map_while(|hash| self.host.get(hash)).collect();
        self.host.touch(&hashes[..found.len()]);
        self.gauges.sought.add(hashes.len());
        (found.len(), found.iter().map(|data| data.len() as u64).sum())
    }

    fn store(&mut self, kept: Vec<Kept>) {
        let news: Vec<_> = kept.into_iter().filter(|kept| !self.host.has(&kept.name.hash)).collect();
        self.gauges.stored.add(news.len());
        let blocks: Vec<_> = news.into_iter().map(|kept| (kept.name.hash, kept.data)).collect();
        self.host.put(&blocks);
    }

    fn show(&self) {
        self.gauges.host_bytes.set(self.host.bytes() as usize);
        self.gauges.host_blocks.set(self.host.len());
    }
}

impl Actor for Cache {
    type Message = CacheMessage;

    fn handle(&mut self, message: CacheMessage, _ctx: &mut Ctx<'_>) {
        match message {
            CacheMessage::Ask(ask, group) => self.answer(ask, group),
            CacheMessage::Store(kept) => self.store(kept),
        }
        self.show();
    }
}
