//! What only the live driver has to show: threads, real time, bounds on leaving, and the same outputs as the simulator.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_runtime::{
    Actor, Ctx, Event, Exit, Faults, GraphBuilder, HoldOut, LiveOptions, OfferOut, Outlet,
};

mod common;
use common::{Drive, on};

/// A turn that takes real time.
#[expect(clippy::disallowed_methods, reason = "stands for computing")]
fn compute(span: Duration) {
    std::thread::sleep(span);
}

#[expect(clippy::disallowed_methods, reason = "the test measures the driver from outside")]
fn timed(call: impl FnOnce()) -> Duration {
    let from = Instant::now();
    call();
    from.elapsed()
}

/// Three seats in a row, the middle one on a thread of its own: reverse, count, join.
fn words(own: bool) -> (millstream_runtime::Graph, millstream_runtime::Inlet<String>, Outlet<String>) {
    let mut g = GraphBuilder::new();
    let reverse = g.seat::<String>("reverse", "reverse");
    let count = if own { g.compute_seat("count", "count", vec![0]) } else { g.seat("count", "count") };
    let join = g.seat::<(usize, String)>("join", "join");
    let input = g.inlet("in", &reverse, 512, |word: String| word);
    let one = g.hold("one", &reverse, &count, 2, |word: String| word);
    let two = g.hold("two", &count, &join, 2, |pair: (usize, String)| pair);
    let (out, outlet) = g.outlet("out", &join, 4);
    g.actor(reverse, move || {
        let one = one.clone();
        on(move |word: String, _| one.send(word.chars().rev().collect()))
    });
    g.actor(count, move || {
        let (two, mut seen) = (two.clone(), 0);
        on(move |word: String, _: &mut Ctx<'_>| {
            seen += 1;
            two.send((seen, word));
        })
    });
    g.actor(join, move || {
        let out = out.clone();
        on(move |(n, word): (usize, String), _: &mut Ctx<'_>| out.send(format!("{n}:{word}")))
    });
    (g.finish().expect("the graph is sound"), input, outlet)
}

#[test]
fn both_drivers_and_both_grounds_give_the_same_outputs() {
    let outputs = |own: bool, drive: fn(millstream_runtime::Graph) -> Drive| {
        let (graph, input, outlet) = words(own);
        let mut drive = drive(graph);
        (0..300).for_each(|n| input.offer(format!("word{n}")).unwrap());
        drive.collect(&outlet, 300)
    };
    let sim = outputs(false, |graph| {
        Drive::sim(graph, 3, Faults { delay: Duration::from_micros(100), pause: 0.1, ..Faults::none() })
    });
    let live = |graph| Drive::live(graph, LiveOptions::default());
    assert_eq!(sim, outputs(false, live));
    assert_eq!(sim, outputs(true, live));
}

#[test]
fn drain_finishes_what_is_in_and_recv_ends() {
    let (graph, input, outlet) = words(true);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let running =
            millstream_runtime::live::start(graph, LiveOptions { events: true, ..LiveOptions::default() });
        let running = running.await.unwrap();
        let reader = tokio::spawn(async move {
            let mut read = 0;
            while outlet.recv().await.is_some() {
                read += 1;
            }
            read
        });
        (0..300).for_each(|n| input.offer(format!("word{n}")).unwrap());
        assert!(running.drain(Duration::from_secs(10)).await);
        assert_eq!(reader.await.unwrap(), 300);
        assert_eq!(running.exited().await, Exit::Stopped);
        let events = running.events();
        assert!(events.is_sorted_by_key(|(at, _, _)| *at));
        let received = |(_, seat, event): &&(_, String, Event)| {
            seat == "join" && matches!(event, Event::Received { lane } if &**lane == "two")
        };
        assert_eq!(events.iter().filter(received).count(), 300);
        assert_eq!(running.events_lost(), 0);
    });
}

/// Computes for a while, then reports.
struct Slow {
    span: Duration,
    out: HoldOut<u32>,
}

impl Actor for Slow {
    type Message = u32;
    fn handle(&mut self, n: u32, _ctx: &mut Ctx<'_>) {
        compute(self.span);
        self.out.send(n);
    }
}

struct Log(Arc<Mutex<Vec<String>>>);

impl Actor for Log {
    type Message = u32;
    fn handle(&mut self, n: u32, _ctx: &mut Ctx<'_>) {
        self.0.lock().expect("not poisoned").push(n.to_string());
    }
    fn lost(&mut self, peer: &str, _ctx: &mut Ctx<'_>) {
        self.0.lock().expect("not poisoned").push(format!("lost {peer}"));
    }
}

/// A slow compute seat and a quick one in one unit, and a neighbour that logs.
fn slow(
    span: Duration,
    options: LiveOptions,
) -> (Drive, millstream_runtime::Inlet<u32>, Arc<Mutex<Vec<String>>>) {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut g = GraphBuilder::new();
    let slow = g.compute_seat::<u32>("slow", "group", vec![]);
    let quick = g.seat::<u32>("quick", "group");
    let neighbour = g.seat::<u32>("neighbour", "other");
    let input = g.inlet("in", &slow, 8, |n: u32| n);
    let steps = g.hold("steps", &slow, &neighbour, 8, |n: u32| n);
    g.actor(slow, move || Slow { span, out: steps.clone() });
    g.actor(quick, || on(|_: u32, _| ()));
    let told = Arc::clone(&log);
    g.actor(neighbour, move || Log(Arc::clone(&told)));
    (Drive::live(g.finish().expect("the graph is sound"), options), input, log)
}

#[test]
fn a_long_step_does_not_reach_the_next_life() {
    let (mut drive, input, log) = slow(Duration::from_millis(60), LiveOptions::default());
    input.offer(1).unwrap();
    drive.until("the step to begin", |drive| drive.seat("slow").busy_since.is_some());
    drive.kill("quick");
    drive.until("the notice", |_| !log.lock().expect("not poisoned").is_empty());
    input.offer(2).unwrap();
    drive.until("the next life's step", |_| log.lock().expect("not poisoned").contains(&"2".to_owned()));
    let log = log.lock().expect("not poisoned");
    let lost = log.iter().position(|entry| entry == "lost slow").unwrap();
    assert_eq!(log[lost + 1..], ["2"], "{log:?}");
    assert_eq!(drive.seat("slow").restarts, 1);
}

#[test]
fn a_unit_whose_seat_is_wedged_is_declared_failed() {
    let options = LiveOptions { patience: Duration::from_millis(50), ..LiveOptions::default() };
    let (mut drive, input, log) = slow(Duration::from_millis(800), options);
    input.offer(1).unwrap();
    drive.until("the step to begin", |drive| drive.seat("slow").busy_since.is_some());
    drive.kill("quick");
    let Exit::Failed { unit, cause } = drive.failure() else { panic!("it failed") };
    assert_eq!(unit, "group");
    assert!(cause.contains("killed") && cause.contains("slow did not leave its turn"), "{cause}");
    drive.until("the notice", |_| *log.lock().expect("not poisoned") == ["lost slow"]);
    drive.pass(Duration::from_secs(1));
    assert_eq!(*log.lock().expect("not poisoned"), ["lost slow"], "its late result is dropped");
}

#[test]
fn a_stop_is_bounded_by_patience() {
    let options = LiveOptions { patience: Duration::from_millis(50), ..LiveOptions::default() };
    let (mut drive, input, _) = slow(Duration::from_millis(800), options);
    input.offer(1).unwrap();
    drive.until("the step to begin", |drive| drive.seat("slow").busy_since.is_some());
    assert!(timed(|| drive.stop()) < Duration::from_millis(600));
}

#[test]
fn a_drain_is_bounded_by_its_timeout() {
    let (graph, input, _outlet) = words(false);
    (0..100).for_each(|n| input.offer(format!("word{n}")).unwrap());
    let Drive::Live(runtime, running) = Drive::live(graph, LiveOptions::default()) else { unreachable!() };
    // Nobody reads the outlet.
    assert!(!runtime.block_on(running.drain(Duration::from_millis(20))));
    runtime.block_on(running.stop());
}

#[test]
fn health_shows_a_turn_that_takes_long() {
    let (mut drive, input, _) = slow(Duration::from_millis(400), LiveOptions::default());
    input.offer(1).unwrap();
    drive.until("the keeper to notice", |drive| {
        drive.seat("slow").busy_since.is_some_and(|span| span > Duration::from_millis(150))
    });
}

#[test]
fn an_idle_graph_sleeps_and_wakes() {
    let (graph, input, outlet) = words(true);
    let mut drive = Drive::live(graph, LiveOptions::default());
    for n in 0..30 {
        input.offer("word".to_owned()).unwrap();
        drive.collect(&outlet, 1);
        // The word leaves in the middle of a turn, which still has to end.
        drive.until("the turns to end", |drive| drive.seats().iter().all(|seat| seat.busy_since.is_none()));
        let before: u64 = drive.seats().iter().map(|seat| seat.turns).sum();
        drive.pass(Duration::from_millis(2 + n % 3));
        assert_eq!(before, drive.seats().iter().map(|seat| seat.turns).sum::<u64>());
    }
}

#[test]
fn a_dropped_running_graph_lets_its_threads_go() {
    let dropped: Arc<Mutex<u32>> = Arc::default();
    struct Drops(Arc<Mutex<u32>>);
    impl Drop for Drops {
        fn drop(&mut self) {
            *self.0.lock().expect("not poisoned") += 1;
        }
    }
    let mut g = GraphBuilder::new();
    for (name, own) in [("shared", false), ("own", true)] {
        let seat = if own { g.compute_seat::<u32>(name, name, vec![]) } else { g.seat::<u32>(name, name) };
        let count = Arc::clone(&dropped);
        g.actor(seat, move || {
            let drops = Drops(Arc::clone(&count));
            on(move |_: u32, _: &mut Ctx<'_>| drop(drops.0.lock()))
        });
    }
    let Drive::Live(runtime, running) =
        Drive::live(g.finish().expect("the graph is sound"), LiveOptions::default())
    else {
        unreachable!()
    };
    drop(running);
    runtime.block_on(async {
        while *dropped.lock().expect("not poisoned") < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Offers until it is told that there is no more room, then waits to be asked again: no wake-up may be lost.
struct Pump {
    out: OfferOut<u32>,
    next: u32,
}

impl Actor for Pump {
    type Message = ();
    fn handle(&mut self, (): (), _ctx: &mut Ctx<'_>) {
        if self.out.offer(self.next).is_ok() {
            self.next += 1;
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    for spin in [0, 20] {
        let mut g = GraphBuilder::new();
        let pump = g.compute_seat::<()>("pump", "pump", vec![]);
        let sink = g.compute_seat::<u32>("sink", "sink", vec![]);
        let go = g.inlet("go", &pump, 1, |()| ());
        let offer = g.offer("offer", &pump, &sink, 1, |n: u32| n);
        let more = g.latest("more", &sink, &pump, 1, |()| ());
        let (out, outlet) = g.outlet("out", &sink, 1);
        g.actor(pump, move || Pump { out: offer.clone(), next: 0 });
        g.actor(sink, move || {
            let (out, more) = (out.clone(), more.clone());
            on(move |n: u32, _: &mut Ctx<'_>| {
                out.send(n);
                more.put(());
            })
        });
        let options = LiveOptions { spin: Duration::from_micros(spin), ..LiveOptions::default() };
        let mut drive = Drive::live(g.finish().expect("the graph is sound"), options);
        go.offer(()).unwrap();
        let Drive::Live(runtime, _) = &mut drive else { unreachable!() };
        runtime.block_on(async {
            for n in 0..5_000 {
                let next = tokio::time::timeout(Duration::from_secs(5), outlet.recv()).await;
                assert_eq!(next, Ok(Some(n)));
            }
        });
        drive.stop();
    }
}
