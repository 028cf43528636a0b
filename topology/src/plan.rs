//! What the file resolves to: names looked up, defaults filled in, patterns written out. A plan is immutable and has an
//! id; two hosts that hold different plans refuse to speak. Everything downstream reads this and never the file.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{ActorName, HostName, PlanId, PortName};
use crate::units;

mod cache;
mod named;
mod routing;
mod time_text;
mod time_text_if_any;

pub(crate) use cache::CLASSES;
pub use cache::{Cache, Retention, Tenant, Tier};

/// The resolved topology. Made by [`crate::resolve`] or [`crate::check`], never changed afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Digest of all that follows but the notes.
    pub id: PlanId,
    /// What people call this topology.
    pub name: String,
    /// `builtin`, a folder, or a `.gguf` file.
    pub model: String,
    /// What quantised weights are multiplied with.
    pub activations: Activations,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// Whether the layers behind the last source of keys see only the newest tokens of a prompt, in models made for that.
    pub decoder_truncation: bool,
    /// Whether memory for keys, values and the host tier is taken from the system at the start, not when it is first
    /// written.
    pub reserve: bool,
    /// Every host, patterns written out, in natural order (`p2` before `p10`).
    pub hosts: Vec<Host>,
    /// Every actor, implied ones too: by role in the order of a request's road, then by name.
    pub actors: Vec<ActorPlan>,
    /// Every wire, standard ones too, in the order of a request's road.
    pub wires: Vec<Wire>,
    /// Restart budgets.
    pub limits: Limits,
    /// What becomes of known beginnings.
    pub cache: Cache,
    /// What the file asks for and is checked, but not built yet.
    pub notes: Vec<Note>,
}

impl Plan {
    /// The actors of one role.
    pub fn actors_of<'a>(&'a self, role: &'a Role) -> impl Iterator<Item = &'a ActorPlan> {
        self.actors.iter().filter(move |actor| actor.role == *role)
    }

    /// How images are looked at, where the file has an actor for it.
    pub fn encode(&self) -> Option<&EncodeSettings> {
        self.actors.iter().find_map(|actor| match &actor.settings {
            Settings::Encode(settings) => Some(settings),
            _ => None,
        })
    }

    /// The actor of this name.
    pub fn actor(&self, name: &str) -> Option<&ActorPlan> {
        self.actors.iter().find(|actor| actor.name == name)
    }

    /// The wire between two ports, named `actor.port`.
    pub fn wire(&self, from: &str, to: &str) -> Option<&Wire> {
        self.wires.iter().find(|wire| wire.from.is(from) && wire.to.is(to))
    }

    /// Whether decode computes prompts itself, so that nothing is handed over.
    pub fn joined(&self) -> bool {
        self.actors.iter().any(|actor| matches!(&actor.settings, Settings::Decode(group) if group.joined))
    }

    /// The unit that runs the seats of this actor: its own, or that of the decode which is joined to this prefill.
    pub fn unit(&self, name: &str) -> Option<&str> {
        let actor = self.actor(name)?;
        let joined = actor.role == Role::Prefill && self.joined();
        let actor = if joined { self.actors_of(&Role::Decode).next()? } else { actor };
        Some(actor.unit())
    }

    /// Why `serve` does not start this plan: one sentence that names every place of what is not built yet, or nothing.
    pub fn refusal(&self) -> Option<String> {
        let first = self.notes.first()?;
        let mut places: Vec<(&str, Vec<String>)> = Vec::new();
        for note in &self.notes {
            let place = format!("{}:{}", note.line, note.column);
            match places.iter_mut().find(|(subject, _)| *subject == note.subject) {
                Some((_, known)) => known.push(place),
                None => places.push((&note.subject, vec![place])),
            }
        }
        let said: Vec<String> =
            places.iter().map(|(subject, at)| format!("{subject} (at {})", at.join(", "))).collect();
        Some(format!("{} asks for what is not built yet: {}.", first.file, said.join("; ")))
    }
}

/// One process on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name, with its number where a pattern made it.
    pub name: HostName,
    /// `host:port` where others reach it; nothing for the only host.
    pub address: Option<String>,
    /// What it computes on.
    pub devices: Devices,
    /// Hosts of one supernode share a fast fabric.
    pub supernode: Option<String>,
}

/// What a host computes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Devices {
    /// The processor; every core can carry a rank.
    Cpu,
    /// GPUs by number, ascending.
    Cuda(Vec<u16>),
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Devices::Cuda(numbers) = self else { return f.write_str("cpu") };
        f.write_str("cuda:")?;
        for (i, run) in numbers.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// One actor: what it does, where, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorPlan {
    /// The name of its table.
    pub name: ActorName,
    /// What it does.
    pub role: Role,
    /// Where it is placed, in the order of [`Plan::hosts`].
    pub hosts: Vec<HostName>,
    /// Settings of its role, every default filled in.
    pub settings: Settings,
    /// Settings that are checked but not built yet, as said: dotted key → value.
    pub extra: BTreeMap<String, Scalar>,
}

impl ActorPlan {
    /// The unit of its seats: those that fail and restart together. Every actor is a unit of its own name, so that a
    /// death takes as little along as possible.
    pub fn unit(&self) -> &str {
        self.name.as_str()
    }

    /// Settings of a group, for the roles that compute with the model.
    pub fn group(&self) -> Option<&GroupSettings> {
        match &self.settings {
            Settings::Prefill(group) | Settings::Decode(group) => Some(group),
            _ => None,
        }
    }
}

/// What an actor does. The order is that of a request's road.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes requests, streams answers.
    Gateway,
    /// Text to tokens.
    Tokenizer,
    /// Chooses the group.
    Router,
    /// Images to embeddings.
    Encode,
    /// Computes prompts.
    Prefill,
    /// Computes the next tokens.
    Decode,
    /// Tokens to text.
    Detokenizer,
    /// Fetches and stores blocks. Not built yet.
    Cache,
    /// Plans where experts lie. Not built yet.
    Experts,
    /// A role registered by the program. Not built yet.
    Custom(String),
}

impl Role {
    /// The roles this crate knows, with the name a file gives them.
    pub const KNOWN: [(&'static str, Role); 9] = [
        ("gateway", Role::Gateway),
        ("tokenizer", Role::Tokenizer),
        ("router", Role::Router),
        ("encode", Role::Encode),
        ("prefill", Role::Prefill),
        ("decode", Role::Decode),
        ("detokenizer", Role::Detokenizer),
        ("cache", Role::Cache),
        ("experts", Role::Experts),
    ];

    /// The name a file gives this role.
    pub fn as_str(&self) -> &str {
        match self {
            Role::Custom(name) => name,
            _ => Role::KNOWN.iter().find(|(_, role)| role == self).map_or("", |(name, _)| name),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Settings of a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Settings {
    /// Of the gateway.
    Gateway(GatewaySettings),
    /// Of the tokenizer.
    Tokenizer(TokenizerSettings),
    /// Of the router.
    Router(RouterSettings),
    /// Of the actors that look at images.
    Encode(EncodeSettings),
    /// Of the groups that compute prompts.
    Prefill(GroupSettings),
    /// Of the groups that compute the next tokens.
    Decode(GroupSettings),
    /// Of the detokenizer.
    Detokenizer(DetokenizerSettings),
    /// A role that is not built yet; what was said lies in [`ActorPlan::extra`].
    Other,
}

/// How requests come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewaySettings {
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// Requests admitted at once; more are refused with a time to come back.
    pub requests_max: usize,
    /// Bytes of a request body, and of the images of a request; `None` follows from the model.
    pub body_max: Option<u64>,
    /// How long a request may take from its arrival.
    #[serde(with = "time_text")]
    pub deadline: Duration,
    /// Tokens of an answer when the client names no number.
    pub tokens_max: u32,
    /// Names that clients may call the server by, in lower case, beside those of this machine.
    pub hosts: Vec<String>,
}

/// How text becomes tokens; nothing to choose yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerSettings {}

/// How a group is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterSettings {
    /// For a prompt.
    pub prefill: PrefillRule,
}

/// How tokens become text; nothing to choose yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetokenizerSettings {}

/// How images are looked at, and which are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodeSettings {
    /// Copies.
    pub groups: usize,
    /// Ranks of each.
    pub ranks: usize,
    /// Compute threads of each.
    pub threads: usize,
    /// Bytes of embeddings that each keeps for the next request.
    pub cache: u64,
    /// Requests that wait at each.
    pub waiting_max: usize,
    /// Images in one request.
    pub images_max: usize,
    /// Bytes of an image's file.
    pub image_bytes: u64,
    /// Pixels of an image.
    pub pixels_max: u64,
    /// Servers that images may be fetched from; none: images come with the request alone.
    pub hosts: Vec<String>,
}

impl EncodeSettings {
    /// What holds where a file says nothing.
    pub fn standard(threads: usize) -> Self {
        crate::resolve::standard_encode(threads)
    }
}

/// How the groups of prefill or decode compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSettings {
    /// Copies of the group.
    pub groups: usize,
    /// Ranks that step together in one group.
    pub ranks: usize,
    /// Compute threads of a rank.
    pub threads: usize,
    /// Tokens in one step.
    pub chunk_tokens: u32,
    /// Time budget of a step: prompts are cut so that it is predicted to be kept.
    #[serde(with = "time_text_if_any")]
    pub step_time: Option<Duration>,
    /// The next step is planned while one runs.
    pub plan_ahead: bool,
    /// Sequences in one step.
    pub sequences_max: usize,
    /// Tokens in one block of KV memory: one number for the whole plan.
    pub block_size: u32,
    /// Bytes of KV memory of a rank.
    pub memory: u64,
    /// Sequences that wait for a place.
    pub waiting_max: usize,
    /// Tokens of the prompts that wait for a place.
    pub waiting_tokens_max: u64,
    /// How long blocks are kept for a hand-over that nobody takes.
    #[serde(with = "time_text")]
    pub lease: Duration,
    /// Whether compute threads are pinned to cores.
    pub pinned: bool,
    /// Whether computed blocks are kept and shared by prompts that begin alike.
    pub prefix_reuse: bool,
    /// Decode only: it computes prompts itself and nothing is handed over. Always false for prefill.
    pub joined: bool,
}

/// One end of a wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// The actor.
    pub actor: ActorName,
    /// Its port.
    pub port: PortName,
}

impl Port {
    /// Whether this is the port that `text` names as `actor.port`.
    pub fn is(&self, text: &str) -> bool {
        text.split_once('.').is_some_and(|(actor, port)| self.actor == actor && self.port == port)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.actor, self.port)
    }
}

/// A typed one-way queue between two actors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// Who sends.
    pub from: Port,
    /// Who receives.
    pub to: Port,
    /// What happens when it is full.
    pub policy: Policy,
    /// Messages it holds.
    pub capacity: usize,
    /// How it crosses from one host to another.
    pub link: Link,
    /// Whether it follows from the roles (its capacity or link may still be the file's).
    pub standard: bool,
}

/// What a lane does when it is full.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The sender waits.
    Hold,
    /// The message comes back to the sender.
    Offer,
    /// The newest message takes the place of the one not read.
    Latest,
    /// Bounded by the window of questions asked.
    Reply,
}

/// How a wire crosses from one host to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// In one process.
    Local,
    /// Shared memory on one machine. Not built yet.
    Shm,
    /// Sockets. Not built yet.
    Tcp,
    /// RDMA through NIXL. Not built yet.
    Nixl,
}

macro_rules! words {
    ($type:ident: $($variant:ident $word:literal),+) => {
        impl $type {
            /// Every value, as a file writes it.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The value that a file writes so.
            pub fn from_word(word: &str) -> Option<$type> {
                match word { $($word => Some($type::$variant),)+ _ => None }
            }

            /// As a file writes it.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// What quantised weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// Activations rounded to 8 bits, a scale for each 32.
    Int8,
    /// Activations as they are.
    F32,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// As they are computed.
    F32,
    /// Half precision.
    F16,
    /// Eight bits, a scale for each 32.
    Q8,
    /// Four bits, in models whose keys and values were made for it.
    Fp4,
}

/// Where layers that see a window keep it, in models that leave the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Windows {
    /// In blocks, with all positions, as layers that see everything do.
    Blocks,
    /// In the state of a sequence, beside its blocks.
    State,
}

/// How the group for a prompt is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillRule {
    /// By when it would be computed, wherever its beginning lies.
    Earliest,
    /// The same where only the group that computed its beginning finds it.
    CacheAware,
    /// One after the other.
    RoundRobin,
    /// By the prompt tokens that wait there.
    LeastLoaded,
}

words!(PrefillRule: Earliest "earliest", CacheAware "cache_aware", RoundRobin "round_robin", LeastLoaded "least_loaded");
words!(KvFormat: F32 "f32", F16 "f16", Q8 "q8", Fp4 "fp4");
words!(Activations: Int8 "int8", F32 "f32");
words!(Windows: Blocks "blocks", State "state");
words!(Policy: Hold "hold", Offer "offer", Latest "latest", Reply "reply");
words!(Link: Local "local", Shm "shm", Tcp "tcp", Nixl "nixl");

/// How often a unit may restart before the process stops with the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Restarts of one unit...
    pub restarts: u32,
    /// ...within this time.
    #[serde(with = "time_text")]
    pub restarts_within: Duration,
}

/// One thing the file asks for, checked, but not built yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Note {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// What it is about, in a few words.
    pub subject: String,
    /// One sentence.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: note: {}", self.file, self.line, self.column, self.message)
    }
}

/// A single value of the file, its unit understood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// A duration.
    #[serde(with = "time_text")]
    Time(Duration),
    /// A text.
    Text(String),
    /// Texts in order.
    List(Vec<String>),
}

impl fmt::Display for Scalar {
    /// As the file would write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Flag(flag) => write!(f, "{flag}"),
            Scalar::Count(count) => write!(f, "{count}"),
            Scalar::Bytes(bytes) => write!(f, "\"{}\"", units::write_size(*bytes)),
            Scalar::Time(time) => write!(f, "\"{}\"", units::write_time(*time)),
            Scalar::Text(text) => f.write_str(&quoted(text)),
            Scalar::List(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                write!(f, "[{}]", texts.join(", "))
            }
        }
    }
}

/// A text as a TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
