//! Problems of a file: each with its place, the text underlined, and what to write instead. They are collected, never
//! thrown at the first, so that a person mends a file in one go.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Problems kept of one file; a file with more is told so at its end.
pub const PROBLEMS_MAX: usize = 256;

/// The longest part of a source line that is shown, in characters.
const SHOWN_MAX: usize = 110;

/// The text of a file with its name and the starts of its lines.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    text: miette::NamedSource<String>,
    starts: Vec<usize>,
}

impl Source {
    pub(crate) fn new(file: &str, text: &str) -> Arc<Source> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let name = file.to_owned();
        Arc::new(Source { file: name.clone(), text: miette::NamedSource::new(name, text.to_owned()), starts })
    }

    pub(crate) fn text(&self) -> &str {
        self.text.inner()
    }

    /// Line and column of a byte, both from 1, the column in characters.
    pub(crate) fn place(&self, byte: usize) -> (usize, usize) {
        let byte = self.text().floor_char_boundary(byte);
        let line = self.starts.partition_point(|start| *start <= byte);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        (line, self.text()[start..byte].chars().count() + 1)
    }

    /// The bytes of a line, numbered from 1, without its end.
    fn line(&self, line: usize) -> Range<usize> {
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let end = self.starts.get(line).map_or(self.text().len(), |next| next - 1);
        let end = start + self.text()[start..end.max(start)].trim_end_matches('\r').len();
        start..end
    }
}

/// Text that does nothing to a terminal.
fn tame(text: &str) -> String {
    text.chars().map(tame_char).collect()
}

fn tame_char(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{FFFD}' } else { c }
}

/// One thing wrong in the file.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The file, as it was named to [`crate::check`].
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// The bytes it is about.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
    source: Arc<Source>,
}

impl Problem {
    /// The line with the text underlined, two lines of terminal text; control characters are made harmless.
    fn shown(&self) -> String {
        let text = self.source.text();
        let line = self.source.line(self.line);
        let start = self.span.start.clamp(line.start, line.end);
        let end = self.span.end.clamp(start, line.end);
        let column = text[line.start..text.floor_char_boundary(start)].chars().count();
        let marked =
            text[text.floor_char_boundary(start)..text.ceil_char_boundary(end)].chars().count().max(1);
        let skipped = column.saturating_sub(SHOWN_MAX / 2);
        let line: Vec<char> = text[line].chars().skip(skipped).map(tame_char).collect();
        let shown: String = line.iter().take(SHOWN_MAX).collect();
        let pad: String =
            line.iter().take(column - skipped).map(|c| if *c == '\t' { '\t' } else { ' ' }).collect();
        let marked = marked.min(SHOWN_MAX.saturating_sub(column - skipped)).max(1);
        let number = self.line;
        let gutter = " ".repeat(number.to_string().len());
        let before = if skipped > 0 { "…" } else { " " };
        let after = if line.len() > SHOWN_MAX { "…" } else { "" };
        let shown = format!("  {number} |{before}{shown}{after}");
        format!("{}\n  {gutter} | {pad}{}", shown.trim_end(), "^".repeat(marked))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        f.write_str(&self.shown())?;
        match &self.help {
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

impl miette::Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.source.text)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let span = self.span.clone();
        Some(Box::new(std::iter::once(miette::LabeledSpan::new(None, span.start, span.len()))))
    }
}

/// All problems of one file, ordered by place; never empty.
#[derive(Clone, Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The problems in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// How many there are; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is always one problem at least")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}\n")?;
        }
        match self.0.len() {
            1 => write!(f, "1 problem"),
            count => write!(f, "{count} problems"),
        }
    }
}

impl std::error::Error for Problems {}

impl miette::Diagnostic for Problems {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn miette::Diagnostic> + 'a>> {
        Some(Box::new(self.0.iter().map(|problem| problem as &dyn miette::Diagnostic)))
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) source: Arc<Source>,
    problems: Vec<Problem>,
    left_out: usize,
}

impl Findings {
    pub(crate) fn new(source: Arc<Source>) -> Findings {
        Findings { source, problems: Vec::new(), left_out: 0 }
    }

    /// A problem with what to write instead.
    pub(crate) fn add(&mut self, span: &Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        if self.problems.len() == PROBLEMS_MAX {
            self.left_out += 1;
            return;
        }
        let (line, column) = self.source.place(span.start);
        let file = self.source.file.clone();
        let (message, help) = (tame(&message.into()), Some(tame(&help.into())));
        let source = self.source.clone();
        self.problems.push(Problem { file, line, column, span: span.clone(), message, help, source });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Forgets problems that lie on a line of which `other` already speaks: what follows from a broken line is noise.
    pub(crate) fn drop_lines_of(&mut self, other: &Findings) {
        self.problems.retain(|problem| other.problems.iter().all(|known| known.line != problem.line));
    }

    pub(crate) fn extend(&mut self, other: Findings) {
        self.left_out += other.left_out;
        for problem in other.problems {
            match self.problems.len() < PROBLEMS_MAX {
                true => self.problems.push(problem),
                false => self.left_out += 1,
            }
        }
    }

    /// The value if nothing was found, or else the problems in order of their places.
    pub(crate) fn into_result<T>(mut self, value: T) -> Result<T, Problems> {
        if self.problems.is_empty() {
            return Ok(value);
        }
        self.problems.sort_by(|a, b| {
            (a.span.start, a.span.end, &a.message).cmp(&(b.span.start, b.span.end, &b.message))
        });
        self.problems.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        if self.left_out > 0
            && let Some(last) = self.problems.last_mut()
        {
            last.message.push_str(&format!(" (and {} more problems: mend these first)", self.left_out));
        }
        Err(Problems(self.problems))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str, spans: &[Range<usize>]) -> Problems {
        let mut findings = Findings::new(Source::new("a.toml", text));
        for span in spans {
            findings.add(span, "wrong", "write it right");
        }
        findings.into_result(()).unwrap_err()
    }

    #[test]
    fn places_count_lines_and_characters() {
        let text = "a = 1\r\n\u{e9}\u{e9} = x\n";
        let found = problems(text, &[14..15, 0..1, text.len()..text.len()]);
        let places: Vec<(usize, usize)> =
            found.iter().map(|problem| (problem.line, problem.column)).collect();
        assert_eq!(places, [(1, 1), (2, 6), (3, 1)]);
        let shown = found.iter().nth(1).map(ToString::to_string).unwrap();
        assert_eq!(shown, "a.toml:2:6: wrong\n  2 | \u{e9}\u{e9} = x\n    |      ^\nhelp: write it right");
    }

    #[test]
    fn too_many_problems_are_counted() {
        let text = "x".repeat(1_000);
        let spans: Vec<Range<usize>> = (0..1_000).map(|at| at..at + 1).collect();
        let found = problems(&text, &spans);
        assert_eq!(found.len(), PROBLEMS_MAX);
        assert!(found.to_string().contains("(and 744 more problems: mend these first)"));
    }

    #[test]
    fn other_reporters_take_problems_too() {
        let mut out = String::new();
        let found = problems("model = 3\n", &[0..1, 8..9]);
        miette::NarratableReportHandler::new().render_report(&mut out, &found).unwrap();
        assert!(out.contains("wrong") && out.contains("write it right"), "{out}");
    }
}
