//! A chat partner that is a server: the HTTP API with its stream of events.

use anyhow::Context as _;
use futures::StreamExt;
use millstream_actors::request::ChatMessage;
use serde_json::Value;

use super::harmless;
use crate::args::ChoiceArgs;

/// The longest line of events that is believed.
const LINE_MAX: usize = 1 << 20;
/// Bytes that are read of a refusal, at least.
const REFUSAL_MAX: usize = 64 << 10;
/// Characters that are shown of one.
const SHOWN_MAX: usize = 1_000;

/// A server by its address.
pub(super) struct Remote {
    url: String,
    client: reqwest::Client,
}

impl Remote {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        anyhow::ensure!(url.starts_with("http://"), "{url}: only http:// is spoken here");
        // Stores in the clouds bring TLS into every client, though none is spoken here.
        #[cfg(feature = "cloud")]
        millstream_runtime::live::ready_tls();
        let client = reqwest::Client::builder().build().context("cannot make an HTTP client")?;
        let root = url.strip_suffix("/v1").unwrap_or(&url);
        Ok(Self { url: format!("{root}/v1/chat/completions"), client })
    }

    pub(super) async fn answer(
        &self,
        messages: &[ChatMessage],
        choice: &ChoiceArgs,
        out: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<String> {
        let sent = self.client.post(&self.url).json(&choice.body(messages)).send().await;
        let response = sent.with_context(|| format!("cannot reach {}", self.url))?;
        let status = response.status();
        if !status.is_success() {
            anyhow::bail!("the server says {status}: {}", refusal(response).await);
        }
        let mut whole = String::new();
        let mut lines = Lines::default();
        let mut bytes = response.bytes_stream();
        while let Some(chunk) = bytes.next().await {
            for line in lines.add(&chunk.context("the stream broke off")?)? {
                if line == "[DONE]" {
                    return Ok(whole);
                }
                let piece = piece(&line)?;
                out(&piece)?;
                whole.push_str(&piece);
            }
        }
        anyhow::bail!("the stream ended without [DONE]")
    }
}

/// What a server says to its refusal: only the beginning is read, whatever it sends.
async fn refusal(response: reqwest::Response) -> String {
    let (mut body, mut bytes) = (Vec::new(), response.bytes_stream());
    while body.len() < REFUSAL_MAX
        && let Some(Ok(chunk)) = bytes.next().await
    {
        body.extend_from_slice(&chunk);
    }
    said(&String::from_utf8_lossy(&body))
}

fn said(text: &str) -> String {
    let said = serde_json::from_str(text).map_or_else(|_| text.to_owned(), |body: Value| error_text(&body));
    harmless(&said).chars().take(SHOWN_MAX).collect()
}

/// The text of one event.
fn piece(data: &str) -> anyhow::Result<String> {
    let event: Value = serde_json::from_str(data).context("the server sent an event that is not JSON")?;
    if event.get("error").is_some() {
        anyhow::bail!("{}", harmless(&error_text(&event)));
    }
    Ok(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned())
}

fn error_text(body: &Value) -> String {
    body["error"]["message"].as_str().map_or_else(|| body.to_string(), str::to_owned)
}

/// Cuts a stream of bytes into the data lines of its events.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<String>> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = std::str::from_utf8(&line).context("the server sent what is not UTF-8")?;
            lines.extend(line.strip_prefix("data:").map(|data| data.trim().to_owned()));
        }
        anyhow::ensure!(self.rest.len() <= LINE_MAX, "the server sent a line of more than {LINE_MAX} bytes");
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_may_be_cut_anywhere() {
        let stream = "data: {\"a\":\"é\"}\n\n: still here\n\ndata: [DONE]\n\n".as_bytes();
        for cut in 0..stream.len() {
            let mut lines = Lines::default();
            let mut seen = lines.add(&stream[..cut]).unwrap();
            seen.extend(lines.add(&stream[cut..]).unwrap());
            assert_eq!(seen, ["{\"a\":\"é\"}", "[DONE]"]);
        }
    }

    #[test]
    fn little_is_shown_of_a_refusal() {
        assert_eq!(said(r#"{"error":{"message":"boom"}}"#), "boom");
        assert_eq!(said("<html>\u{1b}[31m"), "<html>\u{fffd}[31m");
        assert_eq!(said(&"é".repeat(100_000)).chars().count(), SHOWN_MAX);
    }

    #[test]
    fn errors_in_the_stream_are_said() {
        assert_eq!(piece(r#"{"error":{"message":"boom"}}"#).unwrap_err().to_string(), "boom");
        assert_eq!(piece(r#"{"choices":[{"delta":{"content":"x"}}]}"#).unwrap(), "x");
        assert_eq!(piece(r#"{"choices":[]}"#).unwrap(), "");
    }
}
