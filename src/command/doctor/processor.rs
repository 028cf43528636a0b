//! Cores, instruction sets, and which kernels follow from them.

use millstream_kernels::{Backend, CpuBackend};

use super::{Finding, field, text};

/// Everything about the processor.
pub(super) fn look() -> Vec<Finding> {
    vec![cores(), instructions(), kernels()]
}

fn cores() -> Finding {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let online = text("/sys/devices/system/cpu/online").map_or(usable, |list| count(&list));
    let status = text("/proc/self/status").unwrap_or_default();
    let allowed = field(&status, "Cpus_allowed_list:").unwrap_or("unknown");
    let found = format!("{usable} of {online} may be used (cores {allowed})");
    if usable >= online {
        return Finding::well("cores", found);
    }
    let cure =
        "an affinity mask (taskset, cpuset) or a quota (cgroup cpu.max, docker --cpus) holds the others back";
    Finding::note("cores", found, cure)
}

/// How many numbers a list such as `0-3,8` names.
fn count(list: &str) -> usize {
    let part = |part: &str| match part.trim().split_once('-') {
        Some((from, to)) => match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) if from <= to => to - from + 1,
            _ => 0,
        },
        None => usize::from(part.trim().parse::<usize>().is_ok()),
    };
    list.split(',').map(part).sum()
}

fn instructions() -> Finding {
    let sets = sets();
    let names = |there: bool| -> String {
        let of = sets.iter().filter(|(_, has)| *has == there).map(|(name, _)| *name);
        of.collect::<Vec<_>>().join(", ")
    };
    let (there, missing) = (names(true), names(false));
    let there = if there.is_empty() { "none of those that are used".to_owned() } else { there };
    let missing = if missing.is_empty() { String::new() } else { format!("; not: {missing}") };
    Finding::well("instruction sets", there + &missing)
}

/// Instruction sets that kernels use or could, and whether they are there.
fn sets() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("AVX-512 F", is_x86_feature_detected!("avx512f")),
        ("AVX-512 BW", is_x86_feature_detected!("avx512bw")),
        ("AVX-512 VL", is_x86_feature_detected!("avx512vl")),
        ("AVX-512 VNNI", is_x86_feature_detected!("avx512vnni")),
        ("AVX-512 BF16", is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(target_arch = "aarch64")]
    return vec![
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return Vec::new();
}

fn kernels() -> Finding {
    let name = CpuBackend::new(1, &[]).name();
    if name.contains("plain") {
        let cure = "there are no vector kernels for this processor: answers are right, and many times slower";
        return Finding::note("kernels", name, cure);
    }
    Finding::well("kernels", name)
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count("0-3,8\n"), 5);
        assert_eq!(count("7"), 1);
        assert_eq!(count("3-1,x"), 0);
    }
}
