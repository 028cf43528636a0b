//! Durations that may be missing, in JSON as the file writes them: for `serde(with)`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units;

pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
    time.map(units::write_time).serialize(out)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(input)? else { return Ok(None) };
    let ms = units::read(&text, units::TIME_UNITS);
    ms.map(Duration::from_millis).map(Some).map_err(|_| de::Error::custom(format!("no duration: {text}")))
}
