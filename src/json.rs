//! Reads JSON whose objects name each field once. What stands twice is an error, where the usual reader would silently
//! take the last: a client that says two things has not said what it wants.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a text.
///
/// # Errors
/// It is not JSON, or an object has a field twice; with line and column.
pub(crate) fn read(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str::<Once>(text).map(|once| once.0)
}

/// A value in which no field stands twice.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Once(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            if map.contains_key(&name) {
                let shown: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the field `{shown}` stands twice")));
            }
            let Once(value) = object.next_value()?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_usual_reader() {
        for text in [
            r#"{"a": [1, -2, 0.5, 1e300, 18446744073709551615, -9223372036854775808, true, null, "x\u00e9"], "b": {}}"#,
            "[]",
            "7",
        ] {
            assert_eq!(read(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        assert!(read("{").is_err() && read("[1] 2").is_err() && read("1e999").is_err());
    }

    #[test]
    fn a_field_that_stands_twice_is_named() {
        let error = read(r#"{"a": 1, "b": {"c": 1, "c": 1}}"#).unwrap_err().to_string();
        assert!(error.contains("`c` stands twice") && error.contains("line 1"), "{error}");
        assert!(read(r#"{"a": 1, "b": {"a": 1}}"#).is_ok());
    }
}
