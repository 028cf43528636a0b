//! What schedulers of tests keep to, and what they are asked.

use std::sync::Arc;

use millstream_actors::kv::HashChain;
use millstream_actors::request::{Keeping, Observe, Request, RequestId, Sampling};
use millstream_actors::sched::{Bounds, StateBounds, StoreBounds};
use millstream_runtime::Time;

use super::END;
use crate::windows::{ENTRY, NUMBERS, WINDOW};

/// Of a small group.
pub fn bounds(reuse: bool, block_size: u32, blocks: usize) -> Bounds {
    Bounds {
        chunk_tokens: 16,
        sequences_max: 4,
        waiting_max: 4,
        waiting_tokens_max: 1_000,
        wait_steps_max: 1_000,
        block_size,
        blocks,
        end_tokens: Arc::from([END]),
        answers: true,
        reuse: reuse.then(|| HashChain::new(b"test", block_size)),
        state: None,
        store: None,
        timing: None,
        ahead: false,
    }
}

/// The same for a model with a state.
pub fn with_state(bounds: Bounds, slots: usize, replay: u32, keep: Option<u32>) -> Bounds {
    Bounds { state: Some(StateBounds { slots, replay: replay as usize, keep, rewind: 1 }), ..bounds }
}

/// The same with a cache that keeps snapshots and no blocks.
pub fn with_snapshots(bounds: Bounds) -> Bounds {
    let block_bytes = bounds.block_size as usize * (1 + ENTRY) * 4;
    let slot_bytes = bounds.state.map_or(0, |_| WINDOW as usize * NUMBERS * 4);
    let store = StoreBounds { asks_max: 3, block_bytes, keeps: false, snapshots: Some(slot_bytes) };
    Bounds { store: Some(store), ..bounds }
}

/// Request `id` with this prompt.
pub fn request(id: u64, prompt: &[u32], tokens_max: u32) -> Arc<Request> {
    Arc::new(Request {
        id: RequestId(id),
        attempt: 0,
        prompt: prompt.into(),
        images: Arc::from([]),
        hashes: Arc::from([]),
        sent: Arc::from([]),
        family: None,
        sampling: Sampling::GREEDY.into(),
        tokens_max,
        tokens_min: 0,
        stops: Arc::from([]),
        stop_tokens: Arc::from([]),
        ignore_end: false,
        logprobs: None,
        deadline: Time::from_nanos(u64::MAX),
        observe: Observe::Nothing,
        keeping: Keeping::default(),
        priority: 0,
    })
}
