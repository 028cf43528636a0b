//! The lines of a trace, one at a time: decompressed, bounded, numbered.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::TraceError;

/// The longest line: talks of agents have long ones.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// See the module. Empty lines are passed over.
pub struct Lines {
    from: Box<dyn BufRead>,
    file: String,
    /// Lines read so far.
    number: usize,
    /// The first line, until it is taken.
    ahead: Option<String>,
}

/// Opens a file, which is decompressed where its name ends in `.gz`, or the standard input, `-`.
///
/// # Errors
/// It cannot be opened, or is compressed in a way that is not read here.
pub fn open(file: &Path) -> Result<Lines, TraceError> {
    let name = file.display().to_string();
    if name == "-" {
        return Ok(Lines::new("standard input", BufReader::new(io::stdin())));
    }
    let wrong = |why: String| TraceError { file: name.clone(), line: None, why };
    if let Some(ending) = [".xz", ".zst", ".bz2"].iter().find(|ending| name.ends_with(**ending)) {
        let program = [(".xz", "xz -dc"), (".zst", "zstd -dc"), (".bz2", "bzip2 -dc")];
        let program = program.iter().find(|(of, _)| of == ending).map_or("", |(_, program)| program);
        return Err(wrong(format!(
            "{ending} is not read here: pipe it, {program} {name} | millstream … --trace -"
        )));
    }
    let open = File::open(file).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    Ok(match name.ends_with(".gz") {
        true => Lines::new(&name, BufReader::with_capacity(1 << 16, MultiGzDecoder::new(open))),
        false => Lines::new(&name, BufReader::with_capacity(1 << 16, open)),
    })
}

impl Lines {
    /// Lines of what is called `file` in errors.
    pub fn new(file: &str, from: impl BufRead + 'static) -> Self {
        Self { from: Box::new(from), file: file.to_owned(), number: 0, ahead: None }
    }

    /// The first line, which is read again as the next one.
    pub(super) fn first(&mut self) -> Result<Option<String>, TraceError> {
        self.ahead = self.read()?;
        Ok(self.ahead.clone())
    }

    /// The next line.
    ///
    /// # Errors
    /// It cannot be read, is too long, or no text.
    pub fn read(&mut self) -> Result<Option<String>, TraceError> {
        if let Some(line) = self.ahead.take() {
            return Ok(Some(line));
        }
        loop {
            let mut line = Vec::new();
            let read = self.from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            self.number += 1;
            let bytes = read.map_err(|error| self.wrong(format!("cannot be read: {error}")))?;
            if bytes == 0 {
                return Ok(None);
            }
            if bytes as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                return Err(self.wrong(format!("is longer than {} MiB", LINE_BYTES_MAX >> 20)));
            }
            let line = String::from_utf8(line).map_err(|_| self.wrong("is not UTF-8".to_owned()))?;
            if !line.trim().is_empty() {
                return Ok(Some(line.trim_start_matches('\u{feff}').trim_end().to_owned()));
            }
        }
    }

    /// The line that was read last is wrong.
    pub fn wrong(&self, why: String) -> TraceError {
        TraceError { file: self.file.clone(), line: Some(self.number), why }
    }

    pub(super) fn wrong_file(&self, why: &str) -> TraceError {
        TraceError { file: self.file.clone(), line: None, why: why.to_owned() }
    }
}
