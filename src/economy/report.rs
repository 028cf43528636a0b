//! What came of a plan, for programs; `text` has the same for people. Numbers are rounded to six digits that count.

use serde::{Serialize, Serializer};

use super::search::{Choice, Groups};
use super::text::span;

/// See the module. All times are seconds where a name does not say otherwise; money has the unit of the file.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What it is about.
    pub title: String,
    /// What is asked, in sentences.
    pub demand: Vec<String>,
    /// How many choices were tried.
    pub tried: u64,
    /// The cheapest.
    pub best: Option<Line>,
    /// Some behind it.
    pub others: Vec<Line>,
    /// Why there is none.
    pub why_none: Vec<String>,
    /// When groups should not be apart.
    pub parting: Vec<String>,
    /// Costs by hit share and retention.
    pub table: Option<Table>,
    /// What each tier would keep for each time.
    pub kept: Vec<Kept>,
    /// Money of a day.
    pub money: Option<Money>,
    /// Beside what others say.
    pub published: Vec<Beside>,
    /// How it is counted, with sources.
    pub method: Vec<String>,
    /// Every input, and where it is from.
    pub assumptions: Vec<Assumption>,
}

/// One way to reach the goal.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Whether prompts and answers share groups.
    pub joined: bool,
    /// Its groups, in few words.
    pub shape: String,
    /// Its groups, in sentences.
    pub groups: Vec<String>,
    /// Devices of groups that compute prompts over those of groups that give answers.
    #[serde(serialize_with = "option")]
    pub ratio: Option<f64>,
    /// Where blocks are kept.
    pub tier: Option<String>,
    /// For how long.
    #[serde(serialize_with = "six")]
    pub kept_s: f64,
    /// The share of prompt tokens that is there.
    #[serde(serialize_with = "six")]
    pub found: f64,
    /// The share that is fetched.
    #[serde(serialize_with = "six")]
    pub fetched: f64,
    /// In all.
    #[serde(serialize_with = "six")]
    pub devices: f64,
    /// Milliseconds.
    #[serde(serialize_with = "six")]
    pub first_token_ms: f64,
    /// Milliseconds, in a full group.
    #[serde(serialize_with = "six")]
    pub between_tokens_ms: f64,
    /// Bytes kept.
    #[serde(serialize_with = "six")]
    pub held_bytes: f64,
    /// Bytes, in the mean.
    #[serde(serialize_with = "six")]
    pub read_per_second: f64,
    /// Bytes, in the mean.
    #[serde(serialize_with = "six")]
    pub written_per_second: f64,
    /// Of what is kept.
    #[serde(serialize_with = "six")]
    pub held_a_day: f64,
    /// Of everything.
    #[serde(serialize_with = "six")]
    pub cost_a_day: f64,
    /// Of prompts and answers.
    #[serde(serialize_with = "six")]
    pub million_tokens: f64,
}

/// What a million tokens cost.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Where blocks are kept.
    pub tier: String,
    /// Columns.
    pub kept_s: Vec<f64>,
    /// By hit share.
    pub rows: Vec<Row>,
}

/// A row of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Of prompt tokens.
    pub hit_share: f64,
    /// None where the goal is not reached.
    #[serde(serialize_with = "options")]
    pub million_tokens: Vec<Option<f64>>,
}

/// What a tier would keep for a time.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// Which.
    pub tier: String,
    /// For how long.
    pub kept_s: f64,
    /// The share of prompt tokens that is there.
    #[serde(serialize_with = "six")]
    pub found: f64,
    /// Bytes kept.
    #[serde(serialize_with = "six")]
    pub held_bytes: f64,
    /// Bytes, in the mean.
    #[serde(serialize_with = "six")]
    pub read_per_second: f64,
    /// Bytes, in the mean.
    #[serde(serialize_with = "six")]
    pub written_per_second: f64,
    /// Money.
    #[serde(serialize_with = "six")]
    pub held_a_day: f64,
    /// Of the cheapest choice with it; none where the goal is not reached, or there is no room.
    #[serde(serialize_with = "option")]
    pub devices: Option<f64>,
    /// The same.
    #[serde(serialize_with = "option")]
    pub million_tokens: Option<f64>,
}

/// Money of a day.
#[derive(Clone, Debug, Serialize)]
pub struct Money {
    /// Hours of one device.
    #[serde(serialize_with = "six")]
    pub device_hours: f64,
    /// Of devices and of what is kept.
    #[serde(serialize_with = "six")]
    pub cost: f64,
    /// Of prompts and answers.
    #[serde(serialize_with = "six")]
    pub million_tokens: f64,
    /// Of answers.
    #[serde(serialize_with = "six")]
    pub million_answer_tokens: f64,
    /// What clients pay, where prices are said.
    pub income: Option<Income>,
}

/// What clients pay in a day.
#[derive(Clone, Debug, Serialize)]
pub struct Income {
    /// In all.
    #[serde(serialize_with = "six")]
    pub revenue: f64,
    /// For prompt tokens that are found.
    #[serde(serialize_with = "six")]
    pub hits: f64,
    /// For others.
    #[serde(serialize_with = "six")]
    pub misses: f64,
    /// For answers.
    #[serde(serialize_with = "six")]
    pub answers: f64,
    /// What is left, over the cost.
    #[serde(serialize_with = "six")]
    pub margin_percent: f64,
}

/// A figure beside what others say.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// Which.
    pub name: String,
    /// What they say.
    #[serde(serialize_with = "six")]
    pub value: f64,
    /// What comes out here.
    #[serde(serialize_with = "option")]
    pub computed: Option<f64>,
    /// This over that.
    #[serde(serialize_with = "option")]
    pub ratio: Option<f64>,
    /// What would explain the difference, where these inputs do not.
    pub rest: Option<String>,
    /// Who.
    pub source: String,
}

/// An input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// Its field.
    pub name: String,
    /// As it was taken.
    pub value: String,
    /// Where it is from.
    pub source: String,
}

/// Six digits that count.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(5 - value.abs().log10().floor() as i32);
    if scale.is_finite() && scale > 0.0 { (value * scale).round() / scale } else { value }
}

fn six<S: Serializer>(value: &f64, into: S) -> Result<S::Ok, S::Error> {
    into.serialize_f64(rounded(*value))
}

fn option<S: Serializer>(value: &Option<f64>, into: S) -> Result<S::Ok, S::Error> {
    value.map(rounded).serialize(into)
}

fn options<S: Serializer>(values: &[Option<f64>], into: S) -> Result<S::Ok, S::Error> {
    into.collect_seq(values.iter().map(|value| value.map(rounded)))
}

impl Report {
    /// For programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| unreachable!("numbers and texts: {error}"))
    }
}

impl Line {
    /// A choice; `tokens` come in a day.
    pub(super) fn new(of: &Choice<'_>, tokens: f64, between_ms: f64) -> Self {
        let (shape, groups, ratio) = said(&of.groups);
        let between = match &of.groups {
            Groups::Split { decode, .. } => decode.1.between_ms,
            // A step takes what the goal leaves it.
            Groups::Joined(..) => between_ms,
        };
        Self {
            joined: of.groups.are_joined(),
            shape,
            groups,
            ratio,
            tier: of.keep.tier.map(|(name, _)| name.to_owned()),
            kept_s: of.keep.kept_s,
            found: of.keep.found,
            fetched: of.fetched,
            devices: of.devices,
            first_token_ms: of.groups.first_token_ms(),
            between_tokens_ms: between,
            held_bytes: of.held.bytes,
            read_per_second: of.held.read,
            written_per_second: of.held.written,
            held_a_day: 24.0 * of.held.hour,
            cost_a_day: 24.0 * of.hour,
            million_tokens: 24e6 * of.hour / tokens,
        }
    }

    /// What is kept, in few words.
    pub(super) fn keeps(&self) -> String {
        match &self.tier {
            Some(tier) => format!("{tier} for {}", span(self.kept_s)),
            None => "nothing kept".to_owned(),
        }
    }
}

fn said(groups: &Groups) -> (String, Vec<String>, Option<f64>) {
    match groups {
        Groups::Split { prefill: (size, chunk, prefill), decode: (wide, decode) } => {
            let (first, second) =
                (prefill.groups as f64 * f64::from(*size), decode.groups as f64 * f64::from(*wide));
            let sentences = vec![
                format!(
                    "prefill: {} groups of {size}, {chunk} tokens of prompts a step, busy {:.0} %",
                    prefill.groups,
                    100.0 * prefill.busy
                ),
                format!(
                    "decode: {} groups of {wide}, {} sequences each at most, {:.0} % of them at once",
                    decode.groups,
                    decode.batch,
                    100.0 * decode.running
                ),
                format!("devices of prefill to decode: {:.3} to 1", first / second),
            ];
            let shape = format!("{} x {size} prefill, {} x {wide} decode", prefill.groups, decode.groups);
            (shape, sentences, Some(first / second))
        }
        Groups::Joined(size, joined) => {
            let sentence = format!(
                "joined: {} groups of {size}, {} sequences each at most, {} tokens of prompts a step, busy {:.0} %",
                joined.groups,
                joined.batch,
                joined.chunk,
                100.0 * joined.busy
            );
            (format!("{} x {size} joined", joined.groups), vec![sentence], None)
        }
    }
}
