//! What steps cost, kept between runs: a small file for each kind of group, in the folder where programs of this user keep
//! what can be made anew. A file that is missing or damaged costs a short calibration, never a start.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_actors::cost::{Coefficients, Known};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// Bytes of a file, at most: it holds a few numbers.
const LEN_MAX: u64 = 1 << 16;

/// The costs of the groups of a mill, and where they are kept.
#[derive(Debug)]
pub(crate) struct Costs {
    /// `None`: nowhere.
    folder: Option<PathBuf>,
    groups: Vec<Arc<Known>>,
}

/// The user's folder for them: `$MILLSTREAM_CACHE/costs`, or else below the usual place of such files. `None` where the
/// system names no home.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let usual = || Some(set("XDG_CACHE_HOME").or(Some(set("HOME")?.join(".cache")))?.join("millstream"));
    Some(set("MILLSTREAM_CACHE").or_else(usual)?.join("costs"))
}

impl Costs {
    /// Tells groups that have not started what an earlier run has learnt.
    pub(crate) fn read(folder: Option<PathBuf>, groups: Vec<Arc<Known>>) -> Self {
        for group in &groups {
            let path = folder.as_ref().map(|folder| place(folder, &group.key));
            let Some(path) = path.filter(|path| path.exists()) else { continue };
            match read(&path, &group.key) {
                Ok(coefficients) => group.set(coefficients),
                Err(why) => tracing::warn!(file = %path.display(), why, "what steps cost is learnt anew"),
            }
        }
        Self { folder, groups }
    }

    /// Keeps what is known now. What cannot be written is learnt anew by the next run.
    pub(crate) fn write(&self) {
        let Some(folder) = &self.folder else { return };
        for group in &self.groups {
            let Some(coefficients) = group.get() else { continue };
            if let Err(error) = write(folder, &group.key, &coefficients) {
                tracing::warn!(folder = %folder.display(), %error, "what steps cost cannot be kept");
            }
        }
    }
}

/// The file of a kind of group.
fn place(folder: &Path, key: &str) -> PathBuf {
    // FNV-1a; the file says whose it is, so that equal numbers do no harm.
    let number = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join(format!("{number:016x}.json"))
}

fn read(path: &Path, key: &str) -> Result<Coefficients, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    if fs::metadata(path).map_err(|error| said(&error))?.len() > LEN_MAX {
        return Err("it is longer than such a file can be".to_owned());
    }
    let text = fs::read_to_string(path).map_err(|error| said(&error))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|error| said(&error))?;
    if value["key"] != key {
        return Err(format!("it belongs to {}", value["key"]));
    }
    let coefficients: Coefficients =
        serde_json::from_value(value["coefficients"].take()).map_err(|error| said(&error))?;
    if coefficients.is_sound() { Ok(coefficients) } else { Err("its numbers are no costs".to_owned()) }
}

/// Whole or not at all: a reader never sees half a file.
fn write(folder: &Path, key: &str, coefficients: &Coefficients) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    let value = json!({ "key": key, "coefficients": coefficients });
    writeln!(file, "{value:#}")?;
    file.as_file().sync_all()?;
    file.persist(place(folder, key)).map(|_| ()).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(folder: &Path, key: &str) -> Option<Coefficients> {
        let group = Arc::new(Known::new(key.to_owned(), None));
        Costs::read(Some(folder.to_owned()), vec![Arc::clone(&group)]);
        group.get()
    }

    #[test]
    fn costs_come_back_and_damaged_files_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let place_of = place(folder.path(), "tiny");
        assert_eq!(told(folder.path(), "tiny"), None);
        let group = Arc::new(Known::new("tiny".to_owned(), None));
        let costs = Costs { folder: Some(folder.path().join("deep")), groups: vec![Arc::clone(&group)] };
        costs.write();
        assert!(!folder.path().join("deep").exists(), "nothing is known");
        let known = Coefficients { step: 0.5, ..Coefficients::default() };
        group.set(known);
        costs.write();
        assert_eq!(told(&folder.path().join("deep"), "tiny"), Some(known));
        assert_eq!(told(&folder.path().join("deep"), "other"), None);
        let whole = fs::read(place(&folder.path().join("deep"), "tiny")).unwrap();
        for damaged in [&b"{"[..], b"\xff", b"{\"key\": \"tiny\"}", &whole[..whole.len() / 2]] {
            fs::write(&place_of, damaged).unwrap();
            assert_eq!(told(folder.path(), "tiny"), None);
        }
        let text = String::from_utf8(whole).unwrap();
        fs::write(&place_of, text.replace("0.5", "-0.5")).unwrap();
        assert_eq!(told(folder.path(), "tiny"), None);
        fs::write(&place_of, text).unwrap();
        assert_eq!(told(folder.path(), "tiny"), Some(known));
    }
}
