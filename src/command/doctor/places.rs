//! What the server opens: file descriptors, its port, and the folder that models are downloaded to.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use super::{Finding, field, text};
use crate::command::pull::cache_folder;
use crate::mill;
use crate::server::Bounds;
use crate::source;

/// Descriptors besides those of clients: files of the model, the runtime, standard streams.
const OWN: u64 = 64;

/// Everything that is opened.
pub(super) fn look() -> anyhow::Result<Vec<Finding>> {
    let gateway = mill::gateway(&source::laptop("any")?.plan)?.settings;
    let limits = text("/proc/self/limits").unwrap_or_default();
    let (requests, connections) =
        (gateway.requests_max as u64, Bounds::default().connections.connections_max);
    Ok(vec![descriptors(&limits, requests, connections as u64), port(gateway.listen), cache(&cache_folder())])
}

fn descriptors(limits: &str, requests: u64, connections: u64) -> Finding {
    let name = "file descriptors";
    let soft = field(limits, "Max open files").and_then(|rest| rest.split_whitespace().next());
    let cure =
        format!("ulimit -n {}, or LimitNOFILE= in the unit file", (connections + OWN).next_power_of_two());
    let least = format!("the gateway admits {requests} requests on up to {connections} connections");
    match soft.and_then(|soft| if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }) {
        None => Finding::note(name, format!("the system does not say the limit; {least}"), cure),
        Some(soft) if soft < requests + OWN => Finding::problem(name, format!("{soft}; {least}"), cure),
        Some(soft) if soft < connections + OWN => Finding::note(name, format!("{soft}; {least}"), cure),
        Some(soft) => Finding::well(name, format!("{soft}; {least}")),
    }
}

fn port(address: SocketAddr) -> Finding {
    let name = "port";
    match TcpListener::bind(address) {
        Ok(_) => Finding::well(name, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let other = SocketAddr::new(address.ip(), address.port() + 1);
            Finding::note(name, format!("{address} is taken"), format!("serve --listen {other}"))
        }
        Err(error) => Finding::problem(
            name,
            format!("{address}: {error}"),
            "serve --listen HOST:PORT with an address of this host",
        ),
    }
}

/// Looks for the nearest folder that is there, and writes a file there that is gone at once.
fn cache(folder: &Path) -> Finding {
    let name = "model cache";
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let shown = folder.display();
    match tempfile::tempfile_in(there) {
        Ok(_) => Finding::well(name, format!("{shown} can be written")),
        Err(error) => Finding::note(
            name,
            format!("{shown} cannot be written: {error}"),
            "set HF_HOME to a folder of yours, or pull --into DIR",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn descriptors_must_do_for_all_requests() {
        let limits =
            |soft: &str| format!("Max cpu time  unlimited\nMax open files            {soft}  20000  files\n");
        let state = |soft: &str| descriptors(&limits(soft), 512, 4096).state;
        assert_eq!(state("256"), State::Problem);
        assert_eq!(state("1024"), State::Note);
        assert_eq!(state("65536"), State::Well);
        assert_eq!(state("unlimited"), State::Well);
    }

    #[test]
    fn a_taken_port_is_seen() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let address = taken.local_addr().expect("it is bound");
        assert_eq!(port(address).state, State::Note);
        drop(taken);
        assert_eq!(port(address).state, State::Well);
        assert_eq!(port("192.0.2.1:80".parse().expect("an address")).state, State::Problem);
    }

    #[test]
    fn a_folder_that_is_no_folder_cannot_be_written() {
        let home = tempfile::tempdir().expect("a folder");
        assert_eq!(cache(&home.path().join("a/b")).state, State::Well);
        assert_eq!(cache(Path::new("/proc/nothing")).state, State::Note);
    }
}
