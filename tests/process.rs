//! The server as a process: the line it prints when it is ready, signals that drain and stop it, `chat --server`.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod house;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::StreamExt;
use house::{Process, checkpoint, long};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_millstream");

fn serve() -> Process {
    let model = checkpoint().display().to_string();
    Process::start(Command::new(BIN).args(["serve", "--model", &model, "--listen", "127.0.0.1:0"]))
}

async fn stream(process: &Process, tokens: u32) -> reqwest::Response {
    let mut body: Value = long(1, tokens);
    body["model"] = "default".into();
    body["stream"] = true.into();
    let url = format!("{}/v1/chat/completions", process.address);
    reqwest::Client::new().post(url).json(&body).send().await.unwrap()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

async fn ended(child: &mut Child) -> Option<i32> {
    for _ in 0..1000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the process does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_signal_drains() {
    let mut process = serve();
    let response = stream(&process, 300).await;
    signal(&process.child, "-INT");
    let text = response.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(ended(&mut process.child).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once() {
    let mut process = serve();
    let mut bytes = stream(&process, 4000).await.bytes_stream();
    bytes.next().await.unwrap().unwrap();
    signal(&process.child, "-TERM");
    tokio::time::sleep(Duration::from_millis(30)).await;
    signal(&process.child, "-INT");
    assert_eq!(ended(&mut process.child).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_talks_to_a_server() {
    let process = serve();
    let ask = |server: &str| {
        let args = ["chat", "--temperature", "0", "--max-tokens", "8", "--server", server, "Hello"];
        Command::new(BIN).args(args).output().unwrap()
    };
    let remote = ask(&process.address);
    assert!(remote.status.success(), "{remote:?}");
    let model = checkpoint().display().to_string();
    let args = ["chat", "--temperature", "0", "--max-tokens", "8", "--model", &model, "Hello"];
    let local = Command::new(BIN).args(args).output().unwrap();
    assert_eq!(remote.stdout, local.stdout);
    assert_eq!(ask("http://127.0.0.1:9").status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_ends_with_a_signal() {
    let model = checkpoint().display().to_string();
    let mut chat = Command::new(BIN)
        .args(["chat", "--temperature", "0", "--max-tokens", "4", "--model", &model])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = chat.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"Hello\n").unwrap();
    let mut line = String::new();
    BufReader::new(chat.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(&chat, "-INT");
    assert_eq!(ended(&mut chat).await, Some(0));
    drop(input);
}
