//! How long the steps of a group take, by what the device's data sheet says (`capacity::figures`), and what the devices of a
//! group send each other between layers.

use millstream_kernels::work::Work;

use super::model::Model;
use super::spec::DeviceSpec;
use crate::capacity::figures::Device;

/// Bytes of a number that is sent: to experts, and back or in sums.
const SENT: (f64, f64) = (1.0, 2.0);

/// What is common to groups of all sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware<'a> {
    pub model: &'a Model,
    pub device: &'a Device,
    pub spec: &'a DeviceSpec,
}

/// Groups of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    pub of: Hardware<'a>,
    pub devices: u32,
}

impl Group<'_> {
    /// Seconds of a step.
    pub(super) fn seconds(&self, work: &Work, tokens: f64) -> f64 {
        self.in_steps(work, tokens, 1)
    }

    /// Seconds of a row that is computed in so many steps: each further one reads the weights once more, and half of the keys.
    pub(super) fn in_steps(&self, work: &Work, tokens: f64, steps: usize) -> f64 {
        // Beside experts, each device has and reads all weights.
        let copies = if self.of.model.experts_per_token > 0.0 { f64::from(self.devices) } else { 1.0 };
        let work = Work { weights: work.weights * copies, ..*work };
        let again = steps.saturating_sub(1) as f64 * self.exchanges(0.0);
        let coefficients = self.of.device.coefficients(self.devices as usize);
        coefficients.in_chunks(&work, steps) + self.exchanges(tokens) + again
    }

    /// Seconds of exchanges for so many tokens. With experts each token goes to some of them and back, from the device that has
    /// it; else the group sums twice a layer, in a ring: 2(n-1)/n of all numbers over each device's link.
    fn exchanges(&self, tokens: f64) -> f64 {
        let (ranks, model) = (f64::from(self.devices), self.of.model);
        if self.devices == 1 {
            return 0.0;
        }
        let others = (ranks - 1.0) / ranks;
        let numbers = tokens * model.hidden * others;
        let bytes = match model.experts_per_token > 0.0 {
            true => numbers * model.experts_per_token * (SENT.0 + SENT.1) / ranks,
            false => numbers * 2.0 * 2.0 * SENT.1,
        };
        model.layers * (bytes / self.link() + 2.0 * self.of.spec.exchange_us / 1e6)
    }

    /// Bytes a second from one device of the group to the others.
    fn link(&self) -> f64 {
        match self.devices <= self.of.spec.host_devices {
            true => self.of.spec.host_bytes_per_second,
            false => self.of.spec.link_bytes_per_second,
        }
    }

    /// Sequences that fit beside the weights, if each has so many tokens.
    pub(super) fn room(&self, tokens: f64) -> f64 {
        let (ranks, model, spec) = (f64::from(self.devices), self.of.model, self.of.spec);
        let (spread, copied) = model.weights();
        let memory = spec.memory.map_or(0.0, |memory| memory.0) * spec.memory_share * ranks;
        let free = memory - spread - copied * ranks;
        (free / (tokens * model.kv_bytes + model.state_bytes)).floor().max(0.0)
    }
}

/// So many times the same row: what is read together is read once.
pub(super) fn times(work: &Work, count: f64) -> Work {
    Work {
        rows: work.rows * count,
        tokens: work.tokens * count,
        gemm: work.gemm * count,
        pairs: work.pairs * count,
        scores: work.scores * count,
        head: work.head * count,
        lookups: work.lookups * count,
        kv: work.kv * count,
        untouched: work.untouched.powf(count),
        ..*work
    }
}
