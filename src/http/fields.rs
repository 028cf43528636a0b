//! Reads a JSON body by hand, so that every complaint names the field by its path and says what was expected, in words
//! that are not a parser's. Knows nothing of the API itself.

use serde_json::{Map, Value};

use super::fault::Fault;
use crate::json;
use crate::suggest::nearest;

/// Nesting allowed in a body; the API itself needs four.
const DEPTH_MAX: usize = 64;
/// Values allowed in a body: bounds the memory of the parsed tree, which is far larger than the text.
const VALUES_MAX: usize = 100_000;

/// Parses a body after a scan that bounds nesting and the number of values.
///
/// # Errors
/// A fault that says where the text stops being JSON, or which field stands twice.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Fault> {
    let text = std::str::from_utf8(body).map_err(|error| {
        Fault::invalid(format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to()))
            .coded("invalid_utf8")
    })?;
    scan(text)?;
    json::read(text).map_err(|error| match error.is_data() {
        true => Fault::invalid(error.to_string()).coded("duplicate_field"),
        false => Fault::invalid(format!("the body is not JSON: {error}")).coded("invalid_json"),
    })
}

fn scan(text: &str) -> Result<(), Fault> {
    let (mut depth, mut values, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => (depth, values) = (depth + 1, values + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            let message = format!("the body nests deeper than {DEPTH_MAX} levels");
            return Err(Fault::invalid(message).coded("invalid_json"));
        }
        if values > VALUES_MAX {
            let message = format!("the body holds more than {VALUES_MAX} values");
            return Err(Fault::invalid(message).coded("invalid_json"));
        }
    }
    Ok(())
}

/// An object of the body and its path (empty for the body itself).
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// One value of the body and its path.
pub(crate) struct Field<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Fields<'a> {
    /// The body itself, which must be an object.
    pub(crate) fn of(body: &'a Value) -> Result<Self, Fault> {
        match body {
            Value::Object(map) => Ok(Self { map, path: String::new() }),
            other => Err(Fault::invalid(format!("the body must be an object, not {}", kind(other)))),
        }
    }

    /// A field; `null` counts as absent, as in the API.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'a>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(Field { value, path: self.join(name) })
    }

    /// A field that must be there.
    pub(crate) fn need(&self, name: &str) -> Result<Field<'a>, Fault> {
        self.get(name).ok_or_else(|| Fault::field(&self.join(name), "this field is required"))
    }

    /// Refuses fields that are not in one of the lists, and says which known one is nearest.
    pub(crate) fn only(&self, lists: &[&[&str]]) -> Result<(), Fault> {
        let known = |name: &str| lists.iter().any(|list| list.contains(&name));
        let Some(wrong) = self.map.keys().find(|name| !known(name)) else { return Ok(()) };
        let meant = nearest(wrong, lists.iter().copied().flatten().copied());
        let hint = meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
        let shown: String = wrong.chars().take(64).collect();
        Err(Fault::field(&self.join(&shown), format!("unknown field{hint}")).coded("unknown_field"))
    }

    /// Every field with its name.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        self.map.iter().map(|(name, value)| (name.as_str(), Field { value, path: self.join(name) }))
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

impl<'a> Field<'a> {
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::field(&self.path, message)
    }

    fn expected(&self, what: &str) -> Fault {
        self.fault(format!("expected {what}, found {}", kind(self.value))).coded("invalid_type")
    }

    pub(crate) fn text(&self) -> Result<&'a str, Fault> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    pub(crate) fn flag(&self) -> Result<bool, Fault> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(crate) fn fields(&self) -> Result<Fields<'a>, Fault> {
        match self.value {
            Value::Object(map) => Ok(Fields { map, path: self.path.clone() }),
            _ => Err(self.expected("an object")),
        }
    }

    pub(crate) fn list(&self) -> Result<Vec<Field<'a>>, Fault> {
        let values = self.value.as_array().ok_or_else(|| self.expected("a list"))?;
        Ok(values
            .iter()
            .enumerate()
            .map(|(i, value)| Field { value, path: format!("{}[{i}]", self.path) })
            .collect())
    }

    /// A number in `low..=high`.
    pub(crate) fn number(&self, low: f64, high: f64) -> Result<f64, Fault> {
        let number = self.value.as_f64().ok_or_else(|| self.expected("a number"))?;
        if (low..=high).contains(&number) {
            Ok(number)
        } else {
            Err(self.fault(format!("must be between {low} and {high}, not {number}")).coded("out_of_range"))
        }
    }

    /// A whole number in `low..=high`.
    pub(crate) fn count(&self, low: u32, high: u32) -> Result<u32, Fault> {
        if !self.value.is_number() {
            return Err(self.expected("a whole number"));
        }
        let count = self.value.as_u64().and_then(|count| u32::try_from(count).ok());
        count.filter(|count| (low..=high).contains(count)).ok_or_else(|| {
            self.fault(format!("must be a whole number from {low} to {high}")).coded("out_of_range")
        })
    }

    /// A list of whole numbers, at most `most` of them.
    pub(crate) fn counts(&self, most: usize) -> Result<Vec<u32>, Fault> {
        let list = self.list()?;
        if list.len() > most {
            return Err(self.fault(format!("must hold at most {most} numbers")).coded("out_of_range"));
        }
        list.iter().map(|one| one.count(0, u32::MAX)).collect()
    }

    /// Any whole number of 64 bits, signed or not, as bits.
    pub(crate) fn bits(&self) -> Result<u64, Fault> {
        let signed = || self.value.as_i64().map(i64::cast_unsigned);
        self.value.as_u64().or_else(signed).ok_or_else(|| self.expected("a whole number of 64 bits"))
    }
}

/// What a value is, in a person's words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_bounded_before_parsing() {
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).unwrap_err().message.contains("nests deeper"));
        let quoted = format!("\"{}\"", "[".repeat(1_000));
        assert!(parse(quoted.as_bytes()).is_ok());
        assert!(parse(br#"["\"[[", "\\"]"#).is_ok());
    }

    #[test]
    fn many_values_are_refused() {
        let wide = format!("[{}0]", "0,".repeat(VALUES_MAX + 1));
        assert!(parse(wide.as_bytes()).unwrap_err().message.contains("values"));
    }

    #[test]
    fn paths_name_the_field() {
        let body = serde_json::json!({"a": {"b": [1, "x"]}});
        let list = Fields::of(&body).unwrap().need("a").unwrap().fields().unwrap().need("b").unwrap();
        let fault = list.list().unwrap()[0].text().unwrap_err();
        assert_eq!(fault.message, "a.b[0]: expected a string, found a number");
        assert_eq!(fault.param.as_deref(), Some("a.b[0]"));
    }

    #[test]
    fn unknown_fields_get_a_hint() {
        let body = serde_json::json!({"temprature": 1});
        let fault = Fields::of(&body).unwrap().only(&[&["temperature", "top_p"]]).unwrap_err();
        assert!(fault.message.contains("did you mean `temperature`?"), "{}", fault.message);
    }

    #[test]
    fn seeds_may_be_negative() {
        let body = serde_json::json!({"seed": -1});
        assert_eq!(Fields::of(&body).unwrap().need("seed").unwrap().bits().unwrap(), u64::MAX);
    }
}
