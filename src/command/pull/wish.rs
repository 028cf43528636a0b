//! What a person asks for, and which files of a repository that means. Only what a loader here reads is taken: not the
//! same weights again in other formats.

use anyhow::bail;

use super::hub::Listed;
use crate::args::PullArgs;
use crate::source::Refused;
use crate::suggest::nearest;

/// Files of a model beside its weights.
const PAPERS: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
/// Names that are listed when one must be chosen.
const LISTED_MAX: usize = 100;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// `owner/name`.
    pub(super) repo: String,
    /// Branch, tag or commit.
    pub(super) revision: String,
    /// One file alone.
    file: Option<String>,
    /// Patterns, of which one must match.
    include: Vec<String>,
}

impl Wish {
    /// From the arguments.
    ///
    /// # Errors
    /// [`Refused`] for names that no repository, file or revision has.
    pub(super) fn read(args: &PullArgs) -> Result<Self, Refused> {
        let given = args.repo.trim_end_matches('/');
        let given = given.strip_prefix("https://huggingface.co/").unwrap_or(given);
        let (repo, file) = match given.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (given, None),
        };
        let refused = |what: &str, text: &str, like: &str| {
            Refused::Unreadable(format!("millstream: {text:?} is no {what}: it should look like {like}"))
        };
        let letters =
            |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter));
        if !letters(repo) || !is_inside(repo) || repo.split('/').count() > 2 {
            return Err(refused("repository", repo, "owner/name or owner/name:FILE.gguf"));
        }
        if let Some(file) = file.filter(|file| !is_inside(file)) {
            return Err(refused("file of a repository", file, "model-q4_k_m.gguf"));
        }
        if !is_inside(&args.revision) {
            return Err(refused("revision", &args.revision, "main, v1.0 or a commit"));
        }
        Ok(Self {
            repo: repo.to_owned(),
            revision: args.revision.clone(),
            file: file.map(str::to_owned),
            include: args.include.clone(),
        })
    }

    /// The files to be pulled, of all that the repository has.
    ///
    /// # Errors
    /// There is nothing to take, or too much to choose from.
    pub(super) fn choose(&self, files: &[Listed]) -> anyhow::Result<Vec<String>> {
        if let Some(file) = &self.file {
            return self.single(file, files);
        }
        let kept: Vec<&Listed> = files.iter().filter(|file| self.includes(&file.name)).collect();
        let folder: Vec<String> =
            kept.iter().filter(|file| is_of_folder(&file.name)).map(|file| file.name.clone()).collect();
        if folder.iter().any(|name| is_weights(name)) {
            return Ok(folder);
        }
        let ggufs: Vec<&Listed> = kept.into_iter().filter(|file| is_gguf(&file.name)).collect();
        match ggufs.as_slice() {
            [one] => Ok(vec![one.name.clone()]),
            [] if !self.include.is_empty() && !folder.is_empty() => Ok(folder),
            [] => bail!("{}", self.nothing(files)),
            several => bail!("{}", self.several(several)),
        }
    }

    fn single(&self, file: &str, files: &[Listed]) -> anyhow::Result<Vec<String>> {
        if files.iter().any(|listed| listed.name == file) {
            return Ok(vec![file.to_owned()]);
        }
        let near = nearest(file, files.iter().map(|listed| listed.name.as_str()));
        let near = near.map_or(String::new(), |name| format!("; did you mean {name}?"));
        bail!("{} has no file {file} at {}{near}", self.repo, self.revision)
    }

    fn includes(&self, name: &str) -> bool {
        self.include.is_empty() || self.include.iter().any(|pattern| matches(pattern, name))
    }

    fn nothing(&self, files: &[Listed]) -> String {
        let weights = |file: &&Listed| {
            [".bin", ".pt", ".pth", ".onnx", ".safetensors", ".gguf"]
                .iter()
                .any(|end| file.name.ends_with(end))
        };
        let others: Vec<&str> = files.iter().filter(weights).take(8).map(|file| file.name.as_str()).collect();
        let others =
            if others.is_empty() { String::new() } else { format!(" (it has {})", others.join(", ")) };
        let include = if self.include.is_empty() { "" } else { " that --include lets through" };
        format!(
            "{} has no weights{include} that can be read here, neither model.safetensors nor .gguf{others}",
            self.repo
        )
    }

    fn several(&self, files: &[&Listed]) -> String {
        let line = |file: &&Listed| {
            let size = file.size.map_or(String::new(), |size| format!("  {:.0} MB", size as f64 / 1e6));
            format!("  millstream pull {}:{}{size}", self.repo, file.name)
        };
        let mut lines: Vec<String> = files.iter().take(LISTED_MAX).map(line).collect();
        if files.len() > LISTED_MAX {
            lines.push(format!("  and {} more", files.len() - LISTED_MAX));
        }
        format!("{} has {} models: name one of them\n{}", self.repo, files.len(), lines.join("\n"))
    }
}

/// Whether a path made of this name stays inside of its folder.
pub(super) fn is_inside(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    // Control characters would speak to the terminal that shows the name.
    name.split('/').all(plain) && !name.contains('\\') && !name.contains(char::is_control)
}

pub(super) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.to_ascii_lowercase().ends_with(".gguf")
}

/// Weights as the loader of folders reads them.
fn is_weights(name: &str) -> bool {
    !name.contains('/') && name.starts_with("model") && name.ends_with(".safetensors")
}

fn is_of_folder(name: &str) -> bool {
    let template = !name.contains('/') && name.starts_with("chat_template");
    PAPERS.contains(&name) || template || name == "model.safetensors.index.json" || is_weights(name)
}

/// Whether a pattern with `*` and `?` matches the whole name, or the part behind its last slash.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let last = name.iter().rposition(|letter| *letter == '/').map_or(0, |slash| slash + 1);
    is_match(&pattern, &name) || is_match(&pattern, &name[last..])
}

/// One pass with a single place to come back to: the last star.
fn is_match(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(letter) if *letter == '?' || *letter == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(repo: &str, include: &[&str]) -> Result<Wish, Refused> {
        let include = include.iter().map(|pattern| (*pattern).to_owned()).collect();
        Wish::read(&PullArgs { repo: repo.to_owned(), revision: "main".to_owned(), into: None, include })
    }

    fn choose(repo: &str, include: &[&str], names: &[&str]) -> anyhow::Result<Vec<String>> {
        let files: Vec<Listed> =
            names.iter().map(|name| Listed { name: (*name).to_owned(), size: Some(1_000_000) }).collect();
        wish(repo, include)?.choose(&files)
    }

    const FOLDER: [&str; 9] = [
        "README.md",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "consolidated.safetensors",
        "onnx/model.safetensors",
    ];
    const GGUFS: [&str; 3] = ["README.md", "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"];

    #[test]
    fn a_folder_is_what_its_loader_reads() {
        let chosen = choose("a/b", &[], &FOLDER).unwrap();
        assert_eq!(chosen, FOLDER[1..7]);
        assert_eq!(choose("a/b", &["*.json"], &FOLDER).unwrap(), [FOLDER[1], FOLDER[2], FOLDER[6]]);
    }

    #[test]
    fn one_of_several_ggufs_must_be_named() {
        let error = choose("a/b", &[], &GGUFS).unwrap_err().to_string();
        assert!(error.contains("millstream pull a/b:tiny-Q8_0.gguf  1 MB"), "{error}");
        assert_eq!(choose("a/b", &["*q8*", "*Q8*"], &GGUFS).unwrap(), ["tiny-Q8_0.gguf"]);
        assert_eq!(choose("a/b:tiny-Q8_0.gguf", &[], &GGUFS).unwrap(), ["tiny-Q8_0.gguf"]);
        let error = choose("a/b:tiny-Q9_0.gguf", &[], &GGUFS).unwrap_err().to_string();
        assert!(error.contains("did you mean tiny-Q8_0.gguf?"), "{error}");
        let error = choose("a/b", &[], &["pytorch_model.bin"]).unwrap_err().to_string();
        assert!(error.contains("pytorch_model.bin"), "{error}");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for repo in ["../x", "a/../b", "a//b", "/a", "a/b/c", "a/b:../c", "a/b:", "a b/c", ""] {
            assert!(wish(repo, &[]).is_err(), "{repo}");
        }
        for name in ["a\0", "a\n", "\u{1b}[31m.gguf", "a\u{9b}31m", "a\\b"] {
            assert!(!is_inside(name), "{name:?}");
        }
        for repo in ["gpt2", "a/b", "a/b:sub/c.gguf", "https://huggingface.co/a/b"] {
            assert!(wish(repo, &[]).is_ok(), "{repo}");
        }
    }

    #[test]
    fn patterns_match() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*Q4*M.gguf", "x-Q4_K_M.gguf", true),
            ("Q?.gguf", "sub/Q4.gguf", true),
            ("sub/*", "sub/Q4.gguf", true),
            ("*a*b", "aab ab", true),
            ("*a*b", "aaba", false),
            ("q4", "Q4", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
