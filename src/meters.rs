//! Counters and histograms of what clients see. The desk writes them, because every answer passes there; `/metrics`
//! reads them.

use std::time::Duration;

use millstream_actors::request::{Outcome, Refusal, Usage};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

/// What has been served since the start.
#[derive(Clone, Debug)]
pub struct Meters {
    registry: Registry,
    requests: IntCounterVec,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    first_token: Histogram,
    next_token: Histogram,
}

impl Meters {
    /// All at zero.
    ///
    /// # Errors
    /// When a name is refused or taken, which the tests rule out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let requests = Opts::new("millstream_requests_total", "Requests that ended, by outcome.");
        let requests = IntCounterVec::new(requests, &["outcome"])?;
        let counter = |name: &str, help: &str| IntCounter::new(name, help);
        let meters = Self {
            requests,
            prompt_tokens: counter(
                "millstream_prompt_tokens_total",
                "Tokens of prompts, by the usage reported.",
            )?,
            completion_tokens: counter(
                "millstream_completion_tokens_total",
                "Tokens of answers, by the usage reported.",
            )?,
            first_token: histogram(
                "millstream_first_token_seconds",
                "From the request's admission to its first token.",
                &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0],
            )?,
            next_token: histogram(
                "millstream_inter_token_seconds",
                "Between two tokens of one answer.",
                &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0],
            )?,
            registry,
        };
        meters.register()?;
        Ok(meters)
    }

    fn register(&self) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(self.requests.clone()))?;
        self.registry.register(Box::new(self.prompt_tokens.clone()))?;
        self.registry.register(Box::new(self.completion_tokens.clone()))?;
        self.registry.register(Box::new(self.first_token.clone()))?;
        self.registry.register(Box::new(self.next_token.clone()))?;
        for outcome in [
            "finished",
            "cancelled",
            "expired",
            "refused_overload",
            "refused_too_long",
            "refused_image",
            "refused_invalid",
            "failed",
        ] {
            self.requests.with_label_values(&[outcome]);
        }
        Ok(())
    }

    /// Everything as families, for `/metrics`.
    pub(crate) fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.registry.gather()
    }

    /// Tokens have come: `since` is the time since the request or since its last tokens.
    pub(crate) fn tokens(&self, first: bool, since: Duration, tokens: usize) {
        let seconds = since.as_secs_f64();
        let mut rest = tokens;
        if first && rest > 0 {
            self.first_token.observe(seconds);
            rest -= 1;
        }
        let each = if first || tokens == 0 { 0.0 } else { seconds / tokens as f64 };
        for _ in 0..rest {
            self.next_token.observe(each);
        }
    }

    /// A request has ended.
    pub(crate) fn ended(&self, outcome: &Outcome, usage: Usage) {
        self.requests.with_label_values(&[outcome_name(outcome)]).inc();
        self.prompt_tokens.inc_by(usage.prompt_tokens.into());
        self.completion_tokens.inc_by(usage.completion_tokens.into());
    }

    /// A request was refused before the gateway saw it.
    pub(crate) fn turned_away(&self) {
        self.requests.with_label_values(&["refused_overload"]).inc();
    }

    /// Requests that ended with this outcome.
    pub fn count(&self, outcome: &str) -> u64 {
        self.requests.with_label_values(&[outcome]).get()
    }
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
}

/// The label of an outcome.
pub(crate) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Finished(_) => "finished",
        Outcome::Cancelled => "cancelled",
        Outcome::Expired => "expired",
        Outcome::Refused(Refusal::Overload { .. }) => "refused_overload",
        Outcome::Refused(Refusal::Late { .. }) => "refused_late",
        Outcome::Refused(Refusal::TooLong { .. }) => "refused_too_long",
        Outcome::Refused(Refusal::Image { .. }) => "refused_image",
        Outcome::Refused(Refusal::Invalid(_) | Refusal::Field { .. }) => "refused_invalid",
        Outcome::Failed(_) => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_and_outcomes_counted() {
        let meters = Meters::new().unwrap();
        let usage = Usage { prompt_tokens: 3, cached_tokens: 1, completion_tokens: 4, ..Usage::default() };
        meters.ended(&Outcome::Expired, usage);
        meters.tokens(true, Duration::from_millis(7), 2);
        assert_eq!((meters.count("expired"), meters.count("finished")), (1, 0));
        assert_eq!(meters.prompt_tokens.get(), 3);
        assert_eq!((meters.first_token.get_sample_count(), meters.next_token.get_sample_count()), (1, 1));
    }
}
