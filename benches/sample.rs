//! How long it takes to choose a token out of a vocabulary of 262,144: `cargo bench --bench sample`.
//!
//! Each line is the best of many tries, beside the time it takes to read the logits once and keep the largest: greedy
//! choice cannot be faster than that, and everything else is a few such passes. Two kinds of logits: *peaked* as a
//! trained model gives them, and *flat*, all nearly alike, where a nucleus holds most of the vocabulary.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_actors::message::Sample;
use millstream_actors::request::Sampling;
use millstream_actors::sample::{Sampler, Tally};

const VOCAB: usize = 262_144;
/// Tokens before the one that is chosen.
const HISTORY: u32 = 4096;
const TRIES: u32 = 60;

fn main() {
    let plain = Sampling { temperature: 0.8, ..Sampling::GREEDY };
    let wishes: Vec<(&str, Sampling, Option<u32>)> = vec![
        ("greedy", Sampling::GREEDY, None),
        ("greedy, 20 logprobs", Sampling::GREEDY, Some(20)),
        ("all", plain.clone(), None),
        ("top_k 40", Sampling { top_k: 40, ..plain.clone() }, None),
        ("top_p 0.95", Sampling { top_p: 0.95, ..plain.clone() }, None),
        ("min_p 0.05", Sampling { min_p: 0.05, ..plain.clone() }, None),
        ("top_k, top_p, min_p", Sampling { top_k: 64, top_p: 0.95, min_p: 0.01, ..plain.clone() }, None),
        (
            "top_p, penalties over 4096 tokens",
            Sampling { top_p: 0.95, repetition: 1.1, frequency: 0.2, ..plain },
            None,
        ),
    ];
    for (name, logits) in [("peaked", peaked()), ("flat", flat())] {
        let read = best(|_| {
            black_box(largest(black_box(&logits)));
        });
        println!("{name}: one pass takes {:.0} µs", micros(read));
        for (wish, sampling, logprobs) in &wishes {
            let took = choose(&logits, sampling, *logprobs);
            let times = took.as_secs_f64() / read.as_secs_f64();
            println!("  {wish:34} {:6.0} µs  {times:5.1} passes", micros(took));
        }
    }
}

fn choose(logits: &[f32], sampling: &Sampling, logprobs: Option<u32>) -> Duration {
    let history: Vec<u32> = (0..HISTORY).map(|n| n.wrapping_mul(2_654_435_761) % VOCAB as u32).collect();
    let tally = Arc::new(Tally::new(sampling, &history[..2048], &history[2048..]));
    let sampling = Arc::new(sampling.clone());
    let mut choice = Sample { sampling, position: 0, tally, banned: Vec::new(), logprobs };
    let mut sampler = Sampler::default();
    best(|position| {
        choice.position = position;
        drop(black_box(sampler.choose(black_box(logits), &choice)));
    })
}

/// The shortest of many tries.
#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn best(mut work: impl FnMut(u32)) -> Duration {
    let tries = (0..TRIES).map(|number| {
        let start = Instant::now();
        work(number);
        start.elapsed()
    });
    tries.min().unwrap_or_default()
}

fn largest(logits: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; 8];
    for eight in logits.as_chunks::<8>().0 {
        for (best, &logit) in best.iter_mut().zip(eight) {
            *best = if logit > *best { logit } else { *best };
        }
    }
    best.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Logits around -5 with a spread of about 2.5, and a few dozen that stand out.
fn peaked() -> Vec<f32> {
    let mut logits: Vec<f32> = (0..VOCAB).map(|n| -5.0 + 2.5 * bell(n)).collect();
    for n in 0..48 {
        logits[(n * 5_449 + 11) % VOCAB] = 16.0 - 0.25 * n as f32;
    }
    logits
}

fn flat() -> Vec<f32> {
    (0..VOCAB).map(|n| 0.3 * bell(n)).collect()
}

/// A number out of a bell curve of spread 1, that depends on `n` alone.
fn bell(n: usize) -> f32 {
    let bits = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let parts = (0..4).map(|part| ((bits >> (16 * part)) & 0xffff) as f32 / 65_536.0 - 0.5);
    parts.sum::<f32>() * 1.732
}
