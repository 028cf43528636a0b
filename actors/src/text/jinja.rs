//! The machine under chat templates: Jinja as the makers of models expect it, and nothing that reads a clock, a file or
//! chance.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// An environment for one template. `strftime_now` is left out: templates that ask whether it is defined fall back to a
/// date of their own, the others are refused when they are rendered, because an answer must not depend on the day.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the standard ones"));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment
}

/// Messages about templates, without the machine's own preamble where there is a sentence.
pub(super) fn reason(error: &Error) -> String {
    let text = error.detail().map_or_else(|| error.to_string(), str::to_string);
    match error.line() {
        Some(line) if error.kind() != ErrorKind::InvalidOperation => format!("{text} (line {line})"),
        _ => text,
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python writes it: a space behind `,` and `:`, no escapes for HTML, other alphabets as they are.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<usize>>("indent")?.or(indent);
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let plain = serde_json::to_value(value);
    let fail = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let plain = plain.map_err(fail)?;
    let mut out = Vec::new();
    match indent {
        None => plain.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            plain.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
    }
    .map_err(fail)?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

/// `{"a": 1, "b": [1, 2]}`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str) -> String {
        environment().render_str(template, Value::UNDEFINED).unwrap()
    }

    #[test]
    fn json_looks_as_python_writes_it() {
        assert_eq!(
            render(r#"{{ {"a": [1, "<é'>"], "b": none} | tojson }}"#),
            r#"{"a": [1, "<é'>"], "b": null}"#
        );
        assert_eq!(render(r#"{{ {"a": 1} | tojson(indent=2) }}"#), "{\n  \"a\": 1\n}");
    }

    #[test]
    fn python_string_methods_work() {
        assert_eq!(render("{{ ' a<b '.strip().split('<')[-1].upper() }}"), "B");
    }

    #[test]
    fn there_is_no_clock_and_a_refusal_keeps_its_words() {
        assert_eq!(render("{{ 1 if strftime_now is defined else 2 }}"), "2");
        let error = environment().render_str("{{ strftime_now('%Y') }}", Value::UNDEFINED).unwrap_err();
        assert!(reason(&error).contains("strftime_now"), "{}", reason(&error));
        let error =
            environment().render_str("{{ raise_exception('no, thanks') }}", Value::UNDEFINED).unwrap_err();
        assert_eq!(reason(&error), "no, thanks");
    }
}
