//! Every store keeps the promises of the byte store seam, also while it is full, broken, shared, or its writer is killed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_runtime::blob::{
    Blob, BlobError, BlobErrorKind, Doing, Fault, Faulty, Folder, Listed, Memory, Near, Part, conformance,
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

/// Copies of a store in memory, in a folder with so much room.
fn near(place: &Path, far: &Arc<Faulty<Memory>>, room: u64) -> Near {
    let near = Near::open(far.clone(), place, room, |name| name.starts_with("packs/"));
    near.expect("the folder can be used").expect("nobody else uses it")
}

fn far() -> Arc<Faulty<Memory>> {
    Arc::new(Faulty::new(Memory::new()))
}

const MEGABYTE: usize = 1 << 20;

#[test]
fn copies_change_nothing_of_what_a_store_promises() {
    let place = tempfile::tempdir().expect("a folder for tests");
    let all = |room| Near::open(far(), place.path(), room, |_| true).expect("usable").expect("free");
    // All of it, some of it, and nothing has room.
    for room in [u64::MAX, 3 << 20, 0] {
        conformance::check(&all(room));
    }
    conformance::check(&near(place.path(), &far(), u64::MAX));
}

#[test]
fn what_was_written_or_read_once_is_not_fetched_again() {
    let (place, far) = (tempfile::tempdir().expect("a folder for tests"), far());
    let bytes: Vec<u8> = (0..5 * MEGABYTE / 2).map(|n| (n / 999) as u8).collect();
    far.put("packs/theirs", &[&bytes]).expect("it can be put");
    let near = near(place.path(), &far, u64::MAX);
    near.put("packs/ours", &[&bytes[..9], &bytes[9..]]).expect("it can be put");
    near.put("else", &[b"not copied"]).expect("it can be put");
    near.list("").expect("it can be listed");
    let before = far.calls();
    assert!(read(&near, "packs/ours", bytes.len()).as_deref() == Ok(&bytes[..]));
    assert_eq!(far.calls(), before, "what was written is here");
    for _ in 0..2 {
        let mut middle = vec![0; MEGABYTE];
        let start = MEGABYTE as u64 / 2;
        near.read("packs/theirs", &mut [Part { start, into: &mut middle }]).expect("it is there");
        assert!(middle == bytes[MEGABYTE / 2..3 * MEGABYTE / 2]);
        assert_eq!(far.calls(), before + 1, "what was read is here");
    }
    assert!(read(&near, "packs/theirs", bytes.len()).as_deref() == Ok(&bytes[..]));
    assert_eq!(far.calls(), before + 2, "the rest is fetched in one call");
    read(&near, "else", 10).expect("it is there");
    assert_eq!(far.calls(), before + 3);
}

#[test]
fn copies_outlive_the_process_and_damaged_ones_are_fetched_anew() {
    let (place, far) = (tempfile::tempdir().expect("a folder for tests"), far());
    let bytes = vec![7; MEGABYTE + 5];
    near(place.path(), &far, u64::MAX).put("packs/a/b", &[&bytes]).expect("it can be put");
    let whole = |near: &Near| read(near, "packs/a/b", bytes.len()).as_deref() == Ok(&bytes[..]);
    let next = near(place.path(), &far, u64::MAX);
    let used = next.bytes();
    assert_eq!(used, (bytes.len() + 2 * 12) as u64);
    next.list("packs/").expect("it can be listed");
    let before = far.calls();
    assert!(whole(&next));
    assert_eq!(far.calls(), before);
    let (first, last) = (place.path().join("packs/a/b/.0"), place.path().join("packs/a/b/.1"));
    let mut flipped = fs::read(&first).expect("the copy");
    flipped[999] ^= 4;
    let harms: [&dyn Fn(); 3] = [
        &|| fs::write(&first, &flipped).expect("it can be written"),
        &|| fs::write(&last, b"cut").expect("it can be written"),
        &|| fs::remove_file(&first).expect("it is there"),
    ];
    for (n, harm) in (1..).zip(harms) {
        harm();
        assert!(whole(&next) && whole(&next));
        assert_eq!((far.calls(), next.bytes()), (before + n, used));
    }
}

#[test]
fn copies_keep_to_their_room_and_go_with_their_objects() {
    let (place, far) = (tempfile::tempdir().expect("a folder for tests"), far());
    let near = near(place.path(), &far, 3 * MEGABYTE as u64 + 100);
    let put = |name: &str| near.put(name, &[&vec![1; MEGABYTE]]).expect("it can be put");
    ["packs/1", "packs/2", "packs/3"].iter().for_each(|name| put(name));
    near.list("").expect("it can be listed");
    read(&near, "packs/1", MEGABYTE).expect("it is there");
    put("packs/4");
    let fetched = |name: &str| {
        let before = far.calls();
        read(&near, name, MEGABYTE).expect("it is there");
        far.calls() - before
    };
    assert_eq!(fetched("packs/1"), 0, "it was used");
    assert_eq!(fetched("packs/4"), 0);
    assert_eq!(fetched("packs/2"), 1, "it was used longest ago");
    assert!(near.bytes() <= 3 * MEGABYTE as u64 + 100);
    far.delete("packs/1").expect("another process removes it");
    far.put("packs/4", &[b"another"]).expect("another process replaces it");
    near.list("pac").expect("it can be listed");
    assert_eq!(read(&near, "packs/1", 1).expect_err("it is gone").kind, BlobErrorKind::Missing);
    assert_eq!(read(&near, "packs/4", 7).as_deref(), Ok(&b"another"[..]));
    near.delete("packs/2").expect("it is there");
    assert!(!place.path().join("packs/2/.0").exists());
    let twin = Near::open(far.clone(), place.path(), 1, |_| true).expect("the folder can be used");
    assert!(twin.is_none(), "one process at a time");
}

#[test]
fn a_far_store_that_fails_fails_and_copies_that_cannot_be_written_are_none() {
    let (place, far) = (tempfile::tempdir().expect("a folder for tests"), far());
    let near = near(place.path(), &far, u64::MAX);
    near.put("packs/a", &[b"12345"]).expect("it can be put");
    far.at(0, Fault::Fail(BlobErrorKind::Broken));
    near.put("packs/a", &[b"other"]).expect_err("the far store has not taken it");
    assert_eq!(read(&near, "packs/a", 5).as_deref(), Ok(&b"12345"[..]), "it is what it was");
    fs::write(place.path().join("packs/b"), b"in the way").expect("it can be written");
    near.put("packs/b", &[b"12345"]).expect("the far store has it");
    assert_eq!(read(&near, "packs/b", 5).as_deref(), Ok(&b"12345"[..]));
}
