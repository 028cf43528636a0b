//! A digest of a model's files, for what is computed with them and kept: another model, or another state of this one, must
//! not be taken for it. Every byte counts, so all of them are read, in pieces that several threads share.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::Threads;
use crate::error::Error;

/// Bytes that are read at once; the digest is of the digests of such pieces.
const PIECE: u64 = 4 << 20;
/// Threads that read; more would wait for memory.
const READERS_MAX: usize = 8;
/// What belongs to a model in a folder.
const KINDS: [&str; 4] = ["json", "safetensors", "jinja", "model"];

/// Digest of a model folder, or of a `.gguf` file: BLAKE3 over the name, the length and the bytes of each file.
///
/// # Errors
/// A file cannot be read.
pub fn fingerprint(path: &Path) -> Result<[u8; 32], Error> {
    let mut digest = blake3::Hasher::new();
    for file in files(path)? {
        let failed = |source| Error::Open { path: file.clone(), source };
        let len = file.metadata().map_err(failed)?.len();
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        for number in [name.len() as u64, len] {
            digest.update(&number.to_le_bytes());
        }
        digest.update(name);
        for piece in pieces(&file, len.div_ceil(PIECE)).map_err(failed)? {
            digest.update(piece.as_bytes());
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

/// Digests of so many pieces of a file, in order.
fn pieces(file: &Path, count: u64) -> std::io::Result<Vec<blake3::Hash>> {
    let threads = Threads::new(READERS_MAX).now().min(count as usize);
    let next = AtomicU64::new(0);
    let mut all = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| some_pieces(file, count, &next))).collect();
        let read = readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)));
        read.collect::<std::io::Result<Vec<_>>>()
    })?
    .concat();
    all.sort_unstable_by_key(|&(piece, _)| piece);
    Ok(all.into_iter().map(|(_, digest)| digest).collect())
}

/// Pieces that nobody else has taken, with their numbers.
fn some_pieces(file: &Path, count: u64, next: &AtomicU64) -> std::io::Result<Vec<(u64, blake3::Hash)>> {
    let (mut file, mut bytes, mut all) = (File::open(file)?, Vec::new(), Vec::new());
    loop {
        let piece = next.fetch_add(1, Ordering::Relaxed);
        if piece >= count {
            return Ok(all);
        }
        bytes.clear();
        file.seek(SeekFrom::Start(piece * PIECE))?;
        (&mut file).take(PIECE).read_to_end(&mut bytes)?;
        all.push((piece, blake3::hash(&bytes)));
    }
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
        for place in [0, 5_000_001, (8 << 20) - 1, (9 << 20) - 1] {
            let mut other = weights.clone();
            other[place] = 8;
            assert_ne!(first, of(&[("model.safetensors", other)]), "one byte, at {place}");
        }
        let mut moved = weights.clone();
        moved[..PIECE as usize].fill(8);
        let swapped = [&moved[PIECE as usize..], &moved[..PIECE as usize]].concat();
        assert_ne!(
            of(&[("model.safetensors", moved)]),
            of(&[("model.safetensors", swapped)]),
            "another order"
        );
        assert_ne!(first, of(&[("model.safetensors", weights[1..].to_vec())]), "another length");
    }
}
