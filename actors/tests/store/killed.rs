//! A process that stores into a folder is killed, again and again: what it said was stored is there for the next one.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use millstream_actors::store::{Stamp, TierOptions, WriterId};
use millstream_runtime::blob::Folder;

use super::host::{CHAT, Host, options};

/// Set for the process that is killed: its folder, and the number of its run.
const STORES_INTO: &str = "MILLSTREAM_TEST_STORES_INTO";
const RUN: &str = "MILLSTREAM_TEST_RUN";
const NOW: Stamp = Stamp(1_000_000);
const BLOCKS: u32 = 9;

fn open(blob: &Folder, run: u64) -> Host<'_> {
    Host::open(TierOptions { writer: WriterId(run), ..options(run) }, blob, NOW.after(run as u32))
}

/// Not a test of its own: it stores until it is killed, when the next test asks for it.
#[test]
fn stores_until_it_is_killed() {
    let Some(place) = std::env::var_os(STORES_INTO) else { return };
    let run: u64 = std::env::var(RUN).expect("the test says it").parse().expect("a number");
    let blob = Folder::open(Path::new(&place).join("kv")).expect("the test made it");
    let mut host = open(&blob, run);
    let mut said =
        fs::File::options().append(true).create(true).open(Path::new(&place).join("said")).expect("a file");
    for chain in 1_000 * run.. {
        host.store(chain, 0..BLOCKS, CHAT);
        host.flush();
        assert_eq!(host.tier.ledger().queued_bytes, 0);
        said.write_all(format!("{chain}\n").as_bytes()).expect("it can be written");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the other process is killed in the middle of its work")]
fn a_killed_process_has_stored_what_it_said() {
    let place = tempfile::tempdir().expect("a folder for tests");
    let mut kills = 0;
    for run in 1..=12 {
        let own = std::env::current_exe().expect("this test");
        let mut child = Command::new(own)
            .args(["--exact", "store::killed::stores_until_it_is_killed"])
            .env(STORES_INTO, place.path())
            .env(RUN, run.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(40 + 13 * run));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        kills += 1;
    }
    let said = fs::read_to_string(place.path().join("said")).expect("some were stored");
    let blob = Folder::open(place.path().join("kv")).expect("it is there");
    let mut host = open(&blob, 13);
    for chain in said.split_terminator('\n') {
        let chain = chain.parse().expect("whole lines");
        assert_eq!(host.fetch(chain, BLOCKS), BLOCKS as usize, "chain {chain} was said to be stored");
    }
    assert_eq!(host.tier.counts().refused, 0, "no half of a pack");
    println!("{kills} kills, {} chains were said to be stored", said.lines().count());
    assert!(said.lines().count() > 0);
}
