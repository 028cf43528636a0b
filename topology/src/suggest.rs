//! "Did you mean": the nearest of a few known words, and how words of a file are quoted in messages.

/// Words longer than this are not compared: the cost of a hostile file stays small.
const COMPARED_MAX: usize = 48;

/// A word of the file in quotes, its control characters made visible and its length bounded.
pub(crate) fn quote(word: &str) -> String {
    let mut out = String::from("\"");
    for (i, c) in word.chars().enumerate() {
        if i == 60 {
            out.push('…');
            break;
        }
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The known word nearest to `word`, if one is near: few letters differ, or the same parts stand in another order.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > COMPARED_MAX || word.is_empty() {
        return None;
    }
    let lower = word.to_lowercase().replace('-', "_");
    let parts = sorted_parts(&lower);
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        if candidate.len() > COMPARED_MAX {
            continue;
        }
        let distance = match sorted_parts(candidate) == parts {
            true => 0,
            false => strsim::damerau_levenshtein(&lower, candidate),
        };
        let allowed = (lower.len().min(candidate.len()) / 3).max(1);
        if distance <= allowed && best.is_none_or(|(known, _)| distance < known) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate).filter(|candidate| *candidate != word)
}

/// `did you mean "x"?`, or else the list of what is known, if it is short.
pub(crate) fn help<'a>(word: &str, what: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(word, known.iter().copied()) {
        Some(candidate) => format!("did you mean {}?", quote(candidate)),
        None => listed(what, &known),
    }
}

/// `known keys: a, b, c`.
pub(crate) fn listed(what: &str, known: &[&str]) -> String {
    let shown: Vec<&str> = known.iter().take(24).copied().collect();
    let more = if known.len() > shown.len() { ", …" } else { "" };
    match shown.is_empty() {
        true => format!("there are no {what}"),
        false => format!("known {what}: {}{more}", shown.join(", ")),
    }
}

fn sorted_parts(word: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = word.split('_').collect();
    parts.sort_unstable();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["requests_max", "chunk_tokens", "lease"];
        assert_eq!(nearest("chunk_token", known), Some("chunk_tokens"));
        assert_eq!(nearest("max_requests", known), Some("requests_max"));
        assert_eq!(nearest("Lease", known), Some("lease"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
    }

    #[test]
    fn quoted_words_are_short_and_tame() {
        assert_eq!(quote("a\u{1b}[31m"), "\"a\\u{1b}[31m\"");
        assert!(quote(&"x".repeat(1 << 20)).chars().count() < 70);
    }
}
