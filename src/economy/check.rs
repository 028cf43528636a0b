//! What a file must hold, said all at once: the field, what is wrong with it, and what it should be.

use serde_json::{Map, Value};

use super::spec::{Counted, DeviceSpec, Spec, TierSpec, Workload};
use crate::capacity::figures::Device;
use crate::suggest::nearest;

/// Sizes, chunks or times of one list.
const LIST_MAX: usize = 64;
/// Groups that are counted.
const TRIED_MAX: usize = 20_000;
/// Devices of a group, tokens of a chunk.
const COUNT_MAX: u32 = 1 << 20;

/// What is wrong with a file; nothing where it can be planned.
pub fn check(spec: &Spec) -> Vec<String> {
    let mut wrong = Wrong(Vec::new());
    wrong.workload(&spec.workload);
    wrong.device(&spec.device, spec.model.is_some());
    wrong.parts(spec);
    for (name, tier) in super::keep::named(&spec.tiers) {
        wrong.tier(name, tier);
    }
    wrong.lists(spec);
    wrong.sources(spec);
    wrong.0
}

struct Wrong(Vec<String>);

impl Wrong {
    fn say(&mut self, what: impl Into<String>) {
        self.0.push(what.into());
    }

    fn above(&mut self, name: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| !(value.is_finite() && *value > 0.0)) {
            self.say(format!("{name} is {value}: it must be a number above 0"));
        }
    }

    fn not_below(&mut self, name: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| !(value.is_finite() && *value >= 0.0)) {
            self.say(format!("{name} is {value}: it must be a number from 0 on"));
        }
    }

    fn share(&mut self, name: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| !(0.0..=1.0).contains(value)) {
            self.say(format!("{name} is {value}: it must be from 0 to 1, as 0.96 for 96 %"));
        }
    }

    /// A share of something that must not be nothing.
    fn part(&mut self, name: &str, value: impl Into<Option<f64>>) {
        let value = value.into();
        self.share(name, value);
        if value == Some(0.0) {
            self.say(format!("{name} is 0: it must be above 0"));
        }
    }

    fn workload(&mut self, of: &Workload) {
        self.above("workload.tokens_a_day", of.tokens_a_day);
        self.above("workload.requests_a_day", of.requests_a_day);
        self.above("workload.input_a_day", of.input_a_day);
        self.above("workload.output_a_day", of.output_a_day);
        for (name, tokens) in [("workload.prompt", of.prompt), ("workload.answer", of.answer)] {
            if let Some(tokens) = tokens.filter(|tokens| !(1.0..=16_777_216.0).contains(tokens)) {
                self.say(format!("{name} is {tokens}: it must be from 1 to 16777216 tokens"));
            }
        }
        self.share("workload.hit_share", of.hit_share);
        of.hits.iter().for_each(|hit| self.share("workload.hits: share", hit.share));
        if of.peak.is_some_and(|peak| !(1.0..=1e6).contains(&peak)) {
            self.say("workload.peak must be from 1 on: requests of the busiest hour over those of the mean");
        }
        if of.spread.is_some_and(|spread| !(0.0..=100.0).contains(&spread)) {
            self.say("workload.spread must be from 0 to 100: a standard deviation over its mean");
        }
    }

    fn device(&mut self, of: &DeviceSpec, computes: bool) {
        self.not_below("device.hour", of.hour);
        self.above("device.flops", of.flops);
        self.above("device.bytes_per_second", of.bytes_per_second);
        self.part("device.flops_share", of.flops_share);
        self.part("device.bytes_share", of.bytes_share);
        self.part("device.memory_share", of.memory_share);
        self.not_below("device.step_us", of.step_us);
        self.not_below("device.exchange_us", of.exchange_us);
        self.above("device.host_bytes_per_second", of.host_bytes_per_second);
        self.above("device.link_bytes_per_second", of.link_bytes_per_second);
        if of.host_devices == 0 {
            self.say("device.host_devices is 0: a host has at least 1");
        }
        match &of.name {
            Some(name) if Device::of(name).is_none() => {
                let known = Device::names().join(", ");
                self.say(format!(
                    "device.name: there is no {name:?} in the table, it has {known}; or leave name out and \
                     say flops and bytes_per_second"
                ));
            }
            None if computes && (of.flops.is_none() || of.bytes_per_second.is_none()) => {
                self.say("[device] must say name, or flops and bytes_per_second");
            }
            _ => {}
        }
        if computes && of.memory.is_none() {
            self.say("[device] must say memory, such as \"80GiB\"");
        }
        self.above("device.memory", of.memory.map(|memory| memory.0));
    }

    /// Parts that need each other.
    fn parts(&mut self, spec: &Spec) {
        match (&spec.model, &spec.fleet, &spec.goal) {
            (Some(_), Some(_), _) => self
                .say("[fleet] says how many devices there are, and [model] asks for how many: one of them"),
            (None, None, _) => self.say("there must be [model] and [goal], or [fleet] to count money alone"),
            (Some(_), None, None) => self.say("[goal] is missing: say first_token_ms and between_tokens_ms"),
            _ => {}
        }
        if let Some(fleet) = spec.fleet {
            self.above("fleet.hosts", fleet.hosts);
        }
        if let Some(goal) = spec.goal {
            self.above("goal.first_token_ms", goal.first_token_ms);
            self.above("goal.between_tokens_ms", goal.between_tokens_ms);
            if goal.share.is_some_and(|share| !(0.5..=0.9999).contains(&share)) {
                self.say("goal.share must be from 0.5 to 0.9999, as 0.99 for 99 of 100 requests; without it the mean counts");
            }
        }
        if let Some(prices) = spec.prices {
            self.not_below("prices.hit", prices.hit);
            self.not_below("prices.miss", prices.miss);
            self.not_below("prices.output", prices.output);
        }
        if let Some(model) = &spec.model {
            if model.config.is_some() == model.figures.is_some() {
                self.say(
                    "[model] must say config, the path of a config.json or \"builtin\", or [model.figures]",
                );
            }
            self.above("model.weight_bytes", model.weight_bytes);
            self.above("model.expert_bytes", model.expert_bytes);
            if !(0.0..=f64::from(model.drafts)).contains(&model.accepted) || model.drafts > 64 {
                self.say("model.accepted must be from 0 to model.drafts, which is 64 at most");
            }
            model.figures.iter().for_each(|figures| self.figures(figures));
        }
    }

    fn figures(&mut self, of: &Counted) {
        let above = [
            ("layers", f64::from(of.layers)),
            ("hidden", of.hidden),
            ("multiply_adds", of.multiply_adds),
            ("weights", of.weights),
            ("kv_bytes", of.kv_bytes),
        ];
        let not_below = [
            ("pair", of.pair),
            ("head", of.head),
            ("experts", of.experts),
            ("experts_per_token", of.experts_per_token),
            ("state_bytes", of.state_bytes),
        ];
        above.iter().for_each(|(name, value)| self.above(&format!("model.figures.{name}"), *value));
        not_below.iter().for_each(|(name, value)| self.not_below(&format!("model.figures.{name}"), *value));
        self.share("model.figures.chosen", of.chosen);
    }

    fn tier(&mut self, name: &str, of: &TierSpec) {
        self.above(&format!("tiers.{name}.bytes_per_second"), of.bytes_per_second);
        self.above(&format!("tiers.{name}.size"), of.size.map(|size| size.0));
        self.not_below(&format!("tiers.{name}.latency_us"), of.latency_us);
        self.not_below(&format!("tiers.{name}.gib_month"), of.gib_month);
        if !(1.0..=100.0).contains(&of.copies) {
            self.say(format!("tiers.{name}.copies is {}: it must be from 1 to 100", of.copies));
        }
    }

    fn lists(&mut self, spec: &Spec) {
        let search = &spec.search;
        for (name, list) in [
            ("prefill", &search.prefill),
            ("decode", &search.decode),
            ("joined", &search.joined),
            ("chunks", &search.chunks),
        ] {
            let bound = list.is_empty() || list.len() > LIST_MAX;
            if bound || list.iter().any(|count| !(1..=COUNT_MAX).contains(count)) {
                self.say(format!(
                    "search.{name} must have 1 to {LIST_MAX} numbers, each from 1 to {COUNT_MAX}"
                ));
            }
        }
        if !(0.01..=0.999).contains(&search.busy) {
            self.say(format!("search.busy is {}: it must be from 0.01 to 0.999", search.busy));
        }
        let sizes = search.prefill.len() * search.chunks.len() + search.joined.len();
        let tried = sizes * (1 + search.retention.len() * super::keep::named(&spec.tiers).len());
        if tried > TRIED_MAX {
            self.say(format!(
                "[search] asks for {tried} kinds of groups (sizes, chunks, times, tiers): {TRIED_MAX} are the most"
            ));
        }
        let times = &search.retention;
        if times.is_empty() || times.len() > LIST_MAX || times.iter().any(|time| time.0 <= 0.0) {
            self.say(format!("search.retention must have 1 to {LIST_MAX} times above 0, such as \"3d\""));
        }
    }

    fn sources(&mut self, spec: &Spec) {
        let known = names(spec);
        for name in spec.sources.keys().filter(|name| !known.contains(name)) {
            let near = nearest(name, known.iter().map(String::as_str));
            let near = near.map_or_else(String::new, |near| format!(": did you mean {near:?}?"));
            self.say(format!("sources: there is no field {name:?}{near}"));
        }
    }
}

/// Names of all fields, and of parts that have fields.
fn names(spec: &Spec) -> Vec<String> {
    fn add(fields: &Map<String, Value>, before: &str, names: &mut Vec<String>) {
        for (name, value) in fields {
            let path = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
            if let Value::Object(fields) = value {
                add(fields, &path, names);
            }
            names.push(path);
        }
    }
    let mut names = Vec::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(spec) {
        add(&fields, "", &mut names);
    }
    names
}
