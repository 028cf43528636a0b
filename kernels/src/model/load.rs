//! From a path to a model: which format it is, which family, and that family's loader.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use serde_json::{Map, Value as Json};

use super::source::{Later, Naming, Source, Tokens};
use super::text;
use super::{
    ExpertFacts, Model, TextFiles, deepseek, deepseek_v41, gemma3, gpt_oss, llama, qwen2, qwen3, qwen3_moe,
    qwen3_vl,
};
use crate::config::settings::Settings;
use crate::config::{self, quantization};
use crate::error::Error;
use crate::files;
use crate::weights::gguf::{self, Gguf, Value};
use crate::weights::{Mapped, Stored, Threads, Weights, safetensors};
use crate::work::WorkFacts;

/// A model and what its files say about text.
#[derive(Clone)]
pub struct Loaded {
    /// The model, to be shared by the ranks of a process.
    pub model: Arc<dyn Model>,
    /// Raw material for the tokenizer.
    pub text: TextFiles,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("facts", self.model.facts()).finish_non_exhaustive()
    }
}

/// A family, by its names in the two formats.
struct Family {
    /// `general.architecture` of GGUF files, where it comes as one.
    gguf: Option<&'static str>,
    /// `model_type` of `config.json`.
    model_type: &'static str,
    /// Its entry in `architectures` of `config.json`.
    class: &'static str,
    load: Loader,
    /// What its steps ask, from the settings of a folder.
    work: fn(&Settings<'_>) -> Result<WorkFacts, Error>,
}

/// Takes a model out of its files.
pub(super) type Loader = fn(Source, &Settings<'_>) -> Result<Arc<dyn Model>, Error>;

/// All families.
const FAMILIES: [Family; 9] = [
    Family {
        gguf: Some("llama"),
        model_type: "llama",
        class: "LlamaForCausalLM",
        load: llama::load,
        work: |settings| Ok(config::Llama::from_json(settings)?.work()),
    },
    Family {
        gguf: Some("qwen2"),
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        load: qwen2::load,
        work: |settings| Ok(config::Qwen2::from_json(settings)?.work()),
    },
    Family {
        gguf: Some("qwen3"),
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        load: qwen3::load,
        work: |settings| Ok(config::Qwen3::from_json(settings)?.work()),
    },
    Family {
        gguf: Some("qwen3moe"),
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        load: qwen3_moe::load,
        work: |settings| Ok(config::Qwen3Moe::from_json(settings)?.work()),
    },
    Family {
        gguf: None,
        model_type: "qwen3_vl",
        class: "Qwen3VLForConditionalGeneration",
        load: qwen3_vl::load,
        work: qwen3_vl::work,
    },
    Family {
        gguf: Some("gemma3"),
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        load: gemma3::load,
        work: |settings| Ok(config::Gemma3::from_json(settings)?.work()),
    },
    Family {
        gguf: Some("gpt-oss"),
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        load: gpt_oss::load,
        work: |settings| Ok(config::GptOss::from_json(settings)?.work()),
    },
    Family {
        gguf: Some("deepseek2"),
        model_type: "deepseek_v3",
        class: "DeepseekV3ForCausalLM",
        load: deepseek::load,
        work: |settings| Ok(config::DeepSeek::from_json(settings)?.work()),
    },
    Family {
        gguf: None,
        model_type: "deepseek_v41",
        class: "DeepseekV41ForCausalLM",
        load: deepseek_v41::load,
        work: deepseek_v41::work,
    },
];

/// What quantised weights are multiplied with.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Activations {
    /// Activations as they are; weights are read in place. The exact results.
    #[default]
    F32,
    /// Activations rounded to 8 bits, a scale for each 32, where weights are quantised, and as they are where weights are
    /// floats; weights are packed for that. Much faster.
    Int8,
}

/// Loads a model from a folder (`config.json` and safetensors, single or sharded) or from a `.gguf` file.
///
/// Weights stay in their files, which are mapped into memory. A file must not shrink or be written over while the model
/// is in use (the process would die or compute with other numbers): replace it by renaming a new file over it.
///
/// # Errors
/// Any of [`Error`] but those of steps; each names the file and the place.
pub fn load(path: &Path) -> Result<Loaded, Error> {
    load_with(path, Activations::F32)
}

/// [`load`], with a choice of what quantised weights are multiplied with.
///
/// # Errors
/// As for [`load`].
pub fn load_with(path: &Path, activations: Activations) -> Result<Loaded, Error> {
    Ok(load_beside(path, activations, |_| ())?.0)
}

/// [`load_with`], while another thread reads what the files say about text: both take long for a large vocabulary.
///
/// # Errors
/// As for [`load`].
pub fn load_beside<T: Send>(
    path: &Path,
    activations: Activations,
    read: impl FnOnce(&TextFiles) -> T + Send,
) -> Result<(Loaded, T), Error> {
    if path.is_dir() {
        return folder(path, activations, read);
    }
    let file = Arc::new(Mapped::open(path)?);
    if !gguf::is_gguf(&file) {
        let problem = "is neither a folder with config.json nor a GGUF file".to_owned();
        return Err(Error::NotAModel { path: path.to_owned(), problem });
    }
    from_gguf(path, gguf::read(&file)?, activations, read)
}

/// Both at the same time: one thread reads text, this one loads, with more threads once text is read.
fn beside<T: Send>(
    text: impl FnOnce() -> Result<(TextFiles, Tokens), Error> + Send,
    read: impl FnOnce(&TextFiles) -> T + Send,
    load: impl FnOnce(Threads, Later) -> Result<Arc<dyn Model>, Error>,
) -> Result<(Loaded, T), Error> {
    let (threads, (found, later)) = (Threads::new(PACKERS_MAX), mpsc::sync_channel(1));
    let (model, read) = std::thread::scope(|scope| {
        let busy = threads.but_one();
        let read = scope.spawn(move || {
            let _busy = busy;
            let (text, tokens) = text()?;
            // Nobody listens if loading has failed.
            let _ = found.send(tokens);
            Ok((read(&text), text))
        });
        // What is wrong with the text is said below.
        let unread =
            || Error::NotAModel { path: PathBuf::new(), problem: "its text cannot be read".to_owned() };
        let tokens = move || later.recv().map_err(|_| unread());
        (load(threads, Box::new(tokens)), read.join())
    });
    let (read, text) = read.unwrap_or_else(|cause| std::panic::resume_unwind(cause))?;
    Ok((Loaded { model: model?, text }, read))
}

/// Loads a folder.
fn folder<T: Send>(
    path: &Path,
    activations: Activations,
    read: impl FnOnce(&TextFiles) -> T + Send,
) -> Result<(Loaded, T), Error> {
    let config = config_of_folder(path)?;
    let settings = Settings::json(&path.join("config.json"), &config);
    let (mut source, load) = source_of_folder(path, &settings)?;
    prepare(&mut source.weights, activations)?;
    // The tokens of a folder are known.
    let text = || Ok((text::of_folder(path)?, Tokens { bos: None, eos: Vec::new() }));
    beside(text, read, |threads, _| {
        source.weights.threads = threads;
        load(source, &settings)
    })
}

/// What a model's steps ask, from the `config.json` of its folder, or a file like it.
///
/// # Errors
/// Any of [`Error`] about settings.
pub(crate) fn work_of_config(path: &Path) -> Result<WorkFacts, Error> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let Some(json) = files::json_if_any(&path)? else {
        return Err(Error::NotAModel { path, problem: "there is no such file".to_owned() });
    };
    let config = object(&path, &json)?;
    let settings = Settings::json(&path, config);
    (family_of_folder(&path, &settings)?.work)(&settings)
}

/// The settings in a folder.
pub(super) fn config_of_folder(path: &Path) -> Result<Map<String, Json>, Error> {
    let config_path = path.join("config.json");
    match files::json_if_any(&config_path)? {
        Some(config) => object(&config_path, &config).cloned(),
        None => {
            let problem = "the folder has no config.json".to_owned();
            Err(Error::NotAModel { path: path.to_owned(), problem })
        }
    }
}

/// A folder's tensors, as they are stored, and who takes them.
pub(super) fn source_of_folder(path: &Path, settings: &Settings<'_>) -> Result<(Source, Loader), Error> {
    source_of(path, safetensors::open(path)?, settings)
}

/// The tensors that the settings in a folder ask for, none of which is there, and who takes them.
pub(super) fn source_of_settings(path: &Path, settings: &Settings<'_>) -> Result<(Source, Loader), Error> {
    let (mut source, load) = source_of(path, BTreeMap::new(), settings)?;
    source.weights.invent(Arc::new(Mapped::open(&path.join("config.json"))?));
    Ok((source, load))
}

fn source_of(
    path: &Path,
    tensors: BTreeMap<String, Stored>,
    settings: &Settings<'_>,
) -> Result<(Source, Loader), Error> {
    let family = family_of_folder(&path.join("config.json"), settings)?;
    let tokens = tokens_of_folder(path, settings)?;
    let fp8_block = quantization::fp8_block(settings)?;
    let source = Source {
        weights: Weights::new(path, tensors, fp8_block),
        naming: Naming::Folder,
        root: "model",
        tokens: Box::new(|| Ok(tokens)),
        norms_add_one: false,
        experts: ExpertFacts::default(),
    };
    Ok((source, family.load))
}

/// Has matrices packed if the activations ask for it. Memory for that is asked for while nobody else is at work: a thread
/// that is refused a few bytes ends the process.
fn prepare(weights: &mut Weights, activations: Activations) -> Result<(), Error> {
    if activations == Activations::Int8 { weights.pack() } else { Ok(()) }
}

/// Threads that pack weights; more would wait for memory.
const PACKERS_MAX: usize = 8;

/// Loads a GGUF file.
fn from_gguf<T: Send>(
    path: &Path,
    gguf: Gguf,
    activations: Activations,
    read: impl FnOnce(&TextFiles) -> T + Send,
) -> Result<(Loaded, T), Error> {
    let found = match gguf.metadata.get("general.architecture") {
        Some(Value::Text(found)) => found.clone(),
        _ => {
            let key = "general.architecture".to_owned();
            return Err(Error::Config {
                path: path.to_owned(),
                key,
                problem: "is missing or no text".to_owned(),
            });
        }
    };
    let named = |family: &&Family| family.gguf == Some(found.as_str());
    let Some((family, name)) = FAMILIES.iter().find(named).and_then(|family| Some((family, family.gguf?)))
    else {
        return Err(unknown(path, found, |family| family.gguf.map(str::to_owned)));
    };
    let settings = Settings::gguf(path, name, &gguf.metadata);
    let mut weights = Weights::new(path, gguf.tensors, None);
    prepare(&mut weights, activations)?;
    let text = || {
        let text = text::of_gguf(path, &gguf.metadata)?;
        let tokens = text::tokens_of_gguf(path, &gguf.metadata, text.gguf.as_ref())?;
        Ok((text, tokens))
    };
    let both = beside(text, read, |threads, tokens| {
        let (naming, experts) = (Naming::Gguf, ExpertFacts::default());
        weights.threads = threads;
        let source = Source { weights, naming, root: "model", tokens, norms_add_one: false, experts };
        (family.load)(source, &settings)
    })?;
    let texts = both.0.text.gguf.as_ref().map_or(0, |gguf| gguf.tokens.len());
    let vocab = both.0.model.facts().vocab;
    if texts > vocab {
        let key = "tokenizer.ggml.tokens".to_owned();
        let problem = format!("has {texts} tokens, the model {vocab}");
        return Err(Error::Config { path: path.to_owned(), key, problem });
    }
    Ok(both)
}

/// The family that `config.json` names, by class and by type; both must agree where both are there.
fn family_of_folder(path: &Path, settings: &Settings<'_>) -> Result<&'static Family, Error> {
    let classes = settings.texts("architectures")?.unwrap_or_default();
    let model_type = settings.text("model_type")?;
    let found = [classes.get(0), model_type.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let fits = |family: &&Family| {
        let class = classes.get(0).is_none_or(|class| class == family.class);
        let model_type = model_type.as_ref().is_none_or(|found| found == family.model_type);
        class && model_type && !found.is_empty()
    };
    let name = |family: &Family| Some(format!("{} ({})", family.class, family.model_type));
    FAMILIES.iter().find(fits).ok_or_else(|| unknown(path, found.clone(), name))
}

/// The file names a family that is not built.
fn unknown(path: &Path, found: String, name: impl Fn(&Family) -> Option<String>) -> Error {
    let known = FAMILIES.iter().filter_map(name).collect::<Vec<_>>().join(", ");
    Error::UnknownArchitecture { path: path.to_owned(), found, known }
}

/// First and last tokens, from `config.json` and `generation_config.json`.
fn tokens_of_folder(path: &Path, settings: &Settings<'_>) -> Result<Tokens, Error> {
    let mut eos = settings.tokens("eos_token_id")?;
    let mut bos = settings.tokens("bos_token_id")?;
    let generation_path = path.join("generation_config.json");
    if let Some(generation) = files::json_if_any(&generation_path)? {
        let settings = Settings::json(&generation_path, object(&generation_path, &generation)?);
        eos.extend(settings.tokens("eos_token_id")?);
        bos.extend(settings.tokens("bos_token_id")?);
    }
    eos.sort_unstable();
    eos.dedup();
    Ok(Tokens { bos: bos.first().copied(), eos })
}

/// The object that a file of JSON must be.
pub(super) fn object<'a>(path: &Path, json: &'a Json) -> Result<&'a Map<String, Json>, Error> {
    json.as_object().ok_or_else(|| Error::Malformed {
        path: path.to_owned(),
        what: "JSON".to_owned(),
        at: 0,
        problem: "is no object".to_owned(),
    })
}
