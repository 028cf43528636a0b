//! The balancers on a trace: `zcat TRACE | cargo bench --bench balance`.
//!
//! The trace is read from the input (JSON, a request a line: `timestamp` in milliseconds, `input_length`, `output_length`,
//! `hash_ids` of 512 tokens each) and sent through a fleet of 16 prefill and 16 decode groups that only take time. It
//! prints how evenly keys and values lie, with 1 and 16 routers whose reports are a second old; when the decode group is
//! better picked; and what each rule finds of prompts and how soon they are computed. The same input gives the same output.

use std::io::BufRead;
use std::path::Path;

use millstream_actors::balance::{Capacity, Rule};
use millstream_actors::cost::Coefficients;
use millstream_kernels::work::WorkFacts;

#[path = "../actors/tests/common/fleet.rs"]
mod fleet;

use fleet::{Ask, Fleet, Seen, When, mean, quantile};

/// Tokens of a block of the trace.
const BLOCK: u32 = 512;
/// Groups of each kind.
const GROUPS: usize = 16;
/// The share of their time that prefill groups compute when nothing is found.
const BUSY: f64 = 0.8;
/// How much faster than it was recorded the trace is sent.
const SPEED: f64 = 64.0;

fn main() {
    if std::env::args().any(|word| word == "--test") {
        return;
    }
    let asks: Vec<Ask> = std::io::stdin().lock().lines().map(|line| ask(&line.expect("text"))).collect();
    assert!(!asks.is_empty(), "give a trace on the input");
    let fleet = fleet(&asks);
    println!("{} requests, {GROUPS} prefill and {GROUPS} decode groups", asks.len());
    println!(
        "\nkeys and values of the fullest decode group over the average, each second after a fifth of the trace"
    );
    println!("speed  routers  picked at   running  p50    p99    most   <= 1.10");
    for speed in [8.0, 16.0, 32.0, SPEED, 128.0] {
        for routers in [1, 16] {
            for when in [When::Admission, When::HandOver] {
                let seen = at_speed(&fleet, &asks, speed, |fleet| Fleet { routers, when, ..fleet });
                even(speed, routers, when, &seen);
            }
        }
    }
    println!("\nrules for prompts, at {SPEED} times the recorded speed");
    println!("blocks   rule         found    first token mean   p99      busy");
    for shared in [true, false] {
        for rule in [Rule::Earliest, Rule::CacheAware, Rule::LeastLoaded, Rule::RoundRobin] {
            let seen = at_speed(&fleet, &asks, SPEED, |fleet| Fleet { shared, rule, ..fleet });
            prompts(shared, rule, &seen);
        }
    }
}

fn even(speed: f64, routers: usize, when: When, seen: &Seen) {
    let uneven = &seen.uneven;
    let within = uneven.iter().filter(|&&ratio| ratio <= 1.10).count() as f64 / uneven.len() as f64;
    println!(
        "{speed:5}  {routers:7}  {:10}  {:7.0}  {:.3}  {:.3}  {:.3}  {:5.1} %",
        format!("{when:?}"),
        mean(&seen.running),
        quantile(uneven, 0.5),
        quantile(uneven, 0.99),
        quantile(uneven, 1.0),
        100.0 * within
    );
}

fn prompts(shared: bool, rule: Rule, seen: &Seen) {
    println!(
        "{}  {:11}  {:5.2} %  {:8.2} s         {:6.2} s  {:.2}",
        if shared { "shared " } else { "private" },
        format!("{rule:?}"),
        100.0 * seen.found.0 as f64 / seen.found.1 as f64,
        mean(&seen.first_token),
        quantile(&seen.first_token, 0.99),
        seen.busy
    );
}

/// With prefill groups that are as fast as the speed of the trace asks.
fn at_speed(fleet: &Fleet, asks: &[Ask], speed: f64, change: impl Fn(Fleet) -> Fleet) -> Seen {
    let coefficients = fleet.coefficients.scaled(1.0 / speed);
    change(Fleet { speed, coefficients, ..fleet.clone() }).run(asks)
}

fn fleet(asks: &[Ask]) -> Fleet {
    let config =
        concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/tests/oracle/released/deepseek-v41-flash.json");
    let work = WorkFacts::of_config(Path::new(config)).expect("a config of the tree");
    let [zero, one] = [0.0, 1.0];
    let coefficients = Coefficients {
        step: zero,
        row: zero,
        token: zero,
        gemm_few: one,
        gemm: one,
        pairs: one,
        scores: one,
        head: one,
        weights: zero,
        kv: zero,
        longest: zero,
    };
    let fleet = Fleet {
        prefills: GROUPS,
        decodes: GROUPS,
        capacity: Capacity { requests: 1_024, tokens: 16 << 20 },
        routers: 1,
        report: (1.0, 0.1),
        rule: Rule::Earliest,
        shared: true,
        when: When::Admission,
        speed: 1.0,
        pace: 0.05,
        work,
        block_tokens: BLOCK,
        coefficients,
    };
    let all: f64 = asks.iter().map(|ask| fleet.seconds(ask.prompt, 0)).sum();
    let span = asks.last().map_or(1.0, |ask| ask.at);
    Fleet { coefficients: coefficients.scaled(BUSY * span * GROUPS as f64 / all), ..fleet }
}

fn ask(line: &str) -> Ask {
    let value: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
    let number = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {line}"));
    let prompt = number("input_length").max(1) as u32;
    let blocks = value["hash_ids"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64);
    Ask {
        at: number("timestamp") as f64 / 1e3,
        prompt,
        answer: number("output_length").max(1) as u32,
        blocks: blocks.take((prompt / BLOCK) as usize).collect(),
    }
}
