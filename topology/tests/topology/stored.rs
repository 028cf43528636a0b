//! What the tests of stored files share: where the files lie, and how a text is held against the stored one.

use std::fs;
use std::path::{Path, PathBuf};

use millstream_topology::{HostFacts, Plan, check};

/// What the machine of all stored texts has.
pub const HOST: HostFacts = HostFacts { cores: 8, buckets: true };

/// A path inside this crate.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The topology files of a folder in order, with their names.
pub fn files(name: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder(name)).expect("the folder is in the tree");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a topology file is text");
        let file = path.file_name().expect("a listed file has a name").to_string_lossy().into_owned();
        (file, text)
    };
    paths.into_iter().map(read).collect()
}

/// Compares with the stored text, or stores it.
pub fn compare(stored: &Path, found: &str, wrong: &mut Vec<String>) {
    if std::env::var_os("MILLSTREAM_REWRITE").is_some() {
        fs::write(stored, found).expect("the tree can be written");
        return;
    }
    let expected = fs::read_to_string(stored).unwrap_or_default();
    if expected != found {
        wrong.push(format!("{}\n--- stored\n{expected}--- found\n{found}", stored.display()));
    }
}

/// The plan of a file that must be good.
pub fn good(text: &str, file: &str) -> Plan {
    check(text, file, &HOST).unwrap_or_else(|problems| panic!("{file} is a good file:\n{problems}"))
}

/// Good files, and the examples that people start from.
pub fn all_good() -> Vec<(String, String)> {
    [files("tests/good"), files("../examples/topologies")].concat()
}
