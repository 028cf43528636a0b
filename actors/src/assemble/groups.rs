//! What a group and its rank are made of.

use std::sync::Arc;
use std::time::Duration;

use millstream_kernels::{Backend as _, CpuBackend};
use millstream_runtime::{ReplyOut, Seat};

use super::lanes::ASKS;
use super::wiring::{GroupRecipe, Wiring, model, reserves};
use super::{Driver, GroupPlan, cache_name};
use crate::cost::{Coefficients, Known};
use crate::gauges::GroupGauges;
use crate::group::GroupLanes;
use crate::message::{Step, StepDone};
use crate::rank::{Device, Rank, StepCost};
use crate::sched::{Bounds, StoreBounds, Timing};

/// Steps after which nobody overtakes a sequence: some minutes, and more than the whole queue takes as a rule.
const WAIT_STEPS_MAX: u64 = 8_192;

impl Wiring<'_> {
    pub(super) fn rank(&mut self, seat: Seat<Step>, group: &GroupPlan, done: ReplyOut<StepDone>) {
        let model = Arc::clone(&self.resources.model);
        let layout = group.layout;
        let nothing = StepCost { step: Duration::ZERO, token: Duration::ZERO };
        let (threads, cost) = match &self.driver {
            Driver::Live => (group.settings.threads, nothing),
            Driver::Sim(cost) => (1, *cost),
            Driver::Predicted(_) => (1, nothing),
        };
        let (blocks, slots) = (group.blocks, group.state.map_or(0, |state| state.slots));
        let chunk = group.settings.chunk_tokens as usize;
        let (reserve, buffers) = (reserves(self.plan, &self.driver).then_some(chunk), self.buffers.clone());
        self.graph.actor(seat, move || {
            let backend = Box::new(CpuBackend::new(threads, &[]));
            let (model, buffers) = (Arc::clone(&model), buffers.clone());
            let device = Device { model, backend, layout, blocks, slots, reserve, buffers };
            Rank::new(device, done.clone(), cost)
        });
    }

    pub(super) fn group(&self, plan: GroupPlan, lanes: GroupLanes) -> GroupRecipe {
        let settings = &plan.settings;
        let bounds = Bounds {
            chunk_tokens: settings.chunk_tokens as usize,
            sequences_max: settings.sequences_max,
            waiting_max: settings.waiting_max,
            waiting_tokens_max: settings.waiting_tokens_max,
            wait_steps_max: WAIT_STEPS_MAX,
            block_size: settings.block_size,
            blocks: plan.blocks,
            end_tokens: self.resources.end_tokens(),
            answers: !plan.prefill,
            reuse: self.chain(&plan),
            state: plan.state,
            store: cache_name(self.plan).map(|_| self.store_bounds(&plan)),
            timing: Some(self.timing(&plan)),
            ahead: settings.plan_ahead,
        };
        let gauges = Arc::new(GroupGauges { name: plan.name.clone(), ..GroupGauges::default() });
        let known = Arc::new(self.known(&plan));
        if let Driver::Predicted(predicted) = &self.driver
            && let Some(predict) = predicted.predict.get(&plan.actor)
        {
            known.set(predict.coefficients());
        }
        GroupRecipe { plan, bounds, lanes, gauges, known }
    }

    fn timing(&self, plan: &GroupPlan) -> Timing {
        let work = self.resources.model.facts().work.clone().with_kv(plan.layout.format);
        let step_time = plan.settings.step_time;
        Timing { work: Arc::new(work), coefficients: Coefficients::default(), step_time }
    }

    /// Groups of one key cost the same. Steps are tried where their time is what prompts are cut by, in real time only.
    fn known(&self, plan: &GroupPlan) -> Known {
        let facts = self.resources.model.facts();
        let key = format!(
            "{}; {} activations; {} threads; {}; {:?} blocks of {}, {} rings",
            model(facts),
            self.plan.activations,
            plan.settings.threads,
            CpuBackend::new(1, &[]).name(),
            plan.layout.format,
            plan.layout.block_size,
            plan.layout.rings.layers,
        );
        let held =
            (plan.blocks as u64 * u64::from(plan.settings.block_size)).min(u64::from(facts.context)) as u32;
        let tries = plan.settings.step_time.is_some() && matches!(self.driver, Driver::Live);
        Known::new(key, tries.then_some(held))
    }

    pub(super) fn store_bounds(&self, plan: &GroupPlan) -> StoreBounds {
        let (cache, slot) = (&self.plan.cache, plan.layout.bytes_per_slot());
        StoreBounds {
            asks_max: ASKS,
            block_bytes: plan.layout.bytes_per_block(),
            keeps: cache.keeps_blocks(),
            snapshots: cache.keeps_snapshots(plan.state.is_some()).then_some(slot),
        }
    }
}
