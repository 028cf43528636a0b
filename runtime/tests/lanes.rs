//! Each lane policy, under both drivers: what is kept, what comes back, what is overwritten, who waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_runtime::{Actor, Ctx, GraphBuilder, HoldOut, ReplyOut};

mod common;
use common::{Drive, Kind, assert_conserved, on};

fn both(test: impl Fn(Kind)) {
    test(Kind::Sim);
    test(Kind::Live);
}

#[test]
fn hold_keeps_everything_in_order_through_a_chain_of_full_lanes() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let first = g.seat::<u32>("first", "first");
        let second = g.compute_seat::<u32>("second", "second", vec![]);
        let third = g.seat::<u32>("third", "third");
        let go = g.inlet("go", &first, 1, |count: u32| count);
        let one = g.hold("one", &first, &second, 1, |n: u32| n);
        let two = g.hold("two", &second, &third, 3, |n: u32| n);
        let (out, outlet) = g.outlet("out", &third, 2);
        g.actor(first, move || {
            let one = one.clone();
            on(move |count: u32, _| (0..count).for_each(|n| one.send(n)))
        });
        g.actor(second, move || {
            let two = two.clone();
            on(move |n: u32, _| two.send(n))
        });
        g.actor(third, move || {
            let out = out.clone();
            on(move |n: u32, _| out.send(n))
        });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        go.offer(1000).unwrap();
        assert_eq!(drive.collect(&outlet, 1000), (0..1000).collect::<Vec<_>>());
        assert!(drive.lane("one").waited > 0);
        assert_conserved(&drive.lanes());
    });
}

#[test]
fn a_seat_that_waits_for_room_takes_no_turn() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let talker = g.seat::<u32>("talker", "talker");
        let numbers = g.inlet("numbers", &talker, 16, |n: u32| n);
        let (out, outlet) = g.outlet("out", &talker, 2);
        g.actor(talker, move || {
            let out = out.clone();
            on(move |n: u32, _| (0..5).for_each(|_| out.send(n)))
        });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        (0..4).for_each(|n| numbers.offer(n).unwrap());
        drive.until("the first turn to be stuck", |drive| drive.seat("talker").waiting);
        drive.pass(Duration::from_millis(5));
        // One message was handled: its 5 sends are 2 in the lane and 3 beyond it.
        assert_eq!(drive.lane("out").depth, 5);
        assert_eq!(drive.seat("talker").queued, 3);
        let all: Vec<u32> = (0..4).flat_map(|n| [n; 5]).collect();
        assert_eq!(drive.collect(&outlet, 20), all);
        assert!(drive.lane("out").depth_max <= 2 + 5);
    });
}

#[test]
fn an_offer_beyond_the_capacity_comes_back() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let talker = g.seat::<u32>("talker", "talker");
        let listener = g.seat::<u32>("listener", "listener");
        let go = g.inlet("go", &talker, 1, |n: u32| n);
        let offer = g.offer("offer", &talker, &listener, 3, |n: u32| n);
        let (returned, returns) = g.outlet("returned", &talker, 64);
        let (out, outlet) = g.outlet("out", &listener, 64);
        g.actor(talker, move || {
            let (offer, returned) = (offer.clone(), returned.clone());
            on(move |count: u32, _| {
                for n in 0..count {
                    assert!(offer.has_room() || offer.offer(99).is_err());
                    if let Err(back) = offer.offer(n) {
                        returned.send(back);
                    }
                }
            })
        });
        g.actor(listener, move || {
            let out = out.clone();
            on(move |n: u32, _| out.send(n))
        });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        go.offer(20).unwrap();
        let mut all = Vec::new();
        drive.until("every number at one end or the other", |_| {
            all.extend(std::iter::from_fn(|| outlet.try_recv()));
            all.extend(std::iter::from_fn(|| returns.try_recv()));
            all.len() == 20
        });
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        if kind == Kind::Sim {
            // Nothing leaves before the turn is over, so exactly the capacity fits.
            assert_eq!(drive.lane("offer").sent, 3);
        }
        assert_conserved(&drive.lanes());
    });
}

#[test]
fn latest_always_delivers_the_last() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let talker = g.compute_seat::<u32>("talker", "talker", vec![]);
        let listener = g.seat::<u32>("listener", "listener");
        let go = g.inlet("go", &talker, 1, |n: u32| n);
        let latest = g.latest("latest", &talker, &listener, 1, |n: u32| n);
        let (out, outlet) = g.outlet("out", &listener, 4096);
        g.actor(talker, move || {
            let latest = latest.clone();
            on(move |count: u32, _| (0..count).for_each(|n| latest.put(n)))
        });
        g.actor(listener, move || {
            let out = out.clone();
            on(move |n: u32, _| out.send(n))
        });
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        go.offer(1000).unwrap();
        let mut seen = Vec::new();
        drive.until("the last number", |_| {
            seen.extend(std::iter::from_fn(|| outlet.try_recv()));
            seen.last() == Some(&999)
        });
        assert!(seen.is_sorted());
        let lane = drive.lane("latest");
        assert_eq!(lane.received + lane.overwritten, 1000);
    });
}

struct Answers {
    out: ReplyOut<u32>,
    each: u32,
}

impl Actor for Answers {
    type Message = u32;
    fn handle(&mut self, n: u32, _ctx: &mut Ctx<'_>) {
        (0..self.each).for_each(|_| self.out.reply(n));
    }
}

#[test]
fn a_reply_beyond_its_window_kills_the_seat() {
    both(|kind| {
        for (each, dies) in [(3, false), (4, true)] {
            let mut g = GraphBuilder::new();
            let asker = g.seat::<u32>("asker", "asker");
            let answerer = g.seat::<u32>("answerer", "answerer");
            let go = g.inlet("go", &answerer, 1, |n: u32| n);
            let reply = g.reply("reply", &answerer, &asker, 3, |n: u32| n);
            g.actor(asker, move || {
                on(move |_: u32, ctx: &mut Ctx<'_>| {
                    // So slow that nothing is taken while the answers are sent.
                    ctx.spend(Duration::from_millis(1));
                    if kind == Kind::Live {
                        block();
                    }
                })
            });
            g.actor(answerer, move || Answers { out: reply.clone(), each });
            let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
            go.offer(1).unwrap();
            drive.until("the reply to be taken or the seat to die", |drive| {
                drive.seat("answerer").restarts > 0 || drive.lane("reply").received >= 3
            });
            let seat = drive.seat("answerer");
            if kind == Kind::Sim || !dies {
                assert_eq!(seat.restarts > 0, dies, "{:?}", seat.last_cause);
            }
        }
    });
}

/// A turn that takes real time.
#[expect(clippy::disallowed_methods, reason = "stands for computing in a live test")]
fn block() {
    std::thread::sleep(Duration::from_millis(2));
}

struct Forward(HoldOut<(char, u32)>);

impl Actor for Forward {
    type Message = (char, u32);
    fn handle(&mut self, message: (char, u32), _ctx: &mut Ctx<'_>) {
        self.0.send(message);
    }
}

#[test]
fn lanes_are_served_in_turn_and_urgent_ones_first() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let gate = g.seat::<(char, u32)>("gate", "gate");
        let a = g.inlet("a", &gate, 64, |n: u32| ('a', n));
        let b = g.inlet("b", &gate, 64, |n: u32| ('b', n));
        let c = g.urgent_inlet("c", &gate, 64, |n: u32| ('c', n));
        let (out, outlet) = g.outlet("out", &gate, 64);
        // The factory holds the seat up until all is offered, so that the order is the inbox's own.
        let all_in = Arc::new(Mutex::new(()));
        let gate_waits = Arc::clone(&all_in);
        let hold = all_in.lock().expect("not poisoned");
        let mut factory = Some(move || Forward(out.clone()));
        let mut made_once = move || factory.take().expect("made once")();
        let offer_all = || {
            (0..4).for_each(|n| a.offer(n).unwrap());
            (0..4).for_each(|n| b.offer(n).unwrap());
            (0..2).for_each(|n| c.offer(n).unwrap());
        };
        g.actor(gate, move || {
            drop(gate_waits.lock().expect("not poisoned"));
            made_once()
        });
        let graph = g.finish().expect("the graph is sound");
        offer_all();
        drop(hold);
        let mut drive = Drive::start(kind, graph);
        if kind == Kind::Live {
            let order: String = drive.collect(&outlet, 10).into_iter().map(|(lane, _)| lane).collect();
            assert_eq!(order, "ccabababab");
        } else {
            // In the simulator they land one by one; all arrive, each lane in order.
            let taken = drive.collect(&outlet, 10);
            for lane in ['a', 'b', 'c'] {
                assert!(taken.iter().filter(|(from, _)| *from == lane).is_sorted());
            }
        }
    });
}

#[test]
fn many_lanes_into_one_seat_all_arrive() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let gate = g.seat::<(char, u32)>("gate", "gate");
        let inlets: Vec<_> =
            (0..200).map(|lane| g.inlet(&format!("in{lane}"), &gate, 4, |n: u32| ('x', n))).collect();
        let (out, outlet) = g.outlet("out", &gate, 8);
        g.actor(gate, move || Forward(out.clone()));
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        for (lane, inlet) in inlets.iter().enumerate() {
            (0..3).for_each(|n| inlet.offer(3 * lane as u32 + n).unwrap());
        }
        let mut taken: Vec<u32> = drive.collect(&outlet, 600).into_iter().map(|(_, n)| n).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..600).collect::<Vec<_>>());
    });
}

#[test]
fn an_outlet_that_is_dropped_holds_nobody_up() {
    both(|kind| {
        let mut g = GraphBuilder::new();
        let gate = g.seat::<(char, u32)>("gate", "gate");
        let input = g.inlet("in", &gate, 64, |n: u32| ('x', n));
        let (out, outlet) = g.outlet("out", &gate, 1);
        g.actor(gate, move || Forward(out.clone()));
        let mut drive = Drive::start(kind, g.finish().expect("the graph is sound"));
        (0..8).for_each(|n| input.offer(n).unwrap());
        drive.until("the seat to wait", |drive| drive.seat("gate").waiting);
        drop(outlet);
        drive.until("the rest to be handled", |drive| drive.lane("in").received == 8);
        assert!(drive.lane("out").closed);
    });
}
