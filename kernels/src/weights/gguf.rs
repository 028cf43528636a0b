//! GGUF files, versions 2 and 3: metadata and a table of tensors, then their bytes. Our own reader, because it must
//! survive any bytes: nothing is allocated by a count that the file claims, and every error says where it stands.

mod cursor;
mod value;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use value::{List, Value};

use cursor::Cursor;

use super::{Mapped, Stored};
use crate::dtype::DType;
use crate::error::Error;

/// Most entries of metadata: real files have some dozens.
const ENTRIES_MAX: u64 = 1 << 16;
/// Most tensors: the largest real files have some thousands.
const TENSORS_MAX: u64 = 1 << 20;
/// Most sizes of a tensor, by the format's definition.
const SIZES_MAX: u32 = 4;
/// Alignment of tensors where the file does not say.
const ALIGNMENT: u64 = 32;
/// Alignments that are believed.
const ALIGNMENTS: std::ops::RangeInclusive<u64> = 8..=1 << 20;

/// A GGUF file whose header was read and checked.
pub(crate) struct Gguf {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Stored>,
}

/// An entry of the tensor table.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Bytes it takes.
    size: u64,
    /// Offset from the start of the data.
    offset: u64,
    /// Where the entry stands, for messages.
    at: u64,
}

/// True if the file starts like a GGUF file.
pub(crate) fn is_gguf(file: &Mapped) -> bool {
    file.bytes().starts_with(b"GGUF")
}

/// Reads the header of a mapped file.
///
/// # Errors
/// [`Error::Open`]; [`Error::Malformed`] with the byte where it breaks; [`Error::Unsupported`] for versions and tensor
/// types that are not read.
pub(crate) fn read(file: &Arc<Mapped>) -> Result<Gguf, Error> {
    let mut cursor = Cursor::new(file);
    let (entries, tensors) = header(&mut cursor)?;
    let (metadata, alignment) = metadata(&mut cursor, entries)?;
    let mut table = Vec::new();
    for index in 0..tensors {
        cursor.reading(format!("tensor {index} of {tensors}"));
        table.push(entry(&mut cursor, alignment)?);
    }
    let data = cursor.at().next_multiple_of(alignment);
    let tensors = place(&mut cursor, table, data)?;
    Ok(Gguf { metadata, tensors })
}

/// Magic, version and the two counts: entries of metadata, tensors.
fn header(cursor: &mut Cursor<'_>) -> Result<(u64, u64), Error> {
    cursor.reading("GGUF header".to_owned());
    if cursor.take(4)? != b"GGUF" {
        return Err(cursor.error_at(0, "this is no GGUF file".to_owned()));
    }
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        let swapped = (2..=3).contains(&version.swap_bytes());
        let value = if swapped { "big-endian".to_owned() } else { version.to_string() };
        return Err(cursor.unsupported("GGUF version", value, "2, 3 (little-endian)"));
    }
    let tensors = count(cursor, "tensors", TENSORS_MAX)?;
    let entries = count(cursor, "entries of metadata", ENTRIES_MAX)?;
    Ok((entries, tensors))
}

/// A count, which is believed only up to `max`.
fn count(cursor: &mut Cursor<'_>, of: &str, max: u64) -> Result<u64, Error> {
    let at = cursor.at();
    let count = cursor.u64()?;
    if count > max {
        return Err(cursor.error_at(at, format!("{count} {of}, at most {max}")));
    }
    Ok(count)
}

/// The metadata, and the alignment of tensors that it asks for.
fn metadata(cursor: &mut Cursor<'_>, entries: u64) -> Result<(BTreeMap<String, Value>, u64), Error> {
    let mut metadata = BTreeMap::new();
    let mut alignment = ALIGNMENT;
    for index in 0..entries {
        cursor.reading(format!("entry {index} of {entries} of metadata"));
        let at = cursor.at();
        let key = cursor.name()?.to_owned();
        cursor.reading(format!("metadata \"{key}\""));
        if metadata.contains_key(&key) {
            return Err(cursor.error_at(at, "the key is there twice".to_owned()));
        }
        let at = cursor.at();
        let value = value::read(cursor)?;
        if key == "general.alignment" {
            alignment = match value {
                Value::Unsigned(value) if value.is_power_of_two() && ALIGNMENTS.contains(&value) => value,
                _ => return Err(cursor.error_at(at, format!("{value} is no power of two in {ALIGNMENTS:?}"))),
            };
        }
        metadata.insert(key, value);
    }
    Ok((metadata, alignment))
}

/// One entry of the tensor table.
fn entry(cursor: &mut Cursor<'_>, alignment: u64) -> Result<Entry, Error> {
    let at = cursor.at();
    let name = cursor.name()?.to_owned();
    cursor.reading(format!("tensor \"{name}\""));
    let shape = shape(cursor)?;
    let dtype = dtype(cursor, &name)?;
    let cols = shape.last().copied().unwrap_or(1);
    let rows = shape.iter().rev().skip(1).try_fold(1_usize, |rows, &size| rows.checked_mul(size));
    let size = dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows?));
    let Some(size) = size else {
        return Err(cursor.error_at(at, format!("a size of {shape:?} {dtype:?} values makes no sense")));
    };
    let offset_at = cursor.at();
    let offset = cursor.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(cursor.error_at(offset_at, format!("offset {offset} is no multiple of {alignment}")));
    }
    Ok(Entry { name, dtype, shape, size: size as u64, offset, at })
}

/// Sizes of a tensor, turned round: the file has the innermost first.
fn shape(cursor: &mut Cursor<'_>) -> Result<Vec<usize>, Error> {
    let at = cursor.at();
    let sizes = cursor.u32()?;
    if !(1..=SIZES_MAX).contains(&sizes) {
        return Err(cursor.error_at(at, format!("{sizes} sizes, 1 to {SIZES_MAX} are possible")));
    }
    let mut shape = Vec::new();
    for _ in 0..sizes {
        let at = cursor.at();
        let size = cursor.u64()?;
        match usize::try_from(size) {
            Ok(size) if size > 0 => shape.push(size),
            _ => return Err(cursor.error_at(at, format!("a size of {size}"))),
        }
    }
    shape.reverse();
    Ok(shape)
}

/// Format of a tensor, by GGML's number.
fn dtype(cursor: &mut Cursor<'_>, name: &str) -> Result<DType, Error> {
    Ok(match cursor.u32()? {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        30 => DType::BF16,
        39 => DType::MXFP4,
        number => {
            let known = "0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 10 to 14 Q2_K to Q6_K, 30 BF16, \
                         39 MXFP4";
            let at = cursor.at() - 4;
            let value = format!("{number} at byte {at}");
            return Err(cursor.unsupported(&format!("type of tensor \"{name}\""), value, known));
        }
    })
}

/// Checks that tensors lie inside the file, apart from each other, under different names.
fn place(
    cursor: &mut Cursor<'_>,
    mut table: Vec<Entry>,
    data: u64,
) -> Result<BTreeMap<String, Stored>, Error> {
    table.sort_by_key(|entry| entry.offset);
    let mut tensors = BTreeMap::new();
    let mut free = 0;
    for entry in table {
        cursor.reading(format!("tensor \"{}\"", entry.name));
        let end =
            entry.offset.checked_add(entry.size).filter(|end| data.saturating_add(*end) <= cursor.len());
        let Some(end) = end else {
            let problem = format!(
                "{} bytes at offset {} of the data (byte {data}) end behind the file ({} bytes)",
                entry.size,
                entry.offset,
                cursor.len()
            );
            return Err(cursor.error_at(entry.at, problem));
        };
        if entry.offset < free {
            let problem =
                format!("offset {} is inside of another tensor, which ends at {free}", entry.offset);
            return Err(cursor.error_at(entry.at, problem));
        }
        free = end;
        let start = (data + entry.offset) as usize;
        let stored = Stored {
            file: Arc::clone(cursor.file()),
            start,
            dtype: Ok(entry.dtype),
            shape: entry.shape,
            bytes: entry.size,
        };
        if tensors.insert(entry.name, stored).is_some() {
            return Err(cursor.error_at(entry.at, "the name is there twice".to_owned()));
        }
    }
    Ok(tensors)
}
