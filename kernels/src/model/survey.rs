//! What a model would be and hold, before any of it is read: for models that are larger than the machine that looks at them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::load::{config_of_folder, source_of_folder, source_of_settings};
use super::{Facts, Model};
use crate::config::settings::Settings;
use crate::error::Error;
use crate::weights::{TensorFacts, safetensors};

/// What the settings and the headers of a model's files say.
#[derive(Clone, Debug)]
pub struct Survey {
    /// What is known of the model.
    pub facts: Facts,
    /// All tensors of its files. Those that are used have the shapes that the settings ask for.
    pub tensors: BTreeMap<String, TensorFacts>,
}

/// Takes a folder through its family's loader without reading any weights: every tensor's name, shape and format is held
/// against the settings, however large the files are. Texts of tokens are not looked at either.
///
/// # Errors
/// As for [`load`](super::load).
pub fn survey(folder: &Path) -> Result<Survey, Error> {
    let config = config_of_folder(folder)?;
    let settings = Settings::json(&folder.join("config.json"), &config);
    let (mut source, load) = source_of_folder(folder, &settings)?;
    let noted = source.weights.note();
    let facts = load(source, &settings)?.facts().clone();
    Ok(Survey { facts, tensors: noted.into_tensors() })
}

/// A model as far as its settings go, which must not be asked to compute: of a folder its `config.json` is enough. Where the
/// folder has no weights, they are taken to be there, of two bytes each, in the shapes that the settings ask for.
///
/// # Errors
/// As for [`load`](super::load).
pub fn outline(folder: &Path) -> Result<Arc<dyn Model>, Error> {
    let config = config_of_folder(folder)?;
    let settings = Settings::json(&folder.join("config.json"), &config);
    let (mut source, load) = match safetensors::is_any(folder) {
        true => source_of_folder(folder, &settings)?,
        false => source_of_settings(folder, &settings)?,
    };
    source.weights.note();
    load(source, &settings)
}
