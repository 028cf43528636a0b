//! Everything that can go wrong while a model is loaded or a step is computed, each case naming what was attempted and
//! the place: a person must be able to act on the message alone.

use std::path::PathBuf;

use crate::dtype::DType;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be opened, read or mapped.
    #[error("cannot read {}", path.display())]
    Open {
        /// Which one.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The system does not give as much memory as is wanted.
    #[error("the system does not give {bytes} bytes of memory for {what} (and a little for the rest)")]
    Memory {
        /// What it would be for.
        what: &'static str,
        /// How much is wanted.
        bytes: usize,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The bytes of a file break its format.
    #[error("{}: {what} at byte {at}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// Offset from the start of the file.
        at: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// Bytes do not fit the stated shape and format.
    #[error("a {rows} x {cols} matrix of {dtype:?} does not take {size} bytes")]
    Matrix {
        /// Stated format.
        dtype: DType,
        /// Stated rows.
        rows: usize,
        /// Stated values per row.
        cols: usize,
        /// Bytes there are.
        size: usize,
    },
    /// Factors do not fit the matrix they are for.
    #[error("{factors} factors for rectangles of {block:?} of {matrix}")]
    Scales {
        /// The matrix.
        matrix: String,
        /// Rows and columns of a rectangle.
        block: (usize, usize),
        /// Factors there are.
        factors: usize,
    },
    /// A folder or file is no model this crate can read at all.
    #[error("{}: {problem}", path.display())]
    NotAModel {
        /// The folder or file.
        path: PathBuf,
        /// What was looked for.
        problem: String,
    },
    /// A setting of the model is missing or has a value that makes no sense.
    #[error("{}: {key}: {problem}", path.display())]
    Config {
        /// `config.json` or the GGUF file.
        path: PathBuf,
        /// Name of the setting, as it stands in the file.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The family is not known.
    #[error("{}: unknown architecture \"{found}\"; known: {known}", path.display())]
    UnknownArchitecture {
        /// The file that names it.
        path: PathBuf,
        /// What it names.
        found: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// The family is known, but the model uses something that is not built.
    #[error("{}: {key} = {value} is not supported{}", path.display(), if known.is_empty() { String::new() } else { format!("; supported: {known}") })]
    Unsupported {
        /// The file that asks for it.
        path: PathBuf,
        /// Name of the setting, as it stands in the file.
        key: String,
        /// Its value.
        value: String,
        /// What would be supported; may be empty.
        known: String,
    },
    /// A tensor the model needs is not in its files.
    #[error("{}: no tensor \"{name}\"", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// Its name.
        name: String,
    },
    /// A tensor has another shape or format than the settings ask for.
    #[error("{}: tensor \"{name}\" is {found}, needed: {needed}", path.display())]
    Tensor {
        /// The file it is in.
        path: PathBuf,
        /// Its name.
        name: String,
        /// What it is.
        found: String,
        /// What it should be.
        needed: String,
    },
    /// A step asks for something the model or its KV memory cannot do.
    #[error("row {row} of the step: {problem}")]
    Step {
        /// Which row, from 0.
        row: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// KV memory was made for another model.
    #[error("KV memory is laid out as {found}, the model needs {needed}")]
    KvLayout {
        /// Its layout.
        found: String,
        /// The model's.
        needed: String,
    },
    /// The model cannot see an image.
    #[error("image: {0}")]
    Image(String),
    /// A KV block, or a state, came from a rank of another layout.
    #[error("a KV block of {size} bytes, this layout needs {needed}")]
    KvBlock {
        /// Bytes that came.
        size: usize,
        /// Bytes a block takes.
        needed: usize,
    },
}
