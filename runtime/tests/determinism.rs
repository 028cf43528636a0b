//! One seed, one log; and whatever the faults of a seed, nothing is made or lost unseen and the work gets done.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_runtime::{
    Actor, Budget, Ctx, Event, Faults, Graph, GraphBuilder, HoldOut, OfferOut, Outcome, ReplyOut, Sim,
    SimOptions, Time,
};

mod common;
mod pair;
use common::assert_conserved;
use pair::Pair;

/// Has every job done at least once, whatever gets lost.
struct Owner {
    open: BTreeSet<u32>,
    jobs: OfferOut<u32>,
    out: HoldOut<u32>,
}

impl Actor for Owner {
    type Message = u32;
    fn handle(&mut self, job: u32, _ctx: &mut Ctx<'_>) {
        if self.open.remove(&job) {
            self.out.send(job);
        }
    }
    fn settle(&mut self, ctx: &mut Ctx<'_>) {
        for job in &self.open {
            if self.jobs.offer(*job).is_err() {
                break;
            }
        }
        if !self.open.is_empty() {
            ctx.wake_at(ctx.now() + Duration::from_millis(50));
        }
    }
}

struct Doer(ReplyOut<u32>);

impl Actor for Doer {
    type Message = u32;
    fn handle(&mut self, job: u32, ctx: &mut Ctx<'_>) {
        ctx.spend(Duration::from_micros(300));
        self.0.reply(job);
        ctx.event(Event::Stage { request: u64::from(job), stage: "done", value: 1 });
    }
}

const JOBS: u32 = 40;

fn jobs(done: &Arc<Mutex<Vec<u32>>>) -> (Graph, millstream_runtime::Outlet<u32>) {
    let mut g = GraphBuilder::new();
    let owner = g.seat::<u32>("owner", "owner");
    let doer = g.compute_seat::<u32>("doer", "doer", vec![]);
    let work = g.offer("work", &owner, &doer, 4, |job: u32| job);
    let reply = g.reply("reply", &doer, &owner, 4096, |job: u32| job);
    let (out, outlet) = g.outlet("done", &owner, 8);
    let done = Arc::clone(done);
    g.actor(owner, move || Owner {
        // What the shell has seen is not done again after a restart.
        open: (0..JOBS).filter(|job| !done.lock().expect("not poisoned").contains(job)).collect(),
        jobs: work.clone(),
        out: out.clone(),
    });
    g.actor(doer, move || Doer(reply.clone()));
    g.budget("owner", Budget { restarts: 100, within: Duration::from_secs(1) });
    g.budget("doer", Budget { restarts: 100, within: Duration::from_secs(1) });
    (g.finish().expect("the graph is sound"), outlet)
}

fn run_jobs(seed: u64) -> (u64, Vec<(Time, Arc<str>, Event)>) {
    let done = Arc::default();
    let (graph, outlet) = jobs(&done);
    let options = SimOptions { seed, faults: Faults::from_seed(seed), ..SimOptions::default() };
    let mut sim = Sim::new(graph, options);
    let limit = Time::ZERO + Duration::from_secs(600);
    while sim.now() < limit {
        let outcome = sim.run_until_idle(sim.now() + Duration::from_millis(100));
        let before = done.lock().expect("not poisoned").len();
        done.lock().expect("not poisoned").extend(std::iter::from_fn(|| outlet.try_recv()));
        assert_conserved(&sim.lanes());
        if outcome == Outcome::Idle && done.lock().expect("not poisoned").len() == before {
            break;
        }
    }
    let mut done = done.lock().expect("not poisoned").clone();
    done.sort_unstable();
    done.dedup();
    assert_eq!(done, (0..JOBS).collect::<Vec<_>>(), "seed {seed}, {:?}", Faults::from_seed(seed));
    (sim.digest(), sim.log().to_vec())
}

#[test]
fn two_hundred_seeds_of_faults_lose_nothing_unseen() {
    for seed in 0..200 {
        run_jobs(seed);
    }
}

#[test]
fn one_seed_has_one_log() {
    for seed in [3, 17, 4242] {
        let (first, second) = (run_jobs(seed), run_jobs(seed));
        assert_eq!(first.0, second.0);
        assert_eq!(first.1, second.1);
    }
}

#[test]
fn another_seed_has_another_log() {
    let digests: BTreeSet<u64> = (0..20).map(|seed| run_jobs(seed).0).collect();
    // Two seeds without any fault may tell one story.
    assert!(digests.len() >= 15);
}

#[test]
fn a_run_in_pieces_is_the_same_run() {
    let digest = |pieces: u32| {
        let faults =
            Faults { crash: 0.01, crashes_max: 5, delay: Duration::from_micros(50), ..Faults::none() };
        let pair = Pair::new(false);
        let mut sim = Sim::new(pair.graph, SimOptions { seed: 5, faults, ..SimOptions::default() });
        for piece in 1..=pieces {
            sim.run_until(Time::ZERO + Duration::from_millis(u64::from(100 * piece / pieces)));
        }
        assert!(pair.violations.lock().expect("not poisoned").is_empty());
        (sim.digest(), pair.answers.load(Ordering::SeqCst))
    };
    assert_eq!(digest(1), digest(10));
}

#[test]
fn scripts_run_at_their_time_and_may_kill() {
    let mut sim = Sim::new(Pair::new(false).graph, SimOptions::default());
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    for at in [7, 3, 5] {
        let seen = Arc::clone(&seen);
        sim.at(Time::ZERO + Duration::from_millis(at), move |sim| {
            assert_eq!(sim.now(), Time::ZERO + Duration::from_millis(at));
            assert!(sim.kill("answerer"));
            seen.lock().expect("not poisoned").push(at);
        });
    }
    sim.run_until(Time::ZERO + Duration::from_millis(20));
    assert_eq!(*seen.lock().expect("not poisoned"), [3, 5, 7]);
    assert_eq!(sim.seats()[1].restarts, 3);
    let lost =
        sim.log().iter().filter(|(_, seat, event)| &**seat == "asker" && matches!(event, Event::Lost { .. }));
    assert_eq!(lost.count(), 3);
}

#[test]
fn spared_seats_and_lossless_lanes_have_no_faults() {
    let faults = Faults {
        drop: 0.5,
        crash: 0.5,
        crashes_max: 1000,
        spare: vec!["ask*".to_owned(), "answerer".to_owned()],
        lossless: vec!["*".to_owned()],
        ..Faults::none()
    };
    let mut sim = Sim::new(Pair::new(false).graph, SimOptions { seed: 9, faults, ..SimOptions::default() });
    sim.run_until(Time::ZERO + Duration::from_millis(50));
    assert!(sim.seats().iter().all(|seat| seat.restarts == 0));
    assert!(sim.lanes().iter().all(|lane| lane.dropped == 0));
}
