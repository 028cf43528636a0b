//! A server of the tiny checkpoint in this process, and a client for it: what every test of the HTTP side starts with.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(dead_code, reason = "each test file uses its own part of the house")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::StreamExt;
use millstream::server::{Bounds, ServeOptions, Server};
use millstream::source::{self, Source};
use millstream_actors::assemble::Resources;
use serde_json::{Value, json};

/// The tiny checkpoint with a chat template.
pub fn checkpoint() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels/tests/oracle/tiny-llama")
}

/// A server process; it is killed when the test is over.
pub struct Process {
    pub child: Child,
    pub address: String,
}

impl Process {
    /// Starts it, and reads where it listens.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it said {line:?}"));
        Self { child, address: address.to_owned() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already in many tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prefill and decode in groups of their own.
pub const SPLIT: &str = "[actors.prefill]\nthreads = 1\n[actors.decode]\nthreads = 1\njoined = false\n";
/// One group for both.
pub const JOINED: &str = "[actors.prefill]\nthreads = 1\n[actors.decode]\nthreads = 1\n";

/// The source of a topology with these tables besides the model and the gateway.
pub fn source(gateway: &str, actors: &str) -> Source {
    let model = checkpoint().display().to_string();
    let text = format!(
        "name = \"tiny\"\nmodel = {model:?}\n[actors.gateway]\nlisten = \"127.0.0.1:0\"\n{gateway}\n{actors}"
    );
    source::from_text(&text, "test.toml").unwrap_or_else(|refused| panic!("{refused}"))
}

/// A server and its client.
pub struct House {
    pub server: Server,
    pub client: reqwest::Client,
}

impl House {
    /// Starts with default bounds.
    pub async fn open(gateway: &str, actors: &str) -> Self {
        Self::bounded(gateway, actors, Bounds::default()).await
    }

    /// Starts with these bounds.
    pub async fn bounded(gateway: &str, actors: &str, bounds: Bounds) -> Self {
        let source = source(gateway, actors);
        let resources: Resources = source.load().unwrap();
        Self::of(&source, &resources, bounds).await
    }

    /// Starts with another model than the source names.
    pub async fn of(source: &Source, resources: &Resources, bounds: Bounds) -> Self {
        let options = ServeOptions { bounds, ..ServeOptions::default() };
        let server = Server::start(&source.plan, resources, options).await.unwrap();
        Self { server, client: reqwest::Client::new() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    pub async fn post(&self, body: &Value) -> reqwest::Response {
        self.post_to("/v1/chat/completions", body).await
    }

    pub async fn post_to(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(self.url(path)).json(body).send().await.unwrap()
    }

    /// A chat whose body says that it is JSON.
    pub fn json_bytes(&self, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        let post = self.client.post(self.url("/v1/chat/completions"));
        post.header("content-type", "application/json").body(body)
    }

    /// The body of a request that is served.
    pub async fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post_to(path, body).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        response.json().await.unwrap()
    }

    /// The field that a request is refused for.
    pub async fn refused_field(&self, path: &str, body: &Value) -> String {
        let response = self.post_to(path, body).await;
        assert_eq!(response.status(), 400, "{body}");
        let error: Value = response.json().await.unwrap();
        error["error"]["param"].as_str().unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    /// A whole answer.
    pub async fn whole(&self, body: &Value) -> Value {
        self.ask("/v1/chat/completions", body).await
    }

    /// The text of a whole answer.
    pub async fn text(&self, body: &Value) -> String {
        self.whole(body).await["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// Status and error of a request that is refused.
    pub async fn refused(&self, body: &Value) -> (u16, Value) {
        let response = self.post(body).await;
        let status = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        (status, body["error"].clone())
    }

    /// Opens a stream.
    pub async fn stream(&self, body: &Value) -> Events {
        self.stream_from("/v1/chat/completions", body).await
    }

    pub async fn stream_from(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.post_to(path, &body).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        Events { bytes: response.bytes_stream().boxed(), rest: Vec::new(), seen: Vec::new() }
    }

    /// Waits until no group owns anything.
    pub async fn at_rest(&self) {
        let mill = self.server.mill().clone();
        let empty = move || {
            let groups = mill.gauges().iter();
            let owned =
                groups.map(|g| g.blocks_used.get() + g.leases.get() + g.running.get() + g.waiting.get());
            owned.sum::<u64>() == 0 && mill.desk().streams() == 0
        };
        until("the ledgers are at zero", empty).await;
    }
}

/// Waits until something holds, at most 20 seconds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}");
}

/// The events of a stream, as they come.
pub struct Events {
    bytes: futures::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    rest: Vec<u8>,
    seen: Vec<Value>,
}

impl Events {
    /// The data of the next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            // Bytes come cut anywhere, in the middle of a character too.
            if let Some(end) = self.rest.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                match std::str::from_utf8(&event[..end]).unwrap().strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    None => continue,
                }
            }
            let bytes = self.bytes.next().await?.ok()?;
            self.rest.extend_from_slice(&bytes);
        }
    }

    /// Reads so many events; [`Events::all`] still gives them.
    pub async fn read(&mut self, events: usize) {
        for _ in 0..events {
            let data = self.next().await.expect("the stream goes on");
            self.seen.push(serde_json::from_str(&data).unwrap());
        }
    }

    /// All events up to `[DONE]`, which must be the last.
    pub async fn all(mut self) -> Vec<Value> {
        while let Some(data) = self.next().await {
            if data == "[DONE]" {
                assert_eq!(self.next().await, None);
                return self.seen;
            }
            self.seen.push(serde_json::from_str(&data).unwrap());
        }
        panic!("the stream ended without [DONE]: {:?}", self.seen);
    }
}

/// The text that the chunks of a stream come to.
pub fn text_of(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

/// A request with one message.
pub fn say(content: &str, extra: Value) -> Value {
    let mut body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A sampled request that goes on for a while.
pub fn long(seed: u64, tokens: u32) -> Value {
    let content = format!("Tell me {seed} stories about the old mill by the stream.");
    say(&content, json!({"temperature": 1, "seed": seed, "max_tokens": tokens}))
}
