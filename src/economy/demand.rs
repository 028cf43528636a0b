//! What is asked in a second, and how much of it is found by how long blocks are kept.

use super::spec::{Hit, Span, Workload};

/// Seconds of a day.
pub(super) const DAY: f64 = 86_400.0;

/// What a trace says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Tokens of a prompt, in the mean.
    pub prompt: f64,
    /// Tokens of an answer, in the mean.
    pub answer: f64,
    /// Shares of blocks that are found.
    pub hits: Vec<Hit>,
    /// From the first to the last use of a block, in the mean, in seconds.
    pub used_s: f64,
}

/// What is asked. Lengths are known only where requests are.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Tokens of prompts in a day.
    pub input_a_day: f64,
    /// Tokens of answers in a day.
    pub output_a_day: f64,
    /// Tokens of a prompt; 0: not said.
    pub prompt: f64,
    /// Tokens of an answer; 0: not said.
    pub answer: f64,
    /// What is found.
    pub hits: Hits,
    /// Of the busiest hour over the mean.
    pub peak: f64,
    /// Of the times that prompts take.
    pub spread: f64,
    /// From the first to the last use of a block.
    pub used_s: f64,
}

/// The share of prompt tokens that is found, by how long blocks are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Hits {
    /// Whatever is kept.
    Always(f64),
    /// Points, in order; between two of them as much is found as at the earlier one, before the first nothing.
    ByTime(Vec<Hit>),
}

impl Hits {
    /// The share that is found of what is kept for so many seconds.
    pub fn share(&self, kept: f64) -> f64 {
        let points = match self {
            Self::Always(share) => return *share,
            Self::ByTime(points) => points,
        };
        let before = points.partition_point(|point| point.kept.0 <= kept).checked_sub(1);
        before.map_or(0.0, |at| points[at].share)
    }

    /// For how long a block is there for each time that it is asked, where that was counted.
    pub(super) fn there_s(&self, kept: f64) -> Option<f64> {
        let Self::ByTime(points) = self else { return None };
        points.iter().find(|point| point.kept.0 == kept)?.there_s
    }
}

impl Demand {
    /// What a workload comes to, which was checked; what it leaves out is as the trace says.
    ///
    /// # Errors
    /// What is missing, or said twice.
    pub fn new(workload: &Workload, seen: Option<&Seen>) -> Result<Self, String> {
        let prompt = workload.prompt.or(seen.map(|seen| seen.prompt)).unwrap_or(0.0);
        let answer = workload.answer.or(seen.map(|seen| seen.answer)).unwrap_or(0.0);
        let lengths = prompt > 0.0 && answer > 0.0;
        let long = "[workload] says how many come in a day and not how long they are: say prompt and answer";
        let of_requests = |requests: f64| (requests * prompt, requests * answer);
        let Workload { tokens_a_day, requests_a_day, input_a_day, output_a_day, .. } = *workload;
        let (input, output) = match (tokens_a_day, requests_a_day, input_a_day, output_a_day) {
            (Some(_), None, None, None) | (None, Some(_), None, None) if !lengths => {
                return Err(long.to_owned());
            }
            (Some(tokens), None, None, None) => of_requests(tokens / (prompt + answer)),
            (None, Some(requests), None, None) => of_requests(requests),
            (None, None, Some(input), Some(output)) => (input, output),
            _ => {
                return Err(
                    "[workload] must say one of: tokens_a_day; requests_a_day; input_a_day and output_a_day"
                        .to_owned(),
                );
            }
        };
        let answer = if lengths { output * prompt / input } else { answer };
        let hits = hits(workload, seen)?;
        Ok(Self {
            input_a_day: input,
            output_a_day: output,
            prompt,
            answer,
            hits,
            peak: workload.peak.unwrap_or(1.0),
            spread: workload.spread.unwrap_or(1.0),
            used_s: workload.used_for.map_or(seen.map_or(0.0, |seen| seen.used_s), |span| span.0),
        })
    }

    /// What is wrong with keeping for so long.
    pub fn unknown(&self, kept: &[Span]) -> Option<String> {
        let Hits::ByTime(points) = &self.hits else { return None };
        let first = points.first().map_or(f64::INFINITY, |point| point.kept.0);
        let short = kept.iter().find(|kept| kept.0 < first)?;
        let [short, first] = [short.0, first].map(super::text::span);
        Some(format!(
            "search.retention has {short}, and nothing is known of what is found before {first}: say a hit of {short} \
             in workload.hits, or leave {short} out"
        ))
    }

    /// Requests in a second, in the mean.
    pub fn rate(&self) -> f64 {
        self.input_a_day / self.prompt / DAY
    }

    /// Requests in a second of the busiest hour.
    pub(super) fn busiest(&self) -> f64 {
        self.rate() * self.peak
    }
}

fn hits(workload: &Workload, seen: Option<&Seen>) -> Result<Hits, String> {
    let by_time = |mut points: Vec<Hit>| {
        points.sort_by(|a, b| a.kept.0.total_cmp(&b.kept.0));
        // What is kept longer is found at least as often.
        let mut most = 0.0_f64;
        points.iter_mut().for_each(|point| {
            most = most.max(point.share);
            point.share = most;
        });
        points.retain(|point| point.kept > Span(0.0));
        Hits::ByTime(points)
    };
    match (workload.hit_share, workload.hits.is_empty(), seen) {
        (Some(share), true, _) => Ok(Hits::Always(share)),
        (None, false, _) => Ok(by_time(workload.hits.clone())),
        (None, true, Some(seen)) => Ok(by_time(seen.hits.clone())),
        (Some(_), false, _) => Err("[workload] says hit_share and hits: one of them".to_owned()),
        (None, true, None) => Err("[workload] must say what is found: hit_share, hits, or trace".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_between_two_points_finds_what_the_earlier_one_says() {
        let at = |kept, share| Hit { kept: Span(kept), share, there_s: None };
        let hits = Hits::ByTime(vec![at(10.0, 0.2), at(1_000.0, 0.8)]);
        assert_eq!([9.9, 10.0, 999.0, 1_000.0, 1e9].map(|kept| hits.share(kept)), [0.0, 0.2, 0.2, 0.8, 0.8]);
    }

    #[test]
    fn a_day_of_tokens_is_cut_into_requests() {
        let workload = Workload {
            tokens_a_day: Some(86_400.0 * 110.0),
            prompt: Some(100.0),
            answer: Some(10.0),
            hit_share: Some(0.5),
            ..Workload::default()
        };
        let demand = Demand::new(&workload, None).expect("it is whole");
        assert!((demand.rate() - 1.0).abs() < 1e-12 && (demand.answer - 10.0).abs() < 1e-9);
        let twice = Workload { requests_a_day: Some(1.0), ..workload.clone() };
        assert!(Demand::new(&twice, None).expect_err("two ways").contains("must say one of"));
        let short = Workload { answer: None, ..workload };
        assert!(Demand::new(&short, None).expect_err("no lengths").contains("say prompt and answer"));
    }
}
