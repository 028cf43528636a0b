//! What every store must do, as one suite: what a caller may rely on stands here and in [`Blob`]'s words, nowhere else.

use super::{Blob, BlobError, BlobErrorKind, NAME_BYTES_MAX, Part};

/// Panics where `store` does otherwise. It writes below `conformance/`, expects nothing there, and leaves nothing.
///
/// ```
/// use millstream_runtime::blob::{Memory, conformance};
/// conformance::check(&Memory::new());
/// ```
pub fn check(store: &dyn Blob) {
    for part in [wholes, parts, endings, lists, deletes, names, large] {
        part(store);
        let left = store.list(ROOT).expect("the store can be listed");
        for object in left {
            store.delete(&object.name).expect("an object can be deleted");
        }
        assert_eq!(store.list(ROOT), Ok(Vec::new()), "what is deleted is not listed");
    }
}

const ROOT: &str = "conformance/";

fn name(rest: &str) -> String {
    format!("{ROOT}{rest}")
}

fn put(store: &dyn Blob, rest: &str, bytes: &[u8]) {
    store.put(&name(rest), &[bytes]).expect("an object can be put");
}

fn read(store: &dyn Blob, rest: &str, start: u64, length: usize) -> Result<Vec<u8>, BlobError> {
    let mut bytes = vec![0xee; length];
    store.read(&name(rest), &mut [Part { start, into: &mut bytes }])?;
    Ok(bytes)
}

#[track_caller]
fn expect_kind<T: std::fmt::Debug>(result: Result<T, BlobError>, kind: BlobErrorKind, why: &str) {
    match result {
        Err(error) => assert_eq!(error.kind, kind, "{why}: {error}"),
        Ok(value) => panic!("{why}: {value:?} instead of an error"),
    }
}

/// An object is what was put last.
fn wholes(store: &dyn Blob) {
    put(store, "a", b"first");
    assert_eq!(read(store, "a", 0, 5).as_deref(), Ok(&b"first"[..]));
    put(store, "a", b"second");
    assert_eq!(read(store, "a", 0, 6).as_deref(), Ok(&b"second"[..]), "the second put replaces");
    store.put(&name("deep/er/b"), &[b"one", b"", b"two"]).expect("parts can be put");
    assert_eq!(read(store, "deep/er/b", 0, 6).as_deref(), Ok(&b"onetwo"[..]), "parts follow each other");
    put(store, "empty", b"");
    assert_eq!(read(store, "empty", 0, 0).as_deref(), Ok(&b""[..]));
    store.put(&name("none"), &[]).expect("an object of no parts can be put");
    assert_eq!(read(store, "none", 0, 0).as_deref(), Ok(&b""[..]));
}

/// Several parts in one call, in any order, also overlapping ones and empty ones.
fn parts(store: &dyn Blob) {
    put(store, "a", b"0123456789");
    let (mut late, mut early, mut nothing, mut all) = ([0; 3], [0; 4], [0; 0], [0; 10]);
    let mut wanted = [
        Part { start: 7, into: &mut late },
        Part { start: 1, into: &mut early },
        Part { start: 10, into: &mut nothing },
        Part { start: 0, into: &mut all },
    ];
    store.read(&name("a"), &mut wanted).expect("parts can be read");
    assert_eq!((&late, &early, &all), (b"789", b"1234", b"0123456789"));
    store.read(&name("a"), &mut []).expect("nothing can be read of what is there");
}

/// What is not there is said, and never made up.
fn endings(store: &dyn Blob) {
    expect_kind(read(store, "absent", 0, 1), BlobErrorKind::Missing, "an object that was never put");
    put(store, "a", b"0123");
    expect_kind(read(store, "a", 2, 3), BlobErrorKind::Broken, "a part that ends behind the object");
    expect_kind(read(store, "a", 9, 1), BlobErrorKind::Broken, "a part that begins behind the object");
    expect_kind(read(store, "a", u64::MAX, 1), BlobErrorKind::Broken, "a part that ends behind all numbers");
    let error = read(store, "absent", 0, 1).expect_err("still absent").to_string();
    assert!(
        error.contains("read") && error.contains(&name("absent")),
        "an error names what was attempted: {error}"
    );
}

/// Listed is what was put, by name, with its length.
fn lists(store: &dyn Blob) {
    for (rest, bytes) in [("b/2", 2), ("b/10", 10), ("a", 1), ("bb", 3), ("b/c/4", 4)] {
        put(store, rest, &vec![7; bytes]);
    }
    let listed = |prefix: &str| -> Vec<(String, u64)> {
        let found = store.list(&name(prefix)).expect("it can be listed");
        found.into_iter().map(|object| (object.name, object.bytes)).collect()
    };
    let expect =
        |rests: &[(&str, u64)]| rests.iter().map(|&(rest, bytes)| (name(rest), bytes)).collect::<Vec<_>>();
    assert_eq!(listed(""), expect(&[("a", 1), ("b/10", 10), ("b/2", 2), ("b/c/4", 4), ("bb", 3)]));
    assert_eq!(listed("b/"), expect(&[("b/10", 10), ("b/2", 2), ("b/c/4", 4)]));
    assert_eq!(
        listed("b"),
        expect(&[("b/10", 10), ("b/2", 2), ("b/c/4", 4), ("bb", 3)]),
        "it ends inside a part"
    );
    assert_eq!(listed("b/1"), expect(&[("b/10", 10)]));
    assert_eq!(listed("absent/"), []);
    let folders = store.folders().expect("folders can be listed");
    assert!(folders.is_sorted() && folders.iter().filter(|folder| *folder == "conformance").count() == 1);
    let everything = store.list("").expect("the empty prefix is one");
    assert!(everything.iter().any(|object| object.name == name("a")));
}

/// What is deleted is gone, and can be put again; deleting it twice is no error.
fn deletes(store: &dyn Blob) {
    put(store, "a", b"x");
    store.delete(&name("a")).expect("it is there");
    store.delete(&name("a")).expect("there is none, which is what was wanted");
    expect_kind(read(store, "a", 0, 1), BlobErrorKind::Missing, "a deleted object");
    put(store, "a", b"y");
    assert_eq!(read(store, "a", 0, 1).as_deref(), Ok(&b"y"[..]));
}

/// No name leads out of the store or means something else than itself.
fn names(store: &dyn Blob) {
    let long = name(&"x".repeat(NAME_BYTES_MAX));
    let wrong = [
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
        "./a",
        "a/.hidden",
        "a b",
        "a\\b",
        "ü",
        "a\0b",
        "a%2e",
        &long,
    ];
    for wrong in wrong {
        expect_kind(store.put(wrong, &[b"x"]), BlobErrorKind::Denied, wrong);
        expect_kind(store.read(wrong, &mut []), BlobErrorKind::Denied, wrong);
        expect_kind(store.delete(wrong), BlobErrorKind::Denied, wrong);
    }
    for wrong in ["/", "..", "a/../", "a//", ".hid", "a b", &long] {
        expect_kind(store.list(wrong), BlobErrorKind::Denied, wrong);
    }
    for right in ["A-b_c.9", "0/00/000", "x..y"] {
        put(store, right, right.as_bytes());
        assert_eq!(read(store, right, 0, right.len()).as_deref(), Ok(right.as_bytes()));
    }
}

/// An object of many megabytes, in many parts, read from its end and in its middle.
fn large(store: &dyn Blob) {
    let piece: Vec<u8> =
        (0..1 << 20).map(|place: u32| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let pieces: Vec<&[u8]> = (0..11).map(|_| &piece[..]).collect();
    store.put(&name("large"), &pieces).expect("eleven megabytes can be put");
    let listed = store.list(&name("large")).expect("it can be listed");
    assert_eq!(listed[0].bytes, 11 << 20);
    assert_eq!(read(store, "large", (11 << 20) - 9, 9).as_deref(), Ok(&piece[piece.len() - 9..]));
    let middle = read(store, "large", (1 << 20) - 5, 3 << 20).expect("it is inside");
    assert!(middle == [&piece[piece.len() - 5..], &piece, &piece, &piece[..piece.len() - 5]].concat());
}
