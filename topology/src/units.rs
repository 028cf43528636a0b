//! Durations and sizes as people write them. The unit is never left to be guessed: a number without one is refused.

use std::time::Duration;

/// Units of time, smallest first, in milliseconds.
pub(crate) const TIME_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Units of size, in bytes: the binary ones first, since they are preferred when printing.
pub(crate) const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Why a quantity could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Digits and nothing else.
    NoUnit,
    /// A number, then this, which is no unit of the list.
    Unit { number: String, unit: String },
    /// Not a whole number followed by letters.
    Form,
    /// Larger than 64 bits hold.
    TooLarge,
}

/// Reads a whole number and a unit of the list, as in `60ms`.
pub(crate) fn read(text: &str, units: &[(&str, u64)]) -> Result<u64, Unreadable> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(Unreadable::Form);
    }
    if unit.is_empty() {
        return Err(Unreadable::NoUnit);
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let unit = unit.trim();
        if unit.is_empty() || !unit.chars().all(char::is_alphabetic) {
            return Err(Unreadable::Form);
        }
        return Err(Unreadable::Unit { number: number.to_owned(), unit: unit.to_owned() });
    };
    let number: u64 = number.parse().map_err(|_| Unreadable::TooLarge)?;
    number.checked_mul(*scale).ok_or(Unreadable::TooLarge)
}

/// The duration that a file would write so, such as `60ms` or `3d`.
pub fn time_of(text: &str) -> Option<Duration> {
    read(text, TIME_UNITS).ok().map(Duration::from_millis)
}

/// The bytes that a file would write so, such as `20GiB`.
pub fn size_of(text: &str) -> Option<u64> {
    read(text, SIZE_UNITS).ok()
}

/// A duration in the largest unit that divides it.
pub(crate) fn write_time(time: Duration) -> String {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (unit, scale) =
        TIME_UNITS.iter().rev().find(|(_, scale)| ms.is_multiple_of(*scale)).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / scale)
}

/// A size in the largest binary unit that divides it, or else the largest decimal one.
pub(crate) fn write_size(bytes: u64) -> String {
    let (unit, scale) =
        SIZE_UNITS.iter().find(|(_, scale)| bytes.is_multiple_of(*scale)).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for ms in [1, 60, 1_000, 1_500, 60_000, 86_400_000, 3 * 86_400_000] {
            assert_eq!(read(&write_time(Duration::from_millis(ms)), TIME_UNITS), Ok(ms));
        }
        for bytes in [1, 1_000, 1_024, 4_000_000, 4 << 20, 20 << 30, 1 << 50, 12_345] {
            assert_eq!(read(&write_size(bytes), SIZE_UNITS), Ok(bytes));
        }
        assert_eq!(write_size(20 << 30), "20GiB");
        assert_eq!(write_size(4_000_000), "4MB");
        assert_eq!(write_time(Duration::from_secs(90)), "90s");
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        assert_eq!(read("30", TIME_UNITS), Err(Unreadable::NoUnit));
        assert_eq!(read("", TIME_UNITS), Err(Unreadable::Form));
        assert_eq!(read("1.5s", TIME_UNITS), Err(Unreadable::Form));
        assert_eq!(read("-3s", TIME_UNITS), Err(Unreadable::Form));
        assert_eq!(
            read("30sec", TIME_UNITS),
            Err(Unreadable::Unit { number: "30".into(), unit: "sec".into() })
        );
        assert_eq!(read("99999999999999999999s", TIME_UNITS), Err(Unreadable::TooLarge));
        assert_eq!(read("18446744073709551615d", TIME_UNITS), Err(Unreadable::TooLarge));
    }
}
