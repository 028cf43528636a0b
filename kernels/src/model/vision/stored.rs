//! Stored models and their vectors, for tests of eyes that look behind the seam.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value as Json;

use crate::weights::{Weights, safetensors as files};

/// A folder of stored vectors, if it is there.
pub(super) fn oracle(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(name);
    path.exists().then_some(path)
}

/// A file of JSON.
pub(super) fn json(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON")
}

/// The tensors of a model.
pub(super) fn weights(path: &Path) -> Weights {
    Weights::new(path, files::open(path).expect("tensors"), None)
}

/// Stored numbers.
pub(super) struct Stored(Vec<u8>);

impl Stored {
    pub fn open(path: &Path) -> Stored {
        Stored(std::fs::read(path).expect("readable"))
    }

    /// Shape and bytes of a tensor.
    pub fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let tensors = SafeTensors::deserialize(&self.0).expect("tensors");
        let view = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        (view.shape().to_vec(), view.data().to_vec())
    }

    /// A tensor of f32.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let (_, bytes) = self.bytes(name);
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Largest difference of two lists.
pub(super) fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max)
}
