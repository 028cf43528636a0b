//! What a person writes for `plan`: a workload, a model, devices, prices, a goal, and what may be chosen. What is not known
//! is refused by name; what is not said has a default, which the report shows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A file as written.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What it is about, for people.
    #[serde(default)]
    pub title: String,
    /// What is asked.
    pub workload: Workload,
    /// What answers. Without it nothing is searched, and `fleet` says how many devices there are.
    pub model: Option<ModelSpec>,
    /// What computes, and what it costs.
    pub device: DeviceSpec,
    /// Devices that are there already.
    pub fleet: Option<Fleet>,
    /// How fast answers must be.
    pub goal: Option<Goal>,
    /// What clients pay.
    pub prices: Option<Prices>,
    /// Where what was computed is kept.
    #[serde(default)]
    pub tiers: Tiers,
    /// What is tried.
    #[serde(default)]
    pub search: Search,
    /// What others have said, to be held beside what comes out.
    #[serde(default)]
    pub published: Vec<Published>,
    /// Where a field's value is from, by its name (`"workload.hit_share"`) or that of its part (`"device"`). What has no
    /// source is shown as assumed.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

/// What is asked: tokens of a day, or requests of a day with their lengths.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Tokens of prompts and answers in a day; with `prompt` and `answer`.
    pub tokens_a_day: Option<f64>,
    /// Requests in a day; with `prompt` and `answer`.
    pub requests_a_day: Option<f64>,
    /// Tokens of prompts in a day; with `output_a_day`.
    pub input_a_day: Option<f64>,
    /// Tokens of answers in a day.
    pub output_a_day: Option<f64>,
    /// Tokens of a prompt, in the mean.
    pub prompt: Option<f64>,
    /// Tokens of an answer, in the mean.
    pub answer: Option<f64>,
    /// The share of prompt tokens that are found, however long they are kept.
    pub hit_share: Option<f64>,
    /// The same by how long they are kept.
    pub hits: Vec<Hit>,
    /// A trace that names blocks, from which lengths and shares are counted where they are not said.
    pub trace: Option<String>,
    /// How many times as many requests come in the busiest hour as in the mean.
    pub peak: Option<f64>,
    /// Standard deviation of the time that a prompt takes, over its mean.
    pub spread: Option<f64>,
    /// From the first to the last use of a block, in the mean.
    pub used_for: Option<Span>,
}

/// The share that is found of what is kept so long after its last use.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hit {
    /// How long.
    pub kept: Span,
    /// Of prompt tokens.
    pub share: f64,
    /// For how long a block is there for each time that it is asked, in seconds, where that was counted.
    #[serde(skip)]
    pub there_s: Option<f64>,
}

/// What answers: settings from which everything is counted, or figures.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpec {
    /// A `config.json` or its folder, beside this file; or `builtin`.
    pub config: Option<String>,
    /// Or figures by hand.
    pub figures: Option<Counted>,
    /// Bytes of a weight that every token needs.
    pub weight_bytes: f64,
    /// Bytes of a weight of experts.
    pub expert_bytes: f64,
    /// How keys and values are stored.
    pub kv: Kv,
    /// What is computed once more behind a hit, in a model with a state.
    pub replay: Replay,
    /// Later layers read only the end of a prompt, in a model of two halves.
    pub decoder_truncation: bool,
    /// Tokens that are drafted each step.
    pub drafts: u32,
    /// Those of them that are accepted, in the mean.
    pub accepted: f64,
}

impl Default for ModelSpec {
    /// Two bytes a weight, 16 bits a number of keys and values, nothing approximated, nothing drafted.
    fn default() -> Self {
        Self {
            config: None,
            figures: None,
            weight_bytes: 2.0,
            expert_bytes: 2.0,
            kv: Kv::F16,
            replay: Replay::Exact,
            decoder_truncation: false,
            drafts: 0,
            accepted: 0.0,
        }
    }
}

/// Figures of a model, in place of its settings.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Layers.
    pub layers: u32,
    /// Numbers that a token is between layers.
    pub hidden: f64,
    /// Products with weights of a token of a prompt, output matrix left out.
    pub multiply_adds: f64,
    /// Products with keys and values of a token and one position before it.
    pub pair: f64,
    /// Numbers of the output matrix.
    pub head: f64,
    /// Numbers of weights that every token needs.
    pub weights: f64,
    /// Numbers of weights of all experts.
    #[serde(default)]
    pub experts: f64,
    /// The share of experts that a token chooses.
    #[serde(default)]
    pub chosen: f64,
    /// Experts that a token is sent to, in each layer.
    #[serde(default)]
    pub experts_per_token: f64,
    /// Bytes of keys and values of a token.
    pub kv_bytes: f64,
    /// Bytes that a sequence keeps beside its blocks.
    #[serde(default)]
    pub state_bytes: f64,
}

/// How numbers of keys and values are stored.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kv {
    /// Four bytes.
    F32,
    /// Two.
    F16,
    /// One, and scales.
    Q8,
    /// A half, and scales.
    Fp4,
}

/// What is computed once more behind a hit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Replay {
    /// So much that the answer is exact.
    Exact,
    /// One window.
    Bounded,
    /// Nothing.
    Snapshot,
}

/// What computes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// A device of the table of `simulate --device`; what is said here counts before it.
    pub name: Option<String>,
    /// Floating-point operations a second at most.
    pub flops: Option<f64>,
    /// Bytes of its memory a second at most.
    pub bytes_per_second: Option<f64>,
    /// The share of `flops` that is reached.
    pub flops_share: Option<f64>,
    /// The share of `bytes_per_second` that is reached.
    pub bytes_share: Option<f64>,
    /// Microseconds that every step takes beside that.
    pub step_us: Option<f64>,
    /// Bytes of its memory.
    pub memory: Option<Size>,
    /// The share of `memory` for weights, keys and values.
    #[serde(default = "nine_tenths")]
    pub memory_share: f64,
    /// Devices of a host.
    #[serde(default = "eight")]
    pub host_devices: u32,
    /// Bytes a second that a device sends to others of its host.
    #[serde(default = "host_link")]
    pub host_bytes_per_second: f64,
    /// Bytes a second that a device sends to other hosts.
    #[serde(default = "far_link")]
    pub link_bytes_per_second: f64,
    /// Microseconds of each exchange between the devices of a group.
    #[serde(default = "exchange")]
    pub exchange_us: f64,
    /// What it costs for an hour.
    pub hour: f64,
}

fn nine_tenths() -> f64 {
    0.9
}

fn eight() -> u32 {
    8
}

fn host_link() -> f64 {
    450e9
}

fn far_link() -> f64 {
    50e9
}

fn exchange() -> f64 {
    10.0
}

/// Devices that are there already, in the mean of a day.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// How many hosts.
    pub hosts: f64,
}

/// How fast answers must be.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Milliseconds to the first token.
    pub first_token_ms: f64,
    /// Of the mean, or of this share of all requests.
    pub share: Option<f64>,
    /// Milliseconds from token to token.
    pub between_tokens_ms: f64,
}

/// What clients pay for a million tokens.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Of prompts, found.
    pub hit: f64,
    /// Of prompts, computed.
    pub miss: f64,
    /// Of answers.
    pub output: f64,
}

/// Where what was computed is kept. One that is not named is not there.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tiers {
    /// Memory of hosts.
    pub host: Option<TierSpec>,
    /// Disks of hosts.
    pub disk: Option<TierSpec>,
    /// A store that all hosts reach.
    pub shared: Option<TierSpec>,
}

/// One of them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierSpec {
    /// Bytes of it for each device; without a number as many as are wanted.
    pub size: Option<Size>,
    /// Bytes a second that a device reads.
    pub bytes_per_second: f64,
    /// Microseconds of a read beside its bytes.
    #[serde(default)]
    pub latency_us: f64,
    /// What a GiB costs for a month.
    #[serde(default)]
    pub gib_month: f64,
    /// How many copies of everything it keeps.
    #[serde(default = "one")]
    pub copies: f64,
}

fn one() -> f64 {
    1.0
}

/// What is tried.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Search {
    /// Devices of a prefill group.
    pub prefill: Vec<u32>,
    /// Devices of a decode group.
    pub decode: Vec<u32>,
    /// Devices of a group that does both.
    pub joined: Vec<u32>,
    /// Tokens of prompts in a step.
    pub chunks: Vec<u32>,
    /// How long blocks are kept after their last use.
    pub retention: Vec<Span>,
    /// The largest share of their time that groups compute prompts in.
    pub busy: f64,
}

impl Default for Search {
    /// Groups of 1 to 64 devices, chunks of 1,024 to 16,384 tokens, five times from an hour to a week, busy for 95 %.
    fn default() -> Self {
        let sizes = vec![1, 2, 4, 8, 16, 32, 64];
        let day = 86_400.0;
        Self {
            prefill: sizes.clone(),
            decode: sizes.clone(),
            joined: sizes,
            chunks: vec![1_024, 2_048, 4_096, 8_192, 16_384],
            retention: [3_600.0, 6.0 * 3_600.0, day, 3.0 * day, 7.0 * day].map(Span).to_vec(),
            busy: 0.95,
        }
    }
}

/// A figure that others have said.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Which.
    pub figure: Figure,
    /// How long blocks are kept in it, where that matters.
    pub kept: Option<Span>,
    /// What they say.
    pub value: f64,
    /// Who.
    pub source: String,
}

/// Figures that can be held beside what others say.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Devices, in all.
    Devices,
    /// Money of a day for devices and stores.
    CostADay,
    /// Money of a day from clients.
    RevenueADay,
    /// What is left of it, over what it costs, in percent.
    MarginPercent,
    /// Bytes kept.
    StoreBytes,
    /// Bytes read in a second, in the mean.
    StoreReadPerSecond,
    /// Bytes of keys and values of a token.
    KvBytesPerToken,
}

/// Seconds, written as `3d`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Span(pub f64);

/// Bytes, written as `80GiB`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Size(pub f64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is no time: write one such as \"3d\""));
        millstream_topology::time_of(&text).map(|time| Span(time.as_secs_f64())).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is no size: write one such as \"80GiB\""));
        millstream_topology::size_of(&text).map(|bytes| Size(bytes as f64)).ok_or_else(wrong)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(&super::text::span(self.0))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(&super::text::bytes(self.0))
    }
}

impl Spec {
    /// Reads a file's text, and which fields it has.
    ///
    /// # Errors
    /// Where it is wrong, and what is known instead.
    pub fn read(text: &str) -> Result<(Self, Written), String> {
        let spec: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut written = Written::new();
        collect(&table, "", &mut written);
        Ok((spec, written))
    }
}

/// Names of fields that a file has, such as `device.hour`.
pub type Written = BTreeSet<String>;

fn collect(table: &toml::Table, before: &str, into: &mut Written) {
    for (name, value) in table {
        let path = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            toml::Value::Table(table) if path != "sources" => collect(table, &path, into),
            _ => drop(into.insert(path)),
        }
    }
}
