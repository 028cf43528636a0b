//! Who comes first: priorities, tenants, deadlines, and that nobody waits for ever.

use std::sync::Arc;
use std::time::Duration;

use millstream_actors::cost::Coefficients;
use millstream_actors::request::{Keeping, Refusal, Request};
use millstream_actors::sched::{Bounds, Scheduler, Timing};
use millstream_actors::store::Tenant;
use millstream_kernels::work::WorkFacts;
use millstream_runtime::Time;
use proptest::prelude::*;

use super::world::{World, bounds, request};
use super::{prompt, sequence};

/// What a request says of its place among others.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    priority: i32,
    tenant: u8,
    /// In steps.
    patience: Option<u64>,
}

impl Rights {
    /// A request that says this.
    pub fn of(self, world: &World, request: &Request) -> Arc<Request> {
        let keeping = Keeping { tenant: Tenant([self.tenant; 16]), ..request.keeping };
        let deadline = self.patience.map_or(request.deadline, |steps| Time::from_nanos(world.now + steps));
        Arc::new(Request { priority: self.priority, keeping, deadline, ..request.clone() })
    }
}

pub fn any_rights() -> impl Strategy<Value = Rights> {
    let patience = prop_oneof![3 => Just(None), 1 => (1u64..60).prop_map(Some)];
    (-1i32..2, 0u8..3, patience).prop_map(|(priority, tenant, patience)| Rights {
        priority,
        tenant,
        patience,
    })
}

fn of(id: u64, length: usize, (priority, tenant): (i32, u8)) -> Arc<Request> {
    let plain = request(id, &prompt(id, 0, length), 2);
    let keeping = Keeping { tenant: Tenant([tenant; 16]), ..plain.keeping };
    Arc::new(Request { priority, keeping, ..(*plain).clone() })
}

/// One after the other, and as many as want may wait.
fn narrow(wait_steps_max: u64) -> Bounds {
    let wide = bounds(false, 4, 200);
    Bounds {
        sequences_max: 1,
        waiting_max: 1_000,
        waiting_tokens_max: 1 << 20,
        wait_steps_max,
        end_tokens: [].into(),
        ..wide
    }
}

/// In which order requests begin.
fn order(world: &mut World) -> Vec<u64> {
    let mut order = Vec::new();
    while !world.requests.is_empty() {
        world.plan();
        let rows = world.flight().into_iter().flat_map(|step| &step.rows);
        let begin: Vec<u64> = rows.filter(|row| row.start == 0).map(|row| row.sequence.request.0).collect();
        order.extend(begin);
        world.done();
    }
    order
}

#[test]
fn the_lowest_number_comes_first_and_among_equals_the_oldest() {
    let mut world = World::new(narrow(1_000));
    for (id, priority) in [(1, 0), (2, 5), (3, 0), (4, -1), (5, 5), (6, -1)] {
        world.add(of(id, 4, (priority, 0)));
    }
    assert_eq!(order(&mut world), [4, 6, 1, 3, 2, 5]);
}

#[test]
fn tenants_take_turns_however_much_one_of_them_asks() {
    let mut world = World::new(narrow(100_000));
    for id in 1..=60 {
        world.add(of(id, 300, (0, 1)));
    }
    for id in 61..=66 {
        world.add(of(id, 300, (0, 2)));
    }
    let order = order(&mut world);
    let last = order.iter().position(|&id| id == 66).expect("it began");
    assert!(last < 16, "the six of the other tenant are done after about twelve: {order:?}");
}

#[test]
fn nobody_waits_for_ever() {
    let mut world = World::new(narrow(40));
    world.add(of(1, 4, (9, 0)));
    let mut waited = 0;
    for id in 2.. {
        // Somebody more important is always there.
        world.add(of(id, 4, (0, 0)));
        world.plan();
        world.done();
        waited += 1;
        if !world.requests.contains_key(&sequence(1)) {
            break;
        }
        assert!(waited < 60, "it waits and waits");
    }
    assert!(waited >= 40, "others came first, {waited} steps long");
}

/// Two answers that do not fit at once: the one that matters less gives its blocks back, though it is the older one.
#[test]
fn who_matters_least_gives_its_blocks_back() {
    let small = Bounds { end_tokens: [].into(), ..bounds(false, 2, 12) };
    let mut world = World::new(small);
    let long = |id, priority| Arc::new(Request { tokens_max: 16, ..(*of(id, 4, (priority, 0))).clone() });
    world.add(long(1, 3));
    world.add(long(2, 0));
    let mut steps = 0;
    while world.requests.contains_key(&sequence(2)) {
        world.plan();
        world.done();
        steps += 1;
    }
    assert_eq!(steps, 16, "a token each step");
    assert!(world.scheduler.preemptions() > 0);
    assert!(world.finish());
    world.check();
}

#[test]
fn the_queue_is_bounded_in_tokens_too() {
    let mut scheduler = Scheduler::new(Bounds { waiting_tokens_max: 50, ..narrow(1_000) });
    let mut add = |id, length| scheduler.add(of(id, length, (0, 0)), Duration::from_secs(7));
    assert_eq!(add(1, 200), Ok(()), "a long one may wait alone");
    assert_eq!(add(2, 4), Err(Refusal::Overload { retry_after: Duration::from_secs(7) }));
}

/// What waits before a prompt is predicted, by its rights.
#[test]
fn a_prompt_is_predicted_behind_what_comes_before_it() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/tests/oracle/tiny-llama/config.json");
    let work = Arc::new(WorkFacts::of_config(config.as_ref()).expect("a config of the tree"));
    let coefficients = Coefficients { token: 0.1, ..Coefficients::default().scaled(0.0) };
    let timing = Timing { work, coefficients, step_time: None };
    let mut scheduler = Scheduler::new(Bounds { timing: Some(timing), ..narrow(1_000) });
    for (id, priority) in [(1, 0), (2, 5)] {
        assert_eq!(scheduler.add(of(id, 100, (priority, 0)), Duration::ZERO), Ok(()));
    }
    let seconds =
        |priority| scheduler.prompt_in(&of(9, 50, (priority, 0))).map(|time| time.as_secs_f64().round());
    assert_eq!([-1, 0, 5].map(seconds), [Some(5.0), Some(15.0), Some(25.0)]);
}
