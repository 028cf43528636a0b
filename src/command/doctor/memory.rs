//! How much memory there is, what a container leaves of it, and whether large pages are given.

use super::{Finding, field, text};

/// With less than this nothing but a tiny model can be served.
const AVAILABLE_MIN: u64 = 256 << 20;
/// From here on a limit is no limit: how cgroup v1 says "none".
const NO_LIMIT: u64 = 1 << 60;
/// What the kernel says of transparent large pages.
const HUGE_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Everything about memory.
pub(super) fn look() -> Vec<Finding> {
    let cgroups = text("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_files(&cgroups).iter().filter_map(|file| limit(&text(file)?)).min();
    vec![amount(&text("/proc/meminfo").unwrap_or_default(), limit), huge(text(HUGE_SETTING).as_deref())]
}

fn amount(meminfo: &str, limit: Option<u64>) -> Finding {
    let bytes = |name: &str| -> Option<u64> {
        Some(field(meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let (Some(total), Some(available)) = (bytes("MemTotal:"), bytes("MemAvailable:")) else {
        let cure = "a model needs its size in memory, and KV memory beside that";
        return Finding::note("memory", "the system does not say how much there is", cure);
    };
    let usable = limit.map_or(available, |limit| limit.min(available));
    let bound =
        limit.map_or(", no cgroup limit".to_owned(), |limit| format!(", cgroup limit {}", giga(limit)));
    let found = format!("{} of {} available{bound}", giga(available), giga(total));
    if usable < AVAILABLE_MIN {
        return Finding::problem("memory", found, "free some, or raise the limit of the container");
    }
    Finding::well("memory", found)
}

fn giga(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Where the limits of this process may stand: of its own group and of all groups around it.
fn limit_files(cgroups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = match (number, kinds) {
            ("0", "") => ("/sys/fs/cgroup", "memory.max"),
            (_, kinds) if kinds.split(',').any(|kind| kind == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{group}/{file}"));
            let Some((outer, _)) = group.rsplit_once('/') else { break };
            group = outer;
        }
    }
    files
}

/// A limit as the kernel writes it; none where it does not limit.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

fn huge(setting: Option<&str>) -> Finding {
    let name = "huge pages";
    let chosen = setting.and_then(|text| text.split_once('[')?.1.split(']').next());
    match chosen {
        Some(chosen @ ("always" | "madvise")) => {
            Finding::well(name, format!("{chosen}: KV memory and packed weights get large pages"))
        }
        Some(chosen) => Finding::note(
            name,
            format!("{chosen}: small pages, so reading KV memory takes more look-ups"),
            format!("as root: echo madvise > {HUGE_SETTING}"),
        ),
        None => Finding::note(name, "the system does not say", "nothing to do: small pages work too"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn the_narrowest_limit_of_all_groups_counts() {
        let files = limit_files("5:cpu:/x\n4:memory:/a/b\n0::/c\n");
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("1073741824\n"), Some(1 << 30));
    }

    #[test]
    fn too_little_memory_is_a_problem() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(amount(meminfo, None).state, State::Well);
        assert_eq!(amount(meminfo, Some(100 << 20)).state, State::Problem);
        assert_eq!(amount("", None).state, State::Note);
    }

    #[test]
    fn the_setting_of_the_kernel_is_read() {
        assert_eq!(huge(Some("always [madvise] never")).state, State::Well);
        assert_eq!(huge(Some("always madvise [never]")).state, State::Note);
    }
}
