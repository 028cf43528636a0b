//! Steps that a group tries before it serves, to learn what they take: of tokens of no meaning, in blocks that nobody owns
//! yet. Short ones first, none that would end too late, and what they write is written over before anyone sees it.

use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::work::{RowShape, Work, WorkFacts};
use millstream_runtime::Time;

use crate::cost::Coefficients;
use crate::kv::{BlockId, SlotId};
use crate::message::{RowState, SequenceId, Step, StepRow};
use crate::request::RequestId;
use crate::sched::Bounds;

/// All of them together take no longer, but for an error of the last prediction.
const LIMIT: Duration = Duration::from_secs(1);
/// Tokens behind which a row is far from its beginning, where the memory reaches so far.
const FAR: u32 = 4_096;
/// Rows, tokens of each, and whether they are far from the beginning. The first is for what happens once.
const SHAPES: [(u32, u32, bool); 10] = [
    (1, 16, false),
    (1, 1, false),
    (1, 16, false),
    (1, 64, false),
    (4, 1, false),
    (1, 1, true),
    (1, 64, true),
    (4, 1, true),
    (1, 256, false),
    (1, 256, true),
];
/// Each is tried so often.
const ROUNDS: usize = 3;

/// See the module.
pub(super) struct Trials {
    work: Arc<WorkFacts>,
    block_size: u32,
    /// Where rows that are far begin.
    far: u32,
    /// The most tokens of a row.
    tokens_max: u32,
    /// State slots; `None`: the model keeps no state.
    slots: Option<usize>,
    place: usize,
    began: Option<Time>,
    flight: Option<(Work, Time)>,
}

impl Trials {
    /// Of a group whose sequences reach no further than `positions`.
    pub fn new(bounds: &Bounds, work: Arc<WorkFacts>, positions: u32) -> Self {
        let tokens_max = (bounds.chunk_tokens as u32).min(positions);
        let far = FAR.min(positions - tokens_max.min(256)) / bounds.block_size * bounds.block_size;
        let slots = bounds.state.map(|state| state.slots);
        let block_size = bounds.block_size;
        Self { work, block_size, far, tokens_max, slots, place: 0, began: None, flight: None }
    }

    pub fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// The next one, if time is left for one.
    pub fn next(&mut self, now: Time, coefficients: &Coefficients) -> Option<Step> {
        let end = *self.began.get_or_insert(now) + LIMIT;
        while self.place < ROUNDS * SHAPES.len() {
            let (rows, tokens, far) = SHAPES[self.place % SHAPES.len()];
            self.place += 1;
            let (start, tokens) = (if far { self.far } else { 0 }, tokens.min(self.tokens_max));
            let shape = RowShape::plain(start, tokens, 1);
            let work: Work = (0..rows).map(|_| self.work.row(&shape)).sum();
            if now + coefficients.time(&work) <= end {
                self.flight = Some((work, now));
                let rows = (0..rows).map(|row| self.row(row, &shape)).collect();
                return Some(Step { number: 0, imports: Vec::new(), rows, exports: Vec::new() });
            }
        }
        None
    }

    /// What it asked and took; nothing of the very first one.
    pub fn done(&mut self, now: Time) -> Option<(Work, Duration)> {
        let (work, sent) = self.flight.take()?;
        (self.place > 1).then(|| (work, now.saturating_since(sent)))
    }

    fn row(&self, row: u32, shape: &RowShape) -> StepRow {
        let RowShape { start, tokens, .. } = *shape;
        let state = self.slots.map(|slots| RowState {
            slot: SlotId(row % slots.max(1) as u32),
            valid_from: 0,
            written: 0,
            before: vec![0; start.min(3) as usize],
            decoder_from: None,
        });
        StepRow {
            sequence: SequenceId { request: RequestId(u64::MAX), attempt: row },
            tokens: vec![0; tokens as usize],
            start,
            blocks: (0..(start + tokens).div_ceil(self.block_size)).map(BlockId).collect(),
            images: Arc::from([]),
            state,
            sample: None,
            observe: vec![tokens - 1],
            follows: None,
        }
    }
}
