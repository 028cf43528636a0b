//! Everything at once that can befall a graph with a prefix store, by seed: deaths of every seat, the cache's and its
//! disks' too, clients that leave, messages that are late or lost, disks that stand still, a byte store that fails, lies,
//! returns other bytes or dies, and then a second process on what the first one has left. Nobody is answered wrongly, all
//! that was held comes back, and where no message is lost no request is.
//!
//! `MILLSTREAM_SEEDS=1000` runs so many seeds, `MILLSTREAM_SEED=7` one.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use common::stateful::text;
use common::{Answer, LONG, World, alone, plan_with, resources, submit};
use millstream_actors::assemble::{LastingStore, Resources};
use millstream_actors::request::{Outcome, RequestId, Submit};
use millstream_actors::store::Stamp;
use millstream_runtime::blob::{BlobErrorKind, Fault, Faulty, Memory};
use millstream_runtime::{Faults, Time};
use millstream_topology::Plan;

const LLAMA: &str = "tiny-llama";
const V41: &str = "tiny-deepseek-v41/ckpt-w16";
/// In one life of a process.
const REQUESTS: u64 = 14;
/// All trouble comes within this time.
const TROUBLE_MS: u64 = 400;
/// Longer than a cache holds for somebody who never comes.
const SETTLED: Duration = Duration::from_secs(90);

/// A generator with known constants, so that a seed is the same test everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.below(TROUBLE_MS * 1_000))
    }
}

/// Prompts with two beginnings, long ones, and one that comes twice.
fn requests() -> Vec<Submit> {
    let beginnings = [text(200, 1), text(240, 3)];
    let prompt = |id: u64| {
        let beginning = &beginnings[usize::from(id.is_multiple_of(3))];
        [&beginning[..], &text(5 + 20 * (id as usize % 3), (id % REQUESTS) as u32 + 4)].concat()
    };
    (1..=2 * REQUESTS).map(|id| submit(id, &prompt(id), 6)).collect()
}

/// A model, and what its requests are answered when they are alone.
struct Case {
    resources: Resources,
    expected: BTreeMap<RequestId, Answer>,
    memory: [&'static str; 2],
}

impl Case {
    fn new(model: &str, memory: [&'static str; 2]) -> Self {
        let resources = resources(model);
        let expected = alone(&resources, &requests());
        Self { resources, expected, memory }
    }

    fn plan(&self, random: &mut Random) -> (Plan, Vec<&'static str>) {
        let memory = random.one(&self.memory);
        let chunk = random.one(&[16, 64]);
        let (groups, joined) = random.one(&[(1, true), (1, false), (2, false)]);
        let ahead = random.one(&[false, true]);
        let (prefill, decode) = (
            format!("chunk_tokens = {chunk}\ngroups = {groups}\nmemory = \"{memory}\"\nplan_ahead = {ahead}"),
            format!("joined = {joined}\nmemory = \"{memory}\"\nplan_ahead = {ahead}"),
        );
        let host = random.one(&["100KiB", "4MiB"]);
        let disk = random.one(&["1MiB", "64MiB"]);
        let cache = format!("tiers = [{{ host = \"{host}\" }}, {{ disk = \"kv\", size = \"{disk}\" }}]");
        let mut seats = vec!["cache", "cache", "cache.disk", "cache.disk.2", "decode", "decode.rank"];
        seats.extend(["router", "tokenizer", "detokenizer"]);
        match (joined, groups) {
            (true, _) => {}
            (_, 1) => seats.extend(["prefill", "prefill.rank"]),
            _ => seats.extend(["prefill.0", "prefill.1"]),
        }
        (plan_with(["[limits]\nrestarts = 1000", &cache], &prefill, &decode), seats)
    }
}

/// Messages between the seats of a group, and of a cache, stay in one process: they may be late, never lost.
fn faults(seed: u64, lossless: bool) -> Faults {
    let mut faults = Faults::from_seed(seed);
    let groups = ["prefill", "prefill.0", "prefill.1", "decode"].iter();
    faults.lossless = groups.flat_map(|group| [format!("{group}.steps"), format!("{group}.done")]).collect();
    faults.lossless.push(if lossless { "*" } else { "cache.disk*" }.to_owned());
    faults.spare = vec!["gateway".to_owned()];
    faults
}

/// What a byte store does: a few calls, anywhere, go wrong.
fn harm(blob: &Faulty<Memory>, random: &mut Random) {
    let kinds = [BlobErrorKind::Missing, BlobErrorKind::Full, BlobErrorKind::Denied, BlobErrorKind::Broken];
    for _ in 0..random.below(12) {
        let fault = match random.below(9) {
            0 => Fault::Fail(random.one(&kinds)),
            1 => Fault::Unheard,
            2 => Fault::Lie(random.below(4_000) as i64 - 2_000),
            3 => Fault::Crash { done: random.below(2) == 0 },
            4 => Fault::Cut(random.below(5_000)),
            _ => Fault::Flip(random.below(400_000)),
        };
        blob.at(random.below(60), fault);
    }
}

/// What became of the requests of a life.
#[derive(Default)]
struct Seen {
    finished: usize,
    cached: u64,
    damaged: u64,
    errors: u64,
}

/// One life of a process, on what the one before it has left. Returns what was seen.
fn live(case: &Case, (seed, life): (u64, u64), blob: &Arc<Faulty<Memory>>, lossless: bool) -> Seen {
    let mut random = Random(seed * 2 + life);
    let (plan, seats) = case.plan(&mut random);
    let writer = Arc::new(AtomicU64::new(life << 32));
    let store = LastingStore {
        blob: Arc::clone(blob) as _,
        model: [7; 32],
        writer,
        began: Stamp(1_000 + life as u32 * 200),
    };
    let resources = Resources { store: Some(store), ..case.resources.clone() };
    let mut world = World::new(&plan, &resources, seed, faults(seed * 2 + life, lossless));
    harm(blob, &mut random);
    let (mut all, mut left) = (Vec::new(), BTreeSet::new());
    for request in requests().into_iter().skip((life * REQUESTS) as usize).take(REQUESTS as usize) {
        let id = request.request;
        let at = random.moment();
        world.submit_at(at, request);
        if random.below(6) == 0 {
            world.abandon_at(at + random.moment() / 4, id);
            left.insert(id);
        }
        all.push(id);
    }
    for _ in 0..random.below(8) {
        let (at, seat) = (random.moment(), random.one(&seats));
        world.sim.at(Time::ZERO + at, move |sim| _ = sim.kill(seat));
    }
    for _ in 0..random.below(4) {
        let (at, disk) = (random.moment(), random.below(4));
        let time = Duration::from_millis(1 << random.below(13));
        world.sim.at(Time::ZERO + at, move |sim| _ = sim.pause(&format!("cache.disk.{disk}"), time));
    }
    for _ in 0..2 {
        let (at, blob) = (random.moment(), Arc::clone(blob));
        world.sim.at(Time::ZERO + at, move |_| blob.revive());
    }
    world.run_for(Duration::from_secs(610), &all);
    world.run_for(SETTLED, &[]);
    let what = format!("seed {seed}, life {life}");
    let finished = judge(case, &world, &what);
    if lossless {
        let lost = |id: &&RequestId| !matches!(world.answers[id].outcome, Some(Outcome::Finished(_)));
        let lost: Vec<_> = all.iter().filter(|id| !left.contains(id)).filter(lost).collect();
        assert!(lost.is_empty(), "{what}: {lost:?} were lost");
    }
    blob.revive();
    let cache = world.assembly.cache.as_ref().expect("there is one");
    Seen {
        finished,
        cached: world.cached.values().map(|&tokens| u64::from(tokens)).sum(),
        damaged: cache.damaged_blocks.get(),
        errors: cache.errors.get(),
    }
}

/// No answer is wrong, and nothing is held. Returns how many are whole.
fn judge(case: &Case, world: &World, what: &str) -> usize {
    assert!(world.sim.failed().is_none(), "{what}: {:?}", world.sim.failed());
    world.assert_quiet(what);
    for seat in world.sim.seats() {
        let causes = ["killed", "a fault of the simulator"];
        assert!(seat.last_cause.as_deref().is_none_or(|cause| causes.contains(&cause)), "{what}: {seat:?}");
    }
    let cache = world.assembly.cache.as_ref().expect("there is one");
    assert_eq!(cache.flights.get(), 0, "{what}: blocks are held for somebody who is gone");
    assert_eq!(cache.unwritten_bytes.get(), 0, "{what}: blocks that are never written");
    let mut finished = 0;
    for (id, answer) in &world.answers {
        let wanted = &case.expected[id];
        if matches!(answer.outcome, Some(Outcome::Finished(_))) {
            assert_eq!(answer, wanted, "{what}, {id:?}");
            finished += 1;
        } else {
            assert!(wanted.tokens.starts_with(&answer.tokens), "{what}, {id:?}: wrong tokens before the end");
            assert!(wanted.text.starts_with(&answer.text), "{what}, {id:?}: wrong text before the end");
        }
    }
    finished
}

fn number(variable: &str) -> Option<u64> {
    let said = std::env::var(variable).ok()?;
    Some(said.parse().unwrap_or_else(|_| panic!("{variable} is \"{said}\", which is no number")))
}

#[test]
fn whatever_befalls_the_store_costs_time_and_nothing_else() {
    let cases = [Case::new(LLAMA, ["256KiB", "2MiB"]), Case::new(V41, ["32MiB", "8MiB"])];
    let new = u64::from(std::process::id()) * 1_000_003;
    let seeds: Vec<u64> = match number("MILLSTREAM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MILLSTREAM_SEEDS").unwrap_or(30)).chain([new]).collect(),
    };
    println!("the new seed is {new}");
    let mut all = Seen::default();
    for &seed in &seeds {
        println!("seed {seed}");
        let blob = Arc::new(Faulty::new(Memory::new()));
        for life in 0..2 {
            let seen = live(&cases[usize::from(seed % 4 == 3)], (seed, life), &blob, seed % 2 == 0);
            all.finished += seen.finished;
            all.cached += seen.cached;
            all.damaged += seen.damaged;
            all.errors += seen.errors;
        }
    }
    let Seen { finished, cached, damaged, errors } = all;
    println!(
        "{} seeds: {finished} answers, {cached} tokens found, {damaged} damaged blocks, {errors} calls failed",
        seeds.len()
    );
    assert!(finished as u64 * 3 > seeds.len() as u64 * 2 * REQUESTS, "{finished} finished");
}

/// Four disks that do not answer for a long time: a few requests find out, one for each, and those after them do not wait.
#[test]
fn a_store_that_stands_still_is_soon_not_waited_for() {
    let resources = resources(LLAMA);
    let memory = "memory = \"2MiB\"";
    let plan = plan_with(
        ["[limits]\nrestarts = 1000", "tiers = [{ host = \"4MiB\" }, { disk = \"kv\" }]"],
        memory,
        &format!("joined = true\n{memory}"),
    );
    let store = LastingStore {
        blob: Arc::new(Memory::new()),
        model: [7; 32],
        writer: Arc::new(AtomicU64::new(1)),
        began: Stamp(1_000),
    };
    let resources = Resources { store: Some(store), ..resources };
    let mut world = World::new(&plan, &resources, 1, Faults::none());
    let mut ask = |n: u64| {
        let begun = world.sim.now();
        let request = submit(n, &text(200, n as u32 % 5 + 10), 6);
        let id = request.request;
        world.submit_at(begun.saturating_since(Time::ZERO), request);
        world.run_for(Duration::from_secs(20), &[id]);
        let took = world.sim.now().saturating_since(begun);
        if n == 5 {
            world.run_for(Duration::from_secs(4), &[]);
            assert!(world.sim.kill("decode") && world.sim.kill("cache"));
            world.run_for(Duration::from_secs(4), &[]);
            (0..4).for_each(|disk| assert!(world.sim.pause(&format!("cache.disk.{disk}"), LONG)));
        }
        took
    };
    let took: Vec<Duration> = (1..=10).map(&mut ask).collect();
    println!("{took:?}");
    assert!(took[5] >= Duration::from_secs(2), "it was waited for");
    assert!(took[8..].iter().all(|took| *took < Duration::from_secs(1)), "it was waited for again");
}
