//! A model with a state that stands in for a real one: the integer arithmetic of `windows.rs` behind the trait that ranks
//! run, on real KV memory and real state slots. What it says means nothing.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use millstream_actors::assemble::Resources;
use millstream_kernels::{
    Backend, CompressedFacts, Error, Facts, KvMemory, Model, Row, Scratch, StateFacts, Want, Widened,
};

use super::windows::{ENTRY, EXACT, Given, KEEP, NUMBERS, Store, WINDOW, compute, mix};

/// The name under which `resources` makes it.
pub const DOUBLE: &str = "a model with a state";

/// See the module. It borrows tokenizer and vocabulary of a real checkpoint.
pub struct Double(Facts);

/// The stand-in, with the tokenizer of `real`.
pub fn double(real: Resources) -> Resources {
    let state = StateFacts { window: WINDOW, exact_replay: EXACT, decoder_keep: Some(KEEP), rewind: 1 };
    let compressed = CompressedFacts { sources: 1, paired: 0, state: WINDOW as usize * NUMBERS };
    let facts = Facts {
        family: "double",
        kv_heads: 1,
        key_dim: 1,
        value_dim: ENTRY,
        state: Some(state),
        compressed: Some(compressed),
        ..real.model.facts().clone()
    };
    Resources { model: Arc::new(Double(facts)), ..real }
}

/// Memory as one row sees it.
struct View<'a> {
    kv: &'a mut KvMemory,
    blocks: &'a [u32],
    slot: u32,
}

impl View<'_> {
    fn place(&self, position: u32) -> (u32, usize) {
        let size = self.kv.layout().block_size;
        (self.blocks[position as usize / size], position as usize % size)
    }
}

impl Store for View<'_> {
    fn window(&self, place: u32) -> [u32; NUMBERS] {
        let numbers = &self.kv.slot(self.slot)[place as usize * NUMBERS..][..NUMBERS];
        std::array::from_fn(|n| numbers[n] as u32)
    }

    fn put_window(&mut self, place: u32, numbers: [u32; NUMBERS]) {
        let held = &mut self.kv.slot_mut(self.slot)[place as usize * NUMBERS..][..NUMBERS];
        held.iter_mut().zip(numbers).for_each(|(held, number)| *held = number as f32);
    }

    fn entry(&self, position: u32) -> [u32; ENTRY] {
        let ((block, offset), stride) = (self.place(position), self.kv.layout().value_stride());
        let mut wide = Widened::default();
        let (_, values) = self.kv.head(0, block, 0, &mut wide);
        std::array::from_fn(|n| values[offset * stride + n] as u32)
    }

    fn put_entry(&mut self, position: u32, numbers: [u32; ENTRY]) {
        let (block, offset) = self.place(position);
        self.kv.write(0, block, offset, &[0.0], &numbers.map(|number| number as f32));
    }
}

impl Model for Double {
    fn facts(&self) -> &Facts {
        &self.0
    }

    fn forward(
        &self,
        step: &[Row<'_>],
        kv: &mut KvMemory,
        scratch: &mut Scratch,
        _backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        let mut logits = Vec::new();
        for row in step {
            let local = row.local;
            let given = Given {
                tokens: row.tokens,
                start: row.start,
                valid_from: local.valid_from,
                written: local.written,
                before: local.before,
                decoder_from: local.decoder_from,
            };
            let words = compute(&mut View { kv, blocks: row.blocks, slot: local.slot }, &given);
            let Want::At(wanted) = row.logits else { panic!("ranks say which logits they want") };
            for &at in wanted {
                let word = words[at as usize].expect("logits are wanted where all layers run");
                logits.extend((0..self.0.vocab as u32).map(|id| mix(word, id) as f32 / (1 << 21) as f32));
            }
        }
        scratch.leave_logits(self.0.vocab, logits);
        Ok(())
    }
}
