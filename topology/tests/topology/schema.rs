//! The good files against the schema that editors use, by a small reading of JSON Schema.

use millstream_topology::schema;
use serde_json::Value;

use crate::stored::all_good;

#[test]
fn good_files_follow_the_schema() {
    let schema = schema();
    for (file, text) in all_good() {
        let value: toml::Value = toml::from_str(&text).unwrap();
        let value = serde_json::to_value(value).unwrap();
        let mut wrong = Vec::new();
        follows(&value, &schema, &schema, &file, &mut wrong);
        assert_eq!(wrong, [""; 0]);
    }
    let mut wrong = Vec::new();
    let bad = serde_json::json!({ "model": 3, "modle": "", "actors": { "prefill": { "ranks": 0 }, "x": { "role": "decode", "y": 1 } } });
    follows(&bad, &schema, &schema, "bad", &mut wrong);
    assert_eq!(wrong.len(), 4, "{wrong:?}");
}

/// Holds a value against the part of JSON Schema that ours uses, but for patterns.
fn follows(value: &Value, schema: &Value, root: &Value, at: &str, wrong: &mut Vec<String>) {
    let fails = |schema| {
        let mut inner = Vec::new();
        follows(value, schema, root, at, &mut inner);
        !inner.is_empty()
    };
    if let Some(pointer) = schema["$ref"].as_str() {
        let named = root.pointer(pointer.trim_start_matches('#')).expect("a reference leads somewhere");
        follows(value, named, root, at, wrong);
    }
    let typed = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        _ => true,
    };
    let number = value.as_f64().unwrap_or(1.0);
    let within = schema["minimum"].as_f64().is_none_or(|least| number >= least)
        && schema["maximum"].as_f64().is_none_or(|most| number <= most);
    let listed = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    let fixed = schema.get("const").is_none_or(|only| only == value);
    let any = schema["anyOf"].as_array().is_none_or(|schemas| schemas.iter().any(|schema| !fails(schema)));
    if !(typed && within && listed && fixed && any) {
        wrong.push(format!("{at}: {value}"));
    }
    for schema in schema["allOf"].as_array().into_iter().flatten() {
        follows(value, schema, root, at, wrong);
    }
    if let Some(condition) = schema.get("if") {
        let branch = if fails(condition) { "else" } else { "then" };
        if let Some(branch) = schema.get(branch) {
            follows(value, branch, root, at, wrong);
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str()) {
        if value.get(name).is_none() {
            wrong.push(format!("{at}: no {name}"));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(known), _) => follows(inner, known, root, &at, wrong),
            (None, Some(Value::Bool(false))) => wrong.push(format!("{at}: unknown")),
            (None, Some(other)) => follows(inner, other, root, &at, wrong),
            (None, None) => {}
        }
    }
    for inner in value.as_array().into_iter().flatten() {
        follows(inner, &schema["items"], root, at, wrong);
    }
}
