//! The table of keys: every key that a file may hold, once, with its kind, its default and its sentence. Reading, the
//! written-out file, suggestions and the JSON Schema all follow this table, so they cannot disagree.

mod cache;

pub(crate) use cache::CACHE;

/// What a key holds.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Kind {
    /// Any text but the empty one.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds.
    Count { least: u64, most: u64 },
    /// A size with its unit, in bytes.
    Size { most: u64 },
    /// A duration with its unit, in milliseconds.
    Time { most: u64 },
    /// An address to listen at: IP and port.
    Listen,
    /// `host:port`, with `{i}` where a pattern numbers it.
    Address,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text or an array of texts.
    Names,
    /// `cpu`, `cuda:0-7`.
    Devices,
    /// `bounded`, `exact`, or a number of windows.
    Replay,
    /// `actor.port`.
    End,
    /// A table with these keys.
    Table(&'static [Key]),
    /// An array of tables with these keys.
    Tables(&'static [Key]),
    /// A table of tables, each named by the person, with these keys.
    Named(&'static [Key]),
    /// A table of classes, each named by the person: a duration, or a table with these keys.
    Classes(&'static [Key]),
    /// `sha256:` and 64 hexadecimal digits.
    Digest,
    /// The tables of the actors: their keys depend on the role.
    Actors,
}

/// What holds when the file does not say.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Preset {
    /// Nothing: the key is left out.
    None,
    /// The key must be there.
    Required,
    /// Found from the rest of the file or the machine, as this says.
    Found(&'static str),
    /// A flag.
    Flag(bool),
    /// A number.
    Count(u64),
    /// A size in bytes.
    Bytes(u64),
    /// A duration in seconds.
    Seconds(u64),
    /// A text.
    Text(&'static str),
}

/// One key of the file.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) preset: Preset,
    /// One sentence for people and for the schema.
    pub(crate) doc: &'static str,
    /// Why it is refused by `serve`, where it is not built yet.
    pub(crate) later: Option<&'static str>,
}

const fn key(name: &'static str, kind: Kind, preset: Preset, doc: &'static str) -> Key {
    Key { name, kind, preset, doc, later: None }
}

const fn later(name: &'static str, kind: Kind, doc: &'static str, later: &'static str) -> Key {
    Key { name, kind, preset: Preset::None, doc, later: Some(later) }
}

const fn count(name: &'static str, most: u64, preset: u64, doc: &'static str) -> Key {
    key(name, Kind::Count { least: 1, most }, Preset::Count(preset), doc)
}

/// A hundred days, in milliseconds: the longest a lease, a deadline or a step may last.
const TIME_MAX: u64 = 100 * 86_400_000;
/// A hundred years, in milliseconds: the longest that blocks may be kept.
pub(crate) const RETENTION_MAX: u64 = 100 * 365 * 86_400_000;
/// Classes of retention, and tenants.
pub(crate) const CLASSES_MAX: usize = 64;
pub(crate) const TENANTS_MAX: usize = 4_096;
/// A pebibyte.
const SIZE_MAX: u64 = 1 << 50;
/// Messages in one lane.
pub(crate) const CAPACITY_MAX: u64 = 65_536;
/// Copies of a host made by one pattern, and hosts in all.
pub(crate) const HOSTS_MAX: u64 = 1_024;
/// Actors in all.
pub(crate) const ACTORS_MAX: usize = 32;
/// Wires that a file may write.
pub(crate) const WIRES_MAX: usize = 1_024;
/// Ranks of one actor, all groups together.
pub(crate) const RANKS_MAX: u64 = 65_536;
/// Highest number of a GPU.
pub(crate) const DEVICE_MAX: u16 = 63;

/// The whole file.
pub(crate) static ROOT: &[Key] = &[
    key("name", Kind::Text, Preset::Text("millstream"), "What people call this topology."),
    key(
        "model",
        Kind::Text,
        Preset::Required,
        "`builtin`, a folder with config.json and safetensors, or a .gguf file.",
    ),
    key(
        "activations",
        Kind::Choice(crate::plan::Activations::WORDS),
        Preset::Text("int8"),
        "What quantised weights are multiplied with: `int8` is fast, `f32` is exact.",
    ),
    key(
        "kv",
        Kind::Choice(crate::plan::KvFormat::WORDS),
        Preset::Text("f32"),
        "How keys and values are stored: `f32` is exact, `f16` takes half of that, `q8` a quarter; `fp4` an eighth, in DeepSeek-V4.1 only.",
    ),
    key(
        "decoder_truncation",
        Kind::Flag,
        Preset::Flag(false),
        "Layers behind the last source of keys see only the newest tokens of a prompt, in models made for that.",
    ),
    key(
        "reserve",
        Kind::Flag,
        Preset::Flag(false),
        "Memory for keys, values, what steps compute in, and the host tier is taken from the system at the start, so that no request waits for it.",
    ),
    key(
        "hosts",
        Kind::Named(HOST),
        Preset::None,
        "Hosts by name; without it everything runs in one process.",
    ),
    key(
        "actors",
        Kind::Actors,
        Preset::Required,
        "A table per actor; its role defaults to the table's name.",
    ),
    key("cache", Kind::Table(CACHE), Preset::None, "What becomes of known beginnings."),
    key("wires", Kind::Tables(WIRE), Preset::None, "Wires where the standard ones are not wanted."),
    key("limits", Kind::Table(LIMITS), Preset::None, "How often a unit may restart."),
];

/// A host.
pub(crate) static HOST: &[Key] = &[
    key(
        "count",
        Kind::Count { least: 1, most: HOSTS_MAX },
        Preset::None,
        "Copies of this host, numbered from 1.",
    ),
    key(
        "address",
        Kind::Address,
        Preset::None,
        "`host:port` where others reach it; `{i}` is the number of the copy.",
    ),
    key(
        "devices",
        Kind::Devices,
        Preset::Text("cpu"),
        "What it computes on: `cpu`, or GPUs as in `cuda:0-7`.",
    ),
    key("supernode", Kind::Text, Preset::None, "Hosts of one supernode share a fast fabric."),
];

const ROLE: Key = key("role", Kind::Text, Preset::Found("the table's name"), "What the actor does.");
const ON: Key =
    key("on", Kind::Names, Preset::Found("the only host"), "Hosts it is placed on; `*` stands for any text.");
const RANKS_DOC: &str = "Ranks that step together in one group.";
const GROUPS: Key = key(
    "groups",
    Kind::Count { least: 1, most: RANKS_MAX },
    Preset::Found("as many as the devices hold; on processors 1"),
    "Copies of the group.",
);
const RANKS: Key = count("ranks", RANKS_MAX, 1, RANKS_DOC);

const THREADS: Kind = Kind::Count { least: 1, most: 1_024 };
const THREADS_FOUND: &str = "the host's cores, shared evenly by its ranks";

/// An actor of any role.
pub(crate) static ACTOR: &[Key] = &[ROLE, ON];

/// The gateway.
pub(crate) static GATEWAY: &[Key] = &[
    ROLE,
    ON,
    key("listen", Kind::Listen, Preset::Text("127.0.0.1:8000"), "Where HTTP is served."),
    count("requests_max", 1_000_000, 512, "Requests admitted at once; more are refused."),
    key(
        "body_max",
        Kind::Size { most: 1 << 30 },
        Preset::Found("4MiB; 32MiB where the model has eyes"),
        "Largest request body, and most bytes of the images of a request.",
    ),
    key("deadline", Kind::Time { most: TIME_MAX }, Preset::Seconds(600), "How long a request may take."),
    count("tokens_max", 1 << 24, 4_096, "Tokens of an answer when the client names no number."),
    key(
        "hosts",
        Kind::Names,
        Preset::None,
        "Names that clients may call this server by, beside those of this machine: \
         others are refused where `listen` is a loopback address, or where names stand here.",
    ),
];

/// The router.
pub(crate) static ROUTER: &[Key] = &[
    ROLE,
    ON,
    key(
        "prefill",
        Kind::Choice(crate::plan::PrefillRule::WORDS),
        Preset::Found("`earliest` where a tier outlives the groups, otherwise `cache_aware`"),
        "How the group for a prompt is picked: by when it would be computed, wherever its beginning lies; the same where only \
         the group that computed its beginning finds it; one after the other; or by the prompt tokens that wait.",
    ),
];

macro_rules! group_keys {
    ($($more:expr),* $(,)?) => {
        &[
            ROLE,
            ON,
            GROUPS,
            RANKS,
            key("threads", THREADS, Preset::Found(THREADS_FOUND), "Compute threads of a rank."),
            count(
                "chunk_tokens",
                1 << 20,
                256,
                "Tokens in one step: longer prompts are cut into chunks. 2048 where `step_time` is said.",
            ),
            key(
                "step_time",
                Kind::Time { most: TIME_MAX },
                Preset::None,
                "Time budget of a step: prompts are cut into the largest chunks that are predicted to fit beside answers.",
            ),
            key(
                "plan_ahead",
                Kind::Flag,
                Preset::Flag(false),
                "Whether the next step is planned while one runs: the device does not wait, and who comes begins a step later.",
            ),
            count("sequences_max", 65_536, 64, "Sequences in one step."),
            key(
                "block_size",
                Kind::Count { least: 1, most: 4_096 },
                Preset::Count(16),
                "Tokens in one block of KV memory; one number for prefill and decode.",
            ),
            key("memory", Kind::Size { most: SIZE_MAX }, Preset::Bytes(1 << 30), "KV memory of a rank."),
            key(
                "waiting_max",
                Kind::Count { least: 1, most: 1_000_000 },
                Preset::Found("512, or the gateway's `requests_max` where that is more"),
                "Sequences that wait for a place.",
            ),
            count(
                "waiting_tokens_max",
                1 << 40,
                1 << 20,
                "Tokens of the prompts that wait for a place; a prompt that finds none waiting may be longer.",
            ),
            key(
                "lease",
                Kind::Time { most: TIME_MAX },
                Preset::Seconds(30),
                "How long blocks are kept for a hand-over that nobody takes.",
            ),
            key("pinned", Kind::Flag, Preset::Flag(false), "Whether compute threads are pinned to cores."),
            key(
                "prefix_reuse",
                Kind::Flag,
                Preset::Flag(true),
                "Whether computed blocks are kept and shared by prompts that begin alike.",
            ),
            $($more),*
        ]
    };
}

/// Groups that compute prompts.
pub(crate) static PREFILL: &[Key] = group_keys![];

/// Groups that compute the next tokens.
pub(crate) static DECODE: &[Key] = group_keys![
    key(
        "joined",
        Kind::Flag,
        Preset::Found("true when prefill and decode are each one group of one rank at the same place"),
        "Decode computes prompts itself: nothing is handed over.",
    ),
    later("experts", Kind::Table(EXPERTS), "How experts lie on ranks.", "experts lie on one rank for now"),
    later(
        "speculate",
        Kind::Table(SPECULATE),
        "Drafts that one step verifies.",
        "a step makes one token for now"
    ),
];

/// Images to embeddings.
pub(crate) static ENCODE: &[Key] = &[
    ROLE,
    ON,
    GROUPS,
    RANKS,
    key("threads", THREADS, Preset::Found(THREADS_FOUND), "Compute threads."),
    key(
        "cache",
        Kind::Size { most: SIZE_MAX },
        Preset::Bytes(256 << 20),
        "Embeddings kept for the next request.",
    ),
    count("waiting_max", 65_536, 256, "Requests that wait to be looked at."),
    count("images_max", 4_096, 16, "Images in one request."),
    key("image_bytes", Kind::Size { most: 1 << 30 }, Preset::Bytes(16 << 20), "Largest image file."),
    count("pixels_max", 1 << 30, 40_000_000, "Pixels of one image."),
    key(
        "hosts",
        Kind::Names,
        Preset::None,
        "Servers that images may be fetched from, by name; without it none are. An address that is not public must stand here itself.",
    ),
];

/// Expert parallelism of decode.
pub(crate) static EXPERTS: &[Key] = &[
    key("parallel", Kind::Flag, Preset::Flag(true), "Experts are spread over the ranks of a group."),
    key(
        "redundant",
        Kind::Count { least: 0, most: 65_536 },
        Preset::Count(0),
        "Slots beyond one for each expert.",
    ),
    key("rebalance", Kind::Time { most: TIME_MAX }, Preset::None, "How often slots are planned anew."),
];

/// Speculative decoding.
pub(crate) static SPECULATE: &[Key] = &[
    key("draft", Kind::Text, Preset::Required, "The model that drafts."),
    key("most", Kind::Count { least: 1, most: 64 }, Preset::Count(5), "Drafts of one step at most."),
    key(
        "verify",
        Kind::Choice(&["adaptive", "fixed"]),
        Preset::Text("adaptive"),
        "How many drafts a step verifies.",
    ),
];

/// One wire.
pub(crate) static WIRE: &[Key] = &[
    key("from", Kind::End, Preset::Required, "Who sends, as `actor.port`."),
    key("to", Kind::End, Preset::Required, "Who receives, as `actor.port`."),
    key(
        "policy",
        Kind::Choice(crate::plan::Policy::WORDS),
        Preset::Found("the standard wire's, or offer"),
        "What happens when it is full: the sender waits, the message comes back, the newest wins, or it cannot be.",
    ),
    key(
        "capacity",
        Kind::Count { least: 1, most: CAPACITY_MAX },
        Preset::Found("the standard wire's, or 64"),
        "Messages it holds.",
    ),
    key(
        "link",
        Kind::Choice(crate::plan::Link::WORDS),
        Preset::Found("local within a host, tcp between hosts"),
        "How it crosses from one host to another.",
    ),
];

/// Restart budgets.
pub(crate) static LIMITS: &[Key] = &[
    key("restarts", Kind::Count { least: 0, most: 1_000_000 }, Preset::Count(5), "Restarts of one unit..."),
    key("restarts_within", Kind::Time { most: TIME_MAX }, Preset::Seconds(60), "...within this time."),
];

/// The keys of an actor of this role.
pub(crate) fn of_role(role: &crate::plan::Role) -> &'static [Key] {
    use crate::plan::Role;
    match role {
        Role::Gateway => GATEWAY,
        Role::Prefill => PREFILL,
        Role::Decode => DECODE,
        Role::Encode => ENCODE,
        Role::Router => ROUTER,
        Role::Tokenizer | Role::Detokenizer | Role::Cache | Role::Experts | Role::Custom(_) => ACTOR,
    }
}

/// Where a key that was said in the wrong table belongs.
pub(crate) fn home_of(name: &str) -> Option<&'static str> {
    let homes: [(&'static str, &[Key]); 12] = [
        ("a table of [actors]", ACTOR),
        ("an actor of the role gateway", GATEWAY),
        ("an actor of the role router", ROUTER),
        ("actors of the roles prefill and decode", PREFILL),
        ("an actor of the role decode", DECODE),
        ("an actor of the role encode", ENCODE),
        ("a table of [hosts]", HOST),
        ("[[wires]]", WIRE),
        ("[limits]", LIMITS),
        ("[cache]", CACHE),
        ("`experts` of decode", EXPERTS),
        ("the top of the file, before the first [table]", ROOT),
    ];
    homes.into_iter().find(|(_, keys)| keys.iter().any(|key| key.name == name)).map(|(home, _)| home)
}
