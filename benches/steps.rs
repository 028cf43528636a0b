//! What lies between steps: `cargo bench --bench steps -- [--streams N] [--tokens TOKENS] [--rounds N] [MODEL]`.
//!
//! So many streams at once in a joined group: how long its rank waits between the end of a step and the beginning of the
//! next one, as a share of what a step takes, and the tokens a second of all streams together. One more client comes while
//! they run: how long it waits for its first token, beside what a step takes. With one step in flight, and with the next one
//! planned while one runs, by turns.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use millstream::desk::{Answer, Desk, DeskBounds};
use millstream::meters::Meters;
use millstream::source;
use millstream_actors::assemble::{Driver, Resources, assemble};
use millstream_actors::gauges::{GroupGauges, Times};
use millstream_actors::request::{Outcome, Prompt, Reply, Sampling, Submit};
use millstream_runtime::live::{self, LiveOptions, Running};

/// Tokens of a prompt.
const PROMPT: u32 = 32;
/// Clients that come while the streams run, one after the other.
const LATE: u32 = 4;

struct Options {
    model: String,
    streams: u32,
    tokens: u32,
    rounds: u32,
}

impl Options {
    fn read() -> Result<Self> {
        let mut options = Self { model: "builtin".to_owned(), streams: 16, tokens: 256, rounds: 3 };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number =
                || words.next().context("a number is missing")?.parse::<u32>().context("no number");
            match word.as_str() {
                "--bench" => {}
                "--streams" => options.streams = number()?,
                "--tokens" => options.tokens = number()?,
                "--rounds" => options.rounds = number()?,
                model => options.model = model.to_owned(),
            }
        }
        Ok(options)
    }
}

/// A joined group that runs, with its desk.
struct Mill {
    running: Running,
    desk: Arc<Desk>,
    group: Arc<GroupGauges>,
}

impl Mill {
    async fn start(options: &Options, resources: &Resources, lines: &str) -> Result<Self> {
        let group = format!("memory = \"1GiB\"\n{lines}");
        let text = format!(
            "model = {:?}\n[actors.gateway]\n[actors.prefill]\n{group}\n[actors.decode]\n{group}\njoined = true\n",
            options.model
        );
        let source = source::from_text(&text, "steps.toml")?;
        let assembly = assemble(&source.plan, resources, Driver::Live)?;
        let group = Arc::clone(assembly.gauges.last().context("a group")?);
        let running = live::start(assembly.graph, LiveOptions::default()).await?;
        let bounds = DeskBounds { streams_max: 64, replies_max: 1 << 16, age_max: Duration::from_secs(600) };
        let desk = Desk::open(assembly.doors, bounds, Meters::new()?);
        Ok(Self { running, desk, group })
    }

    /// Asks for an answer to a prompt that no other prompt begins like.
    fn ask(&self, number: u32, tokens: u32) -> Result<Answer> {
        let id = |at: u32| 260 + (at.wrapping_mul(2_654_435_761).wrapping_add(number * 7_919) >> 8) % 700;
        let ask = Submit::new(Prompt::Tokens((0..PROMPT).map(id).collect()), Sampling::GREEDY);
        let ask = Submit { tokens_max: Some(tokens), ignore_end: true, ..ask };
        self.desk.ask(ask).map_err(|closed| anyhow::anyhow!("{closed:?}"))
    }

    /// Steps so far, seconds of all of them, gaps, and seconds of all of those.
    fn times(&self) -> [f64; 4] {
        let get = |times: &Times| {
            let (_, count, seconds) = times.get();
            [count as f64, seconds]
        };
        let ([steps, step], [gaps, gap]) = (get(&self.group.step_times), get(&self.group.step_gaps));
        [steps, step, gaps, gap]
    }
}

/// How long an answer took to its first token.
async fn whole(mut answer: Answer) -> Result<Duration> {
    let (start, mut first) = (Instant::now(), None);
    loop {
        match answer.next().await.map_err(|cut| anyhow::anyhow!("{cut}"))? {
            Reply::End { outcome: Outcome::Finished(_), .. } => return first.context("a token"),
            Reply::End { outcome, .. } => anyhow::bail!("{outcome:?}"),
            _ => _ = first.get_or_insert(start.elapsed()),
        }
    }
}

/// One round: all streams, and those who come late.
async fn round(options: &Options, mill: &Mill, number: u32) -> Result<[f64; 4]> {
    let (before, start) = (mill.times(), Instant::now());
    let names = (0..options.streams).map(|stream| 1 + number * 1_000 + stream);
    let answers: Vec<_> =
        names.map(|name| Ok(tokio::spawn(whole(mill.ask(name, options.tokens)?)))).collect::<Result<_>>()?;
    let mut late = Duration::ZERO;
    for client in 0..LATE {
        tokio::time::sleep(Duration::from_millis(37)).await;
        late += whole(mill.ask(900 + number * 1_000 + client, 1)?).await?;
    }
    for answer in answers {
        answer.await??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = mill.times();
    let [steps, step, gaps, gap]: [f64; 4] = std::array::from_fn(|n| after[n] - before[n]);
    let tokens = f64::from(options.streams * options.tokens + LATE);
    Ok([step / steps, gap / gaps.max(1.0), tokens / seconds, late.as_secs_f64() / f64::from(LATE)])
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::read()?;
    let resources = source::laptop(&options.model)?.load()?;
    println!("{}: {} streams of {} tokens", options.model, options.streams, options.tokens);
    println!("  loop                    step     gap   gap/step   tokens/s   first token of who comes late");
    for number in 0..options.rounds {
        for (name, lines) in [("synchronous", ""), ("planned ahead", "plan_ahead = true")] {
            let mill = Mill::start(&options, &resources, lines).await?;
            whole(mill.ask(999_999, 8)?).await?;
            let [step, gap, rate, late] = round(&options, &mill, number).await?;
            println!(
                "  {name:<16} {:>8.3} ms {:>5.0} us {:>8.2} % {rate:>10.0} {:>9.1} ms, {:.1} steps",
                step * 1e3,
                gap * 1e6,
                gap / step * 100.0,
                late * 1e3,
                late / step
            );
            mill.desk.close();
            mill.running.stop().await;
        }
    }
    Ok(())
}
