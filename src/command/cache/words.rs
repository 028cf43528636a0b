//! Sizes, ages and counts as people read them.

/// Bytes in the largest unit that has a digit before the point.
pub(super) fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

/// A length of time in its largest unit, cut off.
pub(super) fn age(seconds: u32) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    match units.iter().find(|(_, scale)| seconds >= *scale) {
        Some((unit, scale)) => format!("{}{unit}", seconds / scale),
        None => format!("{seconds}s"),
    }
}

/// A number with its word.
pub(super) fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// What somebody else wrote, with nothing in it that a terminal obeys.
pub(super) fn plain(text: &str) -> String {
    let shown = |letter: char| {
        if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_a_digit_before_the_point() {
        assert_eq!(
            [0, 1023, 1024, 1 << 20, 3 << 39].map(size),
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 TiB"]
        );
        assert_eq!([0, 59, 60, 7_199, 86_400].map(age), ["0s", "59s", "1m", "1h", "1d"]);
        assert_eq!([count(1, "block"), count(2, "block")], ["1 block", "2 blocks"]);
        assert_eq!(plain("größe\u{1b}[2J\n"), "größe\\u{1b}[2J\\n");
    }
}
