//! "Did you mean": the nearest of the known names, when one is near enough to be a slip of the finger.

/// The known name nearest to `wrong`, if it is near.
pub(crate) fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong: String = wrong.chars().take(64).collect();
    known
        .map(|name| (strsim::damerau_levenshtein(&wrong, name), name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["temperature", "top_p", "stop"];
        assert_eq!(nearest("tempratur", known.into_iter()), Some("temperature"));
        assert_eq!(nearest("sotp", known.into_iter()), Some("stop"));
        assert_eq!(nearest("banana", known.into_iter()), None);
    }
}
