//! Every store keeps the promises of the byte store seam, also while it is full, broken, shared, or its writer is killed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_runtime::blob::{
    Blob, BlobError, BlobErrorKind, Doing, Fault, Faulty, Folder, Listed, Memory, Part, conformance,
};

fn read(store: &dyn Blob, name: &str, length: usize) -> Result<Vec<u8>, BlobError> {
    let mut bytes = vec![0; length];
    store.read(name, &mut [Part { start: 0, into: &mut bytes }])?;
    Ok(bytes)
}

fn folder() -> (tempfile::TempDir, Folder) {
    let place = tempfile::tempdir().expect("a folder for tests");
    let store = Folder::open(place.path().join("made/for/it")).expect("it can be made");
    (place, store)
}

#[test]
fn every_store_conforms() {
    conformance::check(&Memory::new());
    conformance::check(&folder().1);
    conformance::check(&Faulty::new(Memory::new()));
}

/// Two write one name at the same time while a third reads it: it is always one of theirs, whole.
fn nobody_sees_a_half(store: &dyn Blob) {
    const LENGTH: usize = 300_000;
    let write = |letter: u8| {
        for _ in 0..30 {
            store.put("shared", &[&[letter; LENGTH / 2], &[letter; LENGTH / 2]]).expect("it can be put");
        }
    };
    write(b'a');
    thread::scope(|scope| {
        scope.spawn(|| write(b'a'));
        scope.spawn(|| write(b'b'));
        for _ in 0..60 {
            let seen = read(store, "shared", LENGTH).expect("it is always there, and always long enough");
            assert!(seen.iter().all(|letter| *letter == seen[0]), "a half of each");
        }
    });
}

#[test]
fn writers_at_the_same_time_do_not_mix() {
    nobody_sees_a_half(&Memory::new());
    nobody_sees_a_half(&folder().1);
}

#[test]
fn memory_is_full_when_it_is_and_can_be_told_the_time() {
    let store = Memory::with_room(10);
    store.set_time(77);
    store.put("a", &[b"12345678"]).expect("it fits");
    assert_eq!(store.put("b", &[b"123"]).expect_err("it does not").kind, BlobErrorKind::Full);
    store.put("a", &[b"1234567890"]).expect("what it replaces does not count");
    let listed = Listed { name: "a".to_owned(), bytes: 10, written_s: 77 };
    assert_eq!(store.list(""), Ok(vec![listed]));
    store.delete("a").expect("it is there");
    store.put("b", &[b"1234567890"]).expect("room comes back");
}

#[test]
fn a_folder_sweeps_what_the_dead_left_and_nothing_else() {
    let (place, store) = folder();
    let root = place.path().join("made/for/it");
    store.put("packs/a", &[b"whole"]).expect("it can be put");
    let (dead, alive) = (root.join("packs/.draft-1-1"), root.join("packs/.draft-1-2"));
    fs::write(&dead, b"ha").expect("a draft");
    let writer = fs::File::create(&alive).expect("a draft");
    writer.lock().expect("its writer lives");
    let reopened = Folder::open(&root).expect("it is there");
    let names: Vec<_> =
        reopened.list("").expect("it can be listed").into_iter().map(|found| found.name).collect();
    assert!(!dead.exists() && alive.exists());
    assert_eq!(names, ["packs/a"], "drafts are not listed");
}

#[test]
fn a_folder_says_what_is_in_its_way() {
    let (place, store) = folder();
    let root = place.path().join("made/for/it");
    fs::create_dir(root.join("taken")).expect("a folder");
    assert_eq!(store.put("taken", &[b"x"]).expect_err("a folder is there").kind, BlobErrorKind::Denied);
    assert!(leftovers(&root).is_empty(), "a put that fails leaves no draft");
    let error = Folder::open("/dev/null/x").expect_err("no folder can be there").to_string();
    assert!(error.contains("/dev/null/x"), "{error}");
}

#[test]
fn a_folder_is_no_file_and_no_link_to_nothing() {
    let (place, _) = folder();
    let (file, link) = (place.path().join("file"), place.path().join("link"));
    fs::write(&file, b"x").expect("a file");
    symlink(place.path().join("nothing"), &link).expect("a link");
    for taken in [&file, &link, Path::new("/dev/null")] {
        let error = Folder::open(taken).expect_err("something else is there").to_string();
        assert!(error.contains(&*taken.to_string_lossy()), "{error}");
    }
}

#[test]
fn what_others_keep_in_a_folder_is_passed_over() {
    let (place, store) = folder();
    let root = place.path().join("made/for/it");
    store.put("packs/a", &[b"ours"]).expect("it can be put");
    for folder in ["lost+found", ".snapshots", "packs/their own"] {
        fs::create_dir(root.join(folder)).expect("a folder");
        fs::write(root.join(folder).join("b"), b"theirs").expect("a file");
    }
    let denied = root.join("packs/denied");
    fs::create_dir(&denied).expect("a folder");
    fs::set_permissions(&denied, fs::Permissions::from_mode(0o0)).expect("it is ours");
    // A link that leads round, one that leads away, one to an object, and what waits for ever when it is opened.
    for (from, to) in [("packs/loop", "."), ("usr", "/usr"), ("packs/link", "a")] {
        symlink(to, root.join(from)).expect("a link");
    }
    let pipe = Command::new("mkfifo").arg(root.join("packs/pipe")).status().expect("mkfifo is there");
    assert!(pipe.success());
    let names = |prefix: &str| -> Vec<String> {
        store.list(prefix).expect("it can be listed").into_iter().map(|object| object.name).collect()
    };
    assert_eq!((names(""), names("packs/")), (vec!["packs/a".to_owned()], vec!["packs/a".to_owned()]));
    assert_eq!(store.folders(), Ok(vec!["packs".to_owned()]));
    fs::set_permissions(&denied, fs::Permissions::from_mode(0o700)).expect("it is ours");
    Folder::open("/").expect("it is there").folders().expect("it is not walked through");
}

fn leftovers(root: &Path) -> Vec<String> {
    let names = fs::read_dir(root).expect("it can be read");
    let names = names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

/// Set for the process that is killed.
const WRITES_INTO: &str = "MILLSTREAM_TEST_WRITES_INTO";

/// Not a test of its own: it writes until it is killed, when the next test asks for it.
#[test]
fn writes_until_it_is_killed() {
    let Some(root) = std::env::var_os(WRITES_INTO) else { return };
    let store = Folder::open(root).expect("the test made it");
    for round in 0_u64.. {
        let bytes = round.to_le_bytes().repeat(20_000);
        store.put(&format!("objects/{}", round % 7), &[&bytes]).expect("it can be put");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the other process is killed in the middle of its work")]
fn a_killed_writer_leaves_whole_objects_only() {
    let place = tempfile::tempdir().expect("a folder for tests");
    let root = place.path();
    let (mut kills, mut whole) = (0, 0);
    for round in 0..12 {
        let own = std::env::current_exe().expect("this test");
        let arguments = ["--exact", "writes_until_it_is_killed", "--nocapture"];
        let quiet = std::process::Stdio::null();
        let mut child = Command::new(own)
            .args(arguments)
            .env(WRITES_INTO, root)
            .stdout(quiet)
            .spawn()
            .expect("it starts");
        thread::sleep(Duration::from_millis(20 + 9 * round));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        kills += 1;
        let store = Folder::open(root).expect("it is there");
        for object in store.list("objects/").expect("it can be listed") {
            let bytes = read(&store, &object.name, 160_000).expect("as long as all");
            assert!(
                object.bytes == 160_000 && bytes == bytes[..8].repeat(20_000),
                "kill {round}: {}",
                object.name
            );
            whole += 1;
        }
        if root.join("objects").exists() {
            assert!(leftovers(&root.join("objects")).is_empty(), "kill {round}");
        }
    }
    println!("{kills} kills, {whole} objects found whole");
    assert!(whole > 0, "nothing was written before the kills");
}

#[test]
fn faults_strike_once_and_where_they_can() {
    let store = Faulty::new(Memory::new());
    store.at(0, Fault::Flip(8 * 2 + 1));
    store.put("a", &[b"abcd"]).expect("a flip befalls reads only");
    assert_eq!(read(&store, "a", 4).as_deref(), Ok(&b"abad"[..]));
    assert_eq!(read(&store, "a", 4).as_deref(), Ok(&b"abcd"[..]), "once");
    store.at(0, Fault::Lie(-3));
    assert_eq!(store.list("").map(|listed| listed[0].bytes), Ok(1));
    store.at(5, Fault::Unheard);
    store.at(5, Fault::Fail(BlobErrorKind::Denied));
    assert_eq!(store.calls(), 4);
    store.put("b", &[b"x"]).expect("the fourth call");
    assert_eq!(store.put("c", &[b"x"]).expect_err("unheard").kind, BlobErrorKind::Broken);
    let error = read(&store, "c", 1).expect_err("the other fault at five");
    assert_eq!((error.doing, error.kind, error.name.as_str()), (Doing::Read, BlobErrorKind::Denied, "c"));
    assert_eq!(read(&store, "c", 1).as_deref(), Ok(&b"x"[..]), "it was done");
}

#[test]
fn after_a_crash_nothing_goes_until_the_next_start() {
    for (fault, left) in [
        (Fault::Crash { done: false }, None),
        (Fault::Crash { done: true }, Some(6)),
        (Fault::Cut(4), Some(4)),
        (Fault::Cut(0), Some(0)),
    ] {
        let store = Faulty::new(Memory::new());
        store.at(0, fault);
        assert!(store.put("a", &[b"abc", b"def"]).is_err() && store.crashed() == Some(0));
        assert!(store.list("").is_err() && store.delete("a").is_err());
        store.revive();
        let bytes = store.list("").expect("it runs again").first().map(|object| object.bytes);
        assert_eq!(bytes, left, "{fault:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the call that stalls needs a thread of its own")]
fn a_stalled_call_goes_on_when_it_is_let() {
    let store = Arc::new(Faulty::new(Memory::new()));
    store.at(0, Fault::Stall);
    let stalled = thread::spawn({
        let store = store.clone();
        move || store.put("a", &[b"x"])
    });
    while store.calls() == 0 {
        thread::yield_now();
    }
    assert!(read(&*store, "a", 1).is_err(), "others go on meanwhile");
    store.release();
    assert_eq!(stalled.join().expect("it ends"), Ok(()));
    assert_eq!(read(&*store, "a", 1).as_deref(), Ok(&b"x"[..]));
}
