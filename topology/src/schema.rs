//! The JSON Schema of the file, for editors: made from the table of keys that reading follows too.

use serde_json::{Map, Value, json};

use crate::keys::{self, Key, Kind, Preset};
use crate::plan::Role;
use crate::units::{SIZE_UNITS, TIME_UNITS};

/// The JSON Schema (draft 2020-12) of a topology file, read as the JSON value its TOML stands for.
///
/// # Examples
/// ```
/// let schema = millstream_topology::schema();
/// assert_eq!(schema["required"], serde_json::json!(["model", "actors"]));
/// assert_eq!(schema["$defs"]["prefill"]["properties"]["chunk_tokens"]["default"], 256);
/// ```
pub fn schema() -> Value {
    let mut schema = table(keys::ROOT);
    let mut defs = Map::new();
    let mut by_role = Vec::new();
    for (name, role) in Role::KNOWN {
        defs.insert(name.to_owned(), table(keys::of_role(&role)));
        let wanted = json!({ "properties": { "role": { "const": name } }, "required": ["role"] });
        by_role.push(json!({ "if": wanted, "then": { "$ref": format!("#/$defs/{name}") } }));
    }
    defs.insert("actor".to_owned(), json!({ "type": "object", "allOf": by_role }));
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Millstream topology");
    schema["$defs"] = Value::Object(defs);
    schema
}

fn table(keys: &[Key]) -> Value {
    let properties: Map<String, Value> =
        keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let required = keys.iter().filter(|key| matches!(key.preset, Preset::Required)).map(|key| key.name);
    json!({
        "type": "object",
        "properties": properties,
        "required": required.collect::<Vec<_>>(),
        "additionalProperties": false,
    })
}

fn property(key: &Key) -> Value {
    let mut schema = kind(key.kind);
    let mut description = key.doc.to_owned();
    if let Preset::Found(how) = key.preset {
        description.push_str(&format!(" Default: {how}."));
    }
    if let Some(why) = key.later {
        description.push_str(&format!(" Not built yet: {why}."));
    }
    schema["description"] = json!(description);
    match key.preset {
        Preset::None | Preset::Required | Preset::Found(_) => {}
        Preset::Flag(flag) => schema["default"] = json!(flag),
        Preset::Count(count) => schema["default"] = json!(count),
        Preset::Bytes(bytes) => schema["default"] = json!(crate::units::write_size(bytes)),
        Preset::Seconds(seconds) => {
            schema["default"] = json!(crate::units::write_time(std::time::Duration::from_secs(seconds)));
        }
        Preset::Text(text) => schema["default"] = json!(text),
    }
    schema
}

fn kind(kind: Kind) -> Value {
    match kind {
        Kind::Text => json!({ "type": "string", "minLength": 1 }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Size { .. } => quantity(SIZE_UNITS),
        Kind::Time { .. } => quantity(TIME_UNITS),
        Kind::Listen => json!({ "type": "string", "pattern": "^.+:[0-9]{1,5}$" }),
        Kind::Address => json!({ "type": "string", "pattern": "^[^:]+:[0-9]{1,5}$|^\\[.+\\]:[0-9]{1,5}$" }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Names => json!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }]
        }),
        Kind::Devices => json!({ "type": "string", "pattern": "^cpu$|^cuda:[0-9,-]+$" }),
        Kind::Replay => {
            json!({ "type": "string", "pattern": "^exact$|^snapshot$|^bounded$|^[0-9]+ windows$" })
        }
        Kind::End => json!({ "type": "string", "pattern": "^[^.]+\\.[^.]+$" }),
        Kind::Table(keys) => table(keys),
        Kind::Tables(keys) => json!({ "type": "array", "items": table(keys) }),
        Kind::Named(keys) => json!({ "type": "object", "additionalProperties": table(keys) }),
        Kind::Digest => json!({ "type": "string", "pattern": "^sha256:[0-9a-fA-F]{64}$" }),
        Kind::Classes(keys) => {
            let class = json!({ "anyOf": [quantity(TIME_UNITS), table(keys)] });
            json!({ "type": "object", "additionalProperties": class })
        }
        Kind::Actors => {
            let known = Role::KNOWN.iter().map(|(name, _)| ((*name).to_owned(), actor(name)));
            let known: Map<String, Value> = known.collect();
            json!({ "type": "object", "properties": known, "additionalProperties": { "$ref": "#/$defs/actor" } })
        }
    }
}

/// A table named like a role has that role unless it says another.
fn actor(name: &str) -> Value {
    let own = format!("#/$defs/{name}");
    json!({ "if": { "required": ["role"] }, "then": { "$ref": "#/$defs/actor" }, "else": { "$ref": own } })
}

fn quantity(units: &[(&str, u64)]) -> Value {
    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    json!({ "type": "string", "pattern": format!("^[0-9]+({})$", names.join("|")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(schema: &Value) -> Vec<&str> {
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect()
    }

    fn same(schema: &Value, keys: &[Key], path: &str) {
        let mut known: Vec<&str> = keys.iter().map(|key| key.name).collect();
        let mut schemed = keys_of(schema);
        known.sort_unstable();
        schemed.sort_unstable();
        assert_eq!(schemed, known, "{path}");
        for key in keys {
            let inner = &schema["properties"][key.name];
            let path = format!("{path}.{}", key.name);
            match key.kind {
                Kind::Table(keys) => same(inner, keys, &path),
                Kind::Tables(keys) => same(&inner["items"], keys, &path),
                Kind::Named(keys) => same(&inner["additionalProperties"], keys, &path),
                Kind::Classes(keys) => same(&inner["additionalProperties"]["anyOf"][1], keys, &path),
                _ => {}
            }
        }
    }

    #[test]
    fn the_schema_knows_the_keys_that_reading_knows() {
        let schema = schema();
        same(&schema, keys::ROOT, "");
        for (name, role) in Role::KNOWN {
            same(&schema["$defs"][name], keys::of_role(&role), name);
        }
    }

    #[test]
    fn what_is_written_out_is_what_is_read() {
        let host = crate::HostFacts { cores: 4, buckets: true };
        let plan = crate::check(&crate::laptop("builtin"), "laptop.toml", &host).unwrap();
        for actor in &plan.actors {
            let written = crate::diff::settings(&actor.settings);
            let mut written: Vec<&str> =
                written.iter().map(|(name, _)| *name).chain(["role", "on"]).collect();
            let keys = keys::of_role(&actor.role).iter().filter(|key| key.later.is_none());
            // What follows from the model, or is nothing where nothing is said, need not be written.
            let open = |key: &&keys::Key| matches!(key.preset, keys::Preset::None | keys::Preset::Found(_));
            let mut known: Vec<&str> =
                keys.filter(|key| !open(key) || written.contains(&key.name)).map(|key| key.name).collect();
            written.sort_unstable();
            known.sort_unstable();
            assert_eq!(written, known, "{}", actor.name);
        }
    }
}
