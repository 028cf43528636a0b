//! Layers that see a window, with the window in the state instead of in blocks: the same bits as with everything in blocks,
//! however a prompt is cut, whatever shares its steps; and behind a found beginning, once enough is computed again.
#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod run;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod stored;
}

use fixtures::run::bits;
use fixtures::stored::oracle;
use millstream_kernels::{
    CpuBackend, Error, Facts, KvFormat, KvLayout, KvMemory, Loaded, Local, Rings, Row, Scratch, Want, load,
};

/// Models with such layers, how many they have, and their window.
const MODELS: [(&str, usize); 3] = [("tiny-gemma3", 4), ("tiny-gpt-oss", 2), ("tiny-gpt-oss-mxfp4", 2)];
const WINDOW: usize = 16;
/// Blocks of a sequence in the memory of a test.
const BLOCKS: u32 = 46;

/// Where windows are kept.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Windows {
    Blocks,
    State,
}

fn layout(facts: &Facts, windows: Windows) -> KvLayout {
    let layout = facts.kv_layout(16);
    if windows == Windows::State { layout.with_rings(facts.rings) } else { layout }
}

/// A prompt.
fn prompt(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 37 + seed * 101 + i * i * seed) % 630) as u32).collect()
}

/// A sequence in a step: which one, its tokens, the first and last of this step, and its state.
type Part<'a> = (u32, &'a [u32], (usize, usize), Local<'a>);

/// A model with memory for three sequences.
struct Seat {
    loaded: Loaded,
    kv: KvMemory,
    scratch: Scratch,
    backend: CpuBackend,
}

impl Seat {
    fn new(name: &str, windows: Windows, format: KvFormat) -> Seat {
        let loaded = load(&oracle(name)).unwrap();
        let layout = KvLayout { format, ..layout(loaded.model.facts(), windows) };
        let kv = KvMemory::new(layout, 3 * BLOCKS as usize).with_slots(3);
        Seat { loaded, kv, scratch: Scratch::new(), backend: CpuBackend::new(2, &[]) }
    }

    /// Logits of one step of sequences.
    fn step(&mut self, rows: &[Part<'_>]) -> Vec<f32> {
        let tables: Vec<Vec<u32>> =
            rows.iter().map(|row| (0..BLOCKS).map(|block| block * 3 + row.0).collect()).collect();
        let step: Vec<Row<'_>> = rows
            .iter()
            .zip(&tables)
            .map(|(&(slot, tokens, (start, end), local), blocks)| Row {
                tokens: &tokens[start..end],
                start: start as u32,
                blocks,
                logits: Want::All,
                local: Local { slot, ..local },
                ..Row::default()
            })
            .collect();
        self.loaded.model.forward(&step, &mut self.kv, &mut self.scratch, &mut self.backend).unwrap();
        self.scratch.logits().to_vec()
    }

    /// Logits of a sequence from `start` on, in steps of `chunk`.
    fn run(&mut self, tokens: &[u32], (start, chunk): (usize, usize), local: Local<'_>) -> Vec<f32> {
        let mut logits = Vec::new();
        for start in (start..tokens.len()).step_by(chunk) {
            let end = tokens.len().min(start + chunk);
            logits.extend(self.step(&[(local.slot, tokens, (start, end), local)]));
        }
        logits
    }
}

#[test]
fn windows_in_the_state_change_no_bit() {
    for (name, _) in MODELS {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8] {
            let tokens = prompt(700, 1);
            let want = Seat::new(name, Windows::Blocks, format).run(&tokens, (0, 700), Local::default());
            let mut seat = Seat::new(name, Windows::State, format);
            let chunks: &[usize] = if format == KvFormat::F32 { &[700, 129, 64, 7, 1] } else { &[300] };
            for (slot, &chunk) in [0, 1, 2, 0, 1].into_iter().zip(chunks) {
                let got = seat.run(&tokens, (0, chunk), Local { slot, ..Local::default() });
                assert!(bits(&got) == bits(&want), "{name}, {format:?}: chunks of {chunk}");
            }
        }
    }
}

#[test]
fn sequences_in_one_step_do_not_meet() {
    for (name, _) in MODELS {
        let prompts = [prompt(150, 2), prompt(400, 3), prompt(33, 4)];
        let mut alone = Seat::new(name, Windows::Blocks, KvFormat::F32);
        let want: Vec<_> = prompts
            .iter()
            .map(|tokens| alone.run(tokens, (0, 400), Local { slot: 1, ..Local::default() }))
            .collect();
        let mut seat = Seat::new(name, Windows::State, KvFormat::F32);
        let (mut done, mut got) = ([0; 3], [const { Vec::new() }; 3]);
        for round in 0.. {
            if (0..3).all(|s| done[s] == prompts[s].len()) {
                break;
            }
            let most = [round * 13 % 40, 1 + round * 150 % 260, 1 + round % 3];
            let rows: Vec<_> = (0..3)
                .map(|s| {
                    let end = prompts[s].len().min(done[s] + most[s]);
                    (s as u32, prompts[s].as_slice(), (done[s], end), Local::default())
                })
                .collect();
            let logits = seat.step(&rows);
            let mut logits = logits.as_slice();
            for (s, row) in rows.iter().enumerate() {
                let (own, rest) = logits.split_at((row.2.1 - done[s]) * 640);
                got[s].extend_from_slice(own);
                (done[s], logits) = (row.2.1, rest);
            }
        }
        for (got, want) in got.iter().zip(&want) {
            assert!(bits(got) == bits(want), "{name}: together");
        }
    }
}

#[test]
fn a_found_beginning_computed_again_as_far_as_windows_reach_is_as_cold() {
    for (name, layers) in MODELS {
        let tokens = prompt(500, 5);
        let mut seat = Seat::new(name, Windows::State, KvFormat::F32);
        let cold = seat.run(&tokens, (0, 500), Local::default());
        let state = seat.loaded.model.facts().state_in(&seat.kv.layout()).unwrap();
        assert_eq!((state.window, state.exact_replay), (WINDOW as u32, (layers * (WINDOW - 1)) as u32));
        assert_eq!(state.decoder_keep, None);
        let blocks: Vec<_> = (0..18).map(|block| seat.kv.export(block * 3)).collect();
        for (found, chunk) in [(288, 500), (288, 11), (16, 500), (280, 37)] {
            let start = found - (state.exact_replay as usize).min(found);
            let local = Local { valid_from: start as u32, written: found as u32, ..Local::default() };
            // The blocks of the sequence, another slot.
            let got = found_run(&mut seat, &tokens, (start, chunk), Local { slot: 2, ..local });
            let behind = (found - start) * 640;
            assert!(
                bits(&got[behind..]) == bits(&cold[found * 640..]),
                "{name}: {found} found, chunks of {chunk}"
            );
        }
        let start = 288 - state.exact_replay as usize + 1;
        let local = Local { slot: 1, valid_from: start as u32, written: 288, ..Local::default() };
        let got = found_run(&mut seat, &tokens, (start, 500), local);
        let behind = (288 - start) * 640;
        assert!(bits(&got[behind..]) != bits(&cold[288 * 640..]), "{name}: one less is enough too");
        let again: Vec<_> = (0..18).map(|block| seat.kv.export(block * 3)).collect();
        assert!(blocks == again, "{name}: what is written stays");
    }
}

/// Logits of the sequence in the blocks of the first one, with the state in another slot.
fn found_run(seat: &mut Seat, tokens: &[u32], (start, chunk): (usize, usize), local: Local<'_>) -> Vec<f32> {
    let blocks: Vec<u32> = (0..BLOCKS).map(|block| block * 3).collect();
    let mut logits = Vec::new();
    for start in (start..tokens.len()).step_by(chunk) {
        let end = tokens.len().min(start + chunk);
        let row = Row {
            tokens: &tokens[start..end],
            start: start as u32,
            blocks: &blocks,
            logits: Want::All,
            local,
            ..Row::default()
        };
        seat.loaded.model.forward(&[row], &mut seat.kv, &mut seat.scratch, &mut seat.backend).unwrap();
        logits.extend_from_slice(seat.scratch.logits());
    }
    logits
}

#[test]
fn a_sequence_goes_on_elsewhere_with_its_blocks_and_its_state() {
    for (name, _) in MODELS {
        for format in [KvFormat::F32, KvFormat::Q8] {
            let tokens = prompt(260, 6);
            let mut from = Seat::new(name, Windows::State, format);
            let want = from.run(&tokens, (0, 260), Local::default());
            let mut from = Seat::new(name, Windows::State, format);
            from.run(&tokens[..201], (0, 90), Local { slot: 1, ..Local::default() });
            let mut to = Seat::new(name, Windows::State, format);
            for block in 0..201_u32.div_ceil(16) {
                to.kv.import(block * 3 + 2, &from.kv.export(block * 3 + 1)).unwrap();
            }
            let bytes = from.kv.export_slot(1);
            assert_eq!(bytes.len(), from.kv.layout().bytes_per_slot());
            assert!(to.kv.import_slot(2, &bytes[1..]).is_err());
            to.kv.import_slot(2, &bytes).unwrap();
            let got = to.run(&tokens, (201, 8), Local { slot: 2, ..Local::default() });
            assert!(bits(&got) == bits(&want[201 * 640..]), "{name}, {format:?}");
        }
    }
}

#[test]
fn layouts_say_what_is_where() {
    for (name, layers) in MODELS {
        let loaded = load(&oracle(name)).unwrap();
        let facts = loaded.model.facts();
        let [blocks, state] = [Windows::Blocks, Windows::State].map(|windows| layout(facts, windows));
        assert!(facts.state_in(&blocks).is_none() && blocks.bytes_per_slot() == 0);
        assert_eq!(facts.rings, Rings { layers, window: WINDOW });
        let [all, full] = [blocks, state].map(|layout| layout.bytes_per_block());
        assert_eq!(full, all / facts.layers * (facts.layers - layers), "{name}");
        let kv = KvMemory::new(state, 1).with_slots(5);
        assert_eq!(kv.slots(), 5);
        // A window, what is written ahead, and the block that it begins in.
        let positions = 16 * (WINDOW + 128_usize).div_ceil(16) + 16;
        assert_eq!(state.bytes_per_slot(), all / facts.layers * layers * positions / 16, "{name}");
    }
    let rings = |sliding: &[bool]| Rings::of(sliding, 8);
    assert_eq!(rings(&[true, false, true]), Rings { layers: 2, window: 8 });
    assert_eq!((rings(&[false]), rings(&[true, true])), (Rings::NONE, Rings::NONE));
}

#[test]
fn states_that_do_not_fit_are_refused() {
    let Loaded { model, .. } = load(&oracle("tiny-gemma3")).unwrap();
    let layout = model.facts().kv_layout(16);
    let mut kv = KvMemory::new(layout.with_rings(model.facts().rings), 4).with_slots(2);
    let mut refused = |local: Local<'_>, part: &str| {
        let row = Row { tokens: &[1, 2], start: 3, blocks: &[0], local, ..Row::default() };
        let backend = &mut CpuBackend::new(1, &[]);
        let error = model.forward(&[row], &mut kv, &mut Scratch::new(), backend).unwrap_err();
        assert!(matches!(error, Error::Step { row: 0, .. }) && error.to_string().contains(part), "{error}");
    };
    refused(Local { slot: 2, ..Local::default() }, "names state slot 2, the memory has 2");
    refused(Local { valid_from: 4, ..Local::default() }, "starts at 3, its state is valid from 4 on");
    let mut other = KvMemory::new(layout.with_rings(Rings { layers: 1, window: WINDOW }), 4).with_slots(1);
    let row = Row { tokens: &[1], blocks: &[0], ..Row::default() };
    let backend = &mut CpuBackend::new(1, &[]);
    let error = model.forward(&[row], &mut other, &mut Scratch::new(), backend).unwrap_err();
    assert!(matches!(error, Error::KvLayout { .. }));
}
