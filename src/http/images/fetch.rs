//! Fetches images for clients. A client chooses the URL, so a fetch could become a way into the network of the server:
//! only servers that the topology names are asked, over https at its own port, through no proxy, never at an address
//! inside a network unless the topology names that address too, and never beyond a redirect to another server. Bytes
//! and time are bounded.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, config::Config};

/// From the first byte sent to the last one received, all redirects together.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// Redirects in a row.
const REDIRECTS_MAX: usize = 3;
/// Bytes of a URL.
const URL_MAX: usize = 4096;

/// Fetches from the servers that are named.
pub(super) struct Fetch {
    hosts: Vec<String>,
    agent: Agent,
    scheme: Scheme,
}

/// A URL that may be fetched.
pub(super) struct Wish {
    uri: Uri,
}

impl Fetch {
    /// From `hosts` alone, names or addresses in lower case.
    pub(super) fn new(hosts: Vec<String>) -> Self {
        Self::over(Scheme::HTTPS, hosts)
    }

    fn over(scheme: Scheme, hosts: Vec<String>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(FETCH_MAX))
            .proxy(None)
            .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
            .build();
        let resolver = Public { hosts: hosts.clone(), inner: DefaultResolver::default() };
        Self { hosts, agent: Agent::with_parts(config, DefaultConnector::default(), resolver), scheme }
    }

    /// Whether a URL may be fetched.
    ///
    /// # Errors
    /// It may not, or is none; in a sentence.
    pub(super) fn wish(&self, url: &str) -> Result<Wish, String> {
        if self.hosts.is_empty() {
            let why = "not supported by this server: it fetches no images, send a data URL (the topology can name \
                       servers with `hosts` of its encode actor)";
            return Err(why.to_owned());
        }
        if url.len() > URL_MAX {
            return Err(format!("a URL has at most {URL_MAX} bytes"));
        }
        let uri = url.parse::<Uri>().map_err(|error| format!("is not a URL: {error}"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        if !self.hosts.contains(&host) {
            let shown: String = host.chars().take(128).collect();
            return Err(format!("not supported by this server: it fetches no images from \"{shown}\""));
        }
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let other_port =
            uri.port_u16().is_some() && self.scheme == Scheme::HTTPS && uri.port_u16() != Some(443);
        if uri.scheme() != Some(&self.scheme) || authority.contains('@') || other_port {
            let why = "must be plain: https:// and a server at its usual port, without a name or a password";
            return Err(why.to_owned());
        }
        Ok(Wish { uri })
    }

    /// The bytes, at most `most` of them.
    ///
    /// # Errors
    /// They cannot be had; completes "this image ...".
    pub(super) fn get(&self, wish: Wish, most: u64) -> Result<Vec<u8>, String> {
        let mut wish = wish;
        let mut left = FETCH_MAX;
        for _ in 0..=REDIRECTS_MAX {
            let began = crate::clock::now();
            let request = self.agent.get(&wish.uri).config().timeout_global(Some(left)).build();
            let mut response = request.call().map_err(|error| format!("cannot be fetched: {error}"))?;
            let status = response.status();
            if status.is_success() {
                return body(&mut response, most);
            }
            if !status.is_redirection() {
                return Err(format!("cannot be fetched: its server says {status}"));
            }
            let to = response.headers().get("location").and_then(|value| value.to_str().ok());
            wish = self.follow(&wish.uri, to.unwrap_or_default())?;
            left = left.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        }
        Err("cannot be fetched: its server sends it round in circles".to_owned())
    }

    /// Where a redirect leads, which must be the same server.
    fn follow(&self, from: &Uri, to: &str) -> Result<Wish, String> {
        let (scheme, authority) = (&self.scheme, from.authority().map_or("", |authority| authority.as_str()));
        let inside = to.starts_with('/') && !to.starts_with("//");
        let whole = if inside { format!("{scheme}://{authority}{to}") } else { to.to_owned() };
        let wish = self.wish(&whole).map_err(|_| refused_redirect())?;
        let same = wish.uri.authority().map(|authority| authority.as_str()) == Some(authority);
        if same { Ok(wish) } else { Err(refused_redirect()) }
    }
}

fn refused_redirect() -> String {
    "cannot be fetched: its server sends it to another server".to_owned()
}

fn body(response: &mut ureq::http::Response<ureq::Body>, most: u64) -> Result<Vec<u8>, String> {
    let too_many = |bytes: u64| format!("has {bytes} bytes or more, but only {most} are taken");
    if let Some(bytes) = response.body().content_length().filter(|bytes| *bytes > most) {
        return Err(too_many(bytes));
    }
    let mut bytes = Vec::new();
    let read = response.body_mut().as_reader().take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be fetched: {error}"))?;
    if bytes.len() as u64 > most { Err(too_many(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Resolves names to public addresses, and to those that are named themselves. The address that is judged is the one
/// that is connected to.
#[derive(Debug)]
struct Public {
    hosts: Vec<String>,
    inner: DefaultResolver,
}

impl Resolver for Public {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let mut open = self.empty();
        let allowed = |address: IpAddr| is_public(address) || self.hosts.contains(&address.to_string());
        found.iter().filter(|address| allowed(address.ip())).for_each(|address| open.push(*address));
        if open.is_empty() {
            let why = "its server has no public address, and the topology names none of those it has";
            return Err(ureq::Error::Io(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)));
        }
        Ok(open)
    }
}

/// Whether an address is one of the open internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let inside = address.is_private() || address.is_loopback() || address.is_link_local();
    let reserved = match (a, b, c) {
        (0 | 224..=255, _, _) => true,
        (100, 64..=127, _) => true,
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) => true,
        (198, 18 | 19, _) => true,
        _ => false,
    };
    !inside && !reserved
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // The rest of the space is local, reserved, or holds an address of the older kind.
    let unicast = (0x2000..0x4000).contains(&a);
    let special =
        matches!((a, b), (0x2001, 0..=0x01ff) | (0x2001, 0x0db8) | (0x2002, _) | (0x3fff, 0..=0x0fff));
    unicast && !special
}

#[cfg(test)]
mod tests;
