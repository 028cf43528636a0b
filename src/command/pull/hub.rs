//! The routes of the Hugging Face hub, and its answers in words a person can do something with. The token goes to the hub
//! alone, never to where it redirects.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use hf_hub::Cache;
use serde_json::Value;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use super::place::cache_folder;
use super::wish::{Wish, is_inside};

/// Where models come from unless `HF_ENDPOINT` says otherwise.
const ENDPOINT: &str = "https://huggingface.co";
/// Time to reach a server.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// A server that says nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Redirects in a row.
const REDIRECTS_MAX: u32 = 5;
/// Bytes of a listing.
const LISTING_MAX: u64 = 64 << 20;

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another try may go well.
    Passing(anyhow::Error),
    /// Another try would fail too.
    Lasting(anyhow::Error),
}

/// A file that a repository has.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    /// Bytes, if the hub says.
    pub(super) size: Option<u64>,
}

/// A repository at one revision.
#[derive(Debug)]
pub(super) struct Listing {
    /// What the revision is now.
    pub(super) commit: String,
    pub(super) files: Vec<Listed>,
}

/// A file to be pulled.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    url: String,
    /// Bytes, if the hub says.
    pub(super) size: Option<u64>,
    /// In hexadecimal digits; the hub says it of large files.
    pub(super) sha256: Option<String>,
    /// Names the content: another content has another key.
    pub(super) key: String,
}

/// What a server sends of a file.
pub(super) struct Sent {
    /// Position of the first byte.
    pub(super) start: u64,
    pub(super) reader: Box<dyn Read>,
}

/// The hub.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

impl Hub {
    /// The hub of `HF_ENDPOINT`, asked with the token of `HF_TOKEN` or of `hf auth login`, through the proxies that the
    /// environment names.
    ///
    /// # Errors
    /// `SSL_CERT_FILE` names no certificates.
    pub(super) fn from_env() -> anyhow::Result<Self> {
        let set = |name: &str| {
            std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|v| !v.is_empty())
        };
        let mut tls = TlsConfig::builder();
        if let Some(file) = set("SSL_CERT_FILE") {
            tls = tls.root_certs(certificates(&file)?);
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(REDIRECTS_MAX)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX))
            .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .build()
            .new_agent();
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let token = set("HF_TOKEN").or_else(|| Cache::new(cache_folder()).token());
        Ok(Self { agent, endpoint: endpoint.trim_end_matches('/').to_owned(), token })
    }

    /// What the repository has.
    ///
    /// # Errors
    /// The hub cannot be reached, does not know the repository or does not show it.
    pub(super) fn list(&self, wish: &Wish) -> anyhow::Result<Listing> {
        let Wish { repo, revision, .. } = wish;
        let revision = escape(revision).replace('/', "%2F");
        let url = format!("{}/api/models/{repo}/revision/{revision}?blobs=true", self.endpoint);
        let mut response =
            self.named(self.agent.get(&url)).call().map_err(|error| self.unreachable(error))?;
        if !response.status().is_success() {
            return Err(self.refusal(&response, wish, None));
        }
        let body = response.body_mut().with_config().limit(LISTING_MAX).read_json::<Value>();
        let body = body.with_context(|| format!("{} does not answer like a hub", self.endpoint))?;
        listing(&body).with_context(|| format!("{} does not answer like a hub", self.endpoint))
    }

    /// Size, checksum and address of one file. Redirects inside of the hub (a repository with a new name) are followed;
    /// one that leads out of it is where the bytes are, and the hub's own answer says what they should be.
    ///
    /// # Errors
    /// The hub cannot be reached or does not have the file.
    pub(super) fn look(&self, wish: &Wish, commit: &str, name: &str) -> anyhow::Result<Remote> {
        let mut url = format!("{}/{}/resolve/{commit}/{}", self.endpoint, wish.repo, escape(name));
        for _ in 0..=REDIRECTS_MAX {
            let request = self.named(self.agent.head(&url)).header("accept-encoding", "identity").config();
            let answer = request.max_redirects(0).max_redirects_will_error(false).build().call();
            let answer = answer.map_err(|error| self.unreachable(error))?;
            let status = answer.status();
            if !status.is_success() && !status.is_redirection() {
                return Err(self.refusal(&answer, wish, Some(name)));
            }
            let location = header(answer.headers(), "location");
            let inside = location.and_then(|location| match location.strip_prefix(&self.endpoint) {
                Some(path) if path.starts_with('/') => Some(path),
                _ => location.strip_prefix('/').filter(|rest| !rest.starts_with('/')).map(|_| location),
            });
            match inside.filter(|_| status.is_redirection()) {
                Some(path) => url = format!("{}{path}", self.endpoint),
                None => return Ok(remote(answer.headers(), name, commit, url)),
            }
        }
        bail!("{} sends {name} round in circles", self.endpoint)
    }

    /// The bytes of a file from `start` on; none when the server has no such position.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn open(&self, remote: &Remote, start: u64) -> Result<Option<Sent>, Failure> {
        let mut request = self.named(self.agent.get(&remote.url)).header("accept-encoding", "identity");
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        let response = request.call().map_err(|error| Failure::Passing(self.unreachable(error)))?;
        let status = response.status().as_u16();
        let start = match status {
            200 => 0,
            206 => match first_byte(response.headers()) {
                Some(first) if first == start => start,
                _ => return Ok(None),
            },
            416 => return Ok(None),
            _ => {
                let error = anyhow!("the server answers {status}");
                let passing = status == 408 || status == 429 || status >= 500;
                return Err(if passing { Failure::Passing(error) } else { Failure::Lasting(error) });
            }
        };
        Ok(Some(Sent { start, reader: Box::new(response.into_body().into_reader()) }))
    }

    /// The request with our token, if there is one.
    fn named(&self, request: RequestBuilder<WithoutBody>) -> RequestBuilder<WithoutBody> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn unreachable(&self, error: ureq::Error) -> anyhow::Error {
        let why = format!(
            "cannot reach {}: is there a network? (HTTPS_PROXY names a proxy, HF_ENDPOINT another hub, SSL_CERT_FILE certificates)",
            self.endpoint
        );
        anyhow::Error::from(error).context(why)
    }

    /// An answer that is a refusal, and what to do about it.
    fn refusal(&self, response: &Response<Body>, wish: &Wish, file: Option<&str>) -> anyhow::Error {
        let Wish { repo, revision, .. } = wish;
        let endpoint = &self.endpoint;
        let code = header(response.headers(), "x-error-code").unwrap_or_default();
        let terms = format!("open {endpoint}/{repo} and accept its terms");
        match (response.status().as_u16(), code) {
            (401, "GatedRepo") if self.token.is_none() => {
                anyhow!(
                    "{repo} is gated: {terms}, make a token at {endpoint}/settings/tokens, and set HF_TOKEN to it"
                )
            }
            (401 | 403, "GatedRepo") => {
                anyhow!("{repo} is gated, and the account of your token has no access: {terms}")
            }
            (401, _) if self.token.is_none() => anyhow!(
                "{repo} does not exist, or is private or gated: check the name; for your own or a gated one make a token at {endpoint}/settings/tokens and set HF_TOKEN to it"
            ),
            (401, _) => anyhow!(
                "{repo} does not exist, or the hub does not take your token: check the name, and make a new token at {endpoint}/settings/tokens"
            ),
            (403, _) => anyhow!("your token may not read {repo}: {terms}, and let the token read it"),
            (404, "RevisionNotFound") => anyhow!("{repo} has no revision {revision}"),
            (404, _) => match file {
                Some(file) => anyhow!("{repo} has no file {file} at {revision}"),
                None => {
                    anyhow!("there is no repository {repo} at {endpoint}, or no revision {revision} of it")
                }
            },
            (429, _) => anyhow!("{endpoint} wants fewer requests: wait some minutes, or set HF_TOKEN"),
            (status, _) => anyhow!("{endpoint} answers {status}: try again later"),
        }
    }
}

fn certificates(file: &str) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).with_context(|| format!("cannot read SSL_CERT_FILE {file}"))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| format!("SSL_CERT_FILE {file}"))? {
            found.push(certificate);
        }
    }
    anyhow::ensure!(!found.is_empty(), "SSL_CERT_FILE {file} holds no certificate");
    Ok(RootCerts::from(found.into_iter()))
}

/// A listing, of which nothing is believed that leads out of a folder.
fn listing(body: &Value) -> Option<Listing> {
    let commit = body["sha"].as_str().filter(|sha| is_plain(sha))?;
    let file = |file: &Value| {
        let name = file["rfilename"].as_str().filter(|name| is_inside(name))?;
        Some(Listed { name: name.to_owned(), size: file["size"].as_u64() })
    };
    let files = body["siblings"].as_array()?.iter().filter_map(file).collect();
    Some(Listing { commit: commit.to_owned(), files })
}

fn remote(headers: &HeaderMap, name: &str, commit: &str, url: String) -> Remote {
    let linked = header(headers, "x-linked-etag");
    let etag = linked
        .or_else(|| header(headers, "etag"))
        .map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
    let size = match linked {
        Some(_) => header(headers, "x-linked-size"),
        None => header(headers, "content-length"),
    };
    let sha256 = etag.filter(|etag| etag.len() == 64 && etag.chars().all(|digit| digit.is_ascii_hexdigit()));
    let plain = etag.filter(|etag| is_plain(etag)).map(str::to_owned);
    Remote {
        name: name.to_owned(),
        url,
        size: size.and_then(|size| size.parse().ok()),
        sha256: sha256.map(str::to_ascii_lowercase),
        key: plain.unwrap_or_else(|| format!("{commit}-{}", name.replace('/', "--"))),
    }
}

/// Letters and digits, as hashes are.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Where a part begins: `bytes 5-9/10`.
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    header(headers, "content-range")?.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// A path as a URL has it.
fn escape(path: &str) -> String {
    let letter = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    path.bytes().map(letter).collect()
}
