//! The house rules, as tests: sizes, headers, who may import whom, words that are not used, links in the docs, topology
//! files that parse. A rule that is only written down is kept for a week.

use std::collections::BTreeSet;
use std::path::Path;

use millstream_topology::{HostFacts, check};

mod names;
mod tree;

use tree::{Source, root, rust_files, sources};

/// Code lines of a file, tests left out. A file whose header has a line that starts with "Longer than" gives a reason.
const FILE_LINES_MAX: usize = 400;
/// Lines of a function, signature and braces included.
const FN_LINES_MAX: usize = 70;

/// Fails with all complaints at once.
fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn complain(rule: impl Fn(&Source) -> Vec<String>) {
    let complaints: Vec<String> = sources()
        .iter()
        .flat_map(|source| rule(source).into_iter().map(|why| format!("{}: {why}", source.path)))
        .collect();
    expect_none(&complaints);
}

#[test]
fn every_file_says_why_it_exists() {
    complain(|source| {
        let header = source.text.lines().next().unwrap_or_default();
        let said = header.strip_prefix("//! ").is_some_and(|words| words.len() > 15);
        if said { Vec::new() } else { vec!["has no //! header that says why it exists".to_owned()] }
    });
}

#[test]
fn files_and_functions_are_short() {
    complain(|source| {
        let reason = source.text.lines().any(|line| line.starts_with("//! Longer than"));
        let mut long = Vec::new();
        if source.code_lines > FILE_LINES_MAX && !reason {
            long.push(format!("{} code lines; {FILE_LINES_MAX} are the most", source.code_lines));
        }
        let functions = source.functions.iter().filter(|function| function.lines > FN_LINES_MAX);
        long.extend(functions.map(|function| format!("fn {} has {} lines", function.name, function.lines)));
        long
    });
}

#[test]
fn functions_are_mostly_tiny() {
    let sources = sources();
    let mut lines: Vec<usize> =
        sources.iter().flat_map(|source| source.functions.iter().map(|function| function.lines)).collect();
    lines.sort_unstable();
    let part = |hundredth: usize| lines.get(lines.len() * hundredth / 100).copied().unwrap_or(0);
    println!("{} functions: median {} lines, p95 {}", lines.len(), part(50), part(95));
    assert!(part(50) <= 12 && part(95) <= 50, "median {}, p95 {}", part(50), part(95));
}

#[test]
fn crates_import_only_what_they_may() {
    complain(|source| {
        source
            .roots
            .iter()
            .filter_map(|root| forbidden(&source.path, root))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    });
}

/// Why this file may not name that crate, if it may not.
fn forbidden(path: &str, krate: &str) -> Option<String> {
    let within = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    let leaf = within(&["kernels/", "topology/", "runtime/"]) && krate.starts_with("millstream_");
    let own = path.split('/').next().is_some_and(|folder| krate == format!("millstream_{folder}"));
    if leaf && !own {
        return Some(format!("a leaf crate names {krate}"));
    }
    if krate == "millstream" && !within(&["src/", "tests/", "examples/", "benches/"]) {
        return Some("names the root crate".to_owned());
    }
    let shell =
        ["tokio", "ractor", "flume", "hyper", "hyper_util", "axum", "reqwest", "futures", "ureq", "hf_hub"];
    let shells =
        ["src/", "tests/", "examples/", "benches/", "runtime/src/live", "runtime/src/link", "runtime/tests/"];
    if shell.contains(&krate) && !within(&shells) {
        return Some(format!("names {krate}, which belongs to the shell and the live driver"));
    }
    let shells = ["src/", "tests/", "examples/", "benches/"];
    (krate == "anyhow" && !within(&shells)).then(|| "names anyhow, which belongs to the shell".to_owned())
}

#[test]
fn clocks_and_threads_have_their_places() {
    complain(|source| {
        let tests = source.path.contains("/tests/")
            || source.path.starts_with("tests/")
            || source.path.contains("benches/");
        let clock = ["runtime/src/time.rs", "src/clock.rs"].contains(&source.path.as_str());
        let places = [
            "runtime/src/live",
            "kernels/src/cpu",
            "kernels/src/packed/pack.rs",
            "kernels/src/model/load.rs",
            "kernels/src/weights/fingerprint.rs",
        ];
        let thread = places.iter().any(|place| source.path.starts_with(place));
        let mut wrong = Vec::new();
        for path in &source.paths {
            let reads_clock = path.ends_with("Instant::now") || path.ends_with("SystemTime::now");
            if reads_clock && !clock && !tests && !source.path.starts_with("examples/") {
                wrong.push(format!("{path}: only runtime/src/time.rs and src/clock.rs read a clock"));
            }
            let threads = ["thread::spawn", "thread::Builder::new", "thread::scope", "thread::sleep"];
            if threads.iter().any(|name| path.ends_with(name)) && !thread && !tests {
                wrong.push(format!("{path}: threads belong to the live driver, the CPU backend and loading"));
            }
        }
        wrong
    });
}

#[test]
fn unsafe_code_is_in_kernels_only() {
    complain(|source| {
        let allowed = ["kernels/", "runtime/src/region.rs", "runtime/src/link/shm.rs"];
        let wrong = source.has_unsafe && !allowed.iter().any(|place| source.path.starts_with(place));
        if wrong { vec!["has unsafe code".to_owned()] } else { Vec::new() }
    });
}

#[test]
fn lints_are_expected_with_a_reason_never_just_allowed() {
    complain(|source| {
        let bare = source.allows.iter().filter(|lint| !lint.contains("reason"));
        bare.map(|lint| format!("#[allow({lint})]: say #[expect(.., reason)]")).collect()
    });
}

#[test]
fn role_files_meet_in_messages_only() {
    let roles = ["gateway", "tokenizer", "router", "encode", "prefill", "decode", "detokenizer", "rank"];
    complain(|source| {
        let Some(role) = source.path.strip_prefix("actors/src/").and_then(|file| file.strip_suffix(".rs"))
        else {
            return Vec::new();
        };
        let role = role.split('/').next().unwrap_or(role);
        if !roles.contains(&role) {
            return Vec::new();
        }
        let others = roles.iter().filter(|other| **other != role);
        others
            .filter(|other| source.paths.iter().any(|path| path.starts_with(&format!("crate::{other}::"))))
            .map(|other| format!("imports the role {other}"))
            .collect()
    });
}

#[test]
fn wire_types_of_the_api_stay_in_one_file() {
    complain(|source| {
        let wrong = source.path.starts_with("src/http")
            && source.path != "src/http/openai.rs"
            && source.roots.contains("serde");
        if wrong { vec!["derives wire types".to_owned()] } else { Vec::new() }
    });
}

#[test]
fn banned_words_name_nothing() {
    complain(|source| source.defined.iter().filter_map(|name| names::banned(name)).collect());
}

#[test]
fn every_file_belongs_to_a_module() {
    let root = root();
    let complaints: Vec<String> = rust_files().iter().filter_map(|path| orphan(&root, path)).collect();
    expect_none(&complaints);
}

/// A file that no `mod` names is never compiled.
fn orphan(root: &Path, path: &str) -> Option<String> {
    let (folder, file) = path.rsplit_once('/')?;
    let stem = file.strip_suffix(".rs")?;
    let crate_root = ["lib", "main"].contains(&stem) && folder.ends_with("src");
    let in_source = folder.ends_with("src") || folder.starts_with("src/") || folder.contains("/src/");
    if crate_root || !in_source {
        return None;
    }
    let parents = match folder.ends_with("src") {
        true => vec![format!("{folder}/lib.rs"), format!("{folder}/main.rs")],
        false => vec![format!("{folder}.rs")],
    };
    let named = |parent: &String| {
        let text = std::fs::read_to_string(root.join(parent)).unwrap_or_default();
        text.lines().any(|line| line.trim_end().ends_with(&format!("mod {stem};")))
    };
    (!parents.iter().any(named)).then(|| format!("{path}: no module names it"))
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    let root = root();
    let mut complaints = Vec::new();
    for path in tree::files(&root, &["md"]) {
        let text = std::fs::read_to_string(root.join(&path)).expect("a listed file can be read");
        let folder = Path::new(&path).parent().unwrap_or(Path::new(""));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:") || file.is_empty();
            if !elsewhere && !root.join(folder).join(file).exists() {
                complaints.push(format!("{path}: the link {target} leads nowhere"));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn every_topology_file_parses() {
    let root = root();
    let files: Vec<String> = tree::files(&root, &["toml"])
        .into_iter()
        .filter(|path| path.starts_with("examples/topologies/"))
        .collect();
    assert!(!files.is_empty(), "there are no topology files in examples/");
    let mut complaints = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(root.join(&path)).expect("a listed file can be read");
        complaints.extend(
            check(&text, &path, &HostFacts { cores: 8, buckets: true })
                .err()
                .map(|problems| problems.to_string()),
        );
    }
    expect_none(&complaints);
}
