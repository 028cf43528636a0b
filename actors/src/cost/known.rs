//! What is known of the cost of a group's steps beyond one life of it: told by the shell before it starts, by the group as
//! it learns, and read by the group's next life and by the shell, which keeps it for the next run.

use std::sync::{Mutex, PoisonError};

use super::Coefficients;

/// See the module.
#[derive(Debug, Default)]
pub struct Known {
    /// What the coefficients belong to: model, arithmetic, threads, format of keys and values. Equal for groups that cost
    /// the same.
    pub key: String,
    /// A group that begins without coefficients tries some steps first, at positions below this one; `None`: it learns
    /// from those that it makes anyway.
    pub trials: Option<u32>,
    coefficients: Mutex<Option<Coefficients>>,
}

impl Known {
    /// Nothing is known.
    pub fn new(key: String, trials: Option<u32>) -> Self {
        Self { key, trials, coefficients: Mutex::default() }
    }

    /// What is known.
    pub fn get(&self) -> Option<Coefficients> {
        *self.coefficients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is known. What no fit can have brought is passed over.
    pub fn set(&self, coefficients: Coefficients) {
        if coefficients.is_sound() {
            *self.coefficients.lock().unwrap_or_else(PoisonError::into_inner) = Some(coefficients);
        }
    }
}
