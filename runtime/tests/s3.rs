//! A real S3 server, in this process, behind a real socket: the store in a cloud keeps the promises of the seam.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use millstream_runtime::blob::{Blob, BlobErrorKind, conformance};
use millstream_runtime::live::open_store;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

/// Serves buckets that are the folders of `root`, until the runtime is dropped.
fn serve(runtime: &tokio::runtime::Runtime, root: &Path) -> SocketAddr {
    let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).expect("a folder"));
    service.set_auth(SimpleAuth::from_single("key", "secret"));
    let service = service.build();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let server = Builder::new(TokioExecutor::new());
                // A client that goes away is no failure of the server.
                drop(server.serve_connection(TokioIo::new(socket), service).await);
            });
        }
    });
    address
}

fn open(address: SocketAddr, url: &str, secret: &str) -> Arc<dyn Blob> {
    let endpoint = format!("http://{address}");
    let options = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_region", "us-east-1"),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", secret),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    open_store(url, options).expect("it can be opened")
}

#[test]
fn a_bucket_is_a_store() {
    let root = tempfile::tempdir().expect("a folder for tests");
    std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let address = serve(&runtime, root.path());
    conformance::check(&*open(address, "s3://bucket", "secret"));
    let deep = open(address, "s3://bucket/some/where", "secret");
    conformance::check(&*deep);
    deep.put("a", &[b"x"]).expect("it can be put");
    let whole = open(address, "s3://bucket", "secret").list("some/").expect("it can be listed");
    assert_eq!(whole[0].name, "some/where/a", "a prefix stands before every name");
    let stranger = open(address, "s3://bucket", "wrong").put("b", &[b"x"]).expect_err("a wrong secret");
    assert_eq!(stranger.kind, BlobErrorKind::Denied, "{stranger}");
    assert!(stranger.to_string().contains("cannot put `b`"), "{stranger}");
    // A server lets go of its store while it still runs async code.
    runtime.block_on(async move { drop(deep) });
}

#[test]
fn a_url_of_a_file_is_a_folder_and_others_say_what_is_wrong() {
    let root = tempfile::tempdir().expect("a folder for tests");
    let url = format!("file://{}/kv", root.path().display());
    conformance::check(&*open_store(&url, Vec::new()).expect("it can be made"));
    assert!(root.path().join("kv").is_dir());
    for wrong in ["kv", "file://host/kv", "ftp://host/kv", "s3://"] {
        let error = open_store(wrong, Vec::new()).map(drop).expect_err(wrong);
        assert!(error.name == wrong && error.kind == BlobErrorKind::Denied, "{error}");
    }
}
