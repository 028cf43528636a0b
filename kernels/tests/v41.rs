//! DeepSeek-V4.1 against its oracle: prompts, found prefixes, shortened prefill, guesses, images, a rounded cache.

#![expect(clippy::unwrap_used, reason = "a test fails where its data is not as it should be")]

mod fixtures {
    pub mod counting;
    pub mod stored;
    pub mod v41;
}

use std::ops::Range;

use fixtures::counting::Counting;
use fixtures::v41::{Off, Runner, Sequence, Vectors, WINDOWS, argmax, folder, ids, number};
use millstream_kernels::{CpuBackend, Error, KvFormat, KvLayout, KvMemory, Local, Row, Scratch, Span, load};
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

/// Multiply-adds with weights of a step of some tokens of a prompt.
fn work(range: Range<usize>, local: Local<'_>) -> u64 {
    let tokens = Vectors::of("w128").prompt("700");
    let model = load(&folder("w16")).unwrap().model;
    let mut kv = KvMemory::new(model.facts().kv_layout(16), 48).with_slots(1);
    let blocks: Vec<u32> = (0..48).collect();
    let local = Local { before: &tokens[range.start.saturating_sub(3)..range.start], ..local };
    let start = range.start as u32;
    let row = Row { tokens: &tokens[range], start, blocks: &blocks, local, ..Row::default() };
    let mut backend = Counting { inner: CpuBackend::new(2, &[]), count: 0 };
    model.forward(&[row], &mut kv, &mut Scratch::new(), &mut backend).unwrap();
    backend.count
}

#[test]
fn shortened_prefill_is_little_more_than_half_the_work() {
    let some = Local { decoder_from: Some(700 - 22), ..Local::default() };
    let (all, some) = (work(0..700, Local::default()), work(0..700, some));
    println!("{some} of {all} multiply-adds: {}", some as f64 / all as f64);
    assert!(some as f64 <= 0.6 * all as f64, "{some} of {all} multiply-adds");
}

#[test]
fn an_exact_replay_is_little_more_than_half_the_work() {
    let facts = load(&folder("w16")).unwrap().model.facts().state.unwrap();
    let start = 640 - facts.exact_replay;
    let computed = Local { valid_from: start, ..Local::default() };
    let (all, some) =
        (work(start as usize..640, computed), work(start as usize..640, Local { written: 640, ..computed }));
    println!("{some} of {all} multiply-adds: {}", some as f64 / all as f64);
    assert!(some as f64 <= 0.6 * all as f64, "{some} of {all} multiply-adds");
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

/// Rounding makes jumps of noise, so only sizes can be compared.
#[test]
fn a_rounded_cache_is_as_far_off_as_the_oracle_says() {
    for window in WINDOWS {
        let vectors = Vectors::of(window);
        let said = &vectors.json["kv_quant"];
        let name = said["prompt"].as_str().unwrap();
        let tokens = vectors.prompt(name);
        let run = |format| {
            let backend = Box::new(CpuBackend::new(2, &[]));
            let mut runner = Runner::with(window, backend, |layout| KvLayout { format, ..layout });
            let mut own = runner.sequence(&tokens);
            runner.run(&mut own, tokens.len(), tokens.len());
            own
        };
        let (exact, rounded) = (run(KvFormat::F32), run(KvFormat::Fp4));
        let (mut off, mut near) = (Off::default(), Off::default());
        (0..tokens.len()).for_each(|at| off.add(rounded.at(at), exact.at(at)));
        let rows = vectors.floats(&format!("kvquant.p{name}.logits"));
        for (position, row) in ids(&said["positions"]).iter().zip(rows.chunks_exact(512)) {
            near.add(rounded.at(*position as usize), row);
        }
        let want = said["deviation_from_float"]["mean_abs_logit_diff"].as_f64().unwrap();
        let (off, near) = (off.mean(), near.mean());
        println!("{window}: rounded off by {off}, the oracle by {want}; from each other {near}");
        assert!((want * 0.5..want * 2.0).contains(&off) && near < 1.5 * want, "{window}: {off}, {near}");
    }
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
    let span = |first, width| Span { first, embeddings: &embeddings, width };
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
