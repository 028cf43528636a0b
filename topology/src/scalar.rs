//! Reads single values by the kind of their key, and says what to write where a value is of the wrong kind, has no
//! unit, or is out of bounds.

mod address;
mod quantity;

pub(crate) use address::is_address;

use std::time::Duration;

use serde_spanned::Spanned;
use toml::de::DeValue;

use crate::error::Findings;
use crate::keys::{Key, Kind, RETENTION_MAX};
use crate::plan::Scalar;
use crate::replay::{NoReplay, Replay};
use crate::section::Value;
use crate::suggest::{self, quote};
use crate::units::{SIZE_UNITS, TIME_UNITS};

/// Why a value is refused: a sentence, and what to write.
struct Refused(String, String);

type Read<T> = Result<T, Refused>;

fn refused<T>(message: impl Into<String>, help: impl Into<String>) -> Read<T> {
    Err(Refused(message.into(), help.into()))
}

/// Reads a value that is not a table; what is wrong goes to the findings.
pub(crate) fn read(key: &Key, value: &Spanned<DeValue<'_>>, findings: &mut Findings) -> Option<Value> {
    if let Kind::Names = key.kind {
        return names(key, value, findings).map(Value::Names);
    }
    match single(key, value.get_ref()) {
        Ok(read) => Some(read),
        Err(Refused(message, help)) => {
            findings.add(&value.span(), message, help);
            None
        }
    }
}

fn single(key: &Key, value: &DeValue<'_>) -> Read<Value> {
    let scalar = match key.kind {
        Kind::Flag => Scalar::Flag(value.as_bool().ok_or_else(|| wrong_kind(key, value))?),
        Kind::Count { least, most } => Scalar::Count(count(key, value, least, most)?),
        Kind::Size { most } => Scalar::Bytes(quantity::quantity(key.name, key, value, (most, SIZE_UNITS))?),
        Kind::Time { most } => {
            Scalar::Time(Duration::from_millis(quantity::quantity(key.name, key, value, (most, TIME_UNITS))?))
        }
        Kind::Listen => Scalar::Text(address::listen(key, value)?.to_string()),
        Kind::Devices => return address::devices(key, text(key, value)?).map(Value::Devices),
        Kind::Text => Scalar::Text(text(key, value)?.to_owned()),
        Kind::Address => Scalar::Text(address::address(key, text(key, value)?)?),
        Kind::Choice(words) => Scalar::Text(choice(key, text(key, value)?, words)?),
        Kind::Replay => Scalar::Text(replay(text(key, value)?)?),
        Kind::End => Scalar::Text(end(key, text(key, value)?)?),
        Kind::Digest => Scalar::Text(digest(key, text(key, value)?)?),
        Kind::Names | Kind::Table(_) | Kind::Tables(_) | Kind::Named(_) | Kind::Classes(_) | Kind::Actors => {
            return Err(wrong_kind(key, value));
        }
    };
    Ok(Value::Scalar(scalar))
}

/// A duration of a table whose keys the person names.
pub(crate) fn duration(
    name: &str,
    key: &Key,
    value: &Spanned<DeValue<'_>>,
    findings: &mut Findings,
) -> Option<Duration> {
    match quantity::quantity(name, key, value.get_ref(), (RETENTION_MAX, TIME_UNITS)) {
        Ok(ms) => Some(Duration::from_millis(ms)),
        Err(Refused(message, help)) => {
            findings.add(&value.span(), message, help);
            None
        }
    }
}

/// What a key takes, in words.
fn wants(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "a text in quotes",
        Kind::Flag => "true or false",
        Kind::Count { .. } => "a whole number",
        Kind::Size { .. } => "a size with its unit, as in \"20GiB\"",
        Kind::Time { .. } => "a duration with its unit, as in \"30s\"",
        Kind::Classes(_) => "a duration for each class, as in { agent = \"3d\" }",
        Kind::Digest => "the SHA-256 of a key, as in \"sha256:9f86…\"",
        Kind::Listen => "an IP address and a port, as in \"127.0.0.1:8000\"",
        Kind::Address => "a host and a port, as in \"10.0.0.1:7400\"",
        Kind::Choice(_) => "one word in quotes",
        Kind::Names => "a name in quotes, or an array of them",
        Kind::Devices => "devices, as in \"cpu\" or \"cuda:0-7\"",
        Kind::Replay => "\"exact\", \"snapshot\", \"bounded\", or a length as in \"4 windows\"",
        Kind::End => "an actor and its port, as in \"prefill.handover\"",
        Kind::Table(_) | Kind::Named(_) | Kind::Actors => "a table",
        Kind::Tables(_) => "an array of tables",
    }
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a flag",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// The value is of another kind than its key takes.
pub(crate) fn kind_problem(key: &Key, value: &Spanned<DeValue<'_>>, findings: &mut Findings) {
    let Refused(message, help) = wrong_kind(key, value.get_ref());
    findings.add(&value.span(), message, help);
}

fn wrong_kind(key: &Key, value: &DeValue<'_>) -> Refused {
    let message = format!("{} takes {}, not {}", quote(key.name), wants(key.kind), kind_of(value));
    let help = match (key.kind, value) {
        (Kind::Count { .. }, DeValue::String(text)) if text.parse::<u64>().is_ok() => {
            Some(format!("write {text} without quotes"))
        }
        (Kind::Flag, DeValue::String(text)) if matches!(&**text, "true" | "false") => {
            Some(format!("write {text} without quotes"))
        }
        (Kind::Tables(_), DeValue::Table(_)) => Some(format!("write [[{}]] with two brackets", key.name)),
        (Kind::Text, DeValue::Integer(number)) => Some(format!("write {} in quotes", quote(number.as_str()))),
        (Kind::Listen, DeValue::Integer(port)) => Some(format!("write \"127.0.0.1:{}\"", port.as_str())),
        _ => None,
    };
    Refused(message, help.unwrap_or_else(|| format!("write {} = {}", key.name, example(key))))
}

/// What could stand after a key: its default where it has one.
pub(crate) fn example(key: &Key) -> String {
    if let Some(preset) = key.preset.scalar() {
        return preset.to_string();
    }
    match key.kind {
        Kind::Text if key.name == "model" => "\"builtin\", a folder or a .gguf file",
        Kind::Text => "\"…\"",
        Kind::Flag => "true",
        Kind::Count { .. } => "1",
        Kind::Size { .. } => "\"20GiB\"",
        Kind::Time { .. } => "\"30s\"",
        Kind::Listen => "\"127.0.0.1:8000\"",
        Kind::Address => "\"10.0.0.1:7400\"",
        Kind::Choice(words) => return quote(words.first().copied().unwrap_or_default()),
        Kind::Names => "\"…\"",
        Kind::Devices => "\"cuda:0-7\"",
        Kind::Replay => "\"bounded\"",
        Kind::End if key.name == "to" => "\"decode.handover\"",
        Kind::End => "\"prefill.handover\"",
        Kind::Classes(_) => "{ agent = \"3d\" }",
        Kind::Digest => "\"sha256:…\", with what `printf %s KEY | sha256sum` prints",
        Kind::Table(keys) => {
            return keys
                .first()
                .map_or_else(String::new, |key| format!("{{ {} = {} }}", key.name, example(key)));
        }
        Kind::Tables(keys) => {
            return keys
                .first()
                .map_or_else(String::new, |key| format!("[{{ {} = {} }}]", key.name, example(key)));
        }
        Kind::Named(_) | Kind::Actors => "{ … }",
    }
    .to_owned()
}

fn text<'v>(key: &Key, value: &'v DeValue<'_>) -> Read<&'v str> {
    let text = value.as_str().ok_or_else(|| wrong_kind(key, value))?;
    match text.trim().is_empty() {
        true => refused(
            format!("{} must not be empty", quote(key.name)),
            format!("write {} = {}", key.name, example(key)),
        ),
        false => Ok(text),
    }
}

fn count(key: &Key, value: &DeValue<'_>, least: u64, most: u64) -> Read<u64> {
    let number = value.as_integer().ok_or_else(|| wrong_kind(key, value))?;
    let name = quote(key.name);
    let bounds = format!("write a number from {least} to {most}");
    match i128::from_str_radix(number.as_str(), number.radix()) {
        Ok(0) if least > 0 => refused(format!("{name} must not be zero"), bounds),
        Ok(number) if number < i128::from(least) => refused(format!("{name} must not be negative"), bounds),
        Ok(number) if number <= i128::from(most) => Ok(u64::try_from(number).unwrap_or(most)),
        Ok(_) | Err(_) => refused(format!("{name} is out of bounds: {most} at most"), bounds),
    }
}

fn choice(key: &Key, said: &str, words: &'static [&'static str]) -> Read<String> {
    match words.contains(&said) {
        true => Ok(said.to_owned()),
        false => {
            let help = suggest::help(said, "words", words.iter().copied());
            refused(format!("unknown {} {}", key.name, quote(said)), help)
        }
    }
}

fn replay(said: &str) -> Read<String> {
    match said.parse::<Replay>() {
        Ok(replay) => Ok(replay.to_string()),
        Err(NoReplay) => {
            let message = format!("unknown replay {}", quote(said));
            refused(message, suggest::help(said, "forms", ["exact", "snapshot", "bounded", "4 windows"]))
        }
    }
}

fn digest(key: &Key, said: &str) -> Read<String> {
    let hex = said.strip_prefix("sha256:").map(str::to_ascii_lowercase);
    match hex.filter(|hex| hex.len() == 64 && hex.bytes().all(|digit| digit.is_ascii_hexdigit())) {
        Some(hex) => Ok(format!("sha256:{hex}")),
        // It may be a secret: it is not repeated.
        None => refused(
            format!("{} takes {}", quote(key.name), wants(key.kind)),
            format!("write {} = {}", key.name, example(key)),
        ),
    }
}

fn end(key: &Key, said: &str) -> Read<String> {
    let named =
        |name: &str| !name.is_empty() && !name.contains(['.', ' ']) && name.len() <= crate::id::NAME_LEN_MAX;
    match said.split_once('.') {
        Some((actor, port)) if named(actor) && named(port) => Ok(said.to_owned()),
        _ => {
            let message = format!("{} takes {}, not {}", quote(key.name), wants(key.kind), quote(said));
            refused(message, "write the actor's name, a dot and the port's name")
        }
    }
}

fn names(key: &Key, value: &Spanned<DeValue<'_>>, findings: &mut Findings) -> Option<Vec<Spanned<String>>> {
    let items = match value.get_ref() {
        DeValue::Array(items) => &items[..],
        _ => std::slice::from_ref(value),
    };
    if items.is_empty() {
        findings.add(
            &value.span(),
            format!("{} must not be empty", quote(key.name)),
            "name a host, or leave it out",
        );
        return None;
    }
    let mut names = Vec::new();
    for item in items.iter().take(crate::keys::HOSTS_MAX as usize) {
        match text(key, item.get_ref()) {
            Ok(name) => names.push(Spanned::new(item.span(), name.to_owned())),
            Err(Refused(message, help)) => findings.add(&item.span(), message, help),
        }
    }
    (names.len() == items.len()).then_some(names)
}
