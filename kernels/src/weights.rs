//! Where weights come from: files mapped into memory, read as GGUF or as safetensors, handed out as [`Matrix`] views
//! and widened vectors. Every number in a file is checked before it is believed.
//!
//! A file that shrinks while it is mapped is out of scope: the operating system then ends the process (SIGBUS on Unix).
//! Replace model files by renaming a new file over the old one.

mod fingerprint;
pub(crate) mod gguf;
mod map;
mod noted;
pub(crate) mod repack;
pub(crate) mod safetensors;
mod texts;
mod threads;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use fingerprint::fingerprint;
pub use map::Mapped;
pub(crate) use noted::Noted;
pub use noted::TensorFacts;
pub use texts::Texts;
pub(crate) use threads::Threads;

use crate::dtype::{DType, half_power};
use crate::error::Error;
use crate::matrix::{Matrix, packed_size};
use crate::packed::arena::Arena;
use crate::packed::fill_parts;

/// Tensors of a model by name, whatever files they are in. A family takes those it knows; what is left at the end is a
/// feature it does not have.
pub(crate) struct Weights {
    /// File or folder, for messages.
    path: PathBuf,
    /// Those not taken yet.
    tensors: BTreeMap<String, Stored>,
    /// Rows and columns of the rectangles that share a factor in FP8 matrices; none: the model has no such matrices.
    fp8_block: Option<(usize, usize)>,
    /// Numbers in the tensors taken.
    parameters: u64,
    /// Bytes of the tensors taken.
    bytes: u64,
    /// Where matrices are packed to; none: they stay as they are stored.
    packing: Option<Arena>,
    /// Threads that pack and repack: one, unless a loader says otherwise.
    pub threads: Threads,
    /// Nothing is read, only noted that it would be; none: things are read.
    noted: Option<Noted>,
    /// What is not there is taken to be, in this file; none: it must be there.
    invented: Option<Arc<Mapped>>,
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
    /// Bytes it takes in the file.
    pub bytes: u64,
}

impl Weights {
    /// All tensors of a model, which lies at `path`; `fp8_block` as its settings say.
    pub fn new(path: &Path, tensors: BTreeMap<String, Stored>, fp8_block: Option<(usize, usize)>) -> Weights {
        let path = path.to_owned();
        let (threads, packing, noted, invented) = (Threads::new(1), None, None, None);
        Weights { path, tensors, fp8_block, parameters: 0, bytes: 0, packing, threads, noted, invented }
    }

    /// From here on nothing is read: matrices are [`Matrix::outline`]s, vectors are of zeros, and what is taken is noted.
    pub fn note(&mut self) -> Noted {
        let all = self.tensors.iter().map(|(name, stored)| (name.clone(), TensorFacts::of(stored))).collect();
        self.noted.insert(Noted::new(all)).clone()
    }

    /// From here on what is not there is taken to be, in `file`: numbers of two bytes. For weights that are only noted.
    pub fn invent(&mut self, file: Arc<Mapped>) {
        self.invented = Some(file);
    }

    /// Whether nothing is read.
    pub fn is_noting(&self) -> bool {
        self.noted.is_some()
    }

    /// From here on matrices whose format allows it are packed.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not have as much as they take.
    pub fn pack(&mut self) -> Result<(), Error> {
        let run = self.fp8_block.map_or(usize::MAX, |block| block.1);
        let size = |(name, stored): (&String, &Stored)| {
            let (dtype, cols, rows) = match (&stored.dtype, stored.shape.as_slice()) {
                (Ok(dtype), [rows @ .., cols]) => (*dtype, *cols, rows),
                // In two tensors, of which the blocks say it all.
                (Err(_), [rows @ .., blocks, repack::NIBBLES]) if name.ends_with("_blocks") => {
                    (DType::MXFP4, blocks.checked_mul(DType::MXFP4.block_len())?, rows)
                }
                (Err(found), [rows @ .., pairs]) if is_pairs(found) => {
                    (DType::MXFP4, pairs.checked_mul(2)?, rows)
                }
                _ => return None,
            };
            let rows = rows.iter().try_fold(1, |a: usize, b| a.checked_mul(*b))?;
            let bytes = dtype.row_bytes(cols)?.checked_mul(rows)?;
            // Exponents are in the other tensor.
            if bytes / 2 > stored.file.bytes().len() { None } else { packed_size(dtype, (rows, cols), run) }
        };
        let sizes = self.tensors.iter().filter_map(size).fold(0, usize::saturating_add);
        self.packing = Some(Arena::new(sizes)?);
        Ok(())
    }

    /// True while a tensor of that name is there and not taken.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Shape of a tensor that is there and not taken.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// Takes a matrix of `rows` by `cols`, packed if matrices are.
    ///
    /// # Errors
    /// [`Error::MissingTensor`]; [`Error::Tensor`] if it has another shape or a format that is not read.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let stored = self.stored(name, rows, cols)?;
        self.packed(&stored)
    }

    /// A matrix made of stored ones, packed if matrices are.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system does not have as much.
    pub fn packed(&mut self, matrix: &Matrix) -> Result<Matrix, Error> {
        match &mut self.packing {
            Some(arena) => matrix.pack_into(arena, self.threads.now()),
            None => Ok(matrix.clone()),
        }
    }

    /// Takes a matrix as it is stored; with it the factors of FP8 and the exponents of 4-bit floating point, which are in a
    /// tensor of their own.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn stored(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        if self
            .tensors
            .get(name)
            .is_some_and(|stored| stored.dtype.as_ref().is_err_and(|found| is_pairs(found)))
        {
            return self.fp4(name, rows, cols);
        }
        let matrix = self.take(name, &[rows, cols])?;
        if matrix.dtype != DType::F8E4M3 {
            return Ok(matrix);
        }
        let Some(block) = self.fp8_block else {
            return Err(Error::Tensor {
                path: self.path.clone(),
                name: name.to_owned(),
                found: format!("{matrix:?}"),
                needed: "quantization_config of method fp8 beside it".to_owned(),
            });
        };
        let grid = [rows.div_ceil(block.0), cols.div_ceil(block.1)];
        matrix.scaled(self.factors(name, &grid)?, block)
    }

    /// Takes the factors of an FP8 matrix: numbers, or exponents of powers of two.
    fn factors(&mut self, name: &str, grid: &[usize; 2]) -> Result<Vec<f32>, Error> {
        let beside = self.beside(name);
        match self.tensors.get(&beside).map(|stored| &stored.dtype) {
            Some(Err(_)) => {
                let exponents = self.raw(&beside, grid, EXPONENTS)?;
                self.bytes += exponents.len as u64;
                if self.is_noting() {
                    return Ok(vec![0.0; exponents.len]);
                }
                Ok(exponents.bytes().iter().map(|&exponent| power(exponent)).collect())
            }
            _ => Ok(self.take(&beside, grid)?.to_f32()),
        }
    }

    /// Name of the tensor that has the factors of another: `x.weight` has them in `x.scale` or in `x.weight_scale_inv`.
    fn beside(&self, name: &str) -> String {
        let short = name.strip_suffix("weight").map(|start| format!("{start}scale"));
        short.filter(|short| self.has(short)).unwrap_or_else(|| format!("{name}_scale_inv"))
    }

    /// Takes a matrix of 4-bit floating point, two values in a byte, the first one in the low half; the exponents of each 32
    /// values are in a tensor beside it.
    fn fp4(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        let per_row = cols / DType::MXFP4.block_len();
        self.whole_blocks(name, cols)?;
        let pairs = self.raw(name, &[rows, cols / 2], PAIRS)?;
        let exponents = self.raw(&self.beside(name), &[rows, per_row], EXPONENTS)?;
        Ok(self.repacked((pairs, exponents), (rows, cols), |row| row))
    }

    /// Takes a table whose rows are looked up, as it is stored: its values, and the exponents of powers of two that runs of
    /// a row share, where it has some. Neither is read.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn table(&mut self, name: &str, rows: usize, cols: usize) -> Result<(Matrix, Option<Raw>), Error> {
        let values = self.take(name, &[rows, cols])?;
        if values.dtype != DType::F8E4M3 {
            return Ok((values, None));
        }
        let beside = self.beside(name);
        let runs = match self.shape(&beside) {
            Some(&[_, runs]) if runs > 0 && cols.is_multiple_of(runs) => runs,
            _ => cols.div_ceil(DType::MXFP4.block_len()),
        };
        let exponents = self.raw(&beside, &[rows, runs], EXPONENTS)?;
        self.bytes += exponents.len as u64;
        Ok((values, Some(exponents)))
    }

    /// Takes a tensor of this shape as a matrix with a row for each of its outermost size, packed if matrices are.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn flat(&mut self, name: &str, shape: &[usize]) -> Result<Matrix, Error> {
        let stored = self.find(name, shape)?;
        let matrix = self.mapped(name, &stored, (shape[0], shape[1..].iter().product()))?;
        self.packed(&matrix)
    }

    /// Takes `count` matrices of `rows` by `cols` that lie in one tensor, as they are stored.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn stack(&mut self, name: &str, [count, rows, cols]: [usize; 3]) -> Result<Vec<Matrix>, Error> {
        let all = self.take(name, &[count, rows, cols])?;
        Ok((0..count).map(|index| all.part(index * rows, rows)).collect())
    }

    /// Takes `count` vectors of `len` that lie in one tensor, and widens them.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn vectors(&mut self, name: &str, count: usize, len: usize) -> Result<Vec<Vec<f32>>, Error> {
        let all = self.take(name, &[count, len])?.to_f32();
        Ok(all.chunks_exact(len).map(<[f32]>::to_vec).collect())
    }

    /// Takes `count` matrices of MXFP4 that lie in two tensors, `{name}_blocks` and `{name}_scales`; with `halves` every
    /// second row of each comes first, then the others.
    ///
    /// # Errors
    /// As [`Weights::matrix`]; also if `cols` is no multiple of the block.
    pub fn fp4_stack(
        &mut self,
        name: &str,
        [count, rows, cols]: [usize; 3],
        halves: bool,
    ) -> Result<Vec<Matrix>, Error> {
        self.whole_blocks(name, cols)?;
        let per_row = cols / DType::MXFP4.block_len();
        let shape = [count, rows, per_row, repack::NIBBLES];
        let nibbles = self.raw(&format!("{name}_blocks"), &shape, &["U8"])?;
        let exponents = self.raw(&format!("{name}_scales"), &shape[..3], &["U8"])?;
        let first = rows.div_ceil(2);
        let all = self.repacked((nibbles, exponents), (count * rows, cols), |row| {
            let (start, r) = (row - row % rows, row % rows);
            match (halves, r < first) {
                (false, _) => row,
                (true, true) => start + 2 * r,
                (true, false) => start + 2 * (r - first) + 1,
            }
        });
        Ok((0..count).map(|index| all.part(index * rows, rows)).collect())
    }

    /// A matrix of 4-bit floating point in two tensors, of whose rows row `r` is `from(r)` there.
    fn repacked(
        &mut self,
        (nibbles, exponents): (Raw, Raw),
        (rows, cols): (usize, usize),
        from: impl Fn(usize) -> usize + Sync,
    ) -> Matrix {
        self.parameters += (rows * cols) as u64;
        self.bytes += (nibbles.len + exponents.len) as u64;
        if self.is_noting() {
            return Matrix::outline(DType::MXFP4, rows, cols);
        }
        let fp4 = repack::Fp4 { nibbles: nibbles.bytes(), exponents: exponents.bytes() };
        let (dtype, per_row) = (DType::MXFP4, cols / DType::MXFP4.block_len());
        let matrix = Matrix::filled(dtype, (rows, cols), |bytes| {
            fill_parts(bytes, (per_row * dtype.block_bytes(), rows), self.threads.now(), &|r, bytes| {
                repack::mxfp4(fp4, from(r), per_row, bytes);
            });
        });
        nibbles.forget();
        matrix
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

    /// Takes a tensor of exactly this shape as a matrix, whose rows are runs of the last size.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Matrix, Error> {
        let stored = self.find(name, shape)?;
        let (cols, rows) = (shape[shape.len() - 1], shape[..shape.len() - 1].iter().product());
        self.mapped(name, &stored, (rows, cols))
    }

    /// A tensor as a matrix of so many rows and columns, which are all it has; counts it as taken.
    fn mapped(&mut self, name: &str, stored: &Stored, (rows, cols): (usize, usize)) -> Result<Matrix, Error> {
        let dtype = match &stored.dtype {
            Ok(dtype) => *dtype,
            Err(_) => return Err(refused(name, stored, format!("one of {:?}", DType::ALL))),
        };
        let matrix = if self.is_noting() {
            // That it is in the file was seen when that was opened.
            dtype.row_bytes(cols).ok_or_else(|| refused(name, stored, "whole blocks".to_owned()))?;
            Matrix::outline(dtype, rows, cols)
        } else {
            Matrix::mapped(&stored.file, stored.start, dtype, (rows, cols))
                .map_err(|error| refused(name, stored, format!("inside of its file: {error}")))?
        };
        self.parameters += (rows * cols) as u64;
        self.bytes += matrix.size() as u64;
        Ok(matrix)
    }

    /// Refuses rows of 4-bit floating point that are not whole blocks.
    fn whole_blocks(&self, name: &str, cols: usize) -> Result<(), Error> {
        if cols.is_multiple_of(DType::MXFP4.block_len()) {
            return Ok(());
        }
        let found = format!("for rows of {cols} values");
        let needed = "whole blocks of 32".to_owned();
        Err(Error::Tensor { path: self.path.clone(), name: name.to_owned(), found, needed })
    }

    /// Takes a tensor of bytes of exactly this shape, by one of these names of their format.
    fn raw(&mut self, name: &str, shape: &[usize], known: &[&str]) -> Result<Raw, Error> {
        let stored = self.find_as(name, shape, Err(known[0].to_owned()))?;
        let len = shape.iter().product();
        let inside =
            self.is_noting() || stored.file.bytes().get(stored.start..).is_some_and(|rest| rest.len() >= len);
        match &stored.dtype {
            Err(found) if known.contains(&found.as_str()) && inside => Ok(Raw { stored, len }),
            _ => Err(refused(name, &stored, known.join(" or "))),
        }
    }

    /// Takes a tensor of exactly this shape out of the table. Its sizes are those of the file, whose reader has seen that
    /// their product is no more than the file has.
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<Stored, Error> {
        self.find_as(name, shape, Ok(DType::BF16))
    }

    /// The same; one that is invented has this format.
    fn find_as(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: Result<DType, String>,
    ) -> Result<Stored, Error> {
        if let Some(file) = self.invented.as_ref().filter(|_| !self.tensors.contains_key(name)) {
            let (file, shape, start) = (Arc::clone(file), shape.to_vec(), 0);
            let bytes = shape.iter().product::<usize>() as u64 * if dtype.is_ok() { 2 } else { 1 };
            return Ok(Stored { file, start, dtype, shape, bytes });
        }
        let Some(stored) = self.tensors.remove(name) else {
            return Err(Error::MissingTensor { path: self.path.clone(), name: name.to_owned() });
        };
        if stored.shape != shape {
            return Err(refused(name, &stored, format!("{shape:?}")));
        }
        if let Some(noted) = &self.noted {
            noted.take(name);
        }
        Ok(stored)
    }
}

/// What files call bytes that hold two values of 4-bit floating point.
const PAIRS: &[&str] = &["I8", "F4"];
/// What files call bytes that are exponents.
const EXPONENTS: &[&str] = &["F8_E8M0", "U8"];

/// Whether a format that is not read as numbers is one of pairs.
fn is_pairs(found: &str) -> bool {
    PAIRS.contains(&found)
}

/// The power of two that an exponent of bias 127 stands for; the largest stands for no number.
pub(crate) fn power(exponent: u8) -> f32 {
    if exponent == u8::MAX { f32::NAN } else { 2.0 * half_power(exponent) }
}

/// A tensor of bytes, where it lies in its file.
pub(crate) struct Raw {
    stored: Stored,
    len: usize,
}

impl Raw {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.stored.file.bytes()[self.stored.start..][..self.len]
    }

    /// Asks the system to read these ranges of the bytes.
    pub fn prefetch(&self, ranges: impl Iterator<Item = Range<usize>>) {
        let start = self.stored.start;
        self.stored.file.prefetch(ranges.map(|range| start + range.start..start + range.end));
    }

    /// Gives their memory back: they were copied.
    fn forget(&self) {
        self.stored.file.forget(self.stored.start..self.stored.start + self.len);
    }
}

/// A tensor is not what is needed.
fn refused(name: &str, stored: &Stored, needed: String) -> Error {
    let (path, name) = (stored.file.path().to_owned(), name.to_owned());
    Error::Tensor { path, name, found: describe(stored), needed }
}

/// Format and shape of a tensor, for messages.
fn describe(stored: &Stored) -> String {
    let dtype = stored.dtype.as_ref().map_or_else(Clone::clone, |dtype| format!("{dtype:?}"));
    format!("{dtype} {:?}", stored.shape)
}
