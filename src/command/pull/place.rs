//! Where files go: into the cache that Hugging Face tools share, where a file is named by its content and a snapshot of
//! links shows the names, or plainly into a folder.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::hub::Remote;
use super::wish::Wish;

/// Where the files of one pull go.
pub(super) enum Place {
    /// The shared cache.
    Cache {
        /// Layout of the repository's part.
        repo: CacheRepo,
        /// The folder of the repository's part.
        folder: PathBuf,
        /// What the snapshot is to be found by.
        revision: String,
    },
    /// A folder.
    Folder(PathBuf),
}

/// The folder of the shared cache: what the variables of Hugging Face tools say, or their default.
pub(in crate::command) fn cache_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| Some(set("HF_HOME")?.join("hub")))
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| Some(std::env::home_dir()?.join(".cache/huggingface/hub")))
        .unwrap_or_else(|| PathBuf::from(".cache/huggingface/hub"))
}

impl Place {
    /// The folder that was named, or the shared cache.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn find(wish: &Wish, into: Option<PathBuf>) -> anyhow::Result<Self> {
        let place = match into {
            Some(folder) => Self::Folder(folder),
            None => {
                let root = cache_folder();
                let repo = Repo::with_revision(wish.repo.clone(), RepoType::Model, wish.revision.clone());
                let folder = root.join(repo.folder_name());
                Self::Cache { repo: Cache::new(root).repo(repo), folder, revision: wish.revision.clone() }
            }
        };
        let made = match &place {
            Self::Cache { folder, .. } => folder.join("blobs"),
            Self::Folder(folder) => folder.clone(),
        };
        std::fs::create_dir_all(&made).with_context(|| {
            format!("cannot make {}: choose another folder with --into or HF_HOME", made.display())
        })?;
        Ok(place)
    }

    /// Whether a file that is there under its name has the right content.
    pub(super) fn named_by_content(&self) -> bool {
        matches!(self, Self::Cache { .. })
    }

    /// The whole file.
    pub(super) fn whole(&self, file: &Remote) -> PathBuf {
        match self {
            Self::Cache { folder, .. } => folder.join("blobs").join(&file.key),
            Self::Folder(folder) => folder.join(&file.name),
        }
    }

    /// What is there of it so far; another version of the file has another.
    pub(super) fn part(&self, file: &Remote) -> PathBuf {
        match self {
            Self::Cache { folder, .. } => folder.join("blobs").join(format!("{}.incomplete", file.key)),
            Self::Folder(folder) => {
                let key: String = file.key.chars().take(12).collect();
                folder.join(format!("{}.{key}.incomplete", file.name.replace('/', "--")))
            }
        }
    }

    /// Gives what has become whole its place.
    pub(super) fn keep(&self, part: &Path, file: &Remote) -> anyhow::Result<()> {
        let whole = self.whole(file);
        let made = whole.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::rename(part, &whole))
            .with_context(|| format!("cannot name {}", whole.display()))
    }

    /// Shows a whole file under its name.
    pub(super) fn show(&self, commit: &str, file: &Remote) -> io::Result<()> {
        let Self::Cache { repo, .. } = self else { return Ok(()) };
        let link = repo.pointer_path(commit).join(&file.name);
        let up = "../".repeat(2 + file.name.matches('/').count());
        let target = Path::new(&up).join("blobs").join(&file.key);
        if std::fs::read_link(&link).is_ok_and(|old| old == target) {
            return Ok(());
        }
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(target, link)
    }

    /// Notes which commit the revision is, as all tools do that share the cache.
    pub(super) fn remember(&self, commit: &str) -> io::Result<()> {
        match self {
            Self::Cache { repo, revision, .. } if revision != commit => repo.create_ref(commit),
            Self::Cache { .. } | Self::Folder(_) => Ok(()),
        }
    }

    /// What `--model` takes: the folder of all files, or one of them.
    pub(super) fn shown(&self, commit: &str, file: Option<&str>) -> PathBuf {
        let folder = match self {
            Self::Cache { repo, .. } => repo.pointer_path(commit),
            Self::Folder(folder) => folder.clone(),
        };
        file.map_or(folder.clone(), |file| folder.join(file))
    }
}
