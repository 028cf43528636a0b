//! Deaths and rebuilding, under both drivers: what is lost, who is told, in what order, and when a unit stays dead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_runtime::{
    Actor, Budget, Ctx, Error, Exit, Faults, Graph, GraphBuilder, HoldOut, Inlet, LiveOptions, live,
};

mod common;
mod pair;
use common::{Drive, Kind, assert_conserved, on};
use pair::Pair;

fn both(test: impl Fn(Kind)) {
    test(Kind::Sim);
    test(Kind::Live);
}

/// Adds up; dies of 13.
struct Adder {
    sum: u32,
    out: HoldOut<u32>,
}

impl Actor for Adder {
    type Message = u32;
    fn handle(&mut self, n: u32, _ctx: &mut Ctx<'_>) {
        assert_ne!(n, 13, "unlucky");
        self.sum += n;
        self.out.send(self.sum);
    }
}

#[test]
fn a_panic_rebuilds_the_seat_from_its_factory_and_keeps_its_inlet() {
    both(|kind| {
        for own in [false, true] {
            let mut g = GraphBuilder::new();
            let adder = if own {
                g.compute_seat::<u32>("adder", "maths", vec![])
            } else {
                g.seat::<u32>("adder", "maths")
            };
            let input = g.inlet("in", &adder, 8, |n: u32| n);
            let (out, sums) = g.outlet("sums", &adder, 8);
            g.actor(adder, move || Adder { sum: 0, out: out.clone() });
            let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
            [1, 2, 13, 5, 6].into_iter().for_each(|n| input.offer(n).unwrap());
            assert_eq!(drive.collect(&sums, 4), [1, 3, 5, 11]);
            let seat = drive.seat("adder");
            assert_eq!(seat.restarts, 1);
            assert!(seat.last_cause.is_some_and(|cause| cause.contains("unlucky")));
        }
    });
}

struct Trio {
    graph: Graph,
    input: Inlet<u32>,
    /// How often each seat was made.
    made: Arc<[AtomicU32; 3]>,
    /// What the neighbour heard.
    told: Arc<Mutex<Vec<String>>>,
}

/// Two seats in one unit and a neighbour.
fn trio() -> Trio {
    let made: Arc<[AtomicU32; 3]> = Arc::default();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut g = GraphBuilder::new();
    let left = g.seat::<u32>("left", "unit");
    let right = g.compute_seat::<u32>("right", "unit", vec![]);
    let next = g.seat::<u32>("next", "other");
    let input = g.inlet("in", &left, 8, |n: u32| n);
    let inner = g.hold("inner", &left, &right, 8, |n: u32| n);
    let outer = g.hold("outer", &right, &next, 8, |n: u32| n);
    let count = Arc::clone(&made);
    g.actor(left, move || {
        count[0].fetch_add(1, Ordering::SeqCst);
        let inner = inner.clone();
        on(move |n: u32, _| inner.send(n))
    });
    let count = Arc::clone(&made);
    g.actor(right, move || {
        count[1].fetch_add(1, Ordering::SeqCst);
        let outer = outer.clone();
        on(move |n: u32, _| outer.send(n))
    });
    let (count, tell) = (Arc::clone(&made), Arc::clone(&told));
    g.actor(next, move || {
        count[2].fetch_add(1, Ordering::SeqCst);
        Told(Arc::clone(&tell))
    });
    g.budget("unit", Budget { restarts: 2, within: Duration::from_secs(60) });
    Trio { graph: g.finish().expect("the graph is sound"), input, made, told }
}

struct Told(Arc<Mutex<Vec<String>>>);

impl Actor for Told {
    type Message = u32;
    fn handle(&mut self, n: u32, _ctx: &mut Ctx<'_>) {
        self.0.lock().expect("not poisoned").push(n.to_string());
    }
    fn lost(&mut self, peer: &str, _ctx: &mut Ctx<'_>) {
        self.0.lock().expect("not poisoned").push(format!("lost {peer}"));
    }
}

#[test]
fn a_unit_falls_as_one_and_only_the_neighbour_is_told() {
    both(|kind| {
        let Trio { graph, input, made, told } = trio();
        let mut drive = Drive::start(kind, graph);
        input.offer(1).unwrap();
        drive.until("1 to arrive", |_| told.lock().expect("not poisoned").len() == 1);
        assert!(drive.kill("left"));
        drive.until("the notice", |_| told.lock().expect("not poisoned").len() == 2);
        input.offer(2).unwrap();
        drive.until("2 to arrive", |_| told.lock().expect("not poisoned").len() == 3);
        assert_eq!(*told.lock().expect("not poisoned"), ["1", "lost right", "2"]);
        let made = made.each_ref().map(|made| made.load(Ordering::SeqCst));
        assert_eq!(made, [2, 2, 1]);
        assert_eq!(drive.seat("right").last_cause.as_deref(), Some("killed"));
    });
}

#[test]
fn a_unit_that_spent_its_budget_stays_dead() {
    both(|kind| {
        let Trio { graph, input, made, told } = trio();
        let mut drive = Drive::start(kind, graph);
        for death in 1..=3 {
            assert!(drive.kill("unit"));
            drive.until("the notice", |_| told.lock().expect("not poisoned").len() == death);
            drive.pass(Duration::from_millis(5));
        }
        assert_eq!(drive.failure(), Exit::Failed { unit: "unit".to_owned(), cause: "killed".to_owned() });
        assert_eq!(made[0].load(Ordering::SeqCst), 3);
        assert_eq!(input.offer(9), Err(9));
        let (left, next) = (drive.seat("left"), drive.seat("next"));
        assert!(left.dead && !next.dead);
        assert_eq!((left.restarts, left.last_cause.as_deref()), (2, Some("killed")));
        assert!(drive.lane("outer").closed);
        assert!(!drive.kill("right"), "nobody is left to kill");
        assert!(!drive.kill("nobody"));
    });
}

#[test]
fn sending_to_a_dead_unit_never_holds_the_sender_up() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let talker = g.seat::<u32>("talker", "talker");
        let dead = g.seat::<u32>("dead", "dead");
        let input = g.inlet("in", &talker, 512, |n: u32| n);
        let lane = g.hold("lane", &talker, &dead, 1, |n: u32| n);
        g.actor(talker, move || {
            let lane = lane.clone();
            on(move |n: u32, _| lane.send(n))
        });
        g.actor(dead, || on(|_: u32, _| panic!("always")));
        g.budget("dead", Budget { restarts: 1, within: Duration::from_secs(60) });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        let mut n = 0;
        drive.until("the unit to stay dead", |drive| {
            n += 1;
            input.offer(n).unwrap();
            drive.seat("dead").dead
        });
        (0..100).for_each(|n| input.offer(n).unwrap());
        drive.until("all to be handled", |drive| drive.seat("talker").queued == 0);
        assert!(drive.lane("lane").dropped >= 100);
    });
}

#[test]
fn a_factory_that_panics_at_a_restart_is_one_more_death() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let seat = g.seat::<u32>("seat", "unit");
        let input = g.inlet("in", &seat, 8, |n: u32| n);
        let (out, sums) = g.outlet("sums", &seat, 8);
        let mut made = 0;
        g.actor(seat, move || {
            made += 1;
            assert!(made == 1 || made > 3, "not yet");
            Adder { sum: 0, out: out.clone() }
        });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        drive.kill("seat");
        drive.until("three restarts", |drive| drive.seat("seat").restarts == 3);
        input.offer(4).unwrap();
        assert_eq!(drive.collect(&sums, 1), [4]);
    });
}

#[test]
fn a_factory_that_panics_at_the_start_is_an_error() {
    let mut g = GraphBuilder::new();
    let seat = g.compute_seat::<u32>("seat", "unit", vec![]);
    g.actor(seat, || -> Told { panic!("no weights") });
    let graph = g.finish().expect("the graph is sound");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(live::start(graph, LiveOptions::default())).unwrap_err();
    let Error::Start { seat, cause } = error else { panic!("{error}") };
    assert_eq!((seat.as_str(), cause.as_str()), ("seat", "no weights"));
}

#[test]
fn lives_never_mix_under_a_storm_of_kills() {
    for own in [false, true] {
        let pair = Pair::new(own);
        let mut drive = Drive::live(pair.graph, LiveOptions::default());
        for round in 0..150 {
            drive.kill(["asker", "answerer", "asker", "answerer", "answerer"][round % 5]);
            if round % 7 != 0 {
                drive.pass(Duration::from_micros(300));
            }
        }
        let before = pair.answers.load(Ordering::SeqCst);
        drive.until("answers after the storm", |_| pair.answers.load(Ordering::SeqCst) > before + 100);
        assert_eq!(*pair.violations.lock().expect("not poisoned"), Vec::<String>::new());
        assert!(drive.seat("answerer").restarts > 10);
        drive.stop();
        assert_conserved(&drive.lanes());
    }
}

#[test]
fn lives_never_mix_in_any_of_many_simulations() {
    for seed in 0..100 {
        let pair = Pair::new(false);
        let faults =
            Faults { crash: 0.05, crashes_max: 20, drop: 0.0, reorder: 0.0, ..Faults::from_seed(seed) };
        let mut drive = Drive::sim(pair.graph, seed, faults);
        drive.pass(Duration::from_millis(300));
        assert_eq!(*pair.violations.lock().expect("not poisoned"), Vec::<String>::new(), "seed {seed}");
        assert!(pair.answers.load(Ordering::SeqCst) > 0, "seed {seed}");
        assert_conserved(&drive.lanes());
    }
}
