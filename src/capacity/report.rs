//! What came of a simulation of capacity: the same bytes for the same plan, workload, figures and seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::gauges::{CacheGauges, GroupGauges};
use millstream_runtime::Time;
use serde::Serialize;

use super::crowd::Crowd;
use super::meter::{Done, Groups, Meter, Span};
use super::{Histogram, Options, Setting, seconds};

/// Digits that are said behind the point of a number of seconds.
const PLACES: f64 = 1e6;

/// See the module. Times are in seconds, sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of the plan.
    pub topology: String,
    /// Of the plan.
    pub model: String,
    /// Of the run.
    pub seed: u64,
    /// Tokens in a block.
    pub block_size: u32,
    /// What was assumed of devices, links and stores, one sentence each.
    pub assumptions: Vec<String>,
    /// Requests that came.
    pub requests: u64,
    /// How they ended.
    pub outcomes: BTreeMap<String, u64>,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// From a request to its first token.
    pub first_token: Times,
    /// From one token of an answer to the next, as groups make them.
    pub between_tokens: Times,
    /// From the first token of an answer to its last, for each token between, as clients get them.
    pub per_token: Times,
    /// From a request to its last token.
    pub whole: Times,
    /// Of requests that were answered.
    pub tokens: Tokens,
    /// In the mean.
    pub rates: Rates,
    /// Prompt tokens that were found, of all.
    pub hit_share: f64,
    /// Groups, by actor.
    pub actors: Vec<ActorLine>,
    /// How even decode groups are: of tokens in KV memory, the most of a group to the mean, averaged over time. None where
    /// there is one group.
    pub balance: Option<f64>,
    /// What the cache did, where the plan has one.
    pub store: Option<StoreLine>,
    /// What it cost, where a price was given.
    pub cost: Option<Cost>,
    /// What must not be, one sentence each.
    pub wrong: Vec<String>,
    /// What happened when.
    pub spans: Vec<SpanLine>,
    /// Curves of the first two times: seconds and the share of all that took no longer.
    pub curves: Curves,
}

/// How long something took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// How many were counted.
    pub count: u64,
    /// All of them.
    pub mean: f64,
    /// Half are no longer.
    pub p50: f64,
    /// Nine of ten are no longer.
    pub p90: f64,
    /// 99 of 100 are no longer.
    pub p99: f64,
    /// The longest.
    pub most: f64,
}

/// Tokens of requests that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Of prompts.
    pub prompt: u64,
    /// Those of them that were found.
    pub found: u64,
    /// Found and computed once more.
    pub replayed: u64,
    /// Of answers.
    pub answer: u64,
}

/// In a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Requests that were answered.
    pub requests: f64,
    /// Tokens of their prompts.
    pub prompt_tokens: f64,
    /// Tokens of their answers.
    pub answer_tokens: f64,
}

/// Groups of an actor.
#[derive(Clone, Debug, Serialize)]
pub struct ActorLine {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub groups: usize,
    /// Devices of each.
    pub ranks: usize,
    /// Share of the time in which a group computed.
    pub busy: f64,
    /// The least and the most of a group.
    pub busy_least: f64,
    /// See there.
    pub busy_most: f64,
    /// All of them.
    pub steps: u64,
    /// Sequences in a step, over the time that steps take.
    pub rows: f64,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Sequences that lost their memory to an older one.
    pub preemptions: u64,
    /// Blocks whose memory was wanted for others.
    pub evictions: u64,
}

/// What the cache did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StoreLine {
    /// Blocks that groups asked for.
    pub sought: u64,
    /// Blocks that were brought.
    pub brought: u64,
    /// Blocks that were new.
    pub stored: u64,
    /// Bytes in host memory at the end.
    pub host_bytes: u64,
    /// Bytes in the tier that lasts at the end.
    pub lasting_bytes: u64,
    /// Bytes that were read there.
    pub read_bytes: u64,
    /// Bytes that were written there.
    pub written_bytes: u64,
    /// Blocks that were not written for want of room.
    pub unwritten_blocks: u64,
}

/// Money, in the currency of the price.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Devices of all groups.
    pub devices: usize,
    /// Of one device for an hour.
    pub device_hour: f64,
    /// Of all devices for all of the time.
    pub total: f64,
    /// Of a million tokens of answers, if those pay for all.
    pub million_answer_tokens: f64,
    /// Of a million tokens, whatever they are.
    pub million_tokens: f64,
}

/// What happened in a span of time.
#[derive(Clone, Debug, Serialize)]
pub struct SpanLine {
    /// When it begins.
    pub at: f64,
    /// Requests that came, in a second.
    pub requests: f64,
    /// Tokens of answers, in a second.
    pub answer_tokens: f64,
    /// Tokens of prompts computed, in a second.
    pub prompt_tokens: f64,
    /// Mean time to the first tokens that came; none came: none.
    pub first_token: Option<f64>,
    /// Share of prompt tokens found, of the answers that ended; none ended: none.
    pub hit_share: Option<f64>,
    /// By actor: share of the time in which its groups computed.
    pub busy: BTreeMap<String, f64>,
    /// Tokens in the KV memory of sequences in steps.
    pub held: f64,
}

/// Curves of how times are distributed.
#[derive(Clone, Debug, Serialize)]
pub struct Curves {
    /// Of [`Report::first_token`].
    pub first_token: Vec<(f64, f64)>,
    /// Of [`Report::between_tokens`].
    pub between_tokens: Vec<(f64, f64)>,
}

/// A run that is over.
pub(super) struct Finished<'a, T> {
    pub setting: &'a Setting<'a>,
    pub options: &'a Options,
    pub crowd: Crowd<T>,
    pub meter: &'a Arc<Meter>,
    pub groups: Groups,
    pub gauges: Vec<Arc<GroupGauges>>,
    pub cache: Option<Arc<CacheGauges>>,
    pub failed: Option<String>,
}

impl Report {
    pub(super) fn new<T>(run: Finished<'_, T>) -> Self
    where
        T: Iterator<Item = Result<crate::workload::Talk, crate::workload::TraceError>>,
    {
        let counts = run.meter.counts();
        let (plan, heard) = (run.setting.plan, &run.crowd.heard);
        let lasted = seconds(heard.ended).max(1e-9);
        let tokens = Tokens {
            prompt: heard.prompt,
            found: heard.cached,
            replayed: heard.replayed,
            answer: heard.answer,
        };
        let answered = heard.outcomes.get("finished").copied().unwrap_or(0);
        let totals = totals(&counts.spans, run.groups.count());
        let actors = actors(&run, &totals, heard.ended);
        Self {
            topology: plan.name.clone(),
            model: plan.model.clone(),
            seed: run.options.seed,
            block_size: plan
                .actors
                .iter()
                .find_map(|actor| actor.group())
                .map_or(0, |group| group.block_size),
            assumptions: run.setting.figures.assumptions(),
            requests: run.crowd.came,
            outcomes: heard.outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            seconds: rounded(lasted),
            first_token: Times::of(&heard.first),
            between_tokens: Times::of(&counts.gaps),
            per_token: Times::of(&heard.each),
            whole: Times::of(&heard.whole),
            tokens,
            rates: Rates {
                requests: rounded(answered as f64 / lasted),
                prompt_tokens: rounded(tokens.prompt as f64 / lasted),
                answer_tokens: rounded(tokens.answer as f64 / lasted),
            },
            hit_share: share(tokens.found, tokens.prompt),
            balance: balance(&counts.spans, &run.groups),
            store: run.cache.as_deref().map(StoreLine::of),
            cost: cost(run.setting.figures.price, &actors, (lasted, tokens)),
            wrong: wrong(&run),
            spans: spans(&counts.spans, counts.width, &run.groups, heard.ended),
            curves: Curves { first_token: thinned(&heard.first), between_tokens: thinned(&counts.gaps) },
            actors,
        }
    }

    /// As JSON, for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| unreachable!("numbers and texts: {error}"))
    }
}

impl Times {
    fn of(times: &Histogram) -> Self {
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| rounded(times.quantile(share)));
        Self { count: times.count(), mean: rounded(times.mean()), p50, p90, p99, most: rounded(times.most()) }
    }
}

impl StoreLine {
    fn of(cache: &CacheGauges) -> Self {
        Self {
            sought: cache.sought.get(),
            brought: cache.hits.get(),
            stored: cache.stored.get(),
            host_bytes: cache.host_bytes.get(),
            lasting_bytes: cache.lasting_bytes.get(),
            read_bytes: cache.read_bytes.get(),
            written_bytes: cache.written_bytes.get(),
            unwritten_blocks: cache.unwritten_blocks.get(),
        }
    }
}

/// To the microsecond, or as many digits.
fn rounded(value: f64) -> f64 {
    (value * PLACES).round() / PLACES
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { rounded(part as f64 / all as f64) }
}

/// What each group did in all.
fn totals(spans: &[Span], groups: usize) -> Vec<Done> {
    let mut whole = Span { groups: vec![Done::default(); groups], ..Span::default() };
    spans.iter().for_each(|span| whole.add(span));
    whole.groups
}

fn actors<T>(run: &Finished<'_, T>, totals: &[Done], ended: Time) -> Vec<ActorLine> {
    let mut lines: Vec<ActorLine> = Vec::new();
    let lasted = ended.as_nanos().max(1) as f64;
    for ((name, _), (done, gauges)) in run.groups.of.iter().zip(totals.iter().zip(&run.gauges)) {
        if lines.last().is_none_or(|line| line.name != *name) {
            let ranks =
                run.setting.plan.actor(name).and_then(|actor| actor.group()).map_or(1, |group| group.ranks);
            lines.push(ActorLine::new(name, ranks));
        }
        let Some(line) = lines.last_mut() else { continue };
        line.add(done, lasted);
        line.preemptions += gauges.preemptions.get();
        line.evictions += gauges.evictions.get();
    }
    lines.iter_mut().for_each(ActorLine::round);
    lines
}

impl ActorLine {
    fn new(name: &str, ranks: usize) -> Self {
        Self {
            name: name.to_owned(),
            groups: 0,
            ranks,
            busy: 0.0,
            busy_least: f64::INFINITY,
            busy_most: 0.0,
            steps: 0,
            rows: 0.0,
            prompt_tokens: 0,
            answer_tokens: 0,
            preemptions: 0,
            evictions: 0,
        }
    }

    /// `busy` and `rows` are sums until all groups are in.
    fn add(&mut self, done: &Done, lasted: f64) {
        let busy = done.busy as f64 / lasted;
        self.groups += 1;
        self.rows += done.rows as f64 / lasted;
        self.busy += busy;
        self.busy_least = self.busy_least.min(busy);
        self.busy_most = self.busy_most.max(busy);
        self.steps += done.steps;
        self.prompt_tokens += done.computed;
        self.answer_tokens += done.answered;
    }

    fn round(&mut self) {
        self.rows = if self.busy > 0.0 { rounded(self.rows / self.busy) } else { 0.0 };
        self.busy = rounded(self.busy / self.groups as f64);
        (self.busy_least, self.busy_most) = (rounded(self.busy_least), rounded(self.busy_most));
    }
}

/// Of groups that compute answers, by the tokens that they hold while they compute.
fn balance(spans: &[Span], groups: &Groups) -> Option<f64> {
    let decodes: Vec<usize> = (0..groups.count()).filter(|&group| groups.of[group].1).collect();
    let ratio = |span: &Span| {
        let held = |&group: &usize| span.groups.get(group).map_or(0, |done| done.held);
        let (most, sum) = (decodes.iter().map(held).max()?, decodes.iter().map(held).sum::<u128>());
        (sum > 0).then(|| most as f64 * decodes.len() as f64 / sum as f64)
    };
    let ratios: Vec<f64> = spans.iter().filter_map(ratio).collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    (decodes.len() > 1 && !ratios.is_empty()).then(|| rounded(mean))
}

fn cost(price: Option<f64>, actors: &[ActorLine], (lasted, tokens): (f64, Tokens)) -> Option<Cost> {
    let device_hour = price?;
    let devices = actors.iter().map(|actor| actor.groups * actor.ranks).sum::<usize>();
    let total = devices as f64 * device_hour * lasted / 3600.0;
    let each = |tokens: u64| rounded(total * 1e6 / tokens.max(1) as f64);
    Some(Cost {
        devices,
        device_hour,
        total: rounded(total),
        million_answer_tokens: each(tokens.answer),
        million_tokens: each(tokens.answer + tokens.prompt),
    })
}

fn spans(spans: &[Span], width: u64, groups: &Groups, ended: Time) -> Vec<SpanLine> {
    let line = |(place, span): (usize, &Span)| {
        let begin = place as u64 * width;
        let lasted = width.min(ended.as_nanos().saturating_sub(begin)).max(1) as f64 / 1e9;
        let mut busy: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for (group, (name, _)) in groups.of.iter().enumerate() {
            let done = span.groups.get(group).copied().unwrap_or_default();
            let (sum, count) = busy.entry(name.clone()).or_default();
            (*sum, *count) = (*sum + done.busy as f64 / 1e9 / lasted, *count + 1.0);
        }
        let sum = |of: fn(&Done) -> u64| rounded(span.groups.iter().map(of).sum::<u64>() as f64 / lasted);
        SpanLine {
            at: rounded(begin as f64 / 1e9),
            requests: rounded(span.came as f64 / lasted),
            answer_tokens: sum(|done| done.answered),
            prompt_tokens: sum(|done| done.computed),
            first_token: (span.firsts > 0).then(|| rounded(span.first as f64 / span.firsts as f64 / 1e9)),
            hit_share: (span.prompt > 0).then(|| share(span.cached, span.prompt)),
            busy: busy
                .into_iter()
                .map(|(name, (sum, count))| (name, rounded((sum / count).min(1.0))))
                .collect(),
            held: (span.groups.iter().map(|done| done.held).sum::<u128>() as f64 / lasted / 1e9).round(),
        }
    };
    spans
        .iter()
        .enumerate()
        .filter(|(place, _)| *place as u64 * width <= ended.as_nanos())
        .map(line)
        .collect()
}

/// A curve of so many points that it looks the same.
fn thinned(times: &Histogram) -> Vec<(f64, f64)> {
    let curve = times.curve();
    let every = curve.len().div_ceil(200).max(1);
    let last = curve.len().saturating_sub(1);
    let kept = curve.into_iter().enumerate().filter(|(place, _)| place % every == 0 || *place == last);
    kept.map(|(_, (time, share))| (rounded(time), rounded(share))).collect()
}

/// What must not be after any run.
fn wrong<T>(run: &Finished<'_, T>) -> Vec<String>
where
    T: Iterator<Item = Result<crate::workload::Talk, crate::workload::TraceError>>,
{
    let mut wrong = Vec::new();
    if let Some(failed) = &run.failed {
        wrong.push(format!("a unit spent its restarts, as the budget of the plan says: {failed}"));
    }
    if run.crowd.waiting() > 0 {
        wrong.push(format!("{} requests never ended", run.crowd.waiting()));
    }
    if run.crowd.heard.again > 0 {
        wrong.push(format!("{} requests ended more than once", run.crowd.heard.again));
    }
    for group in run.gauges.iter().filter(|_| run.failed.is_none()) {
        let owned = [&group.blocks_used, &group.slots_used, &group.leases, &group.running, &group.waiting];
        if owned.iter().any(|gauge| gauge.get() > 0) {
            let [blocks, slots, leases, running, waiting] = owned.map(|gauge| gauge.get());
            wrong.push(format!(
                "{} still owns {blocks} blocks, {slots} slots, {leases} leases, {} sequences",
                group.name,
                running + waiting
            ));
        }
    }
    wrong
}

/// A time for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        ..600.0 => format!("{seconds:.2} s"),
        _ => format!("{:.1} min", Duration::from_secs_f64(seconds.min(1e12)).as_secs_f64() / 60.0),
    }
}
