//! Tables of requests, as CSV with a heading: Azure's of 2023 and 2024, and BurstGPT's. They have times and lengths, and say
//! nothing of what prompts begin with.

use super::{Lines, Round, Stamped, TraceError, nanos, tokens};

/// Whether a heading is Azure's.
pub(super) fn is_azure(line: &str) -> bool {
    line.contains("ContextTokens") && line.contains("GeneratedTokens")
}

/// Whether a heading is BurstGPT's.
pub(super) fn is_burst(line: &str) -> bool {
    line.contains("Request tokens") && line.contains("Response tokens")
}

/// Where what is wanted stands in a line.
pub(super) struct Columns {
    time: usize,
    input: usize,
    output: usize,
}

impl Columns {
    /// Takes the heading.
    pub(super) fn read(lines: &mut Lines) -> Result<Self, TraceError> {
        let heading = lines.read()?.unwrap_or_default();
        let place = |names: [&str; 2]| {
            let found = heading.split(',').position(|cell| names.contains(&cell.trim().trim_matches('"')));
            found.ok_or_else(|| lines.wrong(format!("the heading has no column {}", names.join(" or "))))
        };
        Ok(Self {
            time: place(["TIMESTAMP", "Timestamp"])?,
            input: place(["ContextTokens", "Request tokens"])?,
            output: place(["GeneratedTokens", "Response tokens"])?,
        })
    }

    /// A line. One without an answer is a request that failed, and passed over.
    pub(super) fn talk(&self, line: &str) -> Result<Option<Stamped>, String> {
        let cells: Vec<&str> = line.split(',').map(|cell| cell.trim().trim_matches('"')).collect();
        let cell = |place: usize| {
            let found = cells.get(place).copied();
            found.ok_or_else(|| format!("has {} columns, and the heading more", cells.len()))
        };
        let count = |place: usize| {
            let text = cell(place)?;
            let count = text.parse::<f64>().ok().filter(|count| (0.0..1e18).contains(count));
            count.map(|count| count as u64).ok_or_else(|| format!("\"{text}\" is no number of tokens"))
        };
        let (input, output) =
            (tokens("the prompt", count(self.input)?)?, tokens("the answer", count(self.output)?)?);
        if input == 0 || output == 0 {
            return Ok(None);
        }
        Ok(Some((time(cell(self.time)?)?, Round { input, output, ..Round::default() })))
    }
}

/// Seconds, or a moment such as `2023-11-16 18:17:03.9799600`.
fn time(text: &str) -> Result<i128, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return nanos("the time", seconds, 1e9);
    }
    moment(text)
        .ok_or_else(|| format!("\"{text}\" is neither seconds nor a time such as 2023-11-16 18:17:03.97"))
}

/// Nanoseconds since the beginning of 1970, if this is a moment. One that names a zone is taken as if all did the same.
fn moment(text: &str) -> Option<i128> {
    let (date, clock) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let clock = clock.trim_end_matches('Z').split('+').next()?;
    let mut clock = clock.splitn(3, ':');
    let (hour, minute) = (clock.next()?.parse::<i64>().ok()?, clock.next()?.parse::<i64>().ok()?);
    let second = clock.next().unwrap_or("0").parse::<f64>().ok()?;
    let sane = (1..=12).contains(&month) && (1..=31).contains(&day) && (0.0..61.0).contains(&second);
    if !sane || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(1..10_000).contains(&year) {
        return None;
    }
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute;
    Some(i128::from(minutes) * 60_000_000_000 + (second * 1e9).round() as i128)
}

/// Days from the beginning of 1970 to a date of the Gregorian calendar; years begin in March here, so that a leap day is the
/// last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}
