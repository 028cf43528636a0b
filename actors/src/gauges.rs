//! What a group, or an encode actor, shows of itself: numbers the actor writes and the rim reads, for `/metrics`, for
//! tests and for the simulator's check that the ledger is at zero. Never read by an actor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Numbers of one group. Written by its scheduler seat alone.
#[derive(Debug, Default)]
pub struct GroupGauges {
    /// The group's name.
    pub name: String,
    /// Blocks somebody owns now.
    pub blocks_used: Gauge,
    /// Blocks that nobody owns and that may be used again.
    pub blocks_cached: Gauge,
    /// Blocks in all.
    pub blocks_total: Gauge,
    /// State slots somebody owns now; 0 where the model keeps no state.
    pub slots_used: Gauge,
    /// State slots in all.
    pub slots_total: Gauge,
    /// Leases whose blocks are not free yet.
    pub leases: Gauge,
    /// Sequences that take part in steps.
    pub running: Gauge,
    /// Sequences that wait for blocks or a place.
    pub waiting: Gauge,
    /// Steps since start.
    pub steps: Gauge,
    /// Tokens computed since start, prompts and answers.
    pub tokens: Gauge,
    /// Sequences that lost their blocks to an older one since start.
    pub preemptions: Gauge,
    /// Tokens of sequences that began, since start.
    pub tokens_sought: Gauge,
    /// Those of them whose entries were found and not computed.
    pub tokens_found: Gauge,
    /// Tokens that were found and computed once more for a state, since start.
    pub tokens_replayed: Gauge,
    /// Cached blocks whose memory was wanted, since start.
    pub evictions: Gauge,
    /// Blocks that the prefix store brought, since start.
    pub blocks_fetched: Gauge,
    /// Blocks that were given to the prefix store, since start.
    pub blocks_kept: Gauge,
    /// Blocks that were not, for want of room on the way, since start.
    pub blocks_unkept: Gauge,
    /// Questions to the prefix store that were not waited for any longer, since start.
    pub fetches_given_up: Gauge,
    /// What steps with rows took since start.
    pub step_times: Times,
    /// How long the rank waited before steps with rows since the end of the step before each, since start, where the group
    /// had work to do all that time.
    pub step_gaps: Times,
    /// The middle of the relative errors with which recent steps were predicted, in millionths.
    pub step_error: Gauge,
}

/// How often something took how long, and how long all of it took.
#[derive(Debug, Default)]
pub struct Times {
    /// Those up to each of [`Times::BOUNDS`] that are above the one before, and then the longer ones.
    counts: [Gauge; Times::BOUNDS.len() + 1],
    nanoseconds: Gauge,
}

impl Times {
    /// Upper bounds in seconds.
    pub const BOUNDS: [f64; 19] = [
        0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04,
        0.06, 0.08, 0.12, 0.25, 0.5, 1.0, 2.5,
    ];

    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bound = Times::BOUNDS.iter().position(|&bound| seconds <= bound);
        self.counts[bound.unwrap_or(Times::BOUNDS.len())].add(1);
        self.nanoseconds.add(time.as_nanos() as usize);
    }

    /// How many took at most each of [`Times::BOUNDS`], how many there were, and the seconds of all together.
    pub fn get(&self) -> ([u64; Times::BOUNDS.len()], u64, f64) {
        let (mut sum, mut within) = (0, [0; Times::BOUNDS.len()]);
        for (count, within) in self.counts.iter().zip(&mut within) {
            sum += count.get();
            *within = sum;
        }
        let all = sum + self.counts[Times::BOUNDS.len()].get();
        (within, all, self.nanoseconds.get() as f64 / 1e9)
    }
}

/// One number.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }
}

/// Numbers of the cache. Written by its seat alone.
#[derive(Debug, Default)]
pub struct CacheGauges {
    /// Blocks that groups asked for since start.
    pub sought: Gauge,
    /// Blocks that were brought to them since start.
    pub hits: Gauge,
    /// Blocks that came from groups, and were new, since start.
    pub stored: Gauge,
    /// Bytes of blocks in host memory.
    pub host_bytes: Gauge,
    /// Blocks in host memory.
    pub host_blocks: Gauge,
    /// Snapshots in host memory.
    pub snapshots: Gauge,
    /// Bytes of them.
    pub snapshot_bytes: Gauge,
    /// Snapshots that sequences went on with, since start.
    pub snapshots_brought: Gauge,
    /// Bytes of the tier that lasts.
    pub lasting_bytes: Gauge,
    /// Blocks that are found there.
    pub lasting_blocks: Gauge,
    /// Bytes that wait to be written there.
    pub unwritten_bytes: Gauge,
    /// Sequences for which blocks are brought up from there.
    pub flights: Gauge,
    /// Bytes of blocks that were read there, since start.
    pub read_bytes: Gauge,
    /// Bytes of blocks that were written there, since start.
    pub written_bytes: Gauge,
    /// Blocks there whose bytes were not what was stored, since start.
    pub damaged_blocks: Gauge,
    /// Blocks that were not written there, for want of room or because it failed, since start.
    pub unwritten_blocks: Gauge,
    /// Objects there that are no packs or journals, or damaged ones, since start.
    pub refused_objects: Gauge,
    /// Calls there that failed, since start.
    pub errors: Gauge,
    /// Bytes of blocks there of each class of the plan, by name; those that are given up do not count.
    pub classes: Vec<(String, Gauge)>,
}

/// Numbers of one encode actor. Written by its seat alone.
#[derive(Debug, Default)]
pub struct EncodeGauges {
    /// The actor's name.
    pub name: String,
    /// Images looked at since start.
    pub images: Gauge,
    /// Images that were known already, since start.
    pub hits: Gauge,
    /// Time that looking took since start.
    pub nanoseconds: Gauge,
    /// Bytes of embeddings kept.
    pub cached_bytes: Gauge,
    /// Requests that wait, the one looked at included.
    pub waiting: Gauge,
}
