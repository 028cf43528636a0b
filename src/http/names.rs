//! By which names this server may be called. A page of another origin can have its own name resolved to an address of this
//! machine, and its scripts then speak to a server that only this machine reaches as if it were their own (DNS rebinding);
//! what gives them away is the name they call.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Http;
use super::fault::Fault;

/// The names of one server.
pub(crate) struct Names {
    /// In lower case, beside those of this machine.
    named: Vec<String>,
    /// Other names are refused.
    closed: bool,
}

impl Names {
    /// Of a server that listens at `address`, which the topology calls by `named` too. One that the network reaches is
    /// called as the network likes, unless names are said.
    pub(crate) fn new(address: SocketAddr, named: &[String]) -> Self {
        Self { named: named.to_vec(), closed: is_loopback(address.ip()) || !named.is_empty() }
    }

    /// Refuses a request for another server. Every browser says whom it calls; who says nothing is none.
    fn check(&self, request: &Request) -> Result<(), Fault> {
        let said = request.headers().get_all(header::HOST).iter().map(|host| host.as_bytes());
        let called = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        match said.chain(called).find(|host| self.closed && !self.know(host)) {
            None => Ok(()),
            Some(host) => Err(strange(&String::from_utf8_lossy(host))),
        }
    }

    /// Whether a name, with or without a port, is one of this server.
    fn know(&self, host: &[u8]) -> bool {
        let Some(authority) = Authority::try_from(host).ok().filter(|_| !host.contains(&b'@')) else {
            return false;
        };
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let host = host.trim_matches(['[', ']']);
        let local = host == "localhost" || host.ends_with(".localhost");
        local || host.parse().is_ok_and(is_loopback) || self.named.iter().any(|name| name == host)
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn strange(host: &str) -> Fault {
    let shown: String = host.chars().take(128).collect();
    let why = format!(
        "this server is not called {shown:?}: it answers to localhost and loopback addresses, so that pages of other \
         origins cannot reach it, and to the names that `hosts` of its gateway has in the topology"
    );
    Fault::new(StatusCode::MISDIRECTED_REQUEST, "invalid_request_error", why).coded("unknown_host")
}

/// Lets requests for this server through.
pub(super) async fn guard(State(http): State<Http>, request: Request, next: Next) -> Response {
    match http.names.check(&request) {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn refused(names: &Names, host: &str) -> bool {
        let request = Request::builder().uri("/").header(header::HOST, host).body(Body::empty());
        names.check(&request.expect("a request")).is_err()
    }

    #[test]
    fn a_server_of_this_machine_answers_to_its_own_names() {
        let names = Names::new("127.0.0.1:8000".parse().expect("an address"), &["mill.example".to_owned()]);
        for host in [
            "localhost",
            "LocalHost:8000",
            "a.localhost",
            "localhost.",
            "127.0.0.1:8000",
            "127.9.9.9",
            "[::1]:8000",
            "[::1]",
            "[::ffff:127.0.0.1]:1",
            "mill.example:8000",
            "Mill.Example",
        ] {
            assert!(!refused(&names, host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "mill.example.evil",
            "10.0.0.5:8000",
            "0.0.0.0:8000",
            "user@localhost",
            "",
            "a b",
            "[::2]:8000",
            "xlocalhost",
        ] {
            assert!(refused(&names, host), "{host}");
        }
    }

    #[test]
    fn a_server_of_the_network_is_called_as_the_network_likes_unless_names_are_said() {
        let address = "0.0.0.0:8000".parse().expect("an address");
        assert!(!refused(&Names::new(address, &[]), "anything.example"));
        let named = Names::new(address, &["mill.example".to_owned()]);
        assert!(refused(&named, "anything.example") && !refused(&named, "mill.example:80"));
    }

    #[test]
    fn whoever_is_called_by_the_path_counts_too() {
        let names = Names::new("[::1]:8000".parse().expect("an address"), &[]);
        let check =
            |uri: &str| names.check(&Request::builder().uri(uri).body(Body::empty()).expect("a request"));
        assert!(check("http://evil.example/health").is_err() && check("http://[::1]:8000/health").is_ok());
        assert!(check("/health").is_ok(), "no browser leaves out whom it calls");
    }
}
