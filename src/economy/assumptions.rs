//! Every input that was taken, and where it is from: what has no source is shown as assumed.

use serde_json::{Map, Value};

use super::demand::{Demand, Hits};
use super::outcome::Setting;
use super::report::Assumption;
use super::spec::{Hit, Span, Spec};
use super::text::span;
use crate::capacity::figures::Device;

/// Every field that was taken, and where it is from.
pub(super) fn assumptions(setting: &Setting, device: &Device) -> Vec<Assumption> {
    let spec = &setting.spec;
    let mut fields = Vec::new();
    if let Ok(Value::Object(all)) = serde_json::to_value(spec) {
        collect(&all, "", &mut fields);
    }
    let searched = setting.model.is_some();
    let source = |name: &str| {
        let written = setting.written.contains(name);
        if !written && !spec.sources.contains_key(name) {
            return "assumed: the default".to_owned();
        }
        let mut part = name;
        loop {
            if let Some(source) = spec.sources.get(part) {
                return source.clone();
            }
            match part.rsplit_once('.') {
                Some((before, _)) => part = before,
                None => break,
            }
        }
        "assumed".to_owned()
    };
    let shown = |name: &str| {
        let of_money = ["workload.", "prices.", "fleet."].iter().any(|part| name.starts_with(part));
        searched || of_money || ["device.hour", "device.host_devices"].contains(&name)
    };
    let of = |(name, value): (String, String)| {
        shown(&name).then(|| Assumption { source: source(&name), name, value })
    };
    let mut all: Vec<Assumption> = fields.into_iter().filter_map(of).collect();
    if searched {
        all.extend(of_device(spec, device));
        all.extend(of_hits(&setting.demand, spec));
    }
    all
}

/// What the table says of the device and the file does not.
fn of_device(spec: &Spec, device: &Device) -> Vec<Assumption> {
    let of = &spec.device;
    let table = [
        ("flops", of.flops, device.flops, true),
        ("bytes_per_second", of.bytes_per_second, device.bytes_per_second, true),
        ("flops_share", of.flops_share, device.flops_share, false),
        ("bytes_share", of.bytes_share, device.bytes_share, false),
        ("step_us", of.step_us, device.step_us, false),
    ];
    let taken = table.into_iter().filter(|(_, said, _, _)| said.is_none());
    taken
        .map(|(name, _, value, of_maker)| Assumption {
            name: format!("device.{name}"),
            value: format!("{value}"),
            source: if of_maker { device.name.clone() } else { "assumed: the default".to_owned() },
        })
        .collect()
}

/// Shares that were counted in a trace.
fn of_hits(demand: &Demand, spec: &Spec) -> Vec<Assumption> {
    let (Some(trace), Hits::ByTime(points)) = (&spec.workload.trace, &demand.hits) else { return Vec::new() };
    if !spec.workload.hits.is_empty() {
        return Vec::new();
    }
    let of = |Hit { kept: Span(kept), share, .. }: &Hit| Assumption {
        name: format!("found when kept for {}", span(*kept)),
        value: format!("{:.2} %", 100.0 * share),
        source: format!("counted in {trace}, of blocks, refreshed by each use"),
    };
    points.iter().map(of).collect()
}

/// Names and values of fields; lists are one value.
fn collect(fields: &Map<String, Value>, before: &str, into: &mut Vec<(String, String)>) {
    for (name, value) in fields {
        let path = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            Value::Null => {}
            Value::Object(fields) if path != "sources" => collect(fields, &path, into),
            Value::Array(list) if list.is_empty() || path == "published" => {}
            Value::String(text) if path != "title" => into.push((path, text.clone())),
            Value::Number(number) => into.push((path, plain(number.as_f64().unwrap_or(0.0)))),
            Value::Array(_) | Value::Bool(_) => into.push((path, value.to_string())),
            Value::String(_) | Value::Object(_) => {}
        }
    }
}

/// A number as people write it.
fn plain(value: f64) -> String {
    if value.abs() >= 1e6 { format!("{value:e}") } else { format!("{value}") }
}
