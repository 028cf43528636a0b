//! Where things run: host patterns written out, globs matched, groups and ranks held against devices.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_spanned::Spanned;

use crate::error::Findings;
use crate::id::{HostName, NAME_LEN_MAX};
use crate::keys::HOSTS_MAX;
use crate::plan::{Devices, Host};
use crate::scalar::is_address;
use crate::section::Section;
use crate::suggest::{self, quote};

/// The hosts of a plan in natural order, and where each was said.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    pub(crate) list: Vec<Host>,
    pub(crate) spans: BTreeMap<HostName, Range<usize>>,
    /// Names of patterns: `p` stands for nothing, `p*` for its copies.
    patterns: Vec<String>,
}

/// Writes the patterns out. Without a table of hosts there is one, named `local`.
pub(crate) fn hosts(root: &Section, findings: &mut Findings) -> Hosts {
    let mut hosts = Hosts::default();
    for (name, section) in root.named("hosts") {
        let copies = section.has("count").then(|| section.number("count").max(1));
        numbered(name, section, copies, findings);
        if copies.is_some() {
            hosts.patterns.push(name.get_ref().clone());
        }
        for number in 1..=copies.unwrap_or(1) {
            if hosts.list.len() as u64 == HOSTS_MAX {
                let help = format!("{HOSTS_MAX} are the most of one file");
                findings.add(&section.span_of("count"), "too many hosts", help);
                return hosts;
            }
            hosts.add(name, section, copies.map(|_| number), findings);
        }
    }
    if hosts.list.is_empty() {
        if let Some(said) = root.said("hosts")
            && findings.is_empty()
        {
            findings.add(
                &said.value.span(),
                "no host in [hosts]",
                "leave the table out: one host is implied",
            );
        }
        let name = HostName("local".to_owned());
        hosts.list.push(Host { name, address: None, devices: Devices::Cpu, supernode: None });
    }
    hosts.list.sort_by(|a, b| natural(a.name.as_str()).cmp(&natural(b.name.as_str())));
    hosts
}

/// A pattern's address needs its number, and a single host's has none.
fn numbered(name: &Spanned<String>, section: &Section, copies: Option<u64>, findings: &mut Findings) {
    let Some(address) = section.text("address") else { return };
    let span = section.span_of("address");
    let has_number = address.contains("{i}");
    if copies.is_some_and(|copies| copies > 1) && !has_number {
        let message =
            format!("all copies of {} would have the address {}", quote(name.get_ref()), quote(&address));
        findings.add(&span, message, "write {i} where the number of the copy belongs");
    }
    let last = address.replace("{i}", &copies.unwrap_or(1).to_string());
    if has_number && !is_address(&last) {
        findings.add(
            &span,
            format!("the last copy would have the address {}", quote(&last)),
            "write a smaller count",
        );
    }
    if copies.is_none() && has_number {
        findings.add(&span, "{i} stands for the number of a copy, and there is no count", "add count = 2");
    }
}

impl Hosts {
    fn add(
        &mut self,
        name: &Spanned<String>,
        section: &Section,
        number: Option<u64>,
        findings: &mut Findings,
    ) {
        let full =
            number.map_or_else(|| name.get_ref().clone(), |number| format!("{}{number}", name.get_ref()));
        let digits = number.map_or_else(String::new, |number| number.to_string());
        let host = Host {
            name: HostName(full),
            address: section.text("address").map(|address| address.replace("{i}", &digits)),
            devices: section.devices("devices").cloned().unwrap_or(Devices::Cpu),
            supernode: section.text("supernode"),
        };
        if host.name.as_str().len() > NAME_LEN_MAX {
            let message = format!("the name with its number is longer than {NAME_LEN_MAX}");
            findings.add(&name.span(), message, "write a shorter name");
        }
        if self.spans.insert(host.name.clone(), name.span()).is_some() {
            let message = format!("two hosts are named {}", quote(host.name.as_str()));
            findings.add(&name.span(), message, "give one of them another name");
            return;
        }
        self.list.push(host);
    }

    /// The hosts that these names and globs stand for, in the plan's order.
    pub(crate) fn matching(&self, names: &[Spanned<String>], findings: &mut Findings) -> Vec<HostName> {
        let mut chosen = vec![false; self.list.len()];
        for name in names {
            let mut found = false;
            for (host, chosen) in self.list.iter().zip(&mut chosen) {
                if matches(name.get_ref(), host.name.as_str()) {
                    *chosen = true;
                    found = true;
                }
            }
            if !found {
                self.unknown(name, findings);
            }
        }
        self.list
            .iter()
            .zip(chosen)
            .filter(|(_, chosen)| *chosen)
            .map(|(host, _)| host.name.clone())
            .collect()
    }

    fn unknown(&self, name: &Spanned<String>, findings: &mut Findings) {
        let word = name.get_ref();
        let known = self.list.iter().map(|host| host.name.as_str());
        let (message, help) = if word.contains('*') {
            let known: Vec<&str> = known.collect();
            (format!("no host matches {}", quote(word)), suggest::listed("hosts", &known))
        } else if self.patterns.contains(word) {
            let message = format!("{} is a pattern of hosts, not a host", quote(word));
            (message, format!("did you mean {}?", quote(&format!("{word}*"))))
        } else {
            (format!("unknown host {}", quote(word)), suggest::help(word, "hosts", known))
        };
        findings.add(&name.span(), message, help);
    }

    /// The host of this name.
    pub(crate) fn get(&self, name: &HostName) -> Option<&Host> {
        self.list.iter().find(|host| host.name == *name)
    }

    /// GPUs of these hosts together, if each has some.
    pub(crate) fn gpus(&self, names: &[HostName]) -> Option<u64> {
        names.iter().try_fold(0, |sum, name| match &self.get(name)?.devices {
            Devices::Cuda(numbers) => Some(sum + numbers.len() as u64),
            Devices::Cpu => None,
        })
    }
}

/// Whether a name with `*` for any text matches; linear in the length but for the last star.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// `p2` before `p10`: text, then the number at its end.
fn natural(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text, name[text.len()..].parse().unwrap_or(u64::MAX), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, name, expected) in [
            ("p*", "p1", true),
            ("*", "anything", true),
            ("p1", "p1", true),
            ("p", "p1", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*2", "p12", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn hosts_sort_by_number() {
        let mut names = ["p10", "p2", "front", "p1"];
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        assert_eq!(names, ["front", "p1", "p2", "p10"]);
    }
}
