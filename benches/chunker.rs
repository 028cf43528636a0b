//! Prompts cut by time: `cargo bench --bench chunker -- [--budget MS] [--longest TOKENS] [--streams N] [--each] [MODEL]`.
//!
//! First, how long the steps of a growing prompt take, beside the time that they were given, by how much of the prompt lies
//! before them; with `--each`, every step of it. Then the longest wait between two tokens of running answers while a long prompt loads: with the time
//! budget, and beside it with fixed chunks of tokens, in the same run.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream::desk::{Desk, DeskBounds};
use millstream::meters::Meters;
use millstream::source;
use millstream_actors::assemble::{Driver, Resources, assemble};
use millstream_actors::request::{Outcome, Prompt, Reply, Sampling, Submit};
use millstream_runtime::live::{self, LiveOptions, Running};
use millstream_runtime::{Event, Time};

/// Tokens of a fixed chunk, as a file has them that says nothing, and larger ones.
const FIXED: [u32; 2] = [256, 1_024];

struct Options {
    model: String,
    budget: Duration,
    longest: u32,
    loading: u32,
    streams: usize,
    each: bool,
}

impl Options {
    fn read() -> Result<Self> {
        let mut options = Self {
            model: "builtin".to_owned(),
            budget: Duration::from_millis(60),
            longest: 200_000,
            loading: 30_000,
            streams: 4,
            each: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number =
                || words.next().context("a number is missing")?.parse::<u32>().context("no number");
            match word.as_str() {
                "--bench" => {}
                "--budget" => options.budget = Duration::from_millis(number()?.into()),
                "--longest" => options.longest = number()?,
                "--loading" => options.loading = number()?,
                "--each" => options.each = true,
                "--streams" => options.streams = number()? as usize,
                model => options.model = model.to_owned(),
            }
        }
        Ok(options)
    }
}

/// A graph that runs, with its desk.
struct Mill {
    running: Running,
    desk: std::sync::Arc<Desk>,
    group: std::sync::Arc<millstream_actors::gauges::GroupGauges>,
}

impl Mill {
    /// A joined group of these settings.
    async fn start(options: &Options, resources: &Resources, prefill: &str) -> Result<Self> {
        let memory = "memory = \"4GiB\"";
        let text = format!(
            "model = {:?}\n[actors.gateway]\ndeadline = \"2h\"\ntokens_max = 100000\n[actors.prefill]\n{memory}\n{prefill}\n[actors.decode]\n{memory}\njoined = true\n",
            options.model
        );
        let source = source::from_text(&text, "chunker.toml")?;
        let assembly = assemble(&source.plan, resources, Driver::Live)?;
        let group = std::sync::Arc::clone(assembly.gauges.last().context("a group")?);
        let events = LiveOptions { events: true, events_max: 1 << 20, ..LiveOptions::default() };
        let running = live::start(assembly.graph, events).await?;
        let bounds =
            DeskBounds { streams_max: 64, replies_max: 1 << 20, age_max: Duration::from_secs(7_200) };
        let desk = Desk::open(assembly.doors, bounds, Meters::new()?);
        Ok(Self { running, desk, group })
    }

    /// Asks for an answer to a prompt of so many tokens that no other prompt begins like.
    fn ask(&self, number: u32, prompt: u32, tokens: u32) -> Result<millstream::desk::Answer> {
        let id = |at: u32| 260 + (at.wrapping_mul(2_654_435_761).wrapping_add(number * 7_919) >> 8) % 700;
        let prompt = Prompt::Tokens((0..prompt).map(id).collect());
        let ask = Submit::new(prompt, Sampling::GREEDY);
        let ask = Submit { tokens_max: Some(tokens), ignore_end: true, ..ask };
        self.desk.ask(ask).map_err(|closed| anyhow::anyhow!("{closed:?}"))
    }

    async fn stop(self) {
        self.desk.close();
        self.running.stop().await;
    }
}

async fn whole(mut answer: millstream::desk::Answer) -> Result<()> {
    loop {
        match answer.next().await.map_err(|cut| anyhow::anyhow!("{cut}"))? {
            Reply::End { outcome: Outcome::Finished(_), .. } => return Ok(()),
            Reply::End { outcome, .. } => anyhow::bail!("{outcome:?}"),
            _ => {}
        }
    }
}

/// A step: how many tokens of a prompt lie before it, how many it computes, and how long it took.
struct Step {
    before: u64,
    tokens: u64,
    time: Duration,
}

/// The steps of the only prompt there was, from the events of its group.
fn steps(events: Vec<(Time, String, Event)>) -> Vec<Step> {
    let (mut steps, mut before) = (Vec::new(), 0);
    let mut chunk = None;
    for (at, seat, event) in events {
        match event {
            Event::Stage { stage: "chunk", value, .. } if seat == "decode" => chunk = Some((value, at)),
            Event::Received { lane } if seat == "decode" && lane.contains("done") => {
                if let Some((tokens, sent)) = chunk.take() {
                    steps.push(Step { before, tokens, time: at.saturating_since(sent) });
                    before += tokens;
                }
            }
            _ => {}
        }
    }
    steps
}

fn part(sorted: &[f64], hundredths: usize) -> f64 {
    sorted[(sorted.len() - 1) * hundredths / 100]
}

/// Prompts that grow as long as the model's context allows, alone.
async fn growing(options: &Options, resources: &Resources) -> Result<()> {
    let budget = format!("step_time = \"{}ms\"", options.budget.as_millis());
    let mill = Mill::start(options, resources, &budget).await?;
    let context = resources.model.facts().context;
    let longest = options.longest.min(context - 8);
    whole(mill.ask(1, longest, 1)?).await?;
    let error = mill.group.step_error.get() as f64 / 1e4;
    let steps = steps(mill.running.events());
    ensure!(mill.running.events_lost() == 0, "too many events");
    mill.stop().await;
    let ended = steps.len() - 1;
    println!(
        "{}: a prompt of {longest} tokens in {} steps of {:?}; predictions were off by {error:.1} % in the middle",
        options.model,
        steps.len(),
        options.budget
    );
    for Step { before, tokens, time } in steps.iter().filter(|_| options.each) {
        println!("  {before:>7}  {tokens:>6}  {:>8.2} ms", time.as_secs_f64() * 1e3);
    }
    println!("  before the step      steps  tokens   time/budget p10   p50   p90   within 15 %");
    let mut bounds = vec![0, 1_000, 4_000, 16_000, 64_000];
    bounds.retain(|&bound| bound < u64::from(longest));
    bounds.push(u64::from(longest));
    let ratio = |step: &Step| step.time.as_secs_f64() / options.budget.as_secs_f64();
    for range in bounds.windows(2) {
        report(range, &steps[..ended], ratio);
    }
    report(&[1_000, u64::from(longest)], &steps[..ended], ratio);
    noise(&steps[..ended]);
    Ok(())
}

/// How far apart two steps are, one behind the other, that compute as many tokens: the machine, which nothing predicts.
fn noise(steps: &[Step]) {
    let alike = steps.windows(2).filter(|pair| pair[0].before > 1_000 && pair[0].tokens == pair[1].tokens);
    let apart = alike.map(|pair| (pair[1].time.as_secs_f64() / pair[0].time.as_secs_f64() - 1.0).abs());
    let mut apart: Vec<f64> = apart.collect();
    apart.sort_by(f64::total_cmp);
    if !apart.is_empty() {
        println!(
            "  steps of as many tokens, one behind the other, are apart by: p50 {:.1} %, p90 {:.1} % ({} pairs)",
            100.0 * part(&apart, 50),
            100.0 * part(&apart, 90),
            apart.len()
        );
    }
}

fn report(range: &[u64], steps: &[Step], ratio: impl Fn(&Step) -> f64) {
    let inside: Vec<&Step> =
        steps.iter().filter(|step| (range[0]..range[1]).contains(&step.before)).collect();
    if inside.is_empty() {
        return;
    }
    let mut ratios: Vec<f64> = inside.iter().map(|step| ratio(step)).collect();
    ratios.sort_by(f64::total_cmp);
    let within = ratios.iter().filter(|ratio| (0.85..=1.15).contains(*ratio)).count();
    let tokens = inside.iter().map(|step| step.tokens).sum::<u64>() / inside.len() as u64;
    println!(
        "  {:>7} to {:>7}  {:>6}  {tokens:>6}            {:>5.2} {:>5.2} {:>5.2}        {:>5.1} %",
        range[0],
        range[1],
        inside.len(),
        part(&ratios, 10),
        part(&ratios, 50),
        part(&ratios, 90),
        100.0 * within as f64 / ratios.len() as f64
    );
}

/// The waits between two tokens of an answer while `loading` is on its way, and before.
async fn gaps(
    mut answer: millstream::desk::Answer,
    began: tokio::sync::watch::Receiver<Option<bool>>,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut last: Option<(Instant, bool)> = None;
    while let Ok(reply) = answer.next().await {
        let loading = *began.borrow();
        match (reply, loading) {
            (Reply::Text { .. }, Some(loading)) => {
                let now = Instant::now();
                if let Some((then, was)) = last {
                    // A gap counts as beside the prompt when any of it was.
                    if loading || was { &mut beside } else { &mut alone }.push(now - then);
                }
                last = Some((now, loading));
            }
            (_, None) | (Reply::End { .. }, _) => break,
            _ => {}
        }
    }
    Ok((alone, beside))
}

/// Answers that run while a long prompt loads.
async fn beside(options: &Options, resources: &Resources, prefill: &str) -> Result<()> {
    let mill = Mill::start(options, resources, prefill).await?;
    let context = resources.model.facts().context;
    let loading = options.loading.min(context - 8);
    let (tell, told) = tokio::sync::watch::channel(Some(false));
    let answers: Vec<_> = (0..options.streams as u32)
        .map(|number| {
            Ok(tokio::spawn(gaps(mill.ask(100 + number, 64, context.min(60_000) - 80)?, told.clone())))
        })
        .collect::<Result<_>>()?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    tell.send(Some(true))?;
    let start = Instant::now();
    whole(mill.ask(1, loading, 1)?).await?;
    let took = start.elapsed();
    tell.send(None)?;
    let (mut alone, mut while_loading) = (Vec::new(), Vec::new());
    for answer in answers {
        let (before, during) = answer.await??;
        alone.extend(before);
        while_loading.extend(during);
    }
    mill.stop().await;
    let sorted = |mut gaps: Vec<Duration>| {
        gaps.sort();
        gaps.iter().map(|gap| gap.as_secs_f64() * 1e3).collect::<Vec<f64>>()
    };
    let (alone, gaps) = (sorted(alone), sorted(while_loading));
    ensure!(!alone.is_empty() && !gaps.is_empty(), "answers ended before the prompt");
    println!(
        "  {prefill:<22} {loading} tokens loaded in {:>6.1} s; between two tokens of {} answers: p50 {:>6.1} ms, p99 {:>6.1}, worst {:>6.1}; before it p50 {:.1}, worst {:.1}",
        took.as_secs_f64(),
        options.streams,
        part(&gaps, 50),
        part(&gaps, 99),
        gaps[gaps.len() - 1],
        part(&alone, 50),
        alone[alone.len() - 1]
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::read()?;
    let source = source::laptop(&options.model)?;
    let resources = source.load()?;
    if options.longest > 0 {
        growing(&options, &resources).await?;
    }
    if options.loading > 0 {
        println!("{}: answers while a prompt loads", options.model);
        beside(&options, &resources, &format!("step_time = \"{}ms\"", options.budget.as_millis())).await?;
        for chunk in FIXED {
            beside(&options, &resources, &format!("chunk_tokens = {chunk}")).await?;
        }
    }
    Ok(())
}
