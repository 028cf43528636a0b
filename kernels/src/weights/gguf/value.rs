//! Values of GGUF metadata. Lists stay in the file until someone asks for them: a vocabulary of 262144 strings costs
//! nothing to skip, and a list that lies about its length fails before memory is taken for it.

use std::fmt;
use std::sync::Arc;

use super::cursor::Cursor;
use crate::error::Error;
use crate::weights::{Mapped, Texts};

/// Most elements of a list.
const ELEMENTS_MAX: u64 = 1 << 24;
/// Deepest lists of lists.
const DEPTH_MAX: usize = 4;

/// GGUF's number of the type of strings.
const STRING: u32 = 8;
/// GGUF's number of the type of lists.
const LIST: u32 = 9;

/// A value of metadata. Numbers are widened.
#[derive(Clone)]
pub(crate) enum Value {
    /// u8, u16, u32 or u64.
    Unsigned(u64),
    /// i8, i16, i32 or i64.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// Boolean.
    Bool(bool),
    /// Text.
    Text(String),
    /// Elements of one type.
    List(List),
}

/// A list, as it lies in the file; it was walked once, so its elements are all there.
#[derive(Clone)]
pub(crate) struct List {
    file: Arc<Mapped>,
    /// GGUF's number of the type of its elements.
    kind: u32,
    /// Elements.
    len: u64,
    /// Offset of the first one.
    start: u64,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(value) => write!(f, "{value}"),
            Value::Signed(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Text(value) => write!(f, "\"{}\"", value.chars().take(80).collect::<String>()),
            Value::List(list) => write!(f, "a list of {}", list.len),
        }
    }
}

impl List {
    /// The elements, if they are texts, of less than 4 GiB in all.
    ///
    /// # Errors
    /// [`Error::Malformed`] if an element is broken.
    pub fn texts(&self) -> Result<Option<Texts>, Error> {
        let mut cursor = self.cursor()?;
        let mut texts = Texts::default();
        for _ in 0..self.len {
            if self.kind != STRING || !texts.push(cursor.string()?) {
                return Ok(None);
            }
        }
        Ok(Some(texts))
    }

    /// What `part` makes of the elements; none if it refuses one.
    ///
    /// # Errors
    /// [`Error::Malformed`] if an element is broken.
    pub fn collect<T>(&self, part: impl Fn(Value) -> Option<T>) -> Result<Option<Vec<T>>, Error> {
        let mut cursor = self.cursor()?;
        let mut parts = Vec::new();
        for _ in 0..self.len {
            match part(element(&mut cursor, self.kind, 0)?) {
                Some(part) => parts.push(part),
                None => return Ok(None),
            }
        }
        Ok(Some(parts))
    }

    /// At the first element.
    fn cursor(&self) -> Result<Cursor<'_>, Error> {
        let mut cursor = Cursor::new(&self.file);
        cursor.reading("list".to_owned());
        cursor.take(self.start)?;
        Ok(cursor)
    }
}

/// Reads a type and a value of it.
pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Value, Error> {
    let kind = cursor.u32()?;
    element(cursor, kind, 0)
}

/// Reads a value of a type.
fn element(cursor: &mut Cursor<'_>, kind: u32, depth: usize) -> Result<Value, Error> {
    let at = cursor.at();
    Ok(match kind {
        0 => Value::Unsigned(u64::from(u8::from_le_bytes(cursor.array()?))),
        1 => Value::Signed(i64::from(i8::from_le_bytes(cursor.array()?))),
        2 => Value::Unsigned(u64::from(u16::from_le_bytes(cursor.array()?))),
        3 => Value::Signed(i64::from(i16::from_le_bytes(cursor.array()?))),
        4 => Value::Unsigned(u64::from(cursor.u32()?)),
        5 => Value::Signed(i64::from(i32::from_le_bytes(cursor.array()?))),
        6 => Value::Float(f64::from(f32::from_le_bytes(cursor.array()?))),
        7 => match cursor.array()? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return Err(cursor.error_at(at, format!("a boolean of {other}"))),
        },
        STRING => Value::Text(cursor.string()?.to_owned()),
        LIST => Value::List(list(cursor, depth)?),
        10 => Value::Unsigned(cursor.u64()?),
        11 => Value::Signed(i64::from_le_bytes(cursor.array()?)),
        12 => Value::Float(f64::from_le_bytes(cursor.array()?)),
        other => return Err(cursor.error_at(at, format!("a value of type {other}, 0 to 12 are known"))),
    })
}

/// Walks a list to its end.
fn list(cursor: &mut Cursor<'_>, depth: usize) -> Result<List, Error> {
    let at = cursor.at();
    if depth == DEPTH_MAX {
        return Err(cursor.error_at(at, format!("lists are nested deeper than {DEPTH_MAX}")));
    }
    let kind = cursor.u32()?;
    let len = cursor.u64()?;
    if len > ELEMENTS_MAX {
        return Err(cursor.error_at(at, format!("a list of {len}, at most {ELEMENTS_MAX} elements are read")));
    }
    let list = List { file: Arc::clone(cursor.file()), kind, len, start: cursor.at() };
    let size = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        STRING | LIST => 0,
        other => return Err(cursor.error_at(at, format!("a list of type {other}, 0 to 12 are known"))),
    };
    cursor.take(size * len)?;
    for _ in 0..if size == 0 { len } else { 0 } {
        if kind == STRING {
            cursor.string()?;
        } else {
            self::list(cursor, depth + 1)?;
        }
    }
    Ok(list)
}
