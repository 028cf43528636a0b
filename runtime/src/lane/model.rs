//! Lanes against a model: whatever the sequence of sends and takes, each policy keeps, returns and overwrites exactly what
//! a plain queue with the same rule does.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Lane, LaneFacts, Path, Policy, Take};

#[derive(Debug, Clone, Copy)]
enum Op {
    Send,
    Take,
    Flush,
    Purge,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op =
        prop_oneof![8 => Just(Op::Send), 6 => Just(Op::Take), 2 => Just(Op::Flush), 1 => Just(Op::Purge)];
    proptest::collection::vec(op, 0..200)
}

fn lane(policy: Policy, capacity: usize) -> Lane<u32> {
    let facts =
        LaneFacts { name: Arc::from("lane"), policy, capacity, urgent: false, from: None, to: None, bit: 0 };
    Lane::new(facts)
}

fn take(lane: &Lane<u32>) -> Option<u32> {
    match lane.take() {
        Take::Message(message) | Take::Early(message, _) => Some(message),
        Take::Empty => None,
    }
}

/// The rule of each policy on plain queues: what is in the lane, and what waits beyond it.
#[derive(Default)]
struct Model {
    queue: VecDeque<u32>,
    overflow: VecDeque<u32>,
}

impl Model {
    /// What comes back.
    fn send(&mut self, policy: Policy, capacity: usize, message: u32) -> Option<u32> {
        let full = self.queue.len() >= capacity;
        match policy {
            Policy::Hold if full || !self.overflow.is_empty() => self.overflow.push_back(message),
            Policy::Offer if full => return Some(message),
            Policy::Latest if full => {
                self.queue.pop_front();
                self.queue.push_back(message);
            }
            Policy::Hold | Policy::Offer | Policy::Latest | Policy::Reply => self.queue.push_back(message),
        }
        None
    }

    fn flush(&mut self, capacity: usize) {
        while self.queue.len() < capacity
            && let Some(message) = self.overflow.pop_front()
        {
            self.queue.push_back(message);
        }
    }
}

fn send(lane: &Lane<u32>, message: u32) -> Option<u32> {
    match lane.core.facts.policy {
        Policy::Hold => lane.hold(message),
        Policy::Offer => return lane.offer(message).err(),
        Policy::Latest => lane.put(message),
        Policy::Reply => lane.reply(message),
    }
    None
}

proptest! {
    #[test]
    fn a_lane_is_its_model(ops in ops(), capacity in 1_usize..5, which in 0_usize..3) {
        let policy = [Policy::Hold, Policy::Offer, Policy::Latest][which];
        let (lane, mut model) = (lane(policy, capacity), Model::default());
        for (message, op) in (0_u32..).zip(ops) {
            match op {
                Op::Send => prop_assert_eq!(send(&lane, message), model.send(policy, capacity, message)),
                Op::Take => prop_assert_eq!(take(&lane), model.queue.pop_front()),
                Op::Flush => {
                    model.flush(capacity);
                    prop_assert_eq!(lane.flush(), model.overflow.is_empty());
                }
                Op::Purge => {
                    lane.purge();
                    model = Model::default();
                }
            }
            prop_assert_eq!(lane.core.depth() as usize, model.queue.len() + model.overflow.len());
            prop_assert_eq!(lane.core.is_waiting(), !model.overflow.is_empty());
            if policy == Policy::Offer {
                prop_assert_eq!(lane.has_room(), model.queue.len() < capacity);
            }
        }
        let state = lane.core.state();
        prop_assert_eq!(state.sent, state.received + state.dropped + state.overwritten + state.depth as u64);
    }
}

#[test]
#[should_panic(expected = "beyond its window of 2")]
fn a_reply_beyond_its_window_is_a_bug() {
    let lane = lane(Policy::Reply, 2);
    lane.reply(1);
    lane.reply(2);
    assert_eq!(take(&lane), Some(1));
    lane.reply(3);
    lane.reply(4);
}
