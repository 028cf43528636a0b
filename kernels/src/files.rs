//! Small text files beside the weights, read whole, with a bound on their size.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// Largest text file in bytes: tokenizers of large vocabularies take some tens of megabytes.
const SIZE_MAX: u64 = 256 << 20;

/// The text of a file.
///
/// # Errors
/// [`Error::Open`]; [`Error::Malformed`] if it is too long or no UTF-8.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    let broken = |at: u64, problem: String| Error::Malformed {
        path: path.to_owned(),
        what: "text".to_owned(),
        at,
        problem,
    };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(broken(SIZE_MAX, format!("the file is longer than {SIZE_MAX} bytes")));
    }
    String::from_utf8(bytes)
        .map_err(|error| broken(error.utf8_error().valid_up_to() as u64, "is no UTF-8".to_owned()))
}

/// The text of a file, none if there is no such file.
///
/// # Errors
/// As [`text`].
pub(crate) fn text_if_any(path: &Path) -> Result<Option<String>, Error> {
    match text(path) {
        Ok(text) => Ok(Some(text)),
        Err(Error::Open { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file of JSON.
///
/// # Errors
/// As [`text`]; [`Error::Malformed`] if it is no JSON, with the offset of the line.
pub(crate) fn json(path: &Path) -> Result<Value, Error> {
    parse(path, &text(path)?)
}

/// A file of JSON, none if there is no such file.
///
/// # Errors
/// As [`json`].
pub(crate) fn json_if_any(path: &Path) -> Result<Option<Value>, Error> {
    text_if_any(path)?.map(|text| parse(path, &text)).transpose()
}

/// Text as JSON.
fn parse(path: &Path, text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| {
        let lines: usize =
            text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        Error::Malformed {
            path: path.to_owned(),
            what: "JSON".to_owned(),
            at: (lines + error.column().saturating_sub(1)) as u64,
            problem: error.to_string(),
        }
    })
}
