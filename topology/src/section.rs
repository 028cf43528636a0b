//! A table of the file after reading: every value has its type, its unit is understood, its place is known. Nothing is
//! looked up yet; that is resolving.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde_spanned::Spanned;

use crate::keys::{Key, Preset};
use crate::plan::{Devices, Retention, Scalar};

/// A table whose keys are known.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) span: Range<usize>,
    keys: &'static [Key],
    values: BTreeMap<&'static str, Entry>,
    /// Keys that stand in the file, readable or not.
    present: Vec<&'static str>,
}

/// A key as said: where, and what.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Range<usize>,
    pub(crate) value: Spanned<Value>,
}

/// What a key holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    Names(Vec<Spanned<String>>),
    Devices(Devices),
    Section(Section),
    Sections(Vec<Section>),
    Named(Vec<(Spanned<String>, Section)>),
    Classes(Vec<(Spanned<String>, Retention)>),
}

impl Section {
    pub(crate) fn new(keys: &'static [Key], span: Range<usize>) -> Section {
        Section { span, keys, values: BTreeMap::new(), present: Vec::new() }
    }

    pub(crate) fn insert(&mut self, name: &'static str, entry: Entry) {
        self.values.insert(name, entry);
    }

    /// Remembers that a key stands in the file, whatever its value.
    pub(crate) fn mark(&mut self, name: &'static str) {
        self.present.push(name);
    }

    /// Whether a key stands in the file, even if its value could not be read.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.present.contains(&name)
    }

    /// What was said under this key.
    pub(crate) fn said(&self, name: &str) -> Option<&Entry> {
        debug_assert!(self.keys.iter().any(|key| key.name == name), "no such key in the table: {name}");
        self.values.get(name)
    }

    /// The keys of the table with what was said, in the table's order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static Key, &Entry)> {
        self.keys.iter().filter_map(|key| self.values.get(key.name).map(|entry| (key, entry)))
    }

    /// Where a key was said, or else where its table stands.
    pub(crate) fn span_of(&self, name: &str) -> Range<usize> {
        self.said(name).map_or_else(|| self.span.clone(), |entry| entry.value.span())
    }

    /// The single value said under this key.
    pub(crate) fn scalar(&self, name: &str) -> Option<&Scalar> {
        match self.said(name)?.value.get_ref() {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The value said, or else the table's default.
    fn scalar_or_preset(&self, name: &str) -> Option<Scalar> {
        self.scalar(name).cloned().or_else(|| self.keys.iter().find(|key| key.name == name)?.preset.scalar())
    }

    /// A text, said or by default.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self.scalar_or_preset(name)? {
            Scalar::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number of things, bytes or milliseconds, said or by default; 0 where neither is.
    pub(crate) fn number(&self, name: &str) -> u64 {
        match self.scalar_or_preset(name) {
            Some(Scalar::Count(number) | Scalar::Bytes(number)) => number,
            _ => 0,
        }
    }

    /// A number that the table bounds to fit.
    pub(crate) fn count(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap_or(usize::MAX)
    }

    /// A number that the table bounds to fit.
    pub(crate) fn count32(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).unwrap_or(u32::MAX)
    }

    /// A duration, said or by default.
    pub(crate) fn time(&self, name: &str) -> Duration {
        match self.scalar_or_preset(name) {
            Some(Scalar::Time(time)) => time,
            _ => Duration::ZERO,
        }
    }

    /// A flag, if it was said.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.scalar(name) {
            Some(Scalar::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// The names said under this key.
    pub(crate) fn names(&self, name: &str) -> Option<&[Spanned<String>]> {
        match self.said(name)?.value.get_ref() {
            Value::Names(names) => Some(names),
            _ => None,
        }
    }

    /// The devices said under this key.
    pub(crate) fn devices(&self, name: &str) -> Option<&Devices> {
        match self.said(name)?.value.get_ref() {
            Value::Devices(devices) => Some(devices),
            _ => None,
        }
    }

    /// The table under this key.
    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        match self.said(name)?.value.get_ref() {
            Value::Section(section) => Some(section),
            _ => None,
        }
    }

    /// The array of tables under this key.
    pub(crate) fn sections(&self, name: &str) -> &[Section] {
        match self.said(name).map(|entry| entry.value.get_ref()) {
            Some(Value::Sections(sections)) => sections,
            _ => &[],
        }
    }

    /// The named tables under this key.
    pub(crate) fn named(&self, name: &str) -> &[(Spanned<String>, Section)] {
        match self.said(name).map(|entry| entry.value.get_ref()) {
            Some(Value::Named(named)) => named,
            _ => &[],
        }
    }

    /// The classes under this key.
    pub(crate) fn classes(&self, name: &str) -> &[(Spanned<String>, Retention)] {
        match self.said(name).map(|entry| entry.value.get_ref()) {
            Some(Value::Classes(classes)) => classes,
            _ => &[],
        }
    }

    /// Every single value of this table and those inside it, under dotted keys; defaults of inner tables filled in.
    pub(crate) fn flat(&self, prefix: &str, into: &mut BTreeMap<String, Scalar>) {
        for key in self.keys {
            let path = format!("{prefix}.{}", key.name);
            if let Some(inner) = self.section(key.name) {
                inner.flat(&path, into);
            } else if let Some(scalar) = self.scalar_or_preset(key.name) {
                into.insert(path, scalar);
            }
        }
    }
}

impl Preset {
    /// The default as a value, where it is one.
    pub(crate) fn scalar(self) -> Option<Scalar> {
        match self {
            Preset::None | Preset::Required | Preset::Found(_) => None,
            Preset::Flag(flag) => Some(Scalar::Flag(flag)),
            Preset::Count(count) => Some(Scalar::Count(count)),
            Preset::Bytes(bytes) => Some(Scalar::Bytes(bytes)),
            Preset::Seconds(seconds) => Some(Scalar::Time(Duration::from_secs(seconds))),
            Preset::Text(text) => Some(Scalar::Text(text.to_owned())),
        }
    }
}
