//! DeepSeek-V4.1 against itself: chunks, company, threads, what was taken back and where a sequence lives must not make a
//! difference, to the last bit.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod stored;
    #[expect(dead_code, reason = "shared with other tests")]
    pub mod v41;
}

use fixtures::v41::{Runner, Sequence, Vectors, WINDOWS};
use millstream_kernels::check::Sample;
use millstream_kernels::{Backend, CpuBackend, ReferenceBackend};

fn backends() -> Vec<Box<dyn Backend>> {
    vec![
        Box::new(CpuBackend::new(1, &[])),
        Box::new(CpuBackend::new(3, &[])),
        Box::new(CpuBackend::plain(2)),
        Box::new(ReferenceBackend),
    ]
}

#[test]
fn chunks_company_and_threads_make_no_difference() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let (tokens, other) = (vectors.prompt("300"), vectors.prompt("17"));
        let mut best: Option<Vec<u32>> = None;
        for (which, backend) in backends().into_iter().enumerate() {
            let mut runner = Runner::with(window, backend, |layout| layout);
            let mut whole = runner.sequence(&tokens);
            runner.run(&mut whole, 150, 150);
            // The two with vectors give the same bits, whatever the number of threads.
            if which < 2 {
                assert!(best.get_or_insert_with(|| whole.bits_from(0)) == &whole.bits_from(0), "threads");
            }
            let mut pieces = runner.sequence(&tokens);
            for chunk in [1, 1, 3, 30, 2, 1, 64, 7, 1, 40] {
                runner.step(&mut [&mut pieces], &[chunk]);
            }
            assert!(whole.bits_from(0) == pieces.bits_from(0), "{window} {which}: in pieces");
            if which > 1 {
                continue;
            }
            let mut single = runner.sequence(&tokens);
            runner.run(&mut single, 150, 1);
            assert!(whole.bits_from(0) == single.bits_from(0), "{window} {which}: token by token");
            let (mut a, mut b) = (runner.sequence(&tokens), runner.sequence(&other));
            let mut c = runner.sequence(&tokens[..90]);
            for chunk in [50, 1, 40] {
                runner.step(&mut [&mut b, &mut a, &mut c], &[4, chunk, 30]);
            }
            assert!(whole.bits_from(0)[..91 * 512] == a.bits_from(0), "{window} {which}: among others");
            assert!(whole.bits_from(0)[..90 * 512] == c.bits_from(0), "{window} {which}: among others");
        }
    }
}

/// Sequences of every kind, in steps of random sizes and company.
#[test]
fn any_mixture_of_steps_gives_the_same_bits() {
    let (long, short) = (Vectors::of("w16").prompt("300"), Vectors::of("w16").prompt("64"));
    let mut runner = Runner::new("w16");
    let mut donor = runner.sequence(&long);
    runner.run(&mut donor, 300, 300);
    // Plain, shortened, behind a found beginning, and both at once.
    let make = |runner: &mut Runner| {
        let mut shortened = runner.sequence(&long[..200]);
        shortened.decoder_from = Some(170);
        let found = runner.hit(&donor, (129, 113));
        let mut both = runner.hit(&donor, (160, 144));
        both.decoder_from = Some(278);
        [runner.sequence(&short), shortened, found, both]
    };
    let mut alone = make(&mut runner);
    for sequence in &mut alone {
        let end = sequence.tokens.len();
        runner.run(sequence, end, end);
    }
    for seed in 0..8 {
        let mut sample = Sample::new(seed);
        let mut mixed = make(&mut runner);
        while mixed.iter().any(|s| s.done < s.tokens.len()) {
            let mut chunks = Vec::new();
            let mut rows: Vec<&mut Sequence> = Vec::new();
            for sequence in &mut mixed {
                let left = sequence.tokens.len() - sequence.done;
                let chunk = left.min(sample.below(70).saturating_sub(10));
                if chunk > 0 || sample.below(4) == 0 {
                    chunks.push(chunk);
                    rows.insert(sample.below(rows.len() + 1), sequence);
                }
            }
            let sizes: Vec<usize> = rows.iter().map(|s| s.tokens.len() - s.done).collect();
            let chunks: Vec<usize> =
                chunks.iter().zip(sizes).map(|(chunk, left)| *chunk.min(&left)).collect();
            runner.step(&mut rows, &chunks);
        }
        for (kind, (mixed, alone)) in mixed.iter_mut().zip(&alone).enumerate() {
            assert!(mixed.bits_from(0) == alone.bits_from(0), "seed {seed}, kind {kind}");
            runner.release(mixed);
        }
    }
}

#[test]
fn what_was_taken_back_leaves_no_trace() {
    for window in WINDOWS {
        let tokens = Vectors::of(window).prompt("300");
        let mut runner = Runner::new(window);
        let mut plain = runner.sequence(&tokens);
        runner.run(&mut plain, 300, 100);
        for from in [17, 150, 151, 200] {
            let mut own = runner.sequence(&tokens);
            runner.run(&mut own, from, 100);
            let right = own.tokens.clone();
            own.tokens.truncate(from);
            own.tokens.extend([5, 6, 7, 8, 9, 10]);
            runner.step(&mut [&mut own], &[6]);
            (own.tokens, own.done) = (right, from);
            own.logits.retain(|(at, _)| *at < from);
            runner.run(&mut own, 300, 37);
            assert!(plain.bits_from(0) == own.bits_from(0), "{window}: taken back to {from}");
            let one = runner.draft(&[(&own, 7)], None);
            let both = runner.draft(&[(&plain, 9), (&own, 7)], None);
            let half = both.0.logits.len() / 2;
            assert!(one.0.logits[..] == both.0.logits[half..], "{window}: guesses among others");
            runner.release(&mut own);
        }
    }
}

#[test]
fn a_sequence_moves_to_another_memory() {
    let tokens = Vectors::of("w16").prompt("64");
    let mut runner = Runner::new("w16");
    let mut here = runner.sequence(&tokens);
    runner.run(&mut here, 41, 41);
    let mut there = Runner::new("w16");
    let mut moved = there.sequence(&tokens);
    moved.slot = 5;
    for (from, into) in here.blocks.iter().zip(&moved.blocks).take(41_usize.div_ceil(16)) {
        there.kv.import(*into, &runner.kv.export(*from)).unwrap();
    }
    there.kv.import_slot(moved.slot, &runner.kv.export_slot(here.slot)).unwrap();
    moved.done = 41;
    runner.run(&mut here, 64, 1);
    there.run(&mut moved, 64, 5);
    assert!(here.bits_from(41) == moved.bits_from(41));
}
