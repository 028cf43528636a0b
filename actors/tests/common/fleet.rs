//! A fleet of groups that only take time, and routers that choose among them with the runtime's own balancers: prompts are
//! computed one after the other where they were sent, and answers grow at one pace. For tests and benches of
//! `millstream_actors::balance`.
#![allow(dead_code, reason = "tests and benches use parts of it")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use millstream_actors::balance::{Beginnings, Capacity, Decodes, Held, Prefills, Prompt, Report, Rule, Sent};
use millstream_actors::cost::Coefficients;
use millstream_actors::kv::BlockHash;
use millstream_kernels::work::{RowShape, WorkFacts};

/// A request of a trace.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Seconds.
    pub at: f64,
    pub prompt: u32,
    pub answer: u32,
    /// Its full blocks.
    pub blocks: Vec<u64>,
}

/// When the decode group is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Admission,
    HandOver,
}

/// How the fleet is made.
#[derive(Clone)]
pub struct Fleet {
    pub prefills: usize,
    pub decodes: usize,
    pub capacity: Capacity,
    pub routers: usize,
    /// Seconds between two reports of a group, and seconds until one has come.
    pub report: (f64, f64),
    pub rule: Rule,
    /// Blocks outlive their group, and all find them.
    pub shared: bool,
    pub when: When,
    /// Requests of a trace come so many times as fast.
    pub speed: f64,
    /// Seconds from token to token.
    pub pace: f64,
    pub work: WorkFacts,
    pub block_tokens: u32,
    pub coefficients: Coefficients,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Seen {
    /// The fullest group's keys and values over the average, each second after the warm-up, ascending.
    pub uneven: Vec<f64>,
    /// The average of a group's tokens, each second.
    pub held: Vec<f64>,
    /// Running answers of all groups, each second.
    pub running: Vec<f64>,
    /// Seconds until prompts were computed, ascending.
    pub first_token: Vec<f64>,
    /// Prompt tokens found, and all of them.
    pub found: (u64, u64),
    /// Prompts that each prefill group was sent.
    pub prompts: Vec<usize>,
    /// The share of their time that prefill groups computed.
    pub busy: f64,
}

pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted.get(((sorted.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(f64::NAN)
}

pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A report of all decode groups comes: that number.
    Reports(usize),
    /// Decode groups report.
    Look,
    Ended(usize),
    Computed(usize),
    Arrives(usize),
    Sample,
}

struct Router {
    prefills: Prefills,
    decodes: Decodes,
    beginnings: Beginnings,
}

/// A request on its way.
#[derive(Clone, Default)]
struct Road {
    prefill: Option<(usize, Sent)>,
    decode: usize,
    /// It is known where it will be decoded.
    chosen: bool,
    /// When its answer began to grow.
    began: Option<f64>,
    ended: bool,
}

struct Run<'a> {
    fleet: &'a Fleet,
    asks: &'a [Ask],
    routers: Vec<Router>,
    roads: Vec<Road>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    now: f64,
    /// When each prefill group has computed what it was sent.
    free: Vec<f64>,
    /// Blocks of each prefill group, or of all.
    known: Vec<HashSet<u64>>,
    /// Whose answers grow.
    growing: Vec<usize>,
    reports: Vec<Vec<Vec<Report>>>,
    seen: Seen,
    span: f64,
}

/// Names a block.
pub fn hash(block: u64) -> BlockHash {
    let mix = |seed: u64| (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (seed >> 7);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(block + 1).to_le_bytes());
    BlockHash::from_bytes(bytes)
}

impl Fleet {
    /// Seconds of a prompt of which `found` tokens are known.
    pub fn seconds(&self, tokens: u32, found: u32) -> f64 {
        let found = found.min(tokens - 1);
        self.coefficients.seconds(&self.work.row(&RowShape::plain(found, tokens - found, 1)))
    }

    /// Sends a trace through.
    pub fn run(&self, asks: &[Ask]) -> Seen {
        let span = asks.last().map_or(0.0, |ask| ask.at / self.speed);
        let router = |me: usize| Router {
            prefills: Prefills::new(self.rule, self.prefills, (self.work.clone(), u32::MAX)).starting_at(me),
            decodes: Decodes::new(vec![self.capacity; self.decodes], (me as u64, self.routers as u64)),
            beginnings: Beginnings::default(),
        };
        let mut run = Run {
            fleet: self,
            asks,
            routers: (0..self.routers).map(router).collect(),
            roads: vec![Road::default(); asks.len()],
            events: BinaryHeap::new(),
            now: 0.0,
            free: vec![0.0; self.prefills],
            known: vec![HashSet::new(); if self.shared { 1 } else { self.prefills }],
            growing: Vec::new(),
            reports: Vec::new(),
            seen: Seen { prompts: vec![0; self.prefills], ..Seen::default() },
            span,
        };
        for router in &mut run.routers {
            (0..self.prefills).for_each(|number| router.prefills.report(number, self.coefficients));
        }
        asks.iter().enumerate().for_each(|(n, ask)| run.at(ask.at / self.speed, Event::Arrives(n)));
        run.at(self.report.0, Event::Look);
        run.at(1.0, Event::Sample);
        while let Some(Reverse((nanos, event))) = run.events.pop() {
            run.now = nanos as f64 / 1e9;
            run.handle(event);
        }
        let Run { mut seen, .. } = run;
        seen.busy /= span * self.prefills as f64;
        seen.uneven.sort_unstable_by(f64::total_cmp);
        seen.first_token.sort_unstable_by(f64::total_cmp);
        seen
    }
}

impl Run<'_> {
    fn at(&mut self, seconds: f64, event: Event) {
        self.events.push(Reverse(((seconds * 1e9) as u64, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrives(n) => self.arrives(n),
            Event::Computed(n) => self.computed(n),
            Event::Ended(n) => self.ended(n),
            Event::Look => {
                let reports = self.look();
                self.reports.push(reports);
                self.at(self.now + self.fleet.report.1, Event::Reports(self.reports.len() - 1));
                self.again(self.fleet.report.0, Event::Look);
            }
            Event::Reports(number) => {
                let reports = std::mem::take(&mut self.reports[number]);
                for (router, reports) in self.routers.iter_mut().zip(reports) {
                    reports.into_iter().enumerate().for_each(|(n, report)| router.decodes.report(n, report));
                }
            }
            Event::Sample => {
                self.sample();
                self.again(1.0, Event::Sample);
            }
        }
    }

    fn again(&mut self, after: f64, event: Event) {
        if self.now < self.span {
            self.at(self.now + after, event);
        }
    }

    fn router(&self, n: usize) -> usize {
        n % self.routers.len()
    }

    fn held(&self, n: usize) -> Held {
        Held::one(u64::from(self.asks[n].prompt))
    }

    fn arrives(&mut self, n: usize) {
        let (ask, at) = (&self.asks[n], self.router(n));
        let hashes: Vec<BlockHash> = ask.blocks.iter().map(|&block| hash(block)).collect();
        let router = &mut self.routers[at];
        let (by, blocks) = router.beginnings.find(&hashes).unzip();
        let known = blocks.unwrap_or(0) as u32 * self.fleet.block_tokens;
        let prompt = Prompt { tokens: ask.prompt, known, by };
        let Some((number, sent)) = router.prefills.pick(prompt) else { return };
        router.prefills.add(number, sent);
        router.beginnings.learn(&hashes, number);
        self.seen.prompts[number] += 1;
        self.roads[n].prefill = Some((number, sent));
        if self.fleet.when == When::Admission {
            self.choose(n);
        }
        let found = self.find(n, number);
        let seconds = self.fleet.seconds(self.asks[n].prompt, found);
        self.free[number] = self.free[number].max(self.now) + seconds;
        if self.free[number] < self.span {
            self.seen.busy += seconds;
        }
        self.at(self.free[number], Event::Computed(n));
    }

    /// Tokens of a prompt that its group finds. What is on the way counts: it is computed first.
    fn find(&mut self, n: usize, number: usize) -> u32 {
        let ask = &self.asks[n];
        let known = &mut self.known[if self.fleet.shared { 0 } else { number }];
        let blocks = ask.blocks.iter().take_while(|block| known.contains(block)).count();
        known.extend(&ask.blocks);
        let found = (blocks as u32 * self.fleet.block_tokens).min(ask.prompt - 1);
        self.seen.found.0 += u64::from(found);
        self.seen.found.1 += u64::from(ask.prompt);
        found
    }

    fn choose(&mut self, n: usize) {
        let (held, at) = (self.held(n), self.router(n));
        let decodes = &mut self.routers[at].decodes;
        let Some(number) = decodes.pick(held) else { return };
        decodes.add(number, held);
        (self.roads[n].decode, self.roads[n].chosen) = (number, true);
    }

    fn computed(&mut self, n: usize) {
        let at = self.router(n);
        if let Some((number, sent)) = self.roads[n].prefill.take() {
            self.routers[at].prefills.remove(number, sent);
        }
        if self.fleet.when == When::HandOver {
            self.choose(n);
        }
        self.seen.first_token.push(self.now - self.asks[n].at / self.fleet.speed);
        self.roads[n].began = Some(self.now);
        self.growing.push(n);
        self.at(self.now + f64::from(self.asks[n].answer) * self.fleet.pace, Event::Ended(n));
    }

    fn ended(&mut self, n: usize) {
        self.roads[n].ended = true;
        let (held, at) = (self.held(n), self.router(n));
        self.routers[at].decodes.remove(self.roads[n].decode, held);
    }

    /// Its tokens now.
    fn tokens(&self, n: usize) -> u64 {
        let grown = self.roads[n].began.map_or(0.0, |began| (self.now - began) / self.fleet.pace);
        u64::from(self.asks[n].prompt) + grown as u64
    }

    /// What every decode group would say to every router: of what it has, so nothing of what is still being computed.
    fn look(&mut self) -> Vec<Vec<Report>> {
        let mut all = vec![Held::default(); self.fleet.decodes];
        let mut own = vec![vec![Held::default(); self.fleet.decodes]; self.routers.len()];
        self.growing.retain(|&n| !self.roads[n].ended);
        for &n in &self.growing {
            let number = self.roads[n].decode;
            all[number] += Held::one(self.tokens(n));
            own[n % self.routers.len()][number] += self.held(n);
        }
        let reports = own.into_iter().map(|own| {
            let both = all.iter().zip(own);
            both.map(|(&all, yours)| Report { all, yours }).collect()
        });
        reports.collect()
    }

    fn sample(&mut self) {
        if self.now < 0.2 * self.span || self.now > self.span {
            return;
        }
        self.growing.retain(|&n| !self.roads[n].ended);
        let mut tokens = vec![0.0; self.fleet.decodes];
        for &n in &self.growing {
            tokens[self.roads[n].decode] += self.tokens(n) as f64;
        }
        let average = mean(&tokens);
        let most = tokens.iter().copied().fold(0.0, f64::max);
        self.seen.uneven.push(most / average.max(1.0));
        self.seen.held.push(average);
        self.seen.running.push(self.growing.len() as f64);
    }
}
