//! The balancers over a seeded workload: keys and values lie evenly, with one router and with many whose reports are old; a
//! beginning that all prompts share makes no herd; and whoever shares a store need not look where the cache lies.

use millstream_actors::balance::{Capacity, Rule};
use millstream_actors::cost::Coefficients;
use millstream_kernels::work::WorkFacts;

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Ask, Fleet, When, mean, quantile};

const SEED: u64 = 11;
const GROUPS: usize = 16;
const BLOCK: u32 = 256;

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// As waits between independent events are.
    fn wait(&mut self, average: f64) -> f64 {
        -average * (1.0 - self.next()).ln()
    }
}

/// Conversations of several turns, a hundred requests a second: each prompt holds the one before it, some are long.
fn workload(seconds: f64) -> Vec<Ask> {
    let mut numbers = Numbers(SEED);
    let (mut asks, mut at, mut block) = (Vec::new(), 0.0, 1_000);
    while at < seconds {
        at += numbers.wait(0.03);
        let mut blocks: Vec<u64> = vec![0, 1];
        let mut when = at;
        for _ in 0..1 + (numbers.next() * 5.0) as u32 {
            let more = 1 + numbers.wait(8.0) as u64;
            blocks.extend(block..block + more);
            block += more;
            let answer = 50 + numbers.wait(200.0) as u32;
            asks.push(Ask {
                at: when,
                prompt: blocks.len() as u32 * BLOCK + 7,
                answer,
                blocks: blocks.clone(),
            });
            when += f64::from(answer) * 0.05 + numbers.wait(10.0);
        }
    }
    asks.retain(|ask| ask.at < seconds);
    asks.sort_by(|a, b| a.at.total_cmp(&b.at));
    asks
}

fn fleet(asks: &[Ask], busy: f64) -> Fleet {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle/tiny-llama/config.json");
    let coefficients = Coefficients { token: 1.0, ..Coefficients::default().scaled(0.0) };
    let fleet = Fleet {
        prefills: GROUPS,
        decodes: GROUPS,
        capacity: Capacity { requests: 256, tokens: 1 << 20 },
        routers: 1,
        report: (1.0, 0.1),
        rule: Rule::Earliest,
        shared: true,
        when: When::Admission,
        speed: 1.0,
        pace: 0.05,
        work: WorkFacts::of_config(config.as_ref()).expect("a config of the tree"),
        block_tokens: BLOCK,
        coefficients,
    };
    let all: f64 = asks.iter().map(|ask| f64::from(ask.prompt)).sum();
    let span = asks.last().map_or(1.0, |ask| ask.at);
    Fleet { coefficients: coefficients.scaled(busy * span * GROUPS as f64 / all), ..fleet }
}

#[test]
fn keys_and_values_lie_evenly_whoever_sends() {
    let asks = workload(120.0);
    for (routers, when) in
        [(1, When::Admission), (1, When::HandOver), (16, When::Admission), (16, When::HandOver)]
    {
        let seen = Fleet { routers, when, ..fleet(&asks, 0.5) }.run(&asks);
        let (usual, most) = (mean(&seen.uneven), quantile(&seen.uneven, 0.99));
        println!(
            "seed {SEED}, {routers} routers, {when:?}: {:.0} running, fullest over average {usual:.3}, p99 {most:.3}",
            mean(&seen.running)
        );
        // Of what fifteen others have just sent, each only knows what is likely.
        let most = if routers == 1 { 1.10 } else { 1.15 };
        assert!(usual <= most, "{routers} routers, {when:?}: {usual:.3}");
    }
}

#[test]
fn who_shares_a_store_need_not_look_where_the_cache_lies() {
    let asks = workload(120.0);
    let found = |shared, rule| {
        let seen = Fleet { shared, rule, ..fleet(&asks, 0.8) }.run(&asks);
        100.0 * seen.found.0 as f64 / seen.found.1 as f64
    };
    let (blind, aware) = (found(true, Rule::Earliest), found(false, Rule::CacheAware));
    let turns = found(false, Rule::RoundRobin);
    println!(
        "seed {SEED}: found {blind:.2} % with a shared store, {aware:.2} % by looking, {turns:.2} % by neither"
    );
    assert!(blind >= aware - 1.0, "{blind:.2} % and {aware:.2} %");
    assert!(aware > turns + 10.0, "{aware:.2} % and {turns:.2} %: looking must be worth something");
}

/// All prompts begin alike, and nothing else of them is known. By either rule no group gets much more than its share.
#[test]
fn a_beginning_that_all_share_is_no_herd() {
    let mut numbers = Numbers(SEED);
    let mut at = 0.0;
    let asks: Vec<Ask> = (0..3_000)
        .map(|n| {
            at += numbers.wait(0.02);
            let blocks = (0..16).chain([100_000 + n]).collect();
            Ask { at, prompt: 17 * BLOCK + 50, answer: 20, blocks }
        })
        .collect();
    for (rule, shared) in [(Rule::Earliest, true), (Rule::CacheAware, false)] {
        let seen = Fleet { rule, shared, ..fleet(&asks, 4.0) }.run(&asks);
        let most = seen.prompts.iter().copied().max().unwrap_or(0);
        println!("seed {SEED}, {rule:?}: {:?}", seen.prompts);
        assert!(most as f64 <= 1.25 * 3_000.0 / GROUPS as f64, "{rule:?}: {:?}", seen.prompts);
    }
}
