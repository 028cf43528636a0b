//! `pull` against a hub in this process that speaks the routes of the real one, with the accidents of networks: cut
//! connections, wrong bytes, missing rights, names that lead elsewhere.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as Route, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use serde_json::json;
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the hub behaves, and what it was asked.
#[derive(Default)]
struct Hub {
    /// Name and bytes.
    files: Vec<(String, Vec<u8>)>,
    /// Bytes of large files after which a connection is cut; zero for never.
    cut: usize,
    /// Connections to cut; then all goes well.
    cuts: AtomicUsize,
    /// Says wrong checksums.
    lies: bool,
    /// What every request must bring.
    token: Option<String>,
    /// Repository that has moved to `tiny/model`.
    renamed: bool,
    /// `Range` headers of requests for bytes.
    ranges: Mutex<Vec<String>>,
    /// `Authorization` headers that the store of large files saw.
    leaked: AtomicUsize,
}

impl Hub {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        Self { files, ..Self::default() }
    }

    /// Listens until the test ends.
    async fn open(self) -> (Arc<Self>, SocketAddr) {
        let hub = Arc::new(self);
        let router = Router::new()
            .route("/api/models/{owner}/{name}/revision/{revision}", get(listing))
            .route("/{owner}/{name}/resolve/{revision}/{*file}", get(resolve).head(resolve))
            .route("/store/{*file}", get(bytes))
            .with_state(Arc::clone(&hub));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (hub, address)
    }

    fn file(&self, name: &str) -> Option<&Vec<u8>> {
        self.files.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes)
    }

    fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        let token = self.token.as_ref()?;
        match headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap()) {
            None => Some((StatusCode::UNAUTHORIZED, [("x-error-code", "GatedRepo")]).into_response()),
            Some(given) if given != format!("Bearer {token}") => {
                Some((StatusCode::FORBIDDEN, [("x-error-code", "GatedRepo")]).into_response())
            }
            Some(_) => None,
        }
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn listing(
    State(hub): State<Arc<Hub>>,
    Route((owner, name, revision)): Route<(String, String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = hub.refusal(&headers) {
        return refusal;
    }
    if owner != "tiny" {
        return (StatusCode::NOT_FOUND, [("x-error-code", "RepoNotFound")]).into_response();
    }
    if !["main", "refs/pr/1", COMMIT].contains(&revision.as_str()) {
        return (StatusCode::NOT_FOUND, [("x-error-code", "RevisionNotFound")]).into_response();
    }
    let files: Vec<_> =
        hub.files.iter().map(|(name, bytes)| json!({"rfilename": name, "size": bytes.len()})).collect();
    axum::Json(json!({"id": format!("{owner}/{name}"), "sha": COMMIT, "siblings": files})).into_response()
}

async fn resolve(
    State(hub): State<Arc<Hub>>,
    Route((_, repo, revision, name)): Route<(String, String, String, String)>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = hub.refusal(&headers) {
        return refusal;
    }
    assert_eq!(revision, COMMIT, "all files are of one commit");
    if hub.renamed && repo == "old" {
        let to = format!("/tiny/model/resolve/{revision}/{name}");
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response();
    }
    let Some(file) = hub.file(&name) else {
        return (StatusCode::NOT_FOUND, [("x-error-code", "EntryNotFound")]).into_response();
    };
    if !is_large(&name) {
        let tag = format!("\"{:040x}\"", file.len());
        let facts = [("etag", tag), ("x-repo-commit", COMMIT.to_owned())];
        return match method {
            Method::HEAD => (facts, [(header::CONTENT_LENGTH, file.len())], Body::empty()).into_response(),
            _ => (facts, file.clone()).into_response(),
        };
    }
    let digest = if hub.lies { sha256(b"other") } else { sha256(file) };
    let host = headers[header::HOST].to_str().unwrap();
    // Another name for the same host: an address outside of the hub.
    let to = format!("http://{}/store/{name}", host.replace("127.0.0.1", "localhost"));
    let facts = [
        ("location", to),
        ("etag", "\"of the redirect\"".to_owned()),
        ("x-linked-etag", format!("\"{digest}\"")),
        ("x-linked-size", file.len().to_string()),
        ("x-repo-commit", COMMIT.to_owned()),
    ];
    (StatusCode::FOUND, facts).into_response()
}

/// The store of large files: parts, and connections that break.
async fn bytes(State(hub): State<Arc<Hub>>, Route(name): Route<String>, headers: HeaderMap) -> Response {
    hub.leaked.fetch_add(usize::from(headers.contains_key(header::AUTHORIZATION)), Ordering::SeqCst);
    let file = hub.file(&name).unwrap();
    let range = headers.get(header::RANGE).map_or("", |value| value.to_str().unwrap());
    hub.ranges.lock().unwrap().push(range.to_owned());
    let start: usize =
        range.strip_prefix("bytes=").map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let rest = file[start..].to_vec();
    let cut = hub.cut > 0
        && hub.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
    let length = rest.len();
    let body = if cut {
        let piece = rest[..hub.cut.min(length)].to_vec();
        let sent = futures::stream::once(async { Ok(piece) });
        // The piece must be under way before the connection breaks.
        let broken = futures::stream::once(async {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            Err(std::io::Error::other("cut"))
        });
        Body::from_stream(sent.chain(broken))
    } else {
        Body::from(rest)
    };
    let status = if start > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let range = format!("bytes {start}-{}/{}", file.len() - 1, file.len());
    (status, [(header::CONTENT_RANGE, range)], [(header::CONTENT_LENGTH, length)], body).into_response()
}

/// Runs `millstream` against the hub, with a cache of its own.
async fn run(address: SocketAddr, home: &Path, token: Option<&str>, args: &[&str]) -> Output {
    run_with(address, home, token.map(|token| ("HF_TOKEN", token)), args).await
}

/// The same with a variable.
async fn run_with(address: SocketAddr, home: &Path, set: Option<(&str, &str)>, args: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.args(args).env("HF_ENDPOINT", format!("http://{address}")).env("HF_HOME", home);
    for name in [
        "HF_TOKEN",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "SSL_CERT_FILE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(name);
    }
    command.envs(set);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The path that was printed.
fn path(output: &Output) -> PathBuf {
    assert!(output.status.success(), "{}", err(output));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end())
}

/// The tiny checkpoint as a repository.
fn checkpoint() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/tests/oracle/tiny-llama");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    names
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_pulled_into_the_shared_cache_and_talks() {
    let (hub, address) =
        Hub { files: checkpoint(), token: Some("secret".to_owned()), ..Hub::default() }.open().await;
    let home = tempfile::tempdir().unwrap();
    let pulled = run(address, home.path(), Some("secret"), &["pull", "tiny/model"]).await;
    let folder = path(&pulled);
    assert_eq!(folder, home.path().join("hub/models--tiny--model/snapshots").join(COMMIT));
    assert!(err(&pulled).contains(&format!("millstream serve --model {}", folder.display())));
    let reference = std::fs::read_to_string(home.path().join("hub/models--tiny--model/refs/main")).unwrap();
    assert_eq!(reference, COMMIT);
    assert!(!folder.join("vectors.json").exists(), "only what a model needs");
    let weights = folder.join("model.safetensors");
    assert_eq!(std::fs::read(&weights).unwrap(), *hub.file("model.safetensors").unwrap());
    assert!(std::fs::read_link(&weights).unwrap().starts_with("../../blobs"));
    let asked = hub.ranges.lock().unwrap().len();
    let again = run(address, home.path(), Some("secret"), &["pull", "tiny/model"]).await;
    assert_eq!(path(&again), folder);
    assert_eq!(hub.ranges.lock().unwrap().len(), asked, "what is there is not asked for again");
    assert_eq!(hub.leaked.load(Ordering::SeqCst), 0, "the token goes to the hub alone");
    let said = run(
        address,
        home.path(),
        None,
        &["chat", "--model", &folder.display().to_string(), "--max-tokens", "4", "Hi"],
    )
    .await;
    assert!(said.status.success(), "{}", err(&said));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_offline_asks_nobody() {
    let (hub, address) = Hub::new(&[("a-q4.gguf", &[1; 2000])]).open().await;
    let home = tempfile::tempdir().unwrap();
    for said in ["1", "true"] {
        let refused =
            run_with(address, home.path(), Some(("HF_HUB_OFFLINE", said)), &["pull", "tiny/model"]).await;
        assert_eq!(refused.status.code(), Some(2));
        assert!(err(&refused).contains(&format!("HF_HUB_OFFLINE={said} says")), "{}", err(&refused));
        assert!(std::fs::read_dir(home.path()).unwrap().next().is_none(), "nothing is made");
    }
    let asked = run_with(address, home.path(), Some(("HF_HUB_OFFLINE", "0")), &["pull", "tiny/model"]).await;
    assert!(path(&asked).ends_with("a-q4.gguf"));
    assert_eq!(hub.ranges.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_is_taken_up_where_it_broke() {
    let large: Vec<u8> = (0..400_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let hub = Hub { cut: 100_000, cuts: AtomicUsize::new(2), ..Hub::new(&[("a-q4.gguf", &large)]) };
    let (hub, address) = hub.open().await;
    let home = tempfile::tempdir().unwrap();
    let pulled = path(&run(address, home.path(), None, &["pull", "tiny/model"]).await);
    assert!(pulled.ends_with("a-q4.gguf"));
    assert_eq!(std::fs::read(pulled).unwrap(), large);
    let ranges = hub.ranges.lock().unwrap().clone();
    assert!(ranges.len() == 3 && ranges[0].is_empty() && ranges[1] != ranges[2], "{ranges:?}");
    let from: Vec<usize> =
        ranges[1..].iter().map(|range| range[6..range.len() - 1].parse().unwrap()).collect();
    assert!(0 < from[0] && from[0] < from[1] && from[1] <= 200_000, "{ranges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_run_is_taken_up_too_and_into_a_folder() {
    let large: Vec<u8> = (0..50_000_u32).map(|i| (i % 251) as u8).collect();
    let (hub, address) = Hub::new(&[("sub/b.gguf", &large), ("c.gguf", b"other")]).open().await;
    let home = tempfile::tempdir().unwrap();
    let into = home.path().join("models");
    std::fs::create_dir(&into).unwrap();
    let part = format!("sub--b.gguf.{}.incomplete", &sha256(&large)[..12]);
    std::fs::write(into.join(&part), &large[..20_000]).unwrap();
    let args = ["pull", "tiny/model:sub/b.gguf", "--into", into.to_str().unwrap(), "--revision", "refs/pr/1"];
    let pulled = path(&run(address, home.path(), None, &args).await);
    assert_eq!(pulled, into.join("sub/b.gguf"));
    assert_eq!(std::fs::read(&pulled).unwrap(), large);
    assert_eq!(*hub.ranges.lock().unwrap(), ["bytes=20000-"]);
    assert!(!into.join(&part).exists());
    // A file of the right size and other bytes is not believed.
    std::fs::write(&pulled, vec![7; large.len()]).unwrap();
    path(&run(address, home.path(), None, &args).await);
    assert_eq!(std::fs::read(&pulled).unwrap(), large);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_refused_and_not_kept() {
    let (_hub, address) = Hub { lies: true, ..Hub::new(&[("a.gguf", b"bytes")]) }.open().await;
    let home = tempfile::tempdir().unwrap();
    let pulled = run(address, home.path(), None, &["pull", "tiny/model"]).await;
    assert_eq!(pulled.status.code(), Some(1));
    assert!(err(&pulled).contains("checksum is wrong"), "{}", err(&pulled));
    let blobs = std::fs::read_dir(home.path().join("hub/models--tiny--model/blobs")).unwrap().count();
    assert_eq!(blobs, 0);
    assert!(!home.path().join("hub/models--tiny--model/snapshots").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_read_hears_what_to_do() {
    let hub = Hub { token: Some("secret".to_owned()), ..Hub::new(&[("a.gguf", b"bytes")]) };
    let (_hub, address) = hub.open().await;
    let home = tempfile::tempdir().unwrap();
    for (token, words) in [(None, "set HF_TOKEN"), (Some("wrong"), "accept its terms")] {
        let refused = run(address, home.path(), token, &["pull", "tiny/model"]).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(err(&refused).contains("gated") && err(&refused).contains(words), "{}", err(&refused));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said() {
    let (_hub, address) = Hub::new(&[("a.gguf", b"a"), ("b.gguf", b"b")]).open().await;
    let home = tempfile::tempdir().unwrap();
    for (args, words, code) in [
        (&["pull", "huge/model"][..], "there is no repository huge/model", 1),
        (&["pull", "tiny/model", "--revision", "v9"], "no revision v9", 1),
        (&["pull", "tiny/model:c.gguf"], "did you mean", 1),
        (&["pull", "tiny/model"], "millstream pull tiny/model:b.gguf", 1),
        (&["pull", "../model"], "is no repository", 2),
        (&["serve", "--model", "tiny/model"], "millstream pull tiny/model", 2),
    ] {
        let refused = run(address, home.path(), None, args).await;
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {}", err(&refused));
        assert!(err(&refused).contains(words), "{args:?}: {}", err(&refused));
    }
    let nobody = "127.0.0.1:1".parse().unwrap();
    let refused = run(nobody, home.path(), None, &["pull", "tiny/model"]).await;
    assert!(refused.status.code() == Some(1) && err(&refused).contains("cannot reach"), "{}", err(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_with_a_new_name_is_found_and_bad_names_are_left_out() {
    let hub = Hub {
        renamed: true,
        ..Hub::new(&[("../../evil.gguf", b"x"), ("/evil.gguf", b"x"), ("a.gguf", b"good")])
    };
    let (_hub, address) = hub.open().await;
    let home = tempfile::tempdir().unwrap();
    let pulled = path(&run(address, home.path(), None, &["pull", "tiny/old"]).await);
    assert_eq!(std::fs::read(pulled).unwrap(), b"good");
}
