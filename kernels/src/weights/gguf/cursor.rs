//! A place in a mapped file that only moves forward, and knows what is being read when the bytes run out.

use std::sync::Arc;

use crate::error::Error;
use crate::weights::Mapped;

/// Longest key or name in bytes, by the format's definition.
const NAME_MAX: u64 = 65_535;
/// Longest text in bytes: real templates have some thousands.
const TEXT_MAX: u64 = 1 << 24;

/// Reads little-endian numbers and strings.
pub(super) struct Cursor<'a> {
    file: &'a Arc<Mapped>,
    /// Offset of the next byte.
    at: usize,
    /// What is being read, for messages.
    what: String,
}

impl<'a> Cursor<'a> {
    /// At the start of the file.
    pub fn new(file: &'a Arc<Mapped>) -> Cursor<'a> {
        Cursor { file, at: 0, what: String::new() }
    }

    /// Says what the next bytes are.
    pub fn reading(&mut self, what: String) {
        self.what = what;
    }

    /// The file.
    pub fn file(&self) -> &'a Arc<Mapped> {
        self.file
    }

    /// Offset of the next byte.
    pub fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let left = &self.file.bytes()[self.at..];
        match usize::try_from(len).ok().and_then(|len| left.get(..len)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => {
                Err(self.error_at(self.at(), format!("needs {len} bytes, the file has {} more", left.len())))
            }
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes as a number.
    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string: its length, then its bytes, which are UTF-8.
    pub fn string(&mut self) -> Result<&'a str, Error> {
        let at = self.at();
        let len = self.u64()?;
        if len > TEXT_MAX {
            return Err(self.error_at(at, format!("a text of {len} bytes, at most {TEXT_MAX} are read")));
        }
        let at = self.at();
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map_err(|error| self.error_at(at + error.valid_up_to() as u64, "text is no UTF-8".to_owned()))
    }

    /// A string that names something: not empty, not absurdly long.
    pub fn name(&mut self) -> Result<&'a str, Error> {
        let at = self.at();
        let name = self.string()?;
        if name.is_empty() || name.len() as u64 > NAME_MAX {
            return Err(
                self.error_at(at, format!("a name of {} bytes, 1 to {NAME_MAX} are possible", name.len()))
            );
        }
        Ok(name)
    }

    /// What is being read breaks the format at byte `at`.
    pub fn error_at(&self, at: u64, problem: String) -> Error {
        Error::Malformed { path: self.file.path().to_owned(), what: self.what.clone(), at, problem }
    }

    /// The format allows what stands here, this reader does not.
    pub fn unsupported(&self, key: &str, value: String, known: &str) -> Error {
        let path = self.file.path().to_owned();
        Error::Unsupported { path, key: key.to_owned(), value, known: known.to_owned() }
    }
}
