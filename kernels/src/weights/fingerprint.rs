//! A digest of a model's files, for what is computed with them and kept: another model, or another state of this one, must
//! not be taken for it. Small files count whole. Of large ones the beginning counts, where tensors are named, and pieces
//! spread over the rest: training moves all numbers of a tensor, so one that changed shows in any of its pieces, and a
//! file of a hundred gigabytes takes no longer than one of a hundred megabytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Files up to here count whole, and so does the beginning of larger ones.
const WHOLE: u64 = 4 << 20;
/// Bytes of a piece of a large file.
const PIECE: u64 = 4 << 10;
/// Pieces of a large file.
const PIECES: u64 = 512;
/// What belongs to a model in a folder.
const KINDS: [&str; 4] = ["json", "safetensors", "jinja", "model"];

/// Digest of a model folder, or of a `.gguf` file.
///
/// # Errors
/// A file cannot be read.
pub fn fingerprint(path: &Path) -> Result<[u8; 32], Error> {
    let mut digest = blake3::Hasher::new();
    for file in files(path)? {
        let failed = |source| Error::Open { path: file.clone(), source };
        let mut open = File::open(&file).map_err(failed)?;
        let len = open.metadata().map_err(failed)?.len();
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        for number in [name.len() as u64, len] {
            digest.update(&number.to_le_bytes());
        }
        digest.update(name);
        take(&mut open, (0, len.min(WHOLE)), &mut digest).map_err(failed)?;
        let rest = len.saturating_sub(WHOLE);
        for piece in 0..if rest > 0 { PIECES } else { 0 } {
            let start = WHOLE + rest.saturating_sub(PIECE) * piece / (PIECES - 1);
            take(&mut open, (start, PIECE.min(len - start)), &mut digest).map_err(failed)?;
        }
    }
    Ok(*digest.finalize().as_bytes())
}

/// The file itself, or those of a folder that belong to a model, by name.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = path.read_dir().map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let ours = |path: &PathBuf| path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known));
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(ours).collect();
    files.sort();
    Ok(files)
}

fn take(file: &mut File, (start, len): (u64, u64), digest: &mut blake3::Hasher) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes)?;
    digest.update(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_that_differs_gives_another_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |files: &[(&str, Vec<u8>)]| {
            for (name, bytes) in files {
                std::fs::write(folder.path().join(name), bytes).expect("written");
            }
            fingerprint(folder.path()).expect("a digest")
        };
        let weights = vec![7_u8; 9 << 20];
        let files = [("config.json", b"{}".to_vec()), ("model.safetensors", weights.clone())];
        let first = of(&files);
        assert_eq!(first, of(&[("notes.txt", b"nothing of a model".to_vec())]));
        assert_ne!(first, of(&[("config.json", b"{ }".to_vec())]));
        assert_eq!(first, of(&files));
        let mut moved = weights.clone();
        moved[5 << 20..].fill(8);
        assert_ne!(first, of(&[("model.safetensors", moved)]), "a tensor that was trained");
        assert_ne!(first, of(&[("model.safetensors", weights[1..].to_vec())]), "another length");
        let mut last = weights;
        *last.last_mut().expect("bytes") = 9;
        assert_ne!(first, of(&[("model.safetensors", last)]), "the very last byte is in a piece");
    }
}
