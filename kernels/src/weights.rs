//! Where weights come from: files mapped into memory, read as GGUF or as safetensors, handed out as [`Matrix`] views
//! and widened vectors. Every number in a file is checked before it is believed.
//!
//! A file that shrinks while it is mapped is out of scope: the operating system then ends the process (SIGBUS on Unix).
//! Replace model files by renaming a new file over the old one.

pub(crate) mod gguf;
mod map;
pub(crate) mod safetensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use map::Mapped;

use crate::dtype::DType;
use crate::error::Error;
use crate::matrix::Matrix;
use crate::packed::Packed;
use crate::packed::arena::Arena;

/// Tensors of a model by name, whatever files they are in. A family takes those it knows; what is left at the end is a
/// feature it does not have.
pub(crate) struct Weights {
    /// File or folder, for messages.
    path: PathBuf,
    /// Those not taken yet.
    tensors: BTreeMap<String, Stored>,
    /// Numbers in the tensors taken.
    parameters: u64,
    /// Bytes of the tensors taken.
    bytes: u64,
    /// Where matrices are packed to; none: they stay as they are stored.
    packing: Option<(Arena, usize)>,
}

/// Where a tensor is and what it is said to be.
pub(crate) struct Stored {
    /// Its file.
    pub file: Arc<Mapped>,
    /// Offset of its first byte in the file.
    pub start: usize,
    /// Its format; the name of one this crate does not read.
    pub dtype: Result<DType, String>,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
}

impl Weights {
    /// All tensors of a model, which lies at `path`.
    pub fn new(path: &Path, tensors: BTreeMap<String, Stored>) -> Weights {
        Weights { path: path.to_owned(), tensors, parameters: 0, bytes: 0, packing: None }
    }

    /// From here on matrices whose format allows it are packed, with so many threads.
    pub fn pack(&mut self, threads: usize) {
        let size = |stored: &Stored| {
            let (&cols, rows) = stored.shape.split_last()?;
            let (dtype, rows) =
                (*stored.dtype.as_ref().ok()?, rows.iter().try_fold(1, |a: usize, b| a.checked_mul(*b))?);
            let bytes = dtype.row_bytes(cols)?.checked_mul(rows)?;
            if bytes > stored.file.bytes().len() { None } else { Packed::size(dtype, rows, cols) }
        };
        let sizes = self.tensors.values().filter_map(size).fold(0, usize::saturating_add);
        self.packing = Some((Arena::new(sizes), threads));
    }

    /// True while a tensor of that name is there and not taken.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Shape of a tensor that is there and not taken.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// Takes a matrix of `rows` by `cols`.
    ///
    /// # Errors
    /// [`Error::MissingTensor`]; [`Error::Tensor`] if it has another shape or a format that is not read.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        self.take(name, &[rows, cols])
    }

    /// Takes a vector and widens it.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Ok(self.take(name, &[len])?.to_f32())
    }

    /// Numbers and bytes of all that was taken.
    pub fn taken(&self) -> (u64, u64) {
        (self.parameters, self.bytes)
    }

    /// The end: refuses a model with tensors that nobody took, except those `unused` names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the name of the first one.
    pub fn finish(self, unused: impl Fn(&str) -> bool) -> Result<(), Error> {
        match self.tensors.into_iter().find(|(name, _)| !unused(name)) {
            None => Ok(()),
            Some((name, stored)) => Err(Error::Unsupported {
                path: stored.file.path().to_owned(),
                key: format!("tensor \"{name}\""),
                value: describe(&stored),
                known: String::new(),
            }),
        }
    }

    /// Takes a tensor of exactly this shape (one or two sizes) as a matrix.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Matrix, Error> {
        let Some(stored) = self.tensors.remove(name) else {
            return Err(Error::MissingTensor { path: self.path.clone(), name: name.to_owned() });
        };
        let refused = |needed: String| Error::Tensor {
            path: stored.file.path().to_owned(),
            name: name.to_owned(),
            found: describe(&stored),
            needed,
        };
        let dtype = match &stored.dtype {
            Ok(dtype) => *dtype,
            Err(_) => return Err(refused(format!("one of {:?}", DType::ALL))),
        };
        if stored.shape != shape {
            return Err(refused(format!("{shape:?}")));
        }
        let (rows, cols) = if let [rows, cols] = *shape { (rows, cols) } else { (1, shape[0]) };
        let matrix = Matrix::mapped(&stored.file, stored.start, dtype, (rows, cols))
            .map_err(|error| refused(format!("inside of its file: {error}")))?;
        self.parameters += (rows * cols) as u64;
        self.bytes += matrix.size() as u64;
        Ok(match &mut self.packing {
            Some((arena, threads)) => matrix.pack_into(arena, *threads),
            None => matrix,
        })
    }
}

/// Format and shape of a tensor, for messages.
fn describe(stored: &Stored) -> String {
    let dtype = stored.dtype.as_ref().map_or_else(Clone::clone, |dtype| format!("{dtype:?}"));
    format!("{dtype} {:?}", stored.shape)
}
