//! Reads tables by the table of keys: unknown keys, missing ones and wrong values are all collected in one walk.

use std::ops::Range;

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Findings;
use crate::id::NAME_LEN_MAX;
use crate::keys::{self, Key, Kind, Preset};
use crate::plan::Retention;
use crate::scalar;
use crate::section::{Entry, Section, Value};
use crate::suggest::{self, quote};

/// Something said that is not built yet: where, what, and the sentence.
#[derive(Clone, Debug)]
pub(crate) struct Later {
    pub(crate) span: Range<usize>,
    pub(crate) subject: String,
    pub(crate) message: String,
}

/// Walks the tables of one file.
pub(crate) struct Reader<'f> {
    pub(crate) findings: &'f mut Findings,
    pub(crate) later: Vec<Later>,
}

impl Reader<'_> {
    /// A table with known keys; `path` names it in messages, empty for the whole file.
    pub(crate) fn section(
        &mut self,
        table: &Spanned<&DeTable<'_>>,
        keys: &'static [Key],
        path: &str,
    ) -> Section {
        let mut section = Section::new(keys, table.span());
        for (name, value) in *table.get_ref() {
            match keys.iter().find(|key| key.name == &**name.get_ref()) {
                Some(key) => {
                    section.mark(key.name);
                    self.entry(&mut section, key, path, (name.span(), value));
                }
                None => self.unknown(name, &mut section, keys, path),
            }
        }
        let required =
            |key: &&Key| matches!(key.preset, Preset::Required) && !matches!(key.kind, Kind::Actors);
        for key in keys.iter().filter(required).filter(|key| !section.has(key.name)) {
            let message = format!("missing key {}{}", quote(key.name), within(path));
            self.findings.add(
                &table.span(),
                message,
                format!("write {} = {}", key.name, scalar::example(key)),
            );
        }
        section
    }

    fn entry(
        &mut self,
        section: &mut Section,
        key: &'static Key,
        path: &str,
        said: (Range<usize>, &Spanned<DeValue<'_>>),
    ) {
        let (at, value) = said;
        if matches!(key.kind, Kind::Actors) {
            return;
        }
        if let Some(why) = key.later {
            let message = format!("`{}` is not built yet: {why}", key.name);
            self.later.push(Later { span: at.clone(), subject: format!("`{}`", key.name), message });
        }
        if let Some(read) = self.value(key, value, path) {
            section.insert(key.name, Entry { key: at, value: Spanned::new(value.span(), read) });
        }
    }

    fn value(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>, path: &str) -> Option<Value> {
        let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        match (key.kind, value.get_ref()) {
            (Kind::Table(keys), DeValue::Table(table)) => {
                Some(Value::Section(self.section(&Spanned::new(value.span(), table), keys, &path)))
            }
            (Kind::Tables(keys), DeValue::Array(items)) => {
                let mut sections = Vec::new();
                for item in items {
                    match item.get_ref() {
                        DeValue::Table(table) => {
                            let path = format!("[{path}]");
                            sections.push(self.section(&Spanned::new(item.span(), table), keys, &path));
                        }
                        _ => scalar::kind_problem(key, item, self.findings),
                    }
                }
                Some(Value::Sections(sections))
            }
            (Kind::Named(keys), DeValue::Table(table)) => Some(Value::Named(self.named(keys, table, &path))),
            (Kind::Classes(keys), DeValue::Table(table)) => {
                Some(Value::Classes(self.classes(key, keys, table, &path)))
            }
            _ => scalar::read(key, value, self.findings),
        }
    }

    /// Classes as a duration, or as a table that has one.
    fn classes(
        &mut self,
        key: &Key,
        keys: &'static [Key],
        table: &DeTable<'_>,
        path: &str,
    ) -> Vec<(Spanned<String>, Retention)> {
        let mut classes = Vec::new();
        for (name, value) in table {
            let good = self.name(name, "a class");
            let read = match value.get_ref() {
                DeValue::Table(inner) => {
                    let path = format!("{path}.{}", name.get_ref());
                    let section = self.section(&Spanned::new(value.span(), inner), keys, &path);
                    let size = section.scalar("size").map(|_| section.number("size"));
                    section.scalar("for").map(|_| Retention { keep: section.time("for"), size })
                }
                _ => scalar::duration(name.get_ref(), key, value, self.findings).map(Retention::of),
            };
            if let Some(retention) = read.filter(|_| good) {
                classes.push((Spanned::new(name.span(), name.get_ref().to_string()), retention));
            }
        }
        classes
    }

    fn named(
        &mut self,
        keys: &'static [Key],
        table: &DeTable<'_>,
        path: &str,
    ) -> Vec<(Spanned<String>, Section)> {
        let mut named = Vec::new();
        for (name, value) in table {
            let DeValue::Table(inner) = value.get_ref() else {
                self.not_a_table(name, value, path);
                continue;
            };
            let good = self.name(name, if path == "hosts" { "a host" } else { "a tenant" });
            let path = format!("{path}.{}", name.get_ref());
            let section = self.section(&Spanned::new(value.span(), inner), keys, &path);
            if good {
                named.push((Spanned::new(name.span(), name.get_ref().to_string()), section));
            }
        }
        named
    }

    /// A table was wanted under this name, and another value stands there.
    pub(crate) fn not_a_table(
        &mut self,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
        path: &str,
    ) {
        let name = quote(name.get_ref().as_ref());
        let message = format!("{name} in [{path}] takes a table");
        self.findings.add(&value.span(), message, format!("write [{path}.{}]", name.trim_matches('"')));
    }

    /// Whether a name that the person chose is fit to be one; says so if not.
    pub(crate) fn name(&mut self, name: &Spanned<impl AsRef<str>>, what: &str) -> bool {
        let text = name.get_ref().as_ref();
        let fit = text.len() <= NAME_LEN_MAX
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !fit {
            let message = format!("{} is not fit to name {what}", quote(text));
            let help = format!("write a letter, then letters, digits, `_` and `-`: {NAME_LEN_MAX} at most");
            self.findings.add(&name.span(), message, help);
        }
        fit
    }

    /// The key that was meant counts as present, so that it is not told to be missing too.
    fn unknown(
        &mut self,
        name: &Spanned<impl AsRef<str>>,
        section: &mut Section,
        keys: &'static [Key],
        path: &str,
    ) {
        let word = name.get_ref().as_ref();
        let known = || keys.iter().map(|key| key.name);
        let near = suggest::nearest(word, known());
        if let Some(near) = near {
            section.mark(near);
        }
        let help = match (near, keys::home_of(word)) {
            (Some(near), _) => format!("did you mean {}?", quote(near)),
            (None, Some(home)) => format!("{} belongs in {home}", quote(word)),
            (None, None) => suggest::listed("keys", &known().collect::<Vec<_>>()),
        };
        self.findings.add(&name.span(), format!("unknown key {}{}", quote(word), within(path)), help);
    }
}

fn within(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!(" in [{}]", quote(path).trim_matches('"')),
    }
}
