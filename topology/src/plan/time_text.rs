//! Durations in JSON as the file writes them: for `serde(with)`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

use crate::units;

pub(super) fn serialize<S: Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&units::write_time(*time))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(input)?;
    let ms = units::read(&text, units::TIME_UNITS);
    ms.map(Duration::from_millis).map_err(|_| de::Error::custom(format!("no duration: {text}")))
}
