//! How much a plan can do: what is simulated is the same whenever it is, and however its steps are put together; and at the
//! end nobody waits and nothing is owned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream::capacity::figures::Figures;
use millstream::capacity::{Options, Report, Setting, html, run, table};
use millstream::source::{self, Source};
use millstream::workload::Talk;
use millstream::workload::synthetic::{Arrivals, Synthetic};
use millstream_actors::cost::Coefficients;
use millstream_actors::rank::predicted::{Predict, RowCost};
use millstream_kernels::work::Work;

/// A small accelerator: a step takes 4 ms, a token 50 µs, a position before it 20 ns.
struct Small;

impl Predict for Small {
    fn step(&self, rows: &[RowCost]) -> Duration {
        let nanos = |row: &RowCost| u64::from(row.tokens) * 50_000 + u64::from(row.start) * 20;
        Duration::from_nanos(4_000_000 + rows.iter().map(nanos).sum::<u64>())
    }
}

const JOINED: &str = "[actors.gateway]\nrequests_max = 1000\n[actors.prefill]\n[actors.decode]\njoined = true\n\
                      sequences_max = 4\nmemory = \"40MiB\"\n";
const SPLIT: &str = "[actors.gateway]\nrequests_max = 1000\n[actors.prefill]\ngroups = 2\nmemory = \"60MiB\"\n\
                     [actors.decode]\ngroups = 2\nsequences_max = 6\nmemory = \"40MiB\"\n";
const JOINED_TWICE: &str = "[actors.gateway]\nrequests_max = 1000\n[actors.prefill]\n[actors.decode]\njoined = true\n\
                      groups = 2\nsequences_max = 3\nmemory = \"30MiB\"\n";
const STORED: &str = "[cache]\ntiers = [{ host = \"6MiB\" }, { disk = \"unused\", size = \"1GiB\" }]\n";

fn plan(actors: &str, more: &str) -> Source {
    source::from_text(&format!("model = \"builtin\"\n{more}\n{actors}"), "t.toml").expect("it is sound")
}

/// The same with steps that are planned ahead.
fn ahead(actors: &str) -> String {
    ["prefill", "decode"].iter().fold(actors.to_owned(), |text, name| {
        text.replace(&format!("[actors.{name}]\n"), &format!("[actors.{name}]\nplan_ahead = true\n"))
    })
}

fn talks(seed: u64) -> Synthetic {
    Synthetic {
        seed,
        arrivals: Arrivals::Bursts(Duration::from_secs(5)),
        rate: 3.0,
        lasts: Duration::from_secs(20),
        input: 700,
        output: 60,
        spread: 0.8,
        shared: 64,
        rounds: 3.0,
        think: Duration::from_millis(400),
        growth: 40,
        block_size: 16,
    }
}

fn simulate(source: &Source, seed: u64, options: Options) -> Report {
    let actors = source.plan.actors.iter().filter(|actor| actor.group().is_some());
    let predict: BTreeMap<String, Arc<dyn Predict>> =
        actors.map(|actor| (actor.name.to_string(), Arc::new(Small) as Arc<dyn Predict>)).collect();
    simulate_with(source, predict, seed, options)
}

fn simulate_with(
    source: &Source,
    predict: BTreeMap<String, Arc<dyn Predict>>,
    seed: u64,
    options: Options,
) -> Report {
    let resources = source.outline().expect("the built-in model");
    let figures = Figures { price: Some(2.0), ..Figures::default() };
    let setting = Setting { plan: &source.plan, resources: &resources, predict, figures: &figures };
    run(&setting, talks(seed).talks().map(Ok), &Options { seed, ..options }).expect("it runs")
}

fn all_talks(seed: u64) -> u64 {
    talks(seed).talks().map(|talk: Talk| talk.rounds.len() as u64).sum()
}

#[test]
fn a_seed_gives_the_same_report_to_the_byte() {
    let source = plan(JOINED, STORED);
    let faulty = Options { faults: true, ..Options::default() };
    for options in [Options::default(), faulty] {
        let reports = [(), ()].map(|()| simulate(&source, 5, options.clone()));
        assert_eq!(reports[0].json(), reports[1].json());
        assert_eq!(html::html(&reports[0]), html::html(&reports[1]));
    }
    assert_ne!(
        simulate(&source, 5, Options::default()).json(),
        simulate(&source, 6, Options::default()).json()
    );
}

/// Two lines of reports say the same, but for ten microseconds or a step in two hundred: of what happens at one moment,
/// such as two blocks that are read with one step or with two, the order is drawn.
fn alike((a, b): (&str, &str)) -> bool {
    let parts = |line: &str| {
        let (name, value) = line.rsplit_once(": ").unwrap_or(("", line));
        (name.to_owned(), value.trim_end_matches(',').trim().parse::<f64>())
    };
    match (parts(a), parts(b)) {
        ((name, Ok(a)), (same, Ok(b))) => name == same && (a - b).abs() <= (a.abs() / 200.0).max(1e-5),
        _ => a == b,
    }
}

#[test]
fn steps_that_are_run_as_one_are_steps_that_are_run_alone() {
    for (name, source) in [
        ("joined", plan(JOINED, "")),
        ("two groups", plan(JOINED_TWICE, "")),
        ("split", plan(SPLIT, "")),
        ("stored", plan(JOINED, STORED)),
        ("ahead", plan(&ahead(JOINED), STORED)),
        ("split and ahead", plan(&ahead(SPLIT), "")),
    ] {
        for seed in 0..6 {
            let leaps = simulate(&source, seed, Options::default());
            let single = simulate(&source, seed, Options { leaps: false, ..Options::default() });
            let (leaps, single) = (leaps.json(), single.json());
            let differ = leaps.lines().zip(single.lines()).find(|lines| !alike(*lines));
            assert_eq!(differ, None, "{name}, seed {seed}");
            assert_eq!(leaps.lines().count(), single.lines().count(), "{name}, seed {seed}");
        }
    }
}

/// One that says how fast it is: a token takes so long, whatever the step holds.
struct Steady(f64);

impl Predict for Steady {
    fn step(&self, rows: &[RowCost]) -> Duration {
        self.coefficients()
            .time(&Work { tokens: rows.iter().map(|row| f64::from(row.tokens)).sum(), ..Work::default() })
    }

    fn coefficients(&self) -> Coefficients {
        Coefficients {
            step: 0.001,
            row: 0.0,
            token: self.0,
            gemm_few: 0.0,
            gemm: 0.0,
            pairs: 0.0,
            scores: 0.0,
            head: 0.0,
            weights: 0.0,
            kv: 0.0,
            longest: 0.0,
        }
    }
}

#[test]
fn the_faster_of_two_groups_is_sent_more() {
    let quick = "[actors.gateway]\nrequests_max = 1000\n[actors.prefill]\nmemory = \"60MiB\"\n[actors.slow]\n\
                 role = \"prefill\"\nmemory = \"60MiB\"\n[actors.decode]\nmemory = \"60MiB\"\n";
    let source = plan(quick, STORED);
    let speeds = [("prefill", 0.0001), ("slow", 0.0004), ("decode", 0.0001)];
    let predict = speeds.map(|(name, token)| (name.to_owned(), Arc::new(Steady(token)) as Arc<dyn Predict>));
    let report = simulate_with(&source, predict.into(), 1, Options::default());
    let tokens = |name: &str| {
        report.actors.iter().find(|actor| actor.name == name).map_or(0, |actor| actor.prompt_tokens)
    };
    let (quick, slow) = (tokens("prefill"), tokens("slow"));
    assert!(slow > 0 && quick > 2 * slow, "{quick} and {slow} tokens");
}

#[test]
fn everybody_is_answered_and_nothing_is_owned() {
    for (name, actors) in [("joined", JOINED), ("two groups", JOINED_TWICE), ("split", SPLIT)] {
        let source = plan(actors, STORED);
        for seed in 10..14 {
            for faults in [false, true] {
                let report = simulate(&source, seed, Options { faults, ..Options::default() });
                let place = format!("{name}, seed {seed}, faults {faults}");
                let spent = report.wrong.iter().any(|wrong| wrong.contains("spent its restarts"));
                assert!(spent || report.wrong.is_empty(), "{place}: {:?}", report.wrong);
                let ended: u64 = report.outcomes.values().sum();
                assert!(spent || ended == report.requests, "{place}: {:?}", report.outcomes);
                assert!(faults || report.requests == all_talks(seed), "{place}: nobody is left out");
                let answers: u64 = report.actors.iter().map(|actor| actor.answer_tokens).sum();
                assert!(
                    faults || answers >= report.tokens.answer,
                    "{place}: tokens are made before they are counted"
                );
            }
        }
    }
}

#[test]
fn a_report_says_what_was_asked() {
    let report = simulate(&plan(JOINED, STORED), 3, Options { requests: 20, ..Options::default() });
    assert_eq!((report.requests, report.outcomes["finished"]), (20, 20));
    assert!(report.hit_share > 0.05, "prompts of a talk begin alike: {}", report.hit_share);
    assert!(
        report.first_token.mean > 0.004 && report.between_tokens.p50 >= 0.004,
        "{:?}",
        report.first_token
    );
    let cost = report.cost.expect("there is a price");
    assert_eq!(cost.devices, 1);
    let text = table::text(&report);
    for part in ["20 requests in ", "time to first token", "decode ", "store: ", "1 device at 2 an hour"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let page = html::html(&report);
    assert!(
        page.starts_with("<!doctype html>")
            && page.matches("<svg").count() == 6
            && !page.contains("src=")
            && !page.contains("href=")
    );
}
