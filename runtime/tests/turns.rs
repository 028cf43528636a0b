//! What a turn is, under both drivers: settle, wake, stop, and the share of messages.

use std::time::Duration;

use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut, TURN_MESSAGES_MAX, Time};

mod common;
use common::{Drive, Kind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Message(u32),
    Settle,
    Wake(Time),
    Stop,
}

/// Reports each call.
struct Reporter {
    out: HoldOut<Call>,
    wakes: Vec<Duration>,
}

impl Actor for Reporter {
    type Message = u32;
    fn handle(&mut self, n: u32, ctx: &mut Ctx<'_>) {
        self.out.send(Call::Message(n));
        for after in &self.wakes {
            ctx.wake_at(ctx.now() + *after);
        }
    }
    fn settle(&mut self, _ctx: &mut Ctx<'_>) {
        self.out.send(Call::Settle);
    }
    fn wake(&mut self, ctx: &mut Ctx<'_>) {
        self.out.send(Call::Wake(ctx.now()));
    }
    fn stop(&mut self, ctx: &mut Ctx<'_>) {
        assert_eq!(ctx.seat(), "reporter");
        self.out.send(Call::Stop);
    }
}

fn each(test: impl Fn(Kind, bool)) {
    test(Kind::Sim, false);
    test(Kind::Live, false);
    test(Kind::Live, true);
}

struct Stage {
    drive: Drive,
    input: millstream_runtime::Inlet<u32>,
    calls: millstream_runtime::Outlet<Call>,
}

fn stage(kind: Kind, own: bool, wakes: Vec<Duration>) -> Stage {
    let mut g = GraphBuilder::new();
    let reporter = if own {
        g.compute_seat::<u32>("reporter", "reporter", vec![])
    } else {
        g.seat::<u32>("reporter", "reporter")
    };
    let input = g.inlet("in", &reporter, 512, |n: u32| n);
    let (out, calls) = g.outlet("calls", &reporter, 1024);
    g.actor(reporter, move || Reporter { out: out.clone(), wakes: wakes.clone() });
    Stage { drive: Drive::start(kind, g.finish().expect("the graph is sound")), input, calls }
}

#[test]
fn settle_begins_a_life_and_ends_every_turn() {
    each(|kind, own| {
        let mut stage = stage(kind, own, vec![]);
        assert_eq!(stage.drive.collect(&stage.calls, 1), [Call::Settle]);
        (0..300).for_each(|n| stage.input.offer(n).unwrap());
        let mut calls = Vec::new();
        stage.drive.until("all messages and the settle behind them", |_| {
            calls.extend(std::iter::from_fn(|| stage.calls.try_recv()));
            calls.contains(&Call::Message(299)) && calls.last() == Some(&Call::Settle)
        });
        for turn in calls.split(|call| *call == Call::Settle) {
            assert!(turn.len() <= TURN_MESSAGES_MAX as usize);
        }
        assert!(
            !calls.windows(2).any(|two| two == [Call::Settle, Call::Settle]),
            "no turn without a message"
        );
    });
}

#[test]
fn the_earliest_wake_time_fires_once() {
    each(|kind, own| {
        let wakes = [30, 10, 20].map(Duration::from_millis).to_vec();
        let mut stage = stage(kind, own, wakes);
        stage.drive.collect(&stage.calls, 1);
        let from = stage.drive.now();
        stage.input.offer(0).unwrap();
        let calls = stage.drive.collect(&stage.calls, 4);
        assert_eq!(calls[..2], [Call::Message(0), Call::Settle]);
        let Call::Wake(at) = calls[2] else { panic!("{calls:?}") };
        assert!(at >= from + Duration::from_millis(10));
        assert_eq!(calls[3], Call::Settle);
        stage.drive.pass(Duration::from_millis(40));
        assert_eq!(stage.calls.try_recv(), None);
    });
}

#[test]
fn stop_is_the_last_call_and_its_message_arrives() {
    each(|kind, own| {
        let mut stage = stage(kind, own, vec![]);
        stage.drive.collect(&stage.calls, 1);
        stage.drive.stop();
        assert_eq!(stage.calls.try_recv(), Some(Call::Stop));
        assert_eq!(stage.calls.try_recv(), None);
        assert_eq!(stage.input.offer(1), Err(1));
        assert!(stage.drive.seat("reporter").dead);
    });
}

#[test]
fn virtual_time_is_what_turns_spend() {
    struct Spender;
    impl Actor for Spender {
        type Message = ();
        fn handle(&mut self, (): (), ctx: &mut Ctx<'_>) {
            let before = ctx.now();
            ctx.spend(Duration::from_secs(3));
            assert_eq!(ctx.now(), before);
        }
    }
    let mut g = GraphBuilder::new();
    let spender = g.seat::<()>("spender", "spender");
    let input = g.inlet("in", &spender, 4, |()| ());
    g.actor(spender, || Spender);
    let mut drive = Drive::start(Kind::Sim, g.finish().expect("the graph is sound"));
    (0..2).for_each(|_| input.offer(()).unwrap());
    drive.pass(Duration::from_secs(1));
    assert_eq!(drive.seat("spender").busy_since.map(|span| span.as_millis()), Some(999));
    drive.pass(Duration::from_secs(6));
    assert_eq!(drive.seat("spender").busy_since, None);
    assert_eq!(drive.lane("in").received, 2);
}
