//! Durations and sizes: what is wrong with one is told with the value that was most likely meant.

use std::time::Duration;

use toml::de::DeValue;

use super::{Read, example, refused, wants, wrong_kind};
use crate::keys::{Key, Preset};
use crate::suggest::quote;
use crate::units::{self, TIME_UNITS, Unreadable};

/// A number with a unit: at most so many, in one of the units known.
pub(super) fn quantity(
    name: &str,
    key: &Key,
    value: &DeValue<'_>,
    bounds: (u64, &[(&str, u64)]),
) -> Read<u64> {
    let name = quote(name);
    let (most, known) = bounds;
    let write = |amount: u64| match known == TIME_UNITS {
        true => units::write_time(Duration::from_millis(amount)),
        false => units::write_size(amount),
    };
    let text = match value {
        DeValue::String(text) => text.clone(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned().into(),
        _ => return Err(wrong_kind(key, value)),
    };
    match units::read(text.trim(), known) {
        Ok(0) => refused(format!("{name} must not be zero"), format!("write {}", example(key))),
        Ok(amount) if amount <= most => Ok(amount),
        Ok(_) | Err(Unreadable::TooLarge) => {
            let most = quote(&write(most));
            refused(format!("{name} is out of bounds: {most} at most"), format!("write {most} or less"))
        }
        Err(Unreadable::NoUnit) if text.trim().bytes().all(|digit| digit == b'0') => {
            refused(format!("{name} must not be zero"), format!("write {}", example(key)))
        }
        Err(Unreadable::NoUnit) => {
            let cure = format!("{}{}", text.trim(), usual_unit(key, known));
            refused(format!("missing unit of {name}"), format!("write {}", quote(&cure)))
        }
        Err(Unreadable::Unit { number, unit }) => wrong_unit(&name, &number, &unit, known),
        Err(Unreadable::Form) => {
            let message = format!("{name} takes {}, not {}", wants(key.kind), quote(&text));
            refused(message, format!("write a whole number and one of {}", listed(known)))
        }
    }
}

/// The unit a person most likely means where none is written.
fn usual_unit(key: &Key, known: &[(&str, u64)]) -> &'static str {
    match (known == TIME_UNITS, key.preset) {
        (true, _) if key.name == "step_time" => "ms",
        (true, _) => "s",
        (false, Preset::Bytes(bytes)) if bytes < 1 << 30 => "MiB",
        (false, _) => "GiB",
    }
}

fn listed(known: &[(&str, u64)]) -> String {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn wrong_unit<T>(name: &str, number: &str, unit: &str, known: &[(&str, u64)]) -> Read<T> {
    const MEANT: &[(&str, &str)] = &[
        ("sec", "s"),
        ("secs", "s"),
        ("second", "s"),
        ("seconds", "s"),
        ("min", "m"),
        ("mins", "m"),
        ("minute", "m"),
        ("minutes", "m"),
        ("hr", "h"),
        ("hour", "h"),
        ("hours", "h"),
        ("day", "d"),
        ("days", "d"),
        ("msec", "ms"),
        ("millis", "ms"),
        ("k", "KiB"),
        ("m", "MiB"),
        ("g", "GiB"),
        ("t", "TiB"),
    ];
    if known.iter().any(|(name, _)| *name == unit) {
        let cure = format!("{number}{unit}");
        return refused(format!("{name} has a space before its unit"), format!("write {}", quote(&cure)));
    }
    let lower = unit.to_lowercase();
    let same = known.iter().map(|(name, _)| *name).find(|name| name.to_lowercase() == lower);
    let meant = MEANT.iter().find(|(written, _)| *written == lower).map(|(_, meant)| *meant);
    let meant = same.or(meant.filter(|meant| known.iter().any(|(name, _)| name == meant)));
    let help = match meant {
        Some(meant) => format!("did you mean {}?", quote(&format!("{number}{meant}"))),
        None => format!("known units: {}", listed(known)),
    };
    refused(format!("unknown unit {} of {name}", quote(unit)), help)
}
