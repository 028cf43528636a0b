//! `cache`, as a person types it, on a folder that the library filled: what it says, what it lets go, and that a server
//! which uses the store meanwhile only misses what went.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use millstream_actors::kv::{BlockHash, HashChain};
use millstream_actors::store::{
    Class, ClassId, FetchId, NewBlock, News, Payload, Stamp, Tenant, Tier, TierOptions, WriterId,
};
use millstream_runtime::blob::{Blob, Folder};
use serde_json::Value;

const DAY: u32 = 86_400;
const BLOCK: usize = 1_000;
const DEFAULT: ClassId = ClassId(0);
const CHAT: ClassId = ClassId(1);
/// A class that only a topology file has.
const NIGHTLY: ClassId = ClassId(2);

#[expect(clippy::disallowed_methods, reason = "the command under test looks at this clock too")]
fn now() -> Stamp {
    Stamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32)
}

/// One more process on a store.
struct Server<'a> {
    tier: Tier,
    blob: &'a Folder,
    now: Stamp,
}

impl<'a> Server<'a> {
    fn open(blob: &'a Folder, (writer, layout): (u64, u8), now: Stamp) -> Self {
        let class = |name: &str, days| Class { name: name.to_owned(), ttl_s: days * DAY, bytes: u64::MAX };
        let about = format!("{{\"model\": \"model-{layout}\", \"kv\": \"f16\", \"block_tokens\": 16}}");
        let options = TierOptions {
            classes: vec![class("default", 1), class("chat", 7), class("nightly", 30)],
            about: Some(Payload::from(about.into_bytes())),
            ..TierOptions::new(WriterId(writer), [layout; 16])
        };
        let mut server = Self { tier: Tier::new(options), blob, now };
        server.tier.refresh();
        server.settle();
        server
    }

    fn settle(&mut self) {
        while let Some(wish) = self.tier.wish() {
            self.tier.tell(wish.carry_out(self.blob), self.now);
        }
    }

    /// Stores chains of five blocks, in one pack for each class.
    fn store(&mut self, chains: &[(&str, ClassId, Option<&str>)]) {
        for (chain, class, tenant) in chains {
            self.put(&names(chain), 0..5, (*class, *tenant));
        }
        self.tier.flush();
        self.settle();
    }

    /// Stores some blocks of a chain, some time.
    fn put(&mut self, names: &[BlockHash], depths: Range<usize>, (class, tenant): (ClassId, Option<&str>)) {
        let tenant = Tenant::of(tenant, None);
        for depth in depths {
            let parent = depth.checked_sub(1).map(|before| names[before]);
            let bytes = Payload::from(vec![depth as u8; BLOCK]);
            let (hash, depth) = (names[depth], depth as u32);
            self.tier.store(NewBlock { hash, parent, depth, tokens: 16, class, tenant, bytes }, self.now);
        }
    }

    /// Blocks of a chain that can be read.
    fn fetch(&mut self, chain: &str, tenant: Option<&str>) -> usize {
        self.hit(chain, tenant, DEFAULT)
    }

    fn hit(&mut self, chain: &str, tenant: Option<&str>, class: ClassId) -> usize {
        self.tier.fetch(FetchId(1), &names(chain), Tenant::of(tenant, None), (class, self.now));
        self.settle();
        let mut blocks = 0;
        while let Some(news) = self.tier.news() {
            if let News::Ended { blocks: ended, .. } = news {
                blocks = ended;
            }
        }
        blocks
    }
}

fn names(chain: &str) -> Vec<BlockHash> {
    long(chain, 5)
}

fn long(chain: &str, blocks: usize) -> Vec<BlockHash> {
    let mut names = Vec::new();
    HashChain::new(chain.as_bytes(), 1).extend(&mut names, &vec![0; blocks]);
    names
}

/// Two models; of the first a chain of acme's, a chat, and one that has expired.
fn filled(folder: &Path) -> Folder {
    let blob = Folder::open(folder).unwrap();
    Server::open(&blob, (1, 1), Stamp(now().0 - 3 * DAY)).store(&[("old", DEFAULT, None)]);
    let mut server = Server::open(&blob, (2, 1), now());
    server.store(&[("plain", DEFAULT, None), ("acme", DEFAULT, Some("acme")), ("chat", CHAT, None)]);
    Server::open(&blob, (3, 2), now()).store(&[("other", DEFAULT, None)]);
    blob
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.arg("cache").args(args).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn ran(folder: &Path, args: &[&str], code: i32) -> String {
    let output = run(folder, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    format!("{out}{err}")
}

fn json(folder: &Path, args: &[&str], code: i32) -> Value {
    let output = run(folder, &[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packs(folder: &Path) -> Vec<PathBuf> {
    let layouts = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files =
        layouts.flat_map(|layout| std::fs::read_dir(layout).unwrap().map(|entry| entry.unwrap().path()));
    let mut packs: Vec<PathBuf> =
        files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("pack-")).collect();
    packs.sort();
    packs
}

#[test]
fn what_is_in_a_store_is_told_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    filled(&folder.path().join("kv"));
    let stat = json(folder.path(), &["stat"], 0);
    let models = stat["models"].as_array().unwrap();
    assert_eq!(
        (models[0]["model"].as_str(), models[1]["model"].as_str()),
        (Some("model-1"), Some("model-2"))
    );
    assert_eq!((&models[0]["blocks"], &models[0]["bytes"]), (&20.into(), &(20 * BLOCK).into()));
    assert_eq!(models[0]["expired"]["blocks"], 5);
    assert_eq!(models[0]["classes"]["chat"]["blocks"], 5);
    assert_eq!(models[0]["tenants"]["-"]["blocks"], 15);
    let digest = &Tenant::of(Some("acme"), None).to_string()[..12];
    assert_eq!(models[0]["tenants"][digest]["blocks"], 5);
    assert!(models[0]["first_stored_s"].as_u64().unwrap() >= 3 * u64::from(DAY));
    let told = ran(folder.path(), &["stat", "kv"], 0);
    assert!(told.contains("kv: 25 blocks in 4 packs") && told.contains("f16"), "{told}");

    // A topology file knows the names of tenants.
    let key = format!("sha256:{}", "0".repeat(64));
    let text = format!(
        "model = \"builtin\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n[cache]\n\
         tiers = [{{ disk = \"kv\" }}]\n[cache.tenants.acme]\nkey = \"{key}\"\n"
    );
    std::fs::write(folder.path().join("mill.toml"), text).unwrap();
    let told = ran(folder.path(), &["stat", "mill.toml"], 0);
    assert!(told.contains("tenant acme: 5 blocks"), "{told}");

    let chains = |args: &[&str]| {
        let listed = json(folder.path(), &[&["list"], args].concat(), 0);
        listed["chains"]
            .as_array()
            .unwrap()
            .iter()
            .map(|chain| chain["blocks"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(chains(&[]), [5; 5]);
    assert_eq!(chains(&["--class", "chat"]), [5]);
    assert_eq!(chains(&["--older", "2d"]), [5]);
    assert_eq!(chains(&["--tenant", "acme"]), [5]);
    assert_eq!(chains(&["--tenant", digest]), [5]);
    assert_eq!(chains(&["--larger", "1MiB"]), [0; 0]);
    assert_eq!(chains(&["--limit", "2"]).len(), 2);
    let refused = ran(folder.path(), &["list", "--class", "chad"], 2);
    assert!(refused.contains("chat, default"), "{refused}");
}

#[test]
fn damage_is_found_by_reading_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let blob = filled(&kv);
    let whole = ran(folder.path(), &["verify", "kv"], 0);
    assert!(whole.contains("25 blocks") && whole.contains("all as they were stored"), "{whole}");
    let packs = packs(&kv);
    let hurt = |pack: &Path, at: usize| {
        let mut bytes = std::fs::read(pack).unwrap();
        let at = if at == 0 { bytes.len() - 40 } else { at };
        bytes[at] ^= 1;
        std::fs::write(pack, bytes).unwrap();
    };
    hurt(&packs[0], 48 + 2 * BLOCK + 7);
    hurt(&packs[1], 0);
    let told = json(folder.path(), &["verify", "kv"], 1);
    let damaged = told["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 2, "{told}");
    assert!(damaged.iter().any(|row| row["blocks"] == 1 && row["of"] == 5), "{told}");
    assert!(ran(folder.path(), &["stat"], 0).contains("1 object that cannot be read"));

    // It is there still when a server has computed the block again, until somebody looks after the store.
    let mut server = Server::open(&blob, (9, 1), now());
    assert_eq!(server.fetch("old", None), 2);
    server.store(&[("old", DEFAULT, None)]);
    let dry = ran(folder.path(), &["gc", "--dry-run"], 0);
    assert!(dry.contains("1 damaged block, and 1 object that cannot be read, would go too"), "{dry}");
    let quick = ran(folder.path(), &["gc", "--quick"], 0);
    assert!(quick.contains("0 damaged blocks, and 1 object"), "{quick}");
    ran(folder.path(), &["verify"], 1);
    let went = json(folder.path(), &["gc"], 0);
    assert_eq!(went["went"][0]["damaged"]["blocks"], 1, "{went}");
    ran(folder.path(), &["verify"], 0);
    let mut server = Server::open(&blob, (10, 1), now());
    assert_eq!((server.fetch("old", None), server.fetch("chat", None)), (5, 5), "nothing else went");
}

#[test]
fn what_has_expired_goes_and_budgets_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let blob = filled(&kv);
    let before = packs(&kv);
    let dry = json(folder.path(), &["gc", "--dry-run"], 0);
    assert_eq!(dry["would_go"][0]["blocks"], 5);
    assert_eq!(packs(&kv), before, "only said");
    let went = json(folder.path(), &["gc"], 0);
    assert_eq!((&went["went"][0]["blocks"], &went["went"][0]["left"]["blocks"]), (&5.into(), &15.into()));
    assert_eq!(packs(&kv).len(), before.len() - 1);
    // The classes' names live on though nobody said them here.
    ran(folder.path(), &["gc", "--size", "11KB"], 0);
    let mut server = Server::open(&blob, (9, 1), now());
    let (chat, others) =
        (server.fetch("chat", None), server.fetch("plain", None) + server.fetch("acme", Some("acme")));
    let other = Server::open(&blob, (9, 2), now()).fetch("other", None);
    assert_eq!((chat, others + other), (5, 5), "what expires last stays, and the beginnings of others");
    assert_eq!(server.tier.class_bytes(CHAT), 5 * BLOCK as u64);
    ran(folder.path(), &["gc", "--ttl", "1h"], 0);
    assert_eq!(Server::open(&blob, (10, 1), now()).tier.blocks(), 5 + others, "stored a moment ago");
    Server::open(&blob, (11, 1), Stamp(now().0 - 7_200)).store(&[("idle", CHAT, None)]);
    ran(folder.path(), &["gc", "--ttl", "1h"], 0);
    let mut server = Server::open(&blob, (12, 1), now());
    assert_eq!((server.fetch("idle", None), server.fetch("chat", None)), (0, 5));
}

#[test]
fn when_blocks_were_used_is_the_same_by_folder_and_by_file() {
    let folder = tempfile::tempdir().unwrap();
    let blob = Folder::open(folder.path().join("kv")).unwrap();
    let mut server = Server::open(&blob, (1, 1), Stamp(now().0 - 6 * DAY));
    server.store(&[("idle", NIGHTLY, None), ("plain", DEFAULT, None), ("kept", NIGHTLY, None)]);
    server.now = Stamp(now().0 - 3 * DAY);
    // By another class than that of the blocks: by one that is kept longer, and by one that is kept shorter.
    assert_eq!((server.hit("plain", None, NIGHTLY), server.hit("kept", None, DEFAULT)), (5, 5));
    server.tier.flush();
    server.settle();
    let text = "model = \"builtin\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n[cache]\n\
                tiers = [{ disk = \"kv\" }]\nretention = { nightly = \"10d\", default = \"2h\" }\n";
    std::fs::write(folder.path().join("mill.toml"), text).unwrap();
    for store in ["kv", "mill.toml"] {
        let days = |args: &[&str]| -> Vec<u64> {
            let listed = json(folder.path(), &[&["list", store], args].concat(), 0);
            let used = listed["chains"].as_array().unwrap().iter();
            used.map(|chain| (chain["used_s"].as_u64().unwrap() + 3600) / u64::from(DAY)).collect()
        };
        assert_eq!(days(&["--class", "nightly"]), [3, 6], "{store}");
        // Steps of time are a thirty-second of a month here.
        assert!(matches!(days(&["--class", "default"])[..], [2 | 3]), "{store}");
        assert_eq!(days(&["--older", "4d"]), [6], "{store}");
    }
}

#[test]
fn what_is_beyond_a_size_goes_from_the_ends_of_chains() {
    let folder = tempfile::tempdir().unwrap();
    let blob = Folder::open(folder.path().join("kv")).unwrap();
    let mut server = Server::open(&blob, (2, 1), now());
    // Two chains in nine packs, used at the same time.
    let chains = ["one", "other"].map(|chain| long(chain, 45));
    for part in 0..9 {
        for names in &chains {
            server.put(names, part * 5..part * 5 + 5, (DEFAULT, None));
        }
        server.tier.flush();
        server.settle();
    }
    ran(folder.path(), &["gc", "--size", "72KB"], 0);
    let server = Server::open(&blob, (3, 1), now());
    let found = chains.map(|names| server.tier.plan(&names, Tenant::default()).blocks);
    let (all, bytes) = (found.iter().sum::<usize>(), server.tier.class_bytes(DEFAULT));
    assert!(bytes <= 72_000 && bytes > 60_000, "{bytes}");
    assert_eq!(all, server.tier.blocks(), "each is reached from its beginning: {found:?}");
}

#[test]
fn what_is_dropped_is_gone_for_all_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let blob = filled(&kv);
    let mut server = Server::open(&blob, (9, 1), now());
    let refused = ran(folder.path(), &["drop", "--tenant", "acme"], 2);
    assert!(refused.contains("5 blocks") && refused.contains("--yes"), "{refused}");
    assert!(ran(folder.path(), &["drop", "--yes"], 2).contains("--all"));
    let went = json(folder.path(), &["drop", "--tenant", "acme", "--yes"], 0);
    assert_eq!(went["went"][0]["blocks"], 5);
    // The server knows nothing of it: what it looks for where it was is a miss, also what lies elsewhere now.
    assert_eq!(server.fetch("acme", Some("acme")), 0);
    server.tier.refresh();
    server.settle();
    assert_eq!((server.fetch("plain", None), server.fetch("chat", None)), (5, 5));
    server.store(&[("acme", DEFAULT, Some("acme"))]);
    assert_eq!(Server::open(&blob, (10, 1), now()).fetch("acme", Some("acme")), 5, "stored again");

    ran(folder.path(), &["drop", "--model", "model-2", "-y"], 0);
    assert_eq!(Server::open(&blob, (11, 2), now()).tier.blocks(), 0);
    assert_eq!(Server::open(&blob, (11, 1), now()).tier.blocks(), 20);
    ran(folder.path(), &["gc", "--size", "1B"], 0);
    let empty = ran(folder.path(), &["drop", "--class", "chat", "-y"], 2);
    assert!(empty.contains("the store is empty"), "{empty}");
    ran(folder.path(), &["drop", "--all", "-y", "kv"], 0);
    assert!(blob.list("").unwrap().iter().all(|object| !object.name.starts_with("0101")), "nothing stays");
}

#[test]
fn what_others_keep_beside_a_store_is_no_matter() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    filled(&kv);
    let layout = kv.join("01".repeat(16));
    std::fs::create_dir_all(kv.join("lost+found/x")).unwrap();
    symlink(".", kv.join("loop")).unwrap();
    symlink("/usr", kv.join("0".repeat(32))).unwrap();
    // What would wait for ever, and what a terminal would obey.
    std::fs::remove_file(layout.join("about.json")).unwrap();
    assert!(Command::new("mkfifo").arg(layout.join("about.json")).status().unwrap().success());
    std::fs::write(kv.join("02".repeat(16)).join("about.json"), r#"{"model": "red\u001b[31m"}"#).unwrap();
    for command in ["stat", "verify", "list", "gc"] {
        let told = ran(folder.path(), &[command], 0);
        assert!(!told.contains('\u{1b}'), "{told}");
    }
    let told = ran(folder.path(), &["stat"], 0);
    assert!(told.contains("20 blocks in 3 packs") && told.contains(r"red\u{1b}[31m"), "{told}");
}

#[test]
fn a_store_that_is_none_is_refused_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["stat", "verify", "gc", "list"] {
        let refused = ran(folder.path(), &[command, "kv"], 2);
        assert!(refused.contains("no such folder"), "{refused}");
    }
    assert!(!folder.path().join("kv").exists());
    std::fs::create_dir(folder.path().join("kv")).unwrap();
    assert!(ran(folder.path(), &["stat"], 0).contains("0 blocks"));
    std::fs::write(
        folder.path().join("mill.toml"),
        "model = \"builtin\"\n[actors.gateway]\n[actors.prefill]\n[actors.decode]\n",
    )
    .unwrap();
    assert!(ran(folder.path(), &["stat", "mill.toml"], 2).contains("no tier that lasts"));
}
