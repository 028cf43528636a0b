//! DeepSeek-V4.1 against its oracle: prompts, found prefixes, shortened prefill, guesses, images; and what must not make a
//! difference to the last bit.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod stored;
    pub mod v41;
}

use fixtures::v41::{Off, Runner, Sequence, Vectors, WINDOWS, argmax, ids, number};
use millstream_kernels::{
    Backend, CpuBackend, Error, KvFormat, KvLayout, KvMemory, Local, ReferenceBackend, Row, Scratch,
};
use serde_json::Value as Json;

/// Compares the 20 best that are stored with what was computed.
fn add_top20(off: &mut Off, top: &Json, logits: &[f32]) {
    let best = ids(&top["ids"]);
    let want: Vec<f32> =
        top["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    let got: Vec<f32> = best.iter().map(|&id| logits[id as usize]).collect();
    off.add(&got, &want);
    let above = logits.iter().filter(|&&logit| logit > want[want.len() - 1] + 1e-3).count();
    assert!(above < best.len(), "{above} logits above the last of {}", best.len());
}

#[test]
fn prompts_give_the_logits_of_the_oracle() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let (mut full, mut top, mut behind) = (Off::default(), Off::default(), Off::default());
        let mut runner = Runner::new(window);
        for (name, prompt) in vectors.json["prompts"].as_object().unwrap() {
            let tokens = vectors.prompt(name);
            let mut sequence = runner.sequence(&tokens);
            runner.run(&mut sequence, tokens.len(), 64);
            for (position, best) in prompt["top20"].as_object().unwrap() {
                add_top20(&mut top, best, sequence.at(position.parse().unwrap()));
            }
            let rows = vectors.floats(&format!("p{name}.logits"));
            for (position, row) in ids(&prompt["full_logit_positions"]).iter().zip(rows.chunks_exact(512)) {
                full.add(sequence.at(*position as usize), row);
            }
            let (greedy, gaps) = (ids(&prompt["greedy32"]), prompt["greedy_top1_gaps"].as_array().unwrap());
            for (want, gap) in greedy.iter().zip(gaps) {
                let got = argmax(sequence.at(sequence.done - 1));
                assert!(got == *want, "{window} {name}: {got} at {}, gap {gap}", sequence.done);
                sequence.tokens.push(got);
                runner.step(&mut [&mut sequence], &[1]);
            }
            behind
                .add(sequence.at(sequence.done - 1), &vectors.floats(&format!("p{name}.greedy_next_logits")));
            runner.release(&mut sequence);
        }
        full.check(&format!("{window} prompts, logits"));
        top.check(&format!("{window} prompts, top 20"));
        behind.check(&format!("{window} prompts, behind greedy tokens"));
    }
}

/// The sequence that a hit of the oracle found its blocks with, by the prompt and the hit that it was itself.
fn donor<'a>(donors: &'a [(String, Option<usize>, Sequence)], hit: &Json) -> &'a Sequence {
    let prompt = hit["prompt"].as_str().unwrap();
    let said = hit["donor"].as_str().unwrap();
    let of = said.strip_prefix("sequence of the bounded hit at ").map(|at| at.parse().unwrap());
    assert!(of.is_some() || said == "cold", "{said}");
    let fits = |(name, hit, _): &&(String, Option<usize>, Sequence)| name == prompt && *hit == of;
    &donors.iter().find(fits).unwrap().2
}

#[test]
fn found_prefixes_give_the_logits_of_the_oracle() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let mut runner = Runner::new(window);
        let (mut off, mut donors) = (Off::default(), Vec::new());
        for name in ["300", "700"] {
            if vectors.json["prompts"].get(name).is_some() {
                let tokens = vectors.prompt(name);
                let mut cold = runner.sequence(&tokens);
                runner.run(&mut cold, tokens.len(), 128);
                donors.push((name.to_owned(), None, cold));
            }
        }
        for (index, hit) in vectors.json["prefix_hits"].as_array().unwrap().iter().enumerate() {
            let (at, start) = (number(&hit["H"]), number(&hit["replay_start"]));
            let mut own = runner.hit(donor(&donors, hit), (at, start));
            let end = own.tokens.len();
            own.decoder_from = hit["keep"].as_u64().map(|keep| (end - keep as usize) as u32);
            for chunk in hit["chunks"].as_array().unwrap() {
                let (from, to) = (number(&chunk[0]), number(&chunk[1]));
                assert_eq!(from, own.done);
                runner.step(&mut [&mut own], &[to - from]);
            }
            let rows = vectors.floats(&format!("hit{index}.logits"));
            for (position, row) in ids(&hit["logit_positions"]).iter().zip(rows.chunks_exact(512)) {
                off.add(own.at(*position as usize), row);
            }
            add_top20(&mut off, &hit["top20_last"], own.at(end - 1));
            if hit["kind"] == "exact" {
                let cold = donor(&donors, hit);
                assert!(own.bits_from(at) == cold.bits_from(at), "{window} hit {index}: as if none");
            }
            let bounded = hit["kind"] == "bounded" && hit["decoder_truncation"].is_null();
            let first = hit["donor"] == "cold" && at % 2 == 0;
            if bounded && first {
                donors.push((hit["prompt"].as_str().unwrap().to_owned(), Some(at), own));
            } else {
                runner.release(&mut own);
            }
        }
        off.check(&format!("{window} hits"));
    }
}

#[test]
fn shortened_prefill_gives_the_logits_of_the_oracle() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let mut runner = Runner::new(window);
        let mut off = Off::default();
        for case in vectors.json["decoder_truncation"].as_array().unwrap() {
            let name = case["prompt"].as_str().unwrap();
            let tokens = vectors.prompt(name);
            for chunk in [tokens.len(), 70, 7] {
                let mut own = runner.sequence(&tokens);
                own.decoder_from = Some((tokens.len() - number(&case["keep"])) as u32);
                runner.run(&mut own, tokens.len(), chunk);
                let rows = vectors.floats(&format!("trunc{name}.logits"));
                for (position, row) in ids(&case["kept_positions"]).iter().zip(rows.chunks_exact(512)) {
                    off.add(own.at(*position as usize), row);
                }
                add_top20(&mut off, &case["top20_last"], own.at(tokens.len() - 1));
                own.decoder_from = None;
                own.tokens.extend(ids(&case["decode_tokens"]));
                runner.step(&mut [&mut own], &[3]);
                for (i, row) in
                    vectors.floats(&format!("trunc{name}.decode_logits")).chunks_exact(512).enumerate()
                {
                    off.add(own.at(tokens.len() + i), row);
                }
                runner.release(&mut own);
            }
        }
        off.check(&format!("{window} shortened prefill"));
    }
}

#[test]
fn guesses_are_those_of_the_oracle() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let mut runner = Runner::new(window);
        let (mut logits, mut hidden, mut sure) = (Off::default(), Off::default(), Off::default());
        for (index, case) in vectors.json["dspark"].as_array().unwrap().iter().enumerate() {
            let name = case["prompt"].as_str().unwrap();
            let (tokens, n) = (vectors.prompt(name), number(&case["n"]));
            let mut own = runner.sequence(&tokens);
            if case["note"].as_str().unwrap().contains("truncated") {
                let keep = number(&vectors.json["decoder_truncation"][0]["keep"]);
                own.decoder_from = Some((n - keep) as u32);
            }
            runner.run(&mut own, n, 50);
            let forced = (!case["forced"].is_null()).then(|| ids(&case["forced"]));
            let (drafts, best) = runner.draft(&[(&own, number(&case["golden"]) as u32)], forced.as_deref());
            let gap = case["min_top1_gap"].as_f64().unwrap();
            assert!(best == ids(&case["greedy_tokens"]), "{window} draft {index}: {best:?}, gap {gap}");
            let of = |what: &str| vectors.floats(&format!("dspark{index}.{what}"));
            logits.add(&drafts.base, &of("base"));
            logits.add(&drafts.logits, &of("corrected"));
            hidden.add(&drafts.hidden, &of("hidden"));
            sure.add(&drafts.confidences, &of("confidence"));
            runner.release(&mut own);
        }
        logits.check(&format!("{window} guesses, logits"));
        hidden.check(&format!("{window} guesses, hidden"));
        sure.check(&format!("{window} guesses, confidences"));
        assert!(sure.max <= 2e-4, "{window}: confidences");
    }
}

#[test]
fn the_text_around_an_image_gives_the_logits_of_the_oracle() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let case = &vectors.json["vision"];
        let mut runner = Runner::new(window);
        let tokens = ids(&case["tokens"]);
        let mut off = Off::default();
        let mut first: Option<Sequence> = None;
        for chunk in [tokens.len(), 14, 1] {
            let mut own = runner.sequence(&tokens);
            own.image = Some((number(&case["span"][0]), vectors.floats("vision.span_rows")));
            runner.run(&mut own, tokens.len(), chunk);
            for (position, row) in
                ids(&case["logit_positions"]).iter().zip(vectors.floats("vision.logits").chunks_exact(512))
            {
                off.add(own.at(*position as usize), row);
            }
            add_top20(&mut off, &case["top20_last"], own.at(tokens.len() - 1));
            let first = first.get_or_insert_with(|| own.clone());
            assert!(first.bits_from(0) == own.bits_from(0), "{window}: chunks of {chunk}");
            runner.release(&mut own);
        }
        off.check(&format!("{window} image"));
    }
}

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

#[test]
fn halves_of_the_space_are_close() {
    let tokens = Vectors::of("w16").prompt("64");
    let mut exact = Runner::new("w16");
    let mut wanted = exact.sequence(&tokens);
    exact.run(&mut wanted, 17, 17);
    let halved = |layout| KvLayout { format: KvFormat::F16, ..layout };
    let mut runner = Runner::with("w16", Box::new(CpuBackend::new(2, &[])), halved);
    let mut own = runner.sequence(&tokens);
    runner.run(&mut own, 17, 17);
    let mut off = Off::default();
    (0..17).for_each(|at| off.add(own.at(at), wanted.at(at)));
    assert!(off.max > 0.0 && off.max < 0.2, "{}", off.max);
}

#[test]
fn facts_say_what_is_kept() {
    for (window, positions) in [("w16", 16), ("w128", 128)] {
        let runner = Runner::new(window);
        let facts = runner.model.model.facts();
        let state = facts.state.unwrap();
        assert_eq!((state.window, state.exact_replay), (positions, 8 * positions));
        assert_eq!((state.decoder_keep, facts.image_token), (Some(positions + 6), Some(505)));
        assert_eq!((facts.family, facts.layers, facts.context), ("deepseek_v41", 8, 2048));
        let layout = facts.kv_layout(16);
        // One source of pairs, one of single tokens; each entry has a key of 32 and a value of 32.
        assert_eq!(layout.bytes_per_block(), 16 * (32 + 32) * 4 * 3 / 2);
        // Eleven rings, and eight halves of a pair.
        let numbers = 11 * (positions as usize + 6) * 32 + 8 * 2 * 32;
        assert_eq!(layout.bytes_per_slot(), 4 * numbers);
    }
}

#[test]
fn steps_that_do_not_fit_are_refused() {
    let Runner { model, mut backend, mut kv, .. } = Runner::new("w16");
    let tokens = [1, 2, 3];
    let good = Row { tokens: &tokens, blocks: &[0], ..Row::default() };
    let local = |local: Local<'static>| Row { local, ..good };
    let embeddings = [0.0; 64];
    let span = |first, width| millstream_kernels::Span { first, embeddings: &embeddings, width };
    let (late, wide) = ([span(3, 64)], [span(0, 32)]);
    let bad = [
        (local(Local { slot: 12, ..Local::default() }), "names state slot 12, the memory has 12"),
        (local(Local { valid_from: 1, ..Local::default() }), "its state is valid from 1 on"),
        (Row { start: 5, ..good }, "names 0 tokens before it, needed: 3"),
        (Row { spans: &late, ..good }, "has a span of 1 tokens of 64 at 3"),
        (Row { spans: &wide, ..good }, "has a span of 1 tokens of 32 at 0"),
        (
            Row { start: 3, local: Local { valid_from: 3, before: &[1, 1, 1], ..Local::default() }, ..good },
            "starts within a pair at 3",
        ),
    ];
    let mut scratch = Scratch::new();
    for (row, said) in bad {
        let error = model.model.forward(&[row], &mut kv, &mut scratch, &mut *backend).unwrap_err();
        assert!(matches!(error, Error::Step { .. }) && error.to_string().contains(said), "{error}");
    }
    let layout = KvLayout { paired: 0, ..kv.layout() };
    let mut other = KvMemory::new(layout, 2).with_slots(1);
    let error = model.model.forward(&[good], &mut other, &mut scratch, &mut *backend).unwrap_err();
    assert!(matches!(error, Error::KvLayout { .. }), "{error}");
}
