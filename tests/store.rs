//! The prefix store of real processes: killed in the middle of their work, two at a time on one folder, on a disk that is
//! full and gets room again. Answers are those of a server without a store, and requests go on.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod house;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures::future::join_all;
use house::checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server process, and a client for it.
struct Process {
    served: house::Process,
    client: reqwest::Client,
}

impl Process {
    /// Serves the tiny checkpoint with these lines in the file's `cache`; `shell` runs before it, in the same process.
    fn start(folder: &Path, cache: &str, shell: &str) -> Self {
        let file = folder.join(format!("{}.toml", if cache.is_empty() { "plain" } else { "store" }));
        let (model, actor) = (checkpoint().display().to_string(), "threads = 1\nmemory = \"8MiB\"");
        let text = format!(
            "name = \"tiny\"\nmodel = {model:?}\n[actors.gateway]\nlisten = \"127.0.0.1:0\"\n[actors.prefill]\n{actor}\n\
             [actors.decode]\n{actor}\n[cache]\n{cache}\n"
        );
        std::fs::write(&file, text).unwrap();
        let script = format!("{shell}\nexec \"$0\" serve \"$1\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_millstream")]).arg(&file);
        Self { served: house::Process::start(&mut command), client: reqwest::Client::new() }
    }

    /// What is said, and how many tokens of the prompt were found; `None` where the connection was cut.
    async fn try_ask(&self, body: &Value) -> Option<(String, u64)> {
        let url = format!("{}/v1/chat/completions", self.served.address);
        let response = self.client.post(url).json(body).send().await.ok()?;
        let status = response.status();
        let answer: Value = response.json().await.ok()?;
        assert_eq!(status, 200, "{answer}");
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        Some((answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), cached))
    }

    fn kill(&mut self) {
        self.served.child.kill().unwrap();
        self.served.child.wait().unwrap();
    }

    async fn ask(&self, body: &Value) -> (String, u64) {
        self.try_ask(body).await.unwrap()
    }

    /// A number of the prefix store.
    async fn number(&self, name: &str) -> u64 {
        let text = self
            .client
            .get(format!("{}/metrics", self.served.address))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let named = |line: &&str| line.starts_with(&format!("millstream_store_{name}{{"));
        let line = text.lines().find(named).unwrap_or_else(|| panic!("there is no {name}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64
    }

    /// Waits until that number is not 0 any more.
    async fn until(&self, name: &str) -> u64 {
        for _ in 0..200 {
            match self.number(name).await {
                0 => tokio::time::sleep(Duration::from_millis(50)).await,
                number => return number,
            }
        }
        panic!("{name} stays at 0");
    }
}

fn tiers(folder: &Path) -> String {
    format!("tiers = [{{ host = \"8MiB\" }}, {{ disk = {:?} }}]", folder.join("kv"))
}

/// A chat of some tokens with a beginning of its own; every second one draws.
fn chat(beginning: usize, end: usize) -> Value {
    let word = |n: usize| format!("{} ", ["river", "stone", "lamp", "cloud", "green", "seven"][n % 6]);
    let text: String = (0..60).map(|n| word(n * n + beginning * (n / 6 + 1))).collect();
    let mut body =
        json!({"model": "default", "max_tokens": 8, "ignore_eos": true, "temperature": end % 2, "seed": end});
    body["messages"] = json!([{"role": "user", "content": format!("{beginning} {text} {end}")}]);
    body
}

/// What a server without a store says.
async fn expected(folder: &Path, chats: &[Value]) -> Vec<String> {
    let plain = Process::start(folder, "", "");
    let mut said = Vec::new();
    for chat in chats {
        said.push(plain.ask(chat).await.0);
    }
    said
}

fn objects(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder.join("kv")).unwrap().map(|folder| folder.unwrap().path());
    let files =
        folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
    files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with(kind)).collect()
}

/// The same with many more rounds: `benches/crash.py`.
/// What `serve` says to these lines in the file's `cache`, and at its head, when it does not start.
fn refused(folder: &Path, head: &str, cache: &str) -> String {
    let file = folder.join("refused.toml");
    let (model, actor) = (checkpoint().display().to_string(), "threads = 1\nmemory = \"8MiB\"");
    let text = format!(
        "model = {model:?}\n{head}\n[actors.gateway]\nlisten = \"127.0.0.1:0\"\n[actors.prefill]\n{actor}\n\
         [actors.decode]\n{actor}\n[cache]\n{cache}\n"
    );
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_millstream")).arg("serve").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{cache}: {said}");
    said
}

#[test]
fn what_cannot_hold_blocks_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "x").unwrap();
    std::os::unix::fs::symlink("nothing", folder.path().join("link")).unwrap();
    // Nobody can write there, whoever asks.
    for taken in ["file", "link", "/dev/null", "/proc"] {
        let said = refused(folder.path(), "", &format!("tiers = [{{ disk = {taken:?} }}]"));
        assert!(said.contains("cache.tiers, disk") && said.contains(taken), "{said}");
    }
    let said = refused(folder.path(), "", "tiers = [{ host = \"1B\" }, { disk = \"kv\" }]");
    assert!(said.contains("one block of this model takes"), "{said}");
    let said = refused(folder.path(), "", "tiers = [{ disk = \"file\" }, { shared = \"file:///tmp\" }]");
    assert!(said.contains("cache.tiers, disk = \"file\""), "{said}");
}

/// All tiers at once: what a process stored is found by the next one in the copies on its own disk, also where they are
/// damaged, and by a process of another host, which has none yet, in the shared store.
#[tokio::test(flavor = "multi_thread")]
async fn copies_on_the_disk_stand_before_a_shared_store() {
    let (here, there, far) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let cache = format!(
        "tiers = [{{ host = \"4MiB\" }}, {{ disk = \"kv\", size = \"1MiB\" }}, {{ shared = \"file://{}\" }}]",
        far.path().display()
    );
    let chats = [chat(1, 2)];
    let expected = expected(here.path(), &chats).await;
    let mut first = Process::start(here.path(), &cache, "");
    settled(&first, &chats, &expected).await;
    first.kill();
    let copies = |host: &TempDir| files(&host.path().join("kv/.copies"));
    assert!(!copies(&here).is_empty(), "what was written is copied");
    for (round, host) in [&here, &here, &there].into_iter().enumerate() {
        let mut next = Process::start(host.path(), &cache, "");
        next.until("lasting_blocks").await;
        let (said, found) = next.ask(&chats[0]).await;
        assert!(said == expected[0] && found > 0, "{round}: {said}, {found} found");
        next.kill();
        assert!(!copies(host).is_empty(), "{round}: what was read is copied");
        copies(host).iter().for_each(|copy| std::fs::write(copy, "damaged").unwrap());
    }
}

/// All files below a folder but its lock.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    all.filter(|path| !path.ends_with(".lock")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_leaves_a_store_that_is_whole() {
    let folder = TempDir::new().unwrap();
    let chats: Vec<Value> = (0..12).map(|n| chat(n % 4, n)).collect();
    let expected = expected(folder.path(), &chats).await;
    let mut found = Vec::new();
    for round in 0..4 {
        let mut process = Process::start(folder.path(), &tiers(folder.path()), "");
        if round > 0 {
            process.until("lasting_blocks").await;
        }
        let answers = async { join_all(chats.iter().map(|chat| process.try_ask(chat))).await };
        // From the second round on some die in the middle of it.
        let time = if round == 0 { 10_000 } else { 60 + 45 * round };
        let answers = tokio::time::timeout(Duration::from_millis(time), answers).await.unwrap_or_default();
        for ((said, cached), expected) in answers.iter().flatten().zip(&expected) {
            assert_eq!(said, expected, "round {round}");
            found.push((round, *cached));
        }
        if round == 0 {
            process.until("lasting_blocks").await;
        }
        process.kill();
        if round == 1 {
            let pack = &objects(folder.path(), "pack-")[0];
            let mut bytes = std::fs::read(pack).unwrap();
            bytes[100] ^= 4;
            std::fs::write(pack, bytes).unwrap();
        }
    }
    let process = Process::start(folder.path(), &tiers(folder.path()), "");
    process.until("lasting_blocks").await;
    for (chat, expected) in chats.iter().zip(&expected) {
        let (said, cached) = process.ask(chat).await;
        assert_eq!(&said, expected, "after all");
        found.push((9, cached));
    }
    assert_eq!(process.number("damaged_blocks_total").await, 1, "the byte that was changed");
    assert!(found.iter().any(|(round, cached)| *round == 9 && *cached > 0), "nothing was found: {found:?}");
    assert!(objects(folder.path(), ".draft-").is_empty(), "what was half written is swept");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_a_folder() {
    let folder = TempDir::new().unwrap();
    let chats: Vec<Value> = (0..4).map(|n| chat(n, 7)).collect();
    let expected = expected(folder.path(), &chats).await;
    let pair = [(); 2].map(|()| Process::start(folder.path(), &tiers(folder.path()), ""));
    let mut seen: BTreeMap<usize, u64> = BTreeMap::new();
    for (n, chat) in chats.iter().enumerate() {
        let (first, second) = (&pair[n % 2], &pair[(n + 1) % 2]);
        let before = second.number("lasting_blocks").await;
        let (said, cached) = first.ask(chat).await;
        assert_eq!((said.as_str(), cached), (expected[n].as_str(), 0), "the first one computes it");
        let mut looks = 0;
        while second.number("lasting_blocks").await <= before {
            looks += 1;
            assert!(looks < 1000, "the second one does not hear of it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (said, cached) = second.ask(chat).await;
        assert_eq!(said, expected[n], "the second one says the same");
        seen.insert(n, cached);
    }
    assert!(seen.values().all(|&cached| cached >= 64), "found by the other: {seen:?}");
}

/// Asks, and waits until what was computed has been written, or was dropped.
async fn settled(process: &Process, chats: &[Value], expected: &[String]) {
    for (chat, expected) in chats.iter().zip(expected) {
        assert_eq!(&process.ask(chat).await.0, expected);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    while process.number("unwritten_bytes").await > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// No file may grow beyond a few hundred bytes, until somebody says so: every write fails as on a full disk.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_costs_blocks_and_no_request() {
    let folder = TempDir::new().unwrap();
    let chats: Vec<Value> = (0..6).map(|n| chat(n, n)).collect();
    let expected = expected(folder.path(), &chats).await;
    let process = Process::start(folder.path(), &tiers(folder.path()), "trap '' XFSZ\nulimit -S -f 1");
    settled(&process, &chats[..3], &expected[..3]).await;
    process.until("dropped_blocks_total").await;
    process.until("errors_total").await;
    assert_eq!(process.number("written_bytes_total").await, 0);
    let roomy = Command::new("prlimit")
        .args(["--fsize=unlimited", "--pid", &process.served.child.id().to_string()])
        .status();
    if !roomy.is_ok_and(|status| status.success()) {
        return println!("skipped from here: there is no prlimit");
    }
    settled(&process, &chats[3..], &expected[3..]).await;
    process.until("written_bytes_total").await;
}

/// A file system of its own, where the system lets us make one.
#[cfg(target_os = "linux")]
struct Mount(PathBuf);

#[cfg(target_os = "linux")]
impl Mount {
    fn new(folder: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&folder)
            .stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(folder))
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The store's own packs fill the disk: the oldest go, and the newest are found by the next process.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_the_store_fills_keeps_the_newest() {
    let folder = TempDir::new().unwrap();
    let Some(mount) = Mount::new(folder.path().join("kv"), "512k") else {
        return println!("skipped: nothing may be mounted here");
    };
    let chats: Vec<Value> = (0..14).map(|n| chat(n, n)).collect();
    let expected = expected(folder.path(), &chats).await;
    let process = Process::start(folder.path(), &tiers(folder.path()), "");
    std::fs::write(mount.0.join("filler"), vec![0; 500 << 10]).unwrap();
    settled(&process, &chats[..2], &expected[..2]).await;
    process.until("dropped_blocks_total").await;
    std::fs::remove_file(mount.0.join("filler")).unwrap();
    let written = process.number("written_bytes_total").await;
    for n in 2..chats.len() {
        settled(&process, &chats[n..=n], &expected[n..=n]).await;
    }
    let bytes = process.number("lasting_bytes").await;
    println!("{} bytes written, {bytes} there", process.number("written_bytes_total").await - written);
    assert!(bytes > 200 << 10 && bytes <= 512 << 10, "{bytes} bytes");
    drop(process);
    let next = Process::start(folder.path(), &tiers(folder.path()), "");
    next.until("lasting_blocks").await;
    let (said, cached) = next.ask(&chats[13]).await;
    assert_eq!(said, expected[13]);
    assert!(cached > 0, "the newest is still there");
}
