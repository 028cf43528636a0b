//! disk: carries out what a tier that lasts wishes of its byte store, one wish after the other, on a thread that may wait.
//! It knows nothing of blocks; whoever sent the wish knows what the answer means.

use std::sync::Arc;
use std::time::Duration;

use millstream_runtime::blob::Blob;
use millstream_runtime::{Actor, Ctx, ReplyOut};

use crate::store::{Buffers, Told, Wish};

mod hollow;

pub use hollow::{HollowDisk, HollowStore};

/// Virtual time that a wish takes in the simulator.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCost {
    /// Every wish.
    pub wish: Duration,
    /// Every byte that is read, in nanoseconds.
    pub byte: f64,
    /// The same for bytes that are written.
    pub written: f64,
}

impl DiskCost {
    fn of(&self, wish: &Wish) -> Duration {
        let nanos = wish.reads() as f64 * self.byte + wish.writes() as f64 * self.written;
        self.wish + Duration::from_nanos(nanos as u64)
    }
}

/// See the module.
pub struct Disk {
    store: Arc<dyn Blob>,
    buffers: Buffers,
    told: ReplyOut<Told>,
    cost: DiskCost,
}

impl Disk {
    /// Reads into `buffers` and answers through `told`. `cost` counts in the simulator only.
    pub fn new(store: Arc<dyn Blob>, buffers: Buffers, told: ReplyOut<Told>, cost: DiskCost) -> Self {
        Self { store, buffers, told, cost }
    }
}

impl Actor for Disk {
    type Message = Wish;

    fn handle(&mut self, wish: Wish, ctx: &mut Ctx<'_>) {
        ctx.spend(self.cost.of(&wish));
        self.told.reply(wish.carry_out_with(&*self.store, &self.buffers));
    }
}
