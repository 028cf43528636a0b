//! What a lane hop costs, against what it is made of: one run prints seats beside raw flume, a ractor mailbox, and the
//! wake-up of a parked thread. The ratios are the figures to watch; the times belong to the machine.

#![expect(clippy::disallowed_methods, reason = "a bench times and makes threads by itself")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream_runtime::{
    Actor, Ctx, GraphBuilder, HoldOut, Inlet, LiveOptions, Outlet, ReplyOut, Running, Time, live,
};
use ractor::{ActorProcessingErr, ActorRef};

/// Round trips per sample, and samples per figure. A sample is short enough to fall between two interruptions, and the
/// fastest tenth of them counts: what it takes when the machine does nothing else.
const TRIPS: u64 = 200;
const SAMPLES: usize = 2_000;
/// No figure takes longer than that, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(4);

/// Sends the ball, counts its returns, and tells how long they took.
struct Ping {
    ball: HoldOut<u64>,
    done: HoldOut<Duration>,
    from: Option<Time>,
}

impl Actor for Ping {
    type Message = u64;
    fn handle(&mut self, left: u64, ctx: &mut Ctx<'_>) {
        let from = *self.from.get_or_insert(ctx.now());
        if left > 0 {
            return self.ball.send(left - 1);
        }
        self.done.send(ctx.now().saturating_since(from));
        self.from = None;
    }
}

/// Sends the ball back.
struct Pong {
    ball: ReplyOut<u64>,
}

impl Actor for Pong {
    type Message = u64;
    fn handle(&mut self, left: u64, _ctx: &mut Ctx<'_>) {
        self.ball.reply(left);
    }
}

/// Where the two seats run.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Tokio,
    Threads,
    PinnedThreads,
}

/// The graph of two seats.
async fn seats(on: On, options: LiveOptions) -> (Running, Inlet<u64>, Outlet<Duration>) {
    let mut g = GraphBuilder::new();
    let mut seat = |name: &str, id: usize| match on {
        On::Tokio => g.seat::<u64>(name, name),
        On::Threads => g.compute_seat::<u64>(name, name, vec![]),
        On::PinnedThreads => g.compute_seat::<u64>(name, name, core(id)),
    };
    let (ping, pong) = (seat("ping", 0), seat("pong", 1));
    let start = g.inlet("start", &ping, 1, |left: u64| left);
    let there = g.hold("there", &ping, &pong, 2, |left: u64| left);
    let back = g.reply("back", &pong, &ping, 2, |left: u64| left);
    let (done, ended) = g.outlet("done", &ping, 1);
    g.actor(ping, move || Ping { ball: there.clone(), done: done.clone(), from: None });
    g.actor(pong, move || Pong { ball: back.clone() });
    let graph = g.finish().expect("the graph is sound");
    (live::start(graph, options).await.expect("the graph starts"), start, ended)
}

async fn seat_trip(on: On, events: bool) -> Duration {
    let (running, start, ended) = seats(on, LiveOptions { events, ..LiveOptions::default() }).await;
    let mut samples = Vec::new();
    let begun = Instant::now();
    while samples.len() < SAMPLES && begun.elapsed() < LONGEST {
        start.offer(TRIPS).expect("the inlet is empty");
        samples.extend(ended.recv().await);
    }
    running.stop().await;
    per_trip(samples, TRIPS)
}

/// The two ends of a raw flume ping-pong, run inside one long turn of a compute seat: the same threads, the same cores.
enum Raw {
    Ping(flume::Sender<u64>, flume::Receiver<u64>),
    Pong(flume::Sender<u64>, flume::Receiver<u64>),
}

struct RawEnd {
    done: HoldOut<Duration>,
}

impl Actor for RawEnd {
    type Message = Raw;
    fn handle(&mut self, message: Raw, ctx: &mut Ctx<'_>) {
        match message {
            Raw::Ping(there, back) => {
                // The first trip is a greeting: both threads are up.
                let mut from = ctx.now();
                for ball in 0..=TRIPS {
                    there.try_send(ball).expect("there is room");
                    black_box(spin(&back));
                    if ball == 0 {
                        from = ctx.now();
                    }
                }
                self.done.send(ctx.now().saturating_since(from));
            }
            Raw::Pong(back, there) => {
                for _ in 0..=TRIPS {
                    let ball = spin(&there);
                    back.try_send(ball).expect("there is room");
                }
            }
        }
    }
}

/// Two threads that spin on bounded flume channels.
async fn flume_threads() -> Duration {
    let mut g = GraphBuilder::new();
    let (ping, pong) =
        (g.compute_seat::<Raw>("ping", "raw", core(0)), g.compute_seat::<Raw>("pong", "raw", core(1)));
    let to_ping = g.inlet("to_ping", &ping, 1, |raw: Raw| raw);
    let to_pong = g.inlet("to_pong", &pong, 1, |raw: Raw| raw);
    let (done, ended) = g.outlet("done", &ping, 1);
    let (unused, _) = g.outlet("unused", &pong, 1);
    g.actor(ping, move || RawEnd { done: done.clone() });
    g.actor(pong, move || RawEnd { done: unused.clone() });
    let graph = g.finish().expect("the graph is sound");
    let running = live::start(graph, LiveOptions::default()).await.expect("the graph starts");
    let mut samples = Vec::new();
    let begun = Instant::now();
    while samples.len() < SAMPLES && begun.elapsed() < LONGEST {
        let (there, from_ping) = flume::bounded::<u64>(2);
        let (back, from_pong) = flume::bounded::<u64>(2);
        offer(&to_pong, Raw::Pong(back, from_ping)).await;
        offer(&to_ping, Raw::Ping(there, from_pong)).await;
        samples.extend(ended.recv().await);
    }
    running.stop().await;
    per_trip(samples, TRIPS)
}

async fn offer(inlet: &Inlet<Raw>, mut raw: Raw) {
    while let Err(back) = inlet.offer(raw) {
        raw = back;
        tokio::task::yield_now().await;
    }
}

/// A core of its own for each of two threads, where there are two.
fn core(id: usize) -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if cores > 1 { vec![id] } else { Vec::new() }
}

/// Looks for a ball; now and then lets the other thread have the processor, which they may have to share.
fn spin(from: &flume::Receiver<u64>) -> u64 {
    loop {
        for _ in 0..500 {
            match from.try_recv() {
                Ok(ball) => return ball,
                Err(_) => std::hint::spin_loop(),
            }
        }
        std::thread::yield_now();
    }
}

/// Two futures on tokio over bounded flume channels.
async fn flume_futures() -> Duration {
    let mut samples = Vec::new();
    let begun = Instant::now();
    while samples.len() < SAMPLES && begun.elapsed() < LONGEST {
        let (there, from_ping) = flume::bounded::<u64>(2);
        let (back, from_pong) = flume::bounded::<u64>(2);
        let pong = tokio::spawn(async move {
            while let Ok(ball) = from_ping.recv_async().await {
                if back.send_async(ball).await.is_err() {
                    break;
                }
            }
        });
        let ping = tokio::spawn(async move {
            let from = Instant::now();
            for ball in 0..TRIPS {
                there.send_async(ball).await.expect("pong is there");
                black_box(from_pong.recv_async().await.expect("pong is there"));
            }
            from.elapsed()
        });
        samples.push(ping.await.expect("ping ends"));
        pong.await.expect("pong ends");
    }
    per_trip(samples, TRIPS)
}

/// A ractor actor that sends the ball to its peer until it is used up.
struct Mailbox;

enum Throw {
    Meet(ActorRef<Throw>, flume::Sender<()>),
    Ball(u64),
}

impl ractor::Actor for Mailbox {
    type Msg = Throw;
    type State = Option<(ActorRef<Throw>, flume::Sender<()>)>;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Throw>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(None)
    }

    async fn handle(
        &self,
        _: ActorRef<Throw>,
        message: Throw,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match (message, state) {
            (Throw::Meet(peer, done), state) => *state = Some((peer, done)),
            (Throw::Ball(0), Some((_, done))) => done.send(())?,
            (Throw::Ball(left), Some((peer, _))) => peer.cast(Throw::Ball(left - 1))?,
            (Throw::Ball(_), None) => {}
        }
        Ok(())
    }
}

async fn ractor_mailboxes() -> Duration {
    let (a, _) = ractor::Actor::spawn(None, Mailbox, ()).await.expect("it starts");
    let (b, _) = ractor::Actor::spawn(None, Mailbox, ()).await.expect("it starts");
    let (done, ended) = flume::bounded(1);
    a.cast(Throw::Meet(b.clone(), done.clone())).expect("it runs");
    b.cast(Throw::Meet(a.clone(), done)).expect("it runs");
    let mut samples = Vec::new();
    let begun = Instant::now();
    while samples.len() < SAMPLES && begun.elapsed() < LONGEST {
        let from = Instant::now();
        a.cast(Throw::Ball(2 * TRIPS)).expect("it runs");
        ended.recv_async().await.expect("it ends");
        samples.push(from.elapsed());
    }
    a.stop(None);
    b.stop(None);
    per_trip(samples, TRIPS)
}

/// From `unpark` to the parked thread's answer, which the waker spins for.
fn park_wake() -> Duration {
    const WAKES: u64 = 1_000;
    let flag = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let (seen, ended) = (Arc::clone(&flag), Arc::clone(&stop));
    let sleeper = std::thread::spawn(move || {
        while !ended.load(Ordering::Acquire) {
            if !seen.swap(false, Ordering::AcqRel) {
                std::thread::park();
            }
        }
    });
    let mut samples = Vec::new();
    for _ in 0..WAKES {
        std::thread::sleep(Duration::from_micros(50));
        let from = Instant::now();
        flag.store(true, Ordering::Release);
        sleeper.thread().unpark();
        while flag.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        samples.push(from.elapsed());
    }
    stop.store(true, Ordering::Release);
    sleeper.thread().unpark();
    sleeper.join().expect("the thread ends");
    per_trip(samples, 1)
}

/// From `offer` on an inlet of a parked compute seat to its answer at the outlet, which the shell spins for.
async fn seat_wake() -> Duration {
    const WAKES: u64 = 1_000;
    let (running, start, ended) =
        seats(On::Threads, LiveOptions { spin: Duration::ZERO, ..LiveOptions::default() }).await;
    let mut samples = Vec::new();
    for _ in 0..WAKES {
        std::thread::sleep(Duration::from_micros(50));
        let from = Instant::now();
        start.offer(0).expect("the inlet is empty");
        while ended.try_recv().is_none() {
            std::hint::spin_loop();
        }
        samples.push(from.elapsed());
    }
    running.stop().await;
    per_trip(samples, 1)
}

/// The fastest tenth's slowest sample, per round trip.
fn per_trip(mut samples: Vec<Duration>, trips: u64) -> Duration {
    samples.sort();
    Duration::from_nanos(samples[samples.len() / 10].as_nanos() as u64 / trips)
}

fn print(what: &str, took: Duration, base: Duration) {
    println!("{what:<44} {:>9} ns   {:>5.2} x", took.as_nanos(), took.as_secs_f64() / base.as_secs_f64());
}

fn main() {
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    println!("round trip, both ends awake, on threads of their own");
    let base = tokio.block_on(flume_threads());
    print("  flume, two spinning threads", base, base);
    print("  two compute seats", tokio.block_on(seat_trip(On::PinnedThreads, false)), base);
    print("  two compute seats, events on", tokio.block_on(seat_trip(On::PinnedThreads, true)), base);
    println!("round trip on tokio, two threads");
    let base = tokio.block_on(flume_futures());
    print("  flume, two futures", base, base);
    print("  two shared seats", tokio.block_on(seat_trip(On::Tokio, false)), base);
    print("  ractor, two mailboxes", tokio.block_on(ractor_mailboxes()), base);
    println!("waking a thread that sleeps");
    let base = park_wake();
    print("  unpark", base, base);
    print("  a compute seat, inlet to outlet", tokio.block_on(seat_wake()), base);
}
