//! Addresses and devices: what the outside world is called in a file.

use std::net::SocketAddr;

use toml::de::DeValue;

use super::{Read, example, refused, text, wants};
use crate::keys::{DEVICE_MAX, Key};
use crate::plan::Devices;
use crate::suggest::{self, quote};

pub(super) fn listen(key: &Key, value: &DeValue<'_>) -> Read<SocketAddr> {
    let said = text(key, value)?;
    if let Ok(address) = said.parse() {
        return Ok(address);
    }
    let message = format!("{} takes {}, not {}", quote(key.name), wants(key.kind), quote(said));
    let bare = said.strip_prefix("http://").unwrap_or(said).trim_end_matches('/').replacen(
        "localhost",
        "127.0.0.1",
        1,
    );
    let cures = [format!("0.0.0.0{bare}"), format!("127.0.0.1:{bare}"), format!("{bare}:8000"), bare];
    let cure = cures.into_iter().find(|cure| cure.len() < 64 && cure.parse::<SocketAddr>().is_ok());
    let help = cure
        .map_or_else(|| format!("write {}", example(key)), |cure| format!("did you mean {}?", quote(&cure)));
    refused(message, help)
}

pub(super) fn address(key: &Key, said: &str) -> Read<String> {
    let message = format!("{} takes {}, not {}", quote(key.name), wants(key.kind), quote(said));
    let numbered = said.replace("{i}", "1");
    if numbered.contains(['{', '}']) {
        return refused(message, "the number of a copy is written {i}");
    }
    let Some((host, port)) = numbered.rsplit_once(':') else {
        return refused(message, format!("add a port: {}", quote(&format!("{said}:7400"))));
    };
    match port.parse::<u16>() {
        Ok(port) if port > 0 => {}
        _ => return refused(message, "a port is a number from 1 to 65535"),
    }
    match is_host(host) {
        true => Ok(said.to_owned()),
        false => refused(message, "a host is a name, or an IP address (version 6 in brackets)"),
    }
}

/// Whether this is `host:port`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A name, or an IP address; digits and dots that are no IP address are neither.
fn is_host(host: &str) -> bool {
    let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let version6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match version6 {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None if numeric => host.parse::<std::net::Ipv4Addr>().is_ok(),
        None => plain && host.len() <= 253,
    }
}

pub(super) fn devices(key: &Key, said: &str) -> Read<Devices> {
    if said == "cpu" {
        return Ok(Devices::Cpu);
    }
    let message = format!("{} takes {}, not {}", quote(key.name), wants(key.kind), quote(said));
    let Some(list) = said.strip_prefix("cuda:") else {
        let kind = said.split(':').next().unwrap_or(said);
        let numbers = said.strip_prefix(kind).filter(|numbers| numbers.len() > 1).unwrap_or(":0-7");
        return match kind {
            "gpu" | "gpus" | "nvidia" | "cuda" => {
                refused(message, format!("did you mean {}?", quote(&format!("cuda{numbers}"))))
            }
            _ => refused(message, suggest::help(kind, "devices", ["cpu", "cuda:0-7"])),
        };
    };
    let mut numbers = std::collections::BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else {
            return refused(message, "GPUs are numbers and ranges, as in \"cuda:0-3,6\"");
        };
        if first > last {
            return refused(message, format!("did you mean {}?", quote(&format!("cuda:{last}-{first}"))));
        }
        if last > DEVICE_MAX {
            return refused(message, format!("the highest number of a GPU is {DEVICE_MAX}"));
        }
        numbers.extend(first..=last);
    }
    Ok(Devices::Cuda(numbers.into_iter().collect()))
}
