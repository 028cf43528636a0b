//! A graph that cannot run is refused, with every mistake named.

use millstream_runtime::{Budget, Error, GraphBuilder, Problem};

mod common;
use common::on;

#[test]
fn every_mistake_is_reported_at_once() {
    let mut g = GraphBuilder::new();
    let a = g.seat::<u32>("a", "one");
    let again = g.seat::<u32>("a", "one");
    let b = g.seat::<u32>("b", "two");
    let c = g.seat::<u32>("c", "two");
    let ab = g.hold("lane", &a, &b, 1, |n: u32| n);
    let bc = g.hold("lane", &b, &c, 0, |n: u32| n);
    let ca = g.hold("back", &c, &a, 1, |n: u32| n);
    g.actor(a, || on(|_: u32, _| ()));
    g.actor(again.clone(), || on(|_: u32, _| ()));
    g.actor(again, || on(|_: u32, _| ()));
    g.actor(b, || on(|_: u32, _| ()));
    g.budget("three", Budget::default());
    let Err(Error::Graph(problems)) = g.finish() else { panic!("it is refused") };
    let name = str::to_owned;
    assert_eq!(
        problems.0,
        [
            Problem::NoCapacity(name("lane")),
            Problem::TwoActors(name("a")),
            Problem::NameTwice(name("a")),
            Problem::NameTwice(name("lane")),
            Problem::NoActor(name("c")),
            Problem::NoUnit(name("three")),
            Problem::HoldCycle(["a", "b", "c", "a"].map(str::to_owned).to_vec()),
        ]
    );
    assert!(problems.to_string().contains("hold lanes form a cycle: a -> b -> c -> a"));
    drop((ab, bc, ca));
}

#[test]
fn a_cycle_that_an_offer_breaks_is_fine() {
    let mut g = GraphBuilder::new();
    let (a, b) = (g.seat::<u32>("a", "a"), g.seat::<u32>("b", "b"));
    let there = g.hold("there", &a, &b, 1, |n: u32| n);
    let back = g.offer("back", &b, &a, 1, |n: u32| n);
    g.actor(a, || on(|_: u32, _| ()));
    g.actor(b, || on(|_: u32, _| ()));
    assert!(g.finish().is_ok());
    drop((there, back));
}
