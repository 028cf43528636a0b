//! A graph of the real roles over a tiny real checkpoint, under the simulator, with a script of requests.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod eyes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub mod double;
pub mod stateful;
pub mod windows;

use double::{DOUBLE, double};
use millstream_actors::assemble::{Assembly, Driver, Resources, assemble};
use millstream_actors::gauges::{CacheGauges, Gauge, GroupGauges};
use millstream_actors::rank::StepCost;
use millstream_actors::request::{Logprobs, Outcome, Prompt, Reply, RequestId, Sampling, Submit};
use millstream_runtime::{Faults, Sim, SimOptions, Time};
use millstream_topology::{HostFacts, Plan};

/// Virtual cost of a step: a prompt of 100 tokens takes about as long as a message takes at most.
pub const COST: StepCost = StepCost { step: Duration::from_micros(300), token: Duration::from_micros(40) };
/// Longer than any request may live.
pub const LONG: Duration = Duration::from_secs(3600);
/// Between two looks of the clients.
const READING: Duration = Duration::from_millis(100);

pub fn oracle(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle")).join(name)
}

/// A checkpoint of the tree by its folder's name, or the stand-in.
pub fn resources(name: &str) -> Resources {
    if name == DOUBLE {
        return double(resources("tiny-llama"));
    }
    Resources::load(&oracle(name)).expect("the checkpoint is in the tree")
}

/// A plan from the settings that a test varies; `prefill` and `decode` are lines of their tables.
pub fn plan(prefill: &str, decode: &str) -> Plan {
    plan_with(["", ""], prefill, decode)
}

/// The same with lines at the top of the file, and of its `cache`.
pub fn plan_with([top, cache]: [&str; 2], prefill: &str, decode: &str) -> Plan {
    let sized = |lines: &str| match lines.contains("memory") {
        true => lines.to_owned(),
        false => format!("memory = \"2MiB\"\n{lines}"),
    };
    let text = format!(
        "model = \"tiny\"\n{top}\n[actors.gateway]\ndeadline = \"10m\"\n[actors.prefill]\n{}\n[actors.decode]\n{}\n[cache]\n{cache}\n",
        sized(prefill),
        sized(decode)
    );
    millstream_topology::check(&text, "test.toml", &HostFacts { cores: 2, buckets: true })
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// A request of `prompt` tokens and `tokens` of answer. Every second one samples, every second of those with all that
/// depends on the tokens before; all ask how likely their tokens are.
pub fn submit(id: u64, prompt: &[u32], tokens: u32) -> Submit {
    let sampled = Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, seed: id, ..Sampling::GREEDY };
    let counting = Sampling {
        min_p: 0.01,
        repetition: 1.3,
        presence: 0.4,
        frequency: 0.6,
        bias: vec![(5, 1.5), (7, -2.0)],
        ..sampled.clone()
    };
    let sampling = match id % 4 {
        0 => counting,
        2 => sampled,
        _ => Sampling::GREEDY,
    };
    let (tokens_min, tokens_max) = (tokens / 2, Some(tokens));
    let ask = Submit::new(Prompt::Tokens(prompt.to_vec()), sampling);
    let request = RequestId(id);
    Submit { request, tokens_max, tokens_min, ignore_end: true, logprobs: Some(2), ..ask }
}

/// What a client has in the end.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<Logprobs>,
    pub outcome: Option<Outcome>,
}

/// Tokens and text are the same to the last bit; a log-probability may differ where blocks have another size.
impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        let near = |(a, b): (&Logprobs, &Logprobs)| {
            a.start == b.start && a.best.len() == b.best.len() && (a.chosen - b.chosen).abs() < 1e-3
        };
        (&self.tokens, &self.text, &self.outcome) == (&other.tokens, &other.text, &other.outcome)
            && self.logprobs.len() == other.logprobs.len()
            && self.logprobs.iter().zip(&other.logprobs).all(near)
    }
}

/// A simulation and its clients.
pub struct World {
    pub sim: Sim,
    pub assembly: Parts,
    pub answers: BTreeMap<RequestId, Answer>,
    /// Tokens of the prompt that were not computed, by the usage.
    pub cached: BTreeMap<RequestId, u32>,
    /// Tokens that were found and computed once more, by the usage.
    pub replayed: BTreeMap<RequestId, u32>,
    /// Logits that were asked for, by the position of the token they follow.
    pub logits: BTreeMap<(RequestId, u32), Vec<f32>>,
}

/// What is left of an assembly once its graph is in the simulator.
pub struct Parts {
    pub doors: millstream_actors::assemble::Doors,
    pub gauges: Vec<std::sync::Arc<millstream_actors::gauges::GroupGauges>>,
    pub costs: Vec<std::sync::Arc<millstream_actors::cost::Known>>,
    pub encoders: Vec<std::sync::Arc<millstream_actors::gauges::EncodeGauges>>,
    pub cache: Option<std::sync::Arc<CacheGauges>>,
}

impl World {
    pub fn new(plan: &Plan, resources: &Resources, seed: u64, faults: Faults) -> Self {
        Self::costing(COST, plan, resources, SimOptions { seed, faults, ..SimOptions::default() })
    }

    /// One where a step takes another time.
    pub fn costing(cost: StepCost, plan: &Plan, resources: &Resources, options: SimOptions) -> Self {
        Self::driven(Driver::Sim(cost), plan, resources, options)
    }

    /// A graph that was made for another driver, if `driver` says so.
    pub fn driven(driver: Driver, plan: &Plan, resources: &Resources, options: SimOptions) -> Self {
        let Assembly { graph, doors, gauges, costs, encoders, cache, .. } =
            assemble(plan, resources, driver).expect("the plan is sound");
        let (answers, cached, replayed, logits) = Default::default();
        let assembly = Parts { doors, gauges, costs, encoders, cache };
        Self { sim: Sim::new(graph, options), assembly, answers, cached, replayed, logits }
    }

    /// The client sends its request at a virtual time.
    pub fn submit_at(&mut self, at: Duration, submit: Submit) {
        let door = self.assembly.doors.submit.clone();
        self.sim.at(Time::ZERO + at, move |_| {
            assert!(door.offer(submit).is_ok(), "the door has room");
        });
    }

    /// The client goes away at a virtual time.
    pub fn abandon_at(&mut self, at: Duration, request: RequestId) {
        let door = self.assembly.doors.abandon.clone();
        self.sim.at(Time::ZERO + at, move |_| {
            assert!(door.offer(request).is_ok(), "the door has room");
        });
    }

    /// Runs until nothing is left to do. The clients read now and then: a full outlet holds the gateway up.
    pub fn run(&mut self) {
        while self.sim.now() < Time::ZERO + LONG {
            let outcome = self.sim.run_until_idle(self.sim.now() + READING);
            if self.read() == 0 && outcome == millstream_runtime::Outcome::Idle {
                break;
            }
        }
    }

    /// Runs for so long, or until all of `wanted` have ended.
    pub fn run_for(&mut self, time: Duration, wanted: &[RequestId]) {
        let until = self.sim.now() + time;
        let ended = |world: &Self, id| world.answers.get(id).is_some_and(|answer| answer.outcome.is_some());
        while self.sim.now() < until && (wanted.is_empty() || !wanted.iter().all(|id| ended(self, id))) {
            self.sim.run_until(until.min(self.sim.now() + READING));
            self.read();
        }
    }

    /// The clients read what is there. Returns how many replies that was.
    pub fn read(&mut self) -> usize {
        let mut count = 0;
        while let Some(reply) = self.assembly.doors.replies.try_recv() {
            count += 1;
            let answer = self.answers.entry(reply.request()).or_default();
            assert_eq!(answer.outcome, None, "nothing comes after the end");
            match reply {
                Reply::Text { text, tokens, logprobs, .. } => {
                    assert_eq!(tokens.len(), logprobs.len(), "each token says how likely it was");
                    assert!(logprobs.iter().all(|said| said.chosen < 0.0 && said.best.len() == 2));
                    answer.text.push_str(&text);
                    answer.tokens.extend(tokens);
                    answer.logprobs.extend(logprobs);
                }
                Reply::End { request, outcome, usage } => {
                    answer.outcome = Some(outcome);
                    self.cached.insert(request, usage.cached_tokens);
                    self.replayed.insert(request, usage.replayed_tokens);
                }
                Reply::Logits { request, position, logits } => {
                    self.logits.insert((request, position), logits);
                }
            }
        }
        count
    }

    /// The sum of a number over all groups.
    pub fn sum(&self, gauge: impl Fn(&GroupGauges) -> &Gauge) -> u64 {
        self.assembly.gauges.iter().map(|group| gauge(group).get()).sum()
    }

    /// Blocks, slots and leases are back.
    pub fn assert_quiet(&self, what: &str) {
        for group in &self.assembly.gauges {
            let left =
                (group.blocks_used.get(), group.leases.get(), group.running.get(), group.waiting.get());
            assert_eq!(left, (0, 0, 0, 0), "{what}: blocks, leases, running, waiting of {}", group.name);
            assert_eq!(group.slots_used.get(), 0, "{what}: slots of {}", group.name);
        }
    }
}

/// Prompts of several lengths over the tiny vocabulary: the windows, block borders and chunk borders are all crossed.
pub fn prompts() -> Vec<Vec<u32>> {
    [1usize, 5, 16, 17, 40, 70, 33, 100]
        .iter()
        .enumerate()
        .map(|(n, &length)| (0..length as u32).map(|i| (i * 37 + n as u32 * 101 + 3) % 600).collect())
        .collect()
}

/// The answers of `requests` with nothing else going on: one at a time, joined, nothing reused, no faults.
pub fn alone(resources: &Resources, requests: &[Submit]) -> BTreeMap<RequestId, Answer> {
    alone_with("", resources, requests)
}

/// The same with lines at the top of the file.
pub fn alone_with(top: &str, resources: &Resources, requests: &[Submit]) -> BTreeMap<RequestId, Answer> {
    let plan = plan_with([top, ""], "", "joined = true\nprefix_reuse = false");
    let mut world = World::new(&plan, resources, 0, Faults::none());
    for (n, submit) in requests.iter().enumerate() {
        world.submit_at(Duration::from_secs(n as u64), submit.clone());
    }
    world.run();
    world.assert_quiet("alone");
    world.answers
}
