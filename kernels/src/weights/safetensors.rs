//! Safetensors files: a folder holds one, or several and an index that says which tensor is in which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::{Mapped, Stored};
use crate::dtype::DType;
use crate::error::Error;
use crate::files;

/// The only file of a model that fits into one.
const SINGLE: &str = "model.safetensors";
/// The index of a model in several files.
const INDEX: &str = "model.safetensors.index.json";

/// Whether a folder has such files.
pub(crate) fn is_any(folder: &Path) -> bool {
    [INDEX, SINGLE].iter().any(|name| folder.join(name).is_file())
}

/// All tensors of the model in `folder`.
///
/// # Errors
/// [`Error::NotAModel`] if there is no weights file; [`Error::Open`]; [`Error::Malformed`].
pub(crate) fn open(folder: &Path) -> Result<BTreeMap<String, Stored>, Error> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return sharded(folder, &index);
    }
    let single = folder.join(SINGLE);
    if single.is_file() {
        return one(&single);
    }
    let problem = format!("the folder has neither {SINGLE} nor {INDEX}");
    Err(Error::NotAModel { path: folder.to_owned(), problem })
}

/// What is read of an entry of the header before the rest is believed.
#[derive(serde::Deserialize)]
struct Extent {
    /// First byte and the one behind the last, from the end of the header. The entry for notes has none.
    data_offsets: Option<[u64; 2]>,
}

/// Tensors of one file.
fn one(path: &Path) -> Result<BTreeMap<String, Stored>, Error> {
    let file = Arc::new(Mapped::open(path)?);
    let data = check_extents(&file)?;
    let (_, header) =
        SafeTensors::read_metadata(file.bytes()).map_err(|error| broken(&file, 8, error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, info) in header.tensors() {
        let dtype = match info.dtype {
            Dtype::F32 => Ok(DType::F32),
            Dtype::F16 => Ok(DType::F16),
            Dtype::BF16 => Ok(DType::BF16),
            Dtype::F8_E4M3 => Ok(DType::F8E4M3),
            other => Err(format!("{other:?}")),
        };
        let start = data + info.data_offsets.0;
        let (file, shape) = (Arc::clone(&file), info.shape.clone());
        let bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
        tensors.insert(name, Stored { file, start, dtype, shape, bytes });
    }
    Ok(tensors)
}

/// Checks that the header and all it points to lie inside the file; gives the offset of the data. The library that
/// reads the rest of the header adds such numbers up without looking.
fn check_extents(file: &Mapped) -> Result<usize, Error> {
    let bytes = file.bytes();
    let Some((size, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(broken(file, 0, format!("needs 8 bytes, the file has {}", bytes.len())));
    };
    let size = u64::from_le_bytes(*size);
    let Some(header) = usize::try_from(size).ok().and_then(|size| rest.get(..size)) else {
        return Err(broken(file, 0, format!("a length of {size}, the file has {} more bytes", rest.len())));
    };
    let entries: BTreeMap<String, Extent> = serde_json::from_slice(header).map_err(|error| {
        let at = if error.line() == 1 { 7 + error.column() } else { 8 };
        broken(file, at as u64, error.to_string())
    })?;
    let data = (rest.len() - header.len()) as u64;
    match entries.iter().find(|(_, entry)| entry.data_offsets.is_some_and(|[a, b]| a > b || b > data)) {
        None => Ok(8 + header.len()),
        Some((name, Extent { data_offsets })) => {
            let problem =
                format!("tensor \"{name}\" is at {:?} of {data} bytes", data_offsets.unwrap_or_default());
            Err(broken(file, 8, problem))
        }
    }
}

/// The header breaks the format.
fn broken(file: &Mapped, at: u64, problem: String) -> Error {
    let what = "safetensors header".to_owned();
    Error::Malformed { path: file.path().to_owned(), what, at, problem }
}

/// Tensors of all files that the index names.
fn sharded(folder: &Path, index: &Path) -> Result<BTreeMap<String, Stored>, Error> {
    let broken =
        |key: &str, problem: String| Error::Config { path: index.to_owned(), key: key.to_owned(), problem };
    let value = files::json(index)?;
    let Some(map) = value.get("weight_map").and_then(Value::as_object) else {
        return Err(broken("weight_map", "is missing or no object".to_owned()));
    };
    let mut places = BTreeMap::new();
    for (name, shard) in map {
        match shard.as_str().filter(|shard| is_plain_name(shard)) {
            Some(shard) => places.insert(name.as_str(), shard),
            None => return Err(broken(name, format!("{shard} is no name of a file in the folder"))),
        };
    }
    let mut tensors = BTreeMap::new();
    for shard in places.values().copied().collect::<BTreeSet<_>>() {
        for (name, stored) in one(&folder.join(shard))? {
            if places.get(name.as_str()) == Some(&shard) {
                tensors.insert(name, stored);
            } else {
                return Err(broken(&name, format!("is in {shard}, the index does not say so")));
            }
        }
    }
    match places.iter().find(|(name, _)| !tensors.contains_key(**name)) {
        None => Ok(tensors),
        Some((name, shard)) => Err(broken(name, format!("the index says it is in {shard}, it is not"))),
    }
}

/// True for a file name without any folder in it.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0'])
}
