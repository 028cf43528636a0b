//! What a person wrote: values typed and placed, names not yet looked up. Reading finds every local problem of the
//! file, also in a file whose TOML is broken in places.

use std::sync::Arc;

use serde_spanned::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Findings, Problems, Source};
use crate::keys::{self, ACTORS_MAX};
use crate::plan::Role;
use crate::read::{Later, Reader};
use crate::section::Section;
use crate::suggest::{self, quote};

/// The largest file that is read, in bytes.
pub const FILE_LEN_MAX: usize = 1 << 20;

/// The largest file whose every mistake of TOML is looked for; of a larger one the first is told.
const RECOVERED_LEN_MAX: usize = 1 << 16;

/// A file as written.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(crate) source: Arc<Source>,
    pub(crate) root: Section,
    pub(crate) actors: Vec<ActorSpec>,
    /// Some actor could not be read, so what seems to be missing may be there.
    pub(crate) blind: bool,
    pub(crate) later: Vec<Later>,
}

/// One table of `[actors]`.
#[derive(Clone, Debug)]
pub(crate) struct ActorSpec {
    pub(crate) name: Spanned<String>,
    /// Nothing where the role was not understood, which has been told already.
    pub(crate) role: Option<Role>,
    pub(crate) section: Section,
}

/// Reads the text of a file. `file` is its name in messages.
///
/// # Errors
/// Every problem that can be seen without looking names up: mistakes of TOML, unknown keys, wrong values.
pub fn parse(text: &str, file: &str) -> Result<Spec, Problems> {
    let (spec, findings) = read(text, file);
    findings.into_result(spec.spec)
}

/// What reading made of a file.
pub(crate) struct ReadSpec {
    pub(crate) spec: Spec,
    /// Whether the file is sound enough to look names up.
    pub(crate) sound: bool,
}

pub(crate) fn read(text: &str, file: &str) -> (ReadSpec, Findings) {
    if text.len() > FILE_LEN_MAX {
        return too_large(text, file);
    }
    let source = Source::new(file, text);
    let mut findings = Findings::new(source.clone());
    let (table, errors) = match DeTable::parse(text) {
        Ok(table) => (table, Vec::new()),
        Err(_) if text.len() <= RECOVERED_LEN_MAX => DeTable::parse_recoverable(text),
        Err(error) => (Spanned::new(0..0, DeTable::new()), vec![error]),
    };
    let sound = errors.iter().all(|error| error.message() == DUPLICATE);
    for error in &errors {
        syntax(error, text, &mut findings);
    }
    let mut local = Findings::new(source.clone());
    let spec = walk(source, table.get_ref(), &mut local);
    if !errors.is_empty() {
        local.drop_lines_of(&findings);
    }
    if sound || !table.get_ref().is_empty() {
        findings.extend(local);
    }
    (ReadSpec { spec, sound }, findings)
}

const DUPLICATE: &str = "duplicate key";

fn too_large(text: &str, file: &str) -> (ReadSpec, Findings) {
    let head = &text[..text.floor_char_boundary(80)];
    let source = Source::new(file, head.lines().next().unwrap_or_default());
    let mut findings = Findings::new(source.clone());
    let message = format!("the file has {} bytes; {FILE_LEN_MAX} are the most", text.len());
    findings.add(&(0..0), message, "say with patterns (count = 16, on = \"p*\") what is said host by host");
    let root = Section::new(keys::ROOT, 0..0);
    (
        ReadSpec {
            spec: Spec { source, root, actors: Vec::new(), blind: true, later: Vec::new() },
            sound: false,
        },
        findings,
    )
}

/// A mistake of TOML itself.
fn syntax(error: &toml::de::Error, text: &str, findings: &mut Findings) {
    let span = error.span().unwrap_or_else(|| deepest(text));
    match error.message() {
        DUPLICATE => {
            let name = quote(text.get(span.clone()).unwrap_or_default().trim_matches(['"', '\'']));
            findings.add(
                &span,
                format!("duplicate key {name}"),
                "a key is written once, and so is a [table]",
            );
        }
        "recursion limit" => findings.add(&span, "nested too deeply", "80 levels are the most"),
        message => {
            let message = message.trim_end_matches(", expected nothing");
            findings.add(&span, format!("not TOML: {message}"), cure(message));
        }
    }
}

/// What to write instead, for the mistakes that people make most.
fn cure(message: &str) -> &'static str {
    const CURES: &[(&str, &str)] = &[
        ("string values must be quoted", "write a value after `=`, and text in quotes"),
        ("invalid basic string", "close a text with \" on its line; control characters are written \\u001b"),
        ("unclosed array", "add the closing ]"),
        ("unclosed table", "add the closing ]"),
        ("unclosed inline table", "add the closing }"),
        ("key with no value", "write key = value"),
        ("unexpected key or value", "write each key on a line of its own"),
        ("unexpected leading zero", "write the number without the zero"),
        ("cannot recurse further", "80 levels are the most"),
    ];
    let known = CURES.iter().find(|(start, _)| message.starts_with(start));
    known.map_or("https://toml.io says how values are written", |(_, cure)| cure)
}

/// The first line whose dotted key is nested too deeply: the parser does not tell where.
fn deepest(text: &str) -> std::ops::Range<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.bytes().filter(|b| *b == b'.').count() >= 80 {
            return start..start + line.trim_end().len();
        }
        start += line.len();
    }
    0..0
}

fn walk(source: Arc<Source>, table: &DeTable<'_>, findings: &mut Findings) -> Spec {
    let mut reader = Reader { findings, later: Vec::new() };
    let root = reader.section(&Spanned::new(0..0, table), keys::ROOT, "");
    let (actors, blind) = match table.get("actors").map(|value| (value, value.get_ref())) {
        Some((_, DeValue::Table(actors))) => {
            let read = read_actors(actors, &mut reader);
            let blind = read.len() < actors.len() || read.iter().any(|actor| actor.role.is_none());
            (read, blind)
        }
        Some((value, _)) => {
            reader.findings.add(
                &value.span(),
                "\"actors\" takes a table for each actor",
                "write [actors.gateway]",
            );
            (Vec::new(), true)
        }
        None => (Vec::new(), root.has("actors")),
    };
    let later = reader.later;
    Spec { source, root, actors, blind, later }
}

fn read_actors(table: &DeTable<'_>, reader: &mut Reader<'_>) -> Vec<ActorSpec> {
    let mut actors = Vec::new();
    for (name, value) in table {
        if actors.len() == ACTORS_MAX {
            reader.findings.add(
                &name.span(),
                format!("{} actors are too many", table.len()),
                format!("{ACTORS_MAX} are the most"),
            );
            break;
        }
        let DeValue::Table(inner) = value.get_ref() else {
            reader.not_a_table(name, value, "actors");
            continue;
        };
        let role = role_of(name, inner, reader);
        let keys = role.as_ref().map_or(keys::DECODE, keys::of_role);
        let path = format!("actors.{}", name.get_ref());
        let section = match &role {
            Some(_) => reader.section(&Spanned::new(value.span(), inner), keys, &path),
            None => Section::new(keys, value.span()),
        };
        if reader.name(name, "an actor") {
            actors.push(ActorSpec {
                name: Spanned::new(name.span(), name.get_ref().to_string()),
                role,
                section,
            });
        }
    }
    actors
}

/// The role that a table names, or its own name; a word near a known role is taken for a slip of the pen.
fn role_of(name: &Spanned<impl AsRef<str>>, table: &DeTable<'_>, reader: &mut Reader<'_>) -> Option<Role> {
    let said = table.get("role").and_then(|value| Some((value.get_ref().as_str()?, value.span())));
    let (word, span) = said.unwrap_or_else(|| (name.get_ref().as_ref(), name.span()));
    if let Some((_, role)) = Role::KNOWN.iter().find(|(known, _)| *known == word) {
        return Some(role.clone());
    }
    let known = || Role::KNOWN.iter().map(|(known, _)| *known);
    if let Some(near) = suggest::nearest(word, known()) {
        let help = format!("did you mean {}?", quote(near));
        reader.findings.add(&span, format!("unknown role {}", quote(word)), help);
        return None;
    }
    if !reader.name(&Spanned::new(span.clone(), word), "a role") {
        return None;
    }
    let known: Vec<&str> = known().collect();
    let message =
        format!("the role `{word}` is not built in, and own roles are not built yet ({})", known.join(", "));
    reader.later.push(Later { span, subject: format!("role `{word}`"), message });
    Some(Role::Custom(word.to_owned()))
}
