//! Five times as much as a group can take: those who run keep their pace, and everyone who is refused is told when to come
//! back.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{COST, World, plan, resources, submit};
use millstream_actors::request::{Outcome, Refusal, Reply, RequestId, Submit};
use millstream_runtime::{SimOptions, Time};

/// Tokens of an answer.
const ANSWER: u32 = 40;
const SEED: u64 = 3;

/// What clients saw.
#[derive(Default)]
struct Seen {
    /// Nanoseconds at which tokens of each came.
    came: BTreeMap<RequestId, Vec<u64>>,
    retry: Vec<Duration>,
    finished: usize,
}

impl Seen {
    /// The average time from token to token of an answer, in milliseconds, ascending.
    fn paces(&self) -> Vec<f64> {
        let pace = |came: &Vec<u64>| (came[came.len() - 1] - came[0]) as f64 / 1e6 / (came.len() - 1) as f64;
        let mut paces: Vec<f64> = self.came.values().filter(|came| came.len() > 1).map(pace).collect();
        paces.sort_unstable_by(f64::total_cmp);
        paces
    }

    /// The longest time between two tokens of an answer, in milliseconds.
    fn longest_gap(&self) -> f64 {
        let gaps = self.came.values().flat_map(|came| came.windows(2).map(|two| two[1] - two[0]));
        gaps.max().unwrap_or(0) as f64 / 1e6
    }
}

/// Requests of 100 tokens, one each `every`.
fn offer(every: Duration, count: u64) -> Seen {
    let decode =
        "joined = true\nsequences_max = 8\nwaiting_max = 16\nwaiting_tokens_max = 1000\nprefix_reuse = false";
    let plan = plan("chunk_tokens = 16", decode);
    let options = SimOptions { seed: SEED, ..SimOptions::default() };
    let mut world = World::costing(COST, &plan, &resources("tiny-llama"), options);
    for n in 1..=count {
        let prompt: Vec<u32> = (0..100).map(|i| (i * 37 + n as u32 * 101 + 3) % 600).collect();
        world.submit_at(every * n as u32, Submit { logprobs: None, ..submit(n, &prompt, ANSWER) });
    }
    let mut seen = Seen::default();
    let over = every * count as u32 + Duration::from_secs(60);
    while world.sim.now() < Time::ZERO + over && seen.finished + seen.retry.len() < count as usize {
        world.sim.run_until(world.sim.now() + Duration::from_micros(200));
        while let Some(reply) = world.assembly.doors.replies.try_recv() {
            match reply {
                Reply::Text { request, tokens, .. } => {
                    let came = seen.came.entry(request).or_default();
                    came.extend(tokens.iter().map(|_| world.sim.now().as_nanos()));
                }
                Reply::End { outcome: Outcome::Finished(_), .. } => seen.finished += 1,
                Reply::End { outcome: Outcome::Refused(Refusal::Overload { retry_after }), .. } => {
                    seen.retry.push(retry_after);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(seen.finished + seen.retry.len(), count as usize, "everyone has an answer");
    seen
}

#[test]
fn who_runs_keeps_the_pace_when_five_times_as_much_comes() {
    // Eight at once, and a step for 16 tokens of prompts: about 1.2 ms; a request takes 47 of them. So nearly as many come
    // as can be served.
    let usual = Duration::from_millis(8);
    let (calm, crowded) = (offer(usual, 150), offer(usual / 5, 750));
    let (before, after) = (calm.paces(), crowded.paces());
    let (slow, slower) = (before[before.len() / 2], after[after.len() / 2]);
    println!(
        "seed {SEED}: {slow:.2} ms a token, {slower:.2} at five times as much; longest gaps {:.1} and {:.1} ms; {} of 750 refused",
        calm.longest_gap(),
        crowded.longest_gap(),
        crowded.retry.len()
    );
    assert!(calm.retry.is_empty(), "{} refused", calm.retry.len());
    assert!(crowded.retry.len() > 400, "only {} refused", crowded.retry.len());
    assert!(slower <= 1.5 * slow, "{slower:.2} and {slow:.2} ms a token");
    let told = |wait: &Duration| (1..=60).contains(&wait.as_secs()) && *wait <= Duration::from_secs(60);
    assert!(crowded.retry.iter().all(told), "{:?}", crowded.retry);
}
