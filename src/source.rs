//! Where a plan comes from: a topology file or the laptop topology of one model, read within bounds and checked; and
//! where its model lies. The only place that reads topology files.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use millstream_actors::assemble::Resources;
use tempfile::TempDir;

use millstream_topology::{FILE_LEN_MAX, HostFacts, Plan, Problems};

use crate::builtin;
use crate::lasting;

/// Why a source cannot be used at all: the command ends with exit code 2.
#[derive(Debug)]
pub enum Refused {
    /// The file cannot be read, or is not text.
    Unreadable(String),
    /// The file was read and is wrong; every problem is listed.
    Problems(Problems),
    /// It asks for what is not built.
    NotBuilt(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unreadable(why) | Refused::NotBuilt(why) => f.write_str(why),
            Refused::Problems(problems) => problems.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

/// A checked plan and where its model lies.
#[derive(Clone, Debug)]
pub struct Source {
    /// What runs.
    pub plan: Plan,
    /// Folders in which a relative model path is looked for, first match.
    folders: Vec<PathBuf>,
}

/// Where a model lies. The built-in one lies in a folder that is gone when this is dropped; what is loaded stays.
#[derive(Debug)]
pub struct ModelPlace {
    /// A folder or a file.
    pub path: PathBuf,
    _folder: Option<TempDir>,
}

/// Reads and checks a topology file.
///
/// # Errors
/// [`Refused`], with all problems of the file.
pub fn check(file: &Path) -> Result<Source, Refused> {
    let text = read(file)?;
    let plan =
        millstream_topology::check(&text, &file.display().to_string(), &host()).map_err(Refused::Problems)?;
    let beside = file.parent().unwrap_or(Path::new("")).to_path_buf();
    Ok(Source { plan, folders: vec![beside, PathBuf::new()] })
}

/// The plan that runs one model on this machine.
///
/// # Errors
/// [`Refused`] for a path that no file could hold (it is not Unicode, for one).
pub fn laptop(model: &str) -> Result<Source, Refused> {
    from_text(&millstream_topology::laptop(model), "laptop.toml")
}

/// The same with prefill and decode in groups of their own where `split` says so.
///
/// # Errors
/// As for [`laptop`].
pub fn one_model(model: &str, split: bool) -> Result<Source, Refused> {
    if !split {
        return laptop(model);
    }
    from_text(&format!("{}joined = false\n", millstream_topology::laptop(model)), "split.toml")
}

/// Checks the text of a topology; relative model paths start at the present folder.
///
/// # Errors
/// [`Refused`], with all problems of the text.
pub fn from_text(text: &str, name: &str) -> Result<Source, Refused> {
    let plan = millstream_topology::check(text, name, &host()).map_err(Refused::Problems)?;
    Ok(Source { plan, folders: vec![PathBuf::new()] })
}

impl Source {
    /// The same plan with another model, whose path starts at the present folder.
    pub fn with_model(mut self, model: &str) -> Self {
        model.clone_into(&mut self.plan.model);
        self.folders = vec![PathBuf::new()];
        self
    }

    /// The folder that a store of the plan may lie in.
    pub(crate) fn beside(&self) -> &Path {
        &self.folders[0]
    }

    /// Refuses a plan that asks for what is not built yet.
    ///
    /// # Errors
    /// [`Refused::NotBuilt`] with the places.
    pub fn built(self) -> Result<Self, Refused> {
        match self.plan.refusal() {
            Some(refusal) => Err(Refused::NotBuilt(refusal)),
            None => Ok(self),
        }
    }

    /// Whether its model is the one inside the program.
    pub fn is_builtin(&self) -> bool {
        self.plan.model == builtin::NAME
    }

    /// Loads the model and what reads and writes its text.
    ///
    /// # Errors
    /// The model is not there or not understood.
    pub fn load(&self) -> anyhow::Result<Resources> {
        self.load_from(&self.model_place()?)
    }

    /// The same for a model whose place is known.
    ///
    /// # Errors
    /// The model is not understood.
    pub fn load_from(&self, place: &ModelPlace) -> anyhow::Result<Resources> {
        let unusable = |error: millstream_actors::Error| {
            Refused::Unreadable(format!("millstream: {:#}", anyhow::Error::from(error)))
        };
        let store = lasting::open(&self.plan.cache, self.beside(), &place.path)?;
        Ok(Resources { store, ..Resources::load_with(&place.path, self.plan.activations).map_err(unusable)? })
    }

    /// The model as far as its settings go, to simulate and not to compute: of a folder its config.json is enough. Words
    /// are those of the built-in model; nobody says any.
    ///
    /// # Errors
    /// The model is not there or not understood.
    pub fn outline(&self) -> anyhow::Result<Resources> {
        let unusable = |error: &dyn std::fmt::Display| Refused::Unreadable(format!("millstream: {error}"));
        let builtin = builtin::folder()?;
        let words = Resources::load(builtin.path()).map_err(|error| unusable(&error))?;
        if self.is_builtin() {
            return Ok(words);
        }
        let place = self.model_place()?;
        if !place.path.is_dir() {
            return Ok(Resources::load(&place.path).map_err(|error| unusable(&error))?);
        }
        let model = millstream_kernels::outline(&place.path).map_err(|error| unusable(&error))?;
        Ok(Resources { model, ..words })
    }

    /// Where the model lies.
    ///
    /// # Errors
    /// The model is not there, or there is no room for the built-in one.
    pub fn model_place(&self) -> Result<ModelPlace, Refused> {
        if self.is_builtin() {
            let folder =
                builtin::folder().map_err(|error| Refused::Unreadable(format!("millstream: {error:#}")))?;
            return Ok(ModelPlace { path: folder.path().to_path_buf(), _folder: Some(folder) });
        }
        let model = Path::new(&self.plan.model);
        let mut places: Vec<PathBuf> = self.folders.iter().map(|folder| folder.join(model)).collect();
        if let Some(found) = places.iter().find(|place| place.exists()) {
            return Ok(ModelPlace { path: found.clone(), _folder: None });
        }
        places.dedup();
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let mut why = format!("millstream: there is no model at {}", tried.join(" nor at "));
        if is_repository(&self.plan.model) {
            let name = &self.plan.model;
            why +=
                &format!("; if {name} is a repository of the Hugging Face hub, run: millstream pull {name}");
        }
        Err(Refused::Unreadable(why))
    }
}

/// Whether a name could be a repository of the hub, `owner/name`, with or without `:FILE`.
fn is_repository(name: &str) -> bool {
    let repository = name.split_once(':').map_or(name, |(repository, _)| repository);
    let plain = |part: &str| {
        let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.chars().all(known)
    };
    let weights = name.ends_with(".gguf") && !name.contains(':');
    !weights && repository.split_once('/').is_some_and(|(owner, name)| plain(owner) && plain(name))
}

/// What defaults depend on.
fn host() -> HostFacts {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    HostFacts { cores, buckets: cfg!(feature = "cloud") }
}

/// Reads a file that must be text and no longer than a topology may be.
fn read(file: &Path) -> Result<String, Refused> {
    let name = file.display();
    let unreadable = |error: std::io::Error| Refused::Unreadable(format!("cannot read {name}: {error}"));
    let open = File::open(file).map_err(unreadable)?;
    if open.metadata().map_err(unreadable)?.is_dir() {
        return Err(Refused::Unreadable(format!("cannot read {name}: it is a folder")));
    }
    let mut bytes = Vec::new();
    open.take(FILE_LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > FILE_LEN_MAX {
        return Err(Refused::Unreadable(format!(
            "{name} is larger than {FILE_LEN_MAX} bytes: no topology is"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        Refused::Unreadable(format!("{name}:{line}: the file is not UTF-8 (byte {at})"))
    })
}
