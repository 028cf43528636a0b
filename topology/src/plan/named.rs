//! The name under which a plan's model is served.

use std::path::Path;

use super::Plan;

/// What a topology is called that names nothing itself.
const UNNAMED: &str = "millstream";

impl Plan {
    /// The name clients ask for: the topology's, or else the name of the model's repository, file or folder.
    pub fn served_name(&self) -> String {
        if self.name != UNNAMED {
            return self.name.clone();
        }
        let path = Path::new(&self.model);
        if let Some(repository) = repository(path) {
            return repository;
        }
        let gguf = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
        let name = if gguf { path.file_stem() } else { path.file_name() };
        name.map_or_else(|| self.model.clone(), |name| name.to_string_lossy().into_owned())
    }
}

/// The repository whose snapshot a folder is, in the cache of Hugging Face tools: the folder itself is named by a commit.
fn repository(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    Some(folder.strip_prefix("models--")?.replacen("--", "/", 1))
}
