//! rank: runs the steps of a group on one device. It owns the KV memory and the backend with its threads, and knows
//! nothing of requests: bytes in, rows forward, tokens chosen, bytes out, all answered in one message.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::{Backend, KvLayout, KvMemory, Local, Model, Row, Scratch, Span, Want};
use millstream_runtime::{Actor, Ctx, ReplyOut, Time};

use crate::message::{Export, Exported, Import, Observed, Place, RowState, Sample, Step, StepDone, StepRow};
use crate::sample::Sampler;
use crate::store::Buffers;
use follow::Follow;

pub mod follow;
mod images;
pub mod predicted;

/// Virtual time that a step takes in the simulator; the tokens themselves are computed for real.
#[derive(Clone, Copy, Debug)]
pub struct StepCost {
    /// Every step.
    pub step: Duration,
    /// Every input token.
    pub token: Duration,
}

/// What a rank computes with.
pub struct Device {
    /// The model, shared with the other ranks of the process.
    pub model: Arc<dyn Model>,
    /// The arithmetic.
    pub backend: Box<dyn Backend>,
    /// Layout of its KV memory.
    pub layout: KvLayout,
    /// Blocks of its KV memory.
    pub blocks: usize,
    /// State slots beside them.
    pub slots: usize,
    /// The most tokens of a step, where all memory is taken from the system at the start.
    pub reserve: Option<usize>,
    /// Memory for what leaves it.
    pub buffers: Buffers,
}

/// See the module.
pub struct Rank {
    model: Arc<dyn Model>,
    backend: Box<dyn Backend>,
    kv: KvMemory,
    buffers: Buffers,
    scratch: Scratch,
    sampler: Sampler,
    done: ReplyOut<StepDone>,
    cost: StepCost,
    /// What the last step chose.
    follow: Follow,
    /// When it was computed.
    ended: Option<Time>,
}

impl Rank {
    /// Answers steps through `done`. `cost` counts in the simulator only.
    pub fn new(device: Device, done: ReplyOut<StepDone>, cost: StepCost) -> Self {
        let Device { model, backend, layout, blocks, slots, reserve, buffers } = device;
        // Whoever planned the group has asked for as much and given it back; meanwhile another may have taken it.
        let kv = KvMemory::granted(layout, blocks, slots).unwrap_or_else(|error| panic!("{error}"));
        let (scratch, sampler) = (Scratch::default(), Sampler::default());
        let mut rank = Self {
            model,
            backend,
            kv,
            buffers,
            scratch,
            sampler,
            done,
            cost,
            follow: Follow::default(),
            ended: None,
        };
        if let Some(tokens) = reserve {
            rank.reserve(tokens);
        }
        rank
    }

    /// Takes KV memory from the system, and by a step of so many tokens of no meaning what steps compute in. What that
    /// writes is written over before anyone sees it.
    fn reserve(&mut self, tokens: usize) {
        self.kv.reserve();
        let size = self.kv.layout().block_size;
        let blocks: Vec<u32> = (0..tokens.div_ceil(size).min(self.kv.blocks()) as u32).collect();
        let tokens = vec![0; tokens.min(blocks.len() * size)];
        let row = Row { tokens: &tokens, blocks: &blocks, ..Row::default() };
        // A model that wants more than tokens takes its memory later.
        let _ = self.model.forward(&[row], &mut self.kv, &mut self.scratch, self.backend.as_mut());
    }

    /// Panics when bytes do not fit the layout or the model refuses the rows: group and rank would disagree from here
    /// on, so the group starts again.
    fn run(&mut self, step: Step) -> StepDone {
        for Import { place, data } in &step.imports {
            let done = match place {
                Place::Block(block) => self.kv.import(block.0, data),
                Place::Slot(slot) => self.kv.import_slot(slot.0, data),
            };
            done.expect("groups that hand over share one layout");
        }
        let mut follow = std::mem::take(&mut self.follow);
        let chosen = follow.run(step.rows, |rows| self.forward(rows));
        self.follow = follow;
        let exported = step.exports.into_iter().map(|export| self.export(export)).collect();
        StepDone { number: step.number, exported, ..chosen }
    }

    /// What the rows bring; number and exports are the caller's.
    fn forward(&mut self, rows: &[StepRow]) -> StepDone {
        let wants: Vec<Vec<u32>> = rows.iter().map(wanted).collect();
        let tables: Vec<Vec<u32>> =
            rows.iter().map(|row| row.blocks.iter().map(|block| block.0).collect()).collect();
        let seen: Vec<Seen<'_>> = rows.iter().map(|row| self.seen(row)).collect();
        let step: Vec<Row<'_>> = rows
            .iter()
            .zip(&wants)
            .zip(&tables)
            .zip(&seen)
            .map(|(((row, wants), blocks), seen)| Row {
                tokens: &row.tokens,
                start: row.start,
                blocks,
                logits: Want::At(wants),
                spans: &seen.spans,
                turns: &seen.turns,
                local: row.state.as_ref().map(local).unwrap_or_default(),
            })
            .collect();
        if !step.is_empty() {
            let (kv, scratch) = (&mut self.kv, &mut self.scratch);
            self.model
                .forward(&step, kv, scratch, self.backend.as_mut())
                .expect("a planned row fits the model");
        }
        self.choose(rows, &wants)
    }

    /// What stands in a row for tokens of images, and how they turn the others.
    fn seen<'a>(&self, row: &'a StepRow) -> Seen<'a> {
        let Some(vision) = self.model.vision().filter(|_| !row.images.is_empty()) else {
            return Seen::default();
        };
        let turns = vision.turns(&images::plans(row), row.start, row.tokens.len());
        Seen { spans: images::spans(row, vision.width()), turns }
    }

    fn choose(&mut self, rows: &[StepRow], wants: &[Vec<u32>]) -> StepDone {
        let mut logits = self.scratch.logits().chunks_exact(self.model.facts().vocab);
        let mut done = StepDone::default();
        for (row, wants) in rows.iter().zip(wants) {
            let mut token = None;
            for &offset in wants {
                let logits = logits.next().expect("the model gives what was wanted");
                if row.observe.binary_search(&offset).is_ok() {
                    let position = row.start + offset;
                    done.observed.push(Observed {
                        sequence: row.sequence,
                        position,
                        logits: logits.to_vec(),
                    });
                }
                if let (Some(choice), true) = (&row.sample, offset as usize + 1 == row.tokens.len()) {
                    token = self.sampler.choose(logits, &self.without_images(choice));
                    done.unsound.extend(token.is_none().then_some(row.sequence));
                }
            }
            done.tokens.push(token);
        }
        done
    }

    /// An answer has no images: the token that stands for them is never chosen.
    fn without_images<'a>(&self, choice: &'a Sample) -> Cow<'a, Sample> {
        let Some(image) = self.model.facts().image_token else { return Cow::Borrowed(choice) };
        let mut choice = choice.clone();
        choice.banned.push(image);
        Cow::Owned(choice)
    }

    fn export(&self, export: Export) -> Exported {
        let bytes = |place: &Place| match place {
            Place::Block(block) => {
                let bytes = self.kv.block(block.0);
                let mut buffer = self.buffers.take(bytes.len());
                buffer.copy_from_slice(bytes);
                buffer.into()
            }
            Place::Slot(slot) => self.kv.export_slot(slot.0).into(),
        };
        let data = export.places.iter().map(bytes).collect();
        Exported { reader: export.reader, data }
    }
}

/// The part of a row that comes from images.
#[derive(Default)]
struct Seen<'a> {
    spans: Vec<Span<'a>>,
    turns: Vec<[u32; 3]>,
}

fn local(state: &RowState) -> Local<'_> {
    let RowState { slot, valid_from, written, ref before, decoder_from } = *state;
    Local { slot: slot.0, valid_from, written, before, decoder_from }
}

/// Offsets in the row whose logits are needed: those that are observed, and the last one to choose from.
fn wanted(row: &StepRow) -> Vec<u32> {
    let last = row.tokens.len() as u32 - 1;
    let mut wants = row.observe.clone();
    if row.sample.is_some() && wants.last() != Some(&last) {
        wants.push(last);
    }
    wants
}

impl Actor for Rank {
    type Message = Step;

    fn handle(&mut self, step: Step, ctx: &mut Ctx<'_>) {
        let tokens: usize = step.rows.iter().map(|row| row.tokens.len()).sum();
        let cost = self.cost.step + self.cost.token * tokens as u32;
        ctx.spend(cost);
        let gap = self.ended.map(|ended| ctx.now().saturating_since(ended));
        let done = StepDone { gap, ..self.run(step) };
        // The simulator's time stands still meanwhile.
        self.ended = Some(ctx.now() + cost);
        self.done.reply(done);
    }
}
