//! What a model would take out of its files, without reading any of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Stored;

/// A tensor of a model's files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TensorFacts {
    /// Its format, as this crate or the file calls it.
    pub format: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Bytes in the file.
    pub bytes: u64,
    /// Whether the model has any use for it.
    pub used: bool,
}

impl TensorFacts {
    /// As it is stored, not used yet.
    pub(super) fn of(stored: &Stored) -> TensorFacts {
        let format = stored.dtype.as_ref().map_or_else(Clone::clone, |dtype| format!("{dtype:?}"));
        TensorFacts { format, shape: stored.shape.clone(), bytes: stored.bytes, used: false }
    }
}

/// A list of tensors that more than one holds: who takes them, and who will want to know.
#[derive(Clone)]
pub(crate) struct Noted(Arc<Mutex<BTreeMap<String, TensorFacts>>>);

impl Noted {
    pub(super) fn new(all: BTreeMap<String, TensorFacts>) -> Noted {
        Noted(Arc::new(Mutex::new(all)))
    }

    /// Notes that a tensor is used.
    pub(super) fn take(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = all.get_mut(name) {
            tensor.used = true;
        }
    }

    /// All tensors by name.
    pub fn into_tensors(self) -> BTreeMap<String, TensorFacts> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
