//! What a rank has, without the graph around it: a model, a backend, KV memory. Each run is timed on its own; memory that
//! a run needs is there, and was touched, before its clock starts.

use std::fmt;
use std::sync::Arc;

use anyhow::Context as _;
use millstream_kernels::{CpuBackend, KvLayout, KvMemory, Local, Model, Row, Scratch, Want};

use crate::clock;

/// Tokens of a chunk while the positions before a measured decode are filled.
const FILL: usize = 256;
/// So many positions before a measured decode are computed at most; those behind them are the same once more, for the time
/// of a step does not depend on what they say.
const COMPUTED: usize = 1 << 15;
/// Tokens before a row that a model with a state may look back on.
const BEFORE: usize = 3;

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Case {
    /// A prompt is computed.
    Prefill {
        /// Its length.
        tokens: usize,
        /// Tokens of a step.
        chunk: usize,
        /// So many tokens at its end, if not all, go through the later layers.
        keep: Option<u32>,
    },
    /// Sequences grow by a token each step.
    Decode {
        /// How many at once.
        batch: usize,
        /// Positions before the first step.
        depth: usize,
        /// Number of steps.
        steps: usize,
    },
}

impl Case {
    /// Positions that a sequence needs.
    pub(super) fn positions(&self) -> usize {
        match *self {
            Case::Prefill { tokens, .. } => tokens,
            Case::Decode { depth, steps, .. } => depth + steps,
        }
    }

    /// Tokens that a run computes.
    pub(super) fn tokens(&self) -> usize {
        match *self {
            Case::Prefill { tokens, .. } => tokens,
            Case::Decode { batch, steps, .. } => batch * steps,
        }
    }

    fn sequences(&self) -> usize {
        match *self {
            Case::Prefill { .. } => 1,
            Case::Decode { batch, .. } => batch,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Case::Prefill { tokens, chunk, keep } => {
                write!(f, "prefill {tokens}, ")?;
                if tokens == chunk {
                    write!(f, "one chunk")?
                } else {
                    write!(f, "chunks of {chunk}")?
                }
                if keep.is_some() { write!(f, ", truncated") } else { Ok(()) }
            }
            Case::Decode { batch, depth, .. } => write!(f, "decode x {batch} after {depth}"),
        }
    }
}

/// What a run took.
pub(super) struct Run {
    pub(super) seconds: f64,
    /// Bytes that the process had at its end.
    pub(super) memory: u64,
    /// Of these, what keys, values and states took.
    pub(super) kv_bytes: u64,
}

/// See the module.
pub(super) struct Rig {
    model: Arc<dyn Model>,
    backend: CpuBackend,
    scratch: Scratch,
    layout: KvLayout,
}

/// KV memory of some sequences of equal length.
struct Sequences {
    kv: KvMemory,
    /// The block table of each.
    tables: Vec<Vec<u32>>,
}

impl Rig {
    /// With so many threads, the calling one among them.
    pub(super) fn new(model: Arc<dyn Model>, threads: usize, layout: KvLayout) -> Self {
        Self { model, backend: CpuBackend::new(threads, &[]), scratch: Scratch::new(), layout }
    }

    pub(super) fn backend(&mut self) -> &mut CpuBackend {
        &mut self.backend
    }

    /// Reads all weights and wakes all threads, so that the first run is like the others.
    pub(super) fn warm_up(&mut self) -> anyhow::Result<()> {
        self.run(&Case::Decode { batch: 1, depth: 2, steps: 2 }).map(|_| ())
    }

    /// One run of the case.
    pub(super) fn run(&mut self, case: &Case) -> anyhow::Result<Run> {
        let mut sequences = self.sequences(case)?;
        let seconds = match *case {
            Case::Prefill { tokens, chunk, keep } => {
                self.prefill(&mut sequences, (tokens, chunk), keep)?;
                let start = clock::now();
                self.prefill(&mut sequences, (tokens, chunk), keep)?;
                start.elapsed().as_secs_f64()
            }
            Case::Decode { depth, steps, .. } => {
                self.prefill(&mut sequences, (depth.min(COMPUTED), FILL), None)?;
                sequences.repeat(COMPUTED / self.layout.block_size);
                sequences.spread();
                let start = clock::now();
                for step in 0..steps {
                    self.step(&mut sequences, depth + step)?;
                }
                start.elapsed().as_secs_f64()
            }
        };
        let memory = self::memory();
        drop(sequences);
        Ok(Run { seconds, memory, kv_bytes: memory.saturating_sub(self::memory()) })
    }

    fn sequences(&self, case: &Case) -> anyhow::Result<Sequences> {
        let layout = self.layout;
        let blocks = case.positions().div_ceil(layout.block_size);
        let (all, slots) = (blocks * case.sequences(), case.sequences());
        anyhow::ensure!(
            u32::try_from(all).is_ok() && KvMemory::is_granted(layout, all, slots),
            "{case} needs {all} blocks of KV memory, and the system does not give them"
        );
        let table =
            |sequence: usize| (sequence * blocks..(sequence + 1) * blocks).map(|b| b as u32).collect();
        let kv = KvMemory::new(layout, all).with_slots(slots);
        Ok(Sequences { kv, tables: (0..slots).map(table).collect() })
    }

    /// The first sequence's prompt; only its last token gives logits.
    fn prefill(
        &mut self,
        sequences: &mut Sequences,
        (tokens, chunk): (usize, usize),
        keep: Option<u32>,
    ) -> anyhow::Result<()> {
        let decoder_from = keep.map(|keep| (tokens as u32).saturating_sub(keep));
        let prompt: Vec<u32> = (0..tokens).map(|position| self.token(0, position)).collect();
        for (number, part) in prompt.chunks(chunk).enumerate() {
            let start = number * chunk;
            let logits = if start + part.len() == tokens { Want::Last } else { Want::Nothing };
            let before = &prompt[start.saturating_sub(BEFORE)..start];
            let row = Row {
                tokens: part,
                start: start as u32,
                blocks: &sequences.tables[0],
                logits,
                local: Local { before, decoder_from, ..Local::default() },
                ..Row::default()
            };
            self.forward(&[row], &mut sequences.kv)?;
        }
        Ok(())
    }

    /// One token more for every sequence.
    fn step(&mut self, sequences: &mut Sequences, position: usize) -> anyhow::Result<()> {
        let tokens: Vec<[u32; 1]> =
            (0..sequences.tables.len()).map(|sequence| [self.token(sequence, position)]).collect();
        let before: Vec<u32> =
            (position.saturating_sub(BEFORE)..position).map(|position| self.token(0, position)).collect();
        let row = |(slot, (tokens, blocks))| Row {
            tokens,
            start: position as u32,
            blocks,
            logits: Want::Last,
            local: Local { slot, before: &before, ..Local::default() },
            ..Row::default()
        };
        let tokens = tokens.iter().map(<[u32; 1]>::as_slice);
        let places = (0..).zip(tokens.zip(sequences.tables.iter().map(Vec::as_slice)));
        let rows: Vec<Row<'_>> = places.map(row).collect();
        self.forward(&rows, &mut sequences.kv)
    }

    fn forward(&mut self, rows: &[Row<'_>], kv: &mut KvMemory) -> anyhow::Result<()> {
        let done = self.model.forward(rows, kv, &mut self.scratch, &mut self.backend);
        done.context("the model refuses a step")
    }

    /// Some token: the time of a step does not depend on which.
    fn token(&self, sequence: usize, position: usize) -> u32 {
        let mixed = (sequence * 65_537 + position + 1).wrapping_mul(2_654_435_761);
        ((mixed >> 7) % self.model.facts().vocab) as u32
    }
}

impl Sequences {
    /// Fills what lies behind the first `blocks` blocks of the first sequence with what is in them.
    fn repeat(&mut self, blocks: usize) {
        for place in blocks..self.tables[0].len() {
            let bytes = self.kv.export(self.tables[0][place % blocks]);
            self.kv.import(self.tables[0][place], &bytes).expect("blocks of one memory have one layout");
        }
    }

    /// Gives every sequence what the first one has.
    fn spread(&mut self) {
        for place in 0..self.tables[0].len() {
            let bytes = self.kv.export(self.tables[0][place]);
            for table in &self.tables[1..] {
                self.kv.import(table[place], &bytes).expect("blocks of one memory have one layout");
            }
        }
        for slot in 1..self.kv.slots() as u32 {
            let bytes = self.kv.export_slot(0);
            self.kv.import_slot(slot, &bytes).expect("slots of one memory have one layout");
        }
    }
}

/// Bytes of memory that the process has; zero where the system does not say.
pub(super) fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
