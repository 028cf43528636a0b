//! Typed access to settings by key, from JSON or from GGUF metadata. It remembers the keys that were asked for, so that
//! a reader can refuse what it does not know.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::weights::Texts;
use crate::weights::gguf::{List, Value};

/// Settings of a model or a part of them.
pub(crate) struct Settings<'a> {
    /// The file, for messages.
    path: PathBuf,
    /// What stands before the keys in the file, for messages and in GGUF files for look-up: `llama.`.
    prefix: String,
    source: Source<'a>,
    /// Keys asked for, without the prefix.
    asked: RefCell<BTreeSet<String>>,
}

/// Where settings are.
#[derive(Copy, Clone)]
enum Source<'a> {
    Json(&'a Map<String, Json>),
    Gguf(&'a BTreeMap<String, Value>),
}

/// A setting of either source.
enum Found<'a> {
    Number(f64),
    Flag(bool),
    Text(&'a str),
    Section(&'a Map<String, Json>),
    Array(&'a [Json]),
    List(&'a List),
}

impl<'a> Settings<'a> {
    /// The object of a JSON file.
    pub fn json(path: &Path, object: &'a Map<String, Json>) -> Settings<'a> {
        Settings::new(path, String::new(), Source::Json(object))
    }

    /// The GGUF metadata whose keys start with `prefix` and a dot.
    pub fn gguf(path: &Path, prefix: &str, metadata: &'a BTreeMap<String, Value>) -> Settings<'a> {
        Settings::new(path, format!("{prefix}."), Source::Gguf(metadata))
    }

    fn new(path: &Path, prefix: String, source: Source<'a>) -> Settings<'a> {
        Settings { path: path.to_owned(), prefix, source, asked: RefCell::default() }
    }

    /// A file in the folder of this one.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.path.with_file_name(name)
    }

    /// True if the key is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// True for a number that is zero, where [`Settings::count`] would refuse it.
    pub fn is_zero(&self, key: &str) -> bool {
        matches!(self.find(key), Some(Found::Number(0.0)))
    }

    /// A whole number from 1 to `max`.
    pub fn count(&self, key: &str, max: usize) -> Result<usize, Error> {
        self.count_if_any(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// The same, with a value for where it is missing.
    pub fn count_or(&self, key: &str, default: usize, max: usize) -> Result<usize, Error> {
        Ok(self.count_if_any(key, max)?.unwrap_or(default))
    }

    fn count_if_any(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        if number.fract() != 0.0 || !(1.0..=max as f64).contains(&number) {
            return Err(self.wrong(key, format!("{number} is no whole number from 1 to {max}")));
        }
        Ok(Some(number as usize))
    }

    /// A positive number.
    pub fn float(&self, key: &str) -> Result<f64, Error> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// The same, with a value for where it is missing.
    pub fn float_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        Ok(self.positive(key)?.unwrap_or(default))
    }

    fn positive(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.number(key)? {
            Some(number) if !(number > 0.0 && number <= f64::from(f32::MAX)) => {
                Err(self.wrong(key, format!("{number} is no positive number")))
            }
            other => Ok(other),
        }
    }

    /// A truth value, with one for where it is missing.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.find(key) {
            None => Ok(default),
            Some(Found::Flag(flag)) => Ok(flag),
            Some(other) => Err(self.wrong(key, format!("{} is neither true nor false", show(&other)))),
        }
    }

    /// Text, if there is any.
    pub fn text(&self, key: &str) -> Result<Option<String>, Error> {
        match self.find(key) {
            None => Ok(None),
            Some(Found::Text(text)) => Ok(Some(text.to_owned())),
            Some(other) => Err(self.wrong(key, format!("{} is no text", show(&other)))),
        }
    }

    /// A list of texts, if there is one.
    pub fn texts(&self, key: &str) -> Result<Option<Texts>, Error> {
        let texts = match self.find(key) {
            None => return Ok(None),
            Some(Found::Array(array)) => array.iter().map(|text| text.as_str()).collect(),
            Some(Found::List(list)) => list.texts()?,
            Some(_) => None,
        };
        texts.map(Some).ok_or_else(|| self.wrong(key, "is no list of texts".to_owned()))
    }

    /// Token ids: a number or a list of them; empty if there is none.
    pub fn tokens(&self, key: &str) -> Result<Vec<u32>, Error> {
        let tokens: Option<Vec<u32>> = match self.find(key) {
            None => Some(Vec::new()),
            Some(Found::Number(number)) => as_token(number).map(|token| vec![token]),
            Some(Found::Array(array)) => array.iter().map(|value| as_token(value.as_f64()?)).collect(),
            Some(_) => None,
        };
        tokens.ok_or_else(|| self.wrong(key, "is neither a token nor a list of tokens".to_owned()))
    }

    /// A token id, if there is one.
    pub fn token(&self, key: &str) -> Result<Option<u32>, Error> {
        match self.number(key)? {
            None => Ok(None),
            Some(number) => {
                as_token(number).map(Some).ok_or_else(|| self.wrong(key, format!("{number} is no token")))
            }
        }
    }

    /// A list of numbers; empty if there is none.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>, Error> {
        let numbers = match self.find(key) {
            None => return Ok(Vec::new()),
            Some(Found::Array(array)) => array.iter().map(Json::as_f64).collect(),
            Some(Found::List(list)) => list.collect(|value| as_number(&value))?,
            Some(_) => None,
        };
        numbers.ok_or_else(|| self.wrong(key, "is no list of numbers".to_owned()))
    }

    /// An object inside these settings, if there is one.
    pub fn section(&self, key: &str) -> Result<Option<Settings<'a>>, Error> {
        match self.find(key) {
            None => Ok(None),
            Some(Found::Section(section)) => {
                let prefix = format!("{}{key}.", self.prefix);
                Ok(Some(Settings::new(&self.path, prefix, Source::Json(section))))
            }
            Some(other) => Err(self.wrong(key, format!("{} is no object", show(&other)))),
        }
    }

    /// Refuses any value but those in `known`; a missing key is fine.
    pub fn must(&self, key: &str, known: &[&str]) -> Result<(), Error> {
        match self.find(key).map(|found| show(&found)) {
            Some(value) if !known.contains(&value.as_str()) => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(self.unsupported(key, value, &known))
            }
            _ => Ok(()),
        }
    }

    /// Says that a key is known and has no effect.
    pub fn ignore(&self, key: &str) {
        self.asked.borrow_mut().insert(key.to_owned());
    }

    /// Refuses GGUF metadata below the prefix that nobody asked for: it may be a feature that is not built.
    pub fn refuse_unasked(&self) -> Result<(), Error> {
        let Source::Gguf(metadata) = self.source else { return Ok(()) };
        let asked = self.asked.borrow();
        let mut own =
            metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(&self.prefix)?, value)));
        match own.find(|(key, _)| !asked.contains(*key)) {
            None => Ok(()),
            Some((key, value)) => Err(self.unsupported(key, value.to_string(), "none")),
        }
    }

    /// A setting has a value that makes no sense.
    pub fn wrong(&self, key: &str, problem: String) -> Error {
        Error::Config { path: self.path.clone(), key: format!("{}{key}", self.prefix), problem }
    }

    /// A setting asks for what is not built.
    pub fn unsupported(&self, key: &str, value: String, known: &str) -> Error {
        let key = format!("{}{key}", self.prefix);
        Error::Unsupported { path: self.path.clone(), key, value, known: known.to_owned() }
    }

    fn missing(&self, key: &str) -> Error {
        self.wrong(key, "is missing".to_owned())
    }

    /// A number, if there is one.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.find(key) {
            None => Ok(None),
            Some(Found::Number(number)) => Ok(Some(number)),
            Some(Found::List(list)) => self.same(key, list).map(Some),
            Some(other) => Err(self.wrong(key, format!("{} is no number", show(&other)))),
        }
    }

    /// The number that a GGUF list repeats, one per layer.
    fn same(&self, key: &str, list: &List) -> Result<f64, Error> {
        let numbers = list.collect(|value| as_number(&value))?.unwrap_or_default();
        match numbers.split_first() {
            Some((first, rest)) if rest.iter().all(|number| number == first) => Ok(*first),
            _ => Err(self.unsupported(key, "a list".to_owned(), "one number, or the same for all layers")),
        }
    }

    /// Looks a key up and remembers that it was asked for.
    fn find(&self, key: &str) -> Option<Found<'a>> {
        self.ignore(key);
        match self.source {
            Source::Json(object) => match object.get(key)? {
                Json::Null => None,
                Json::Bool(flag) => Some(Found::Flag(*flag)),
                Json::Number(number) => Some(Found::Number(number.as_f64().unwrap_or(f64::NAN))),
                Json::String(text) => Some(Found::Text(text)),
                Json::Array(array) => Some(Found::Array(array)),
                Json::Object(object) => Some(Found::Section(object)),
            },
            Source::Gguf(metadata) => Some(match metadata.get(&format!("{}{key}", self.prefix))? {
                Value::Bool(flag) => Found::Flag(*flag),
                Value::Text(text) => Found::Text(text),
                Value::List(list) => Found::List(list),
                number => Found::Number(as_number(number).unwrap_or(f64::NAN)),
            }),
        }
    }
}

/// A number as a token id, if it can be one.
fn as_token(number: f64) -> Option<u32> {
    let fits = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    fits.then_some(number as u32)
}

/// The number in a value, if it is one.
fn as_number(value: &Value) -> Option<f64> {
    match *value {
        Value::Unsigned(number) => Some(number as f64),
        Value::Signed(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => None,
    }
}

/// A setting for messages and comparison.
fn show(found: &Found<'_>) -> String {
    match found {
        Found::Number(number) => number.to_string(),
        Found::Flag(flag) => flag.to_string(),
        Found::Text(text) => text.chars().take(80).collect(),
        Found::Section(_) => "an object".to_owned(),
        Found::Array(array) => format!("a list of {}", array.len()),
        Found::List(_) => "a list".to_owned(),
    }
}
