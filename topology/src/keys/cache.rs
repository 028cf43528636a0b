//! Keys of the table `cache`: known beginnings, the tiers of the prefix store, classes and tenants.

use super::{Key, Kind, Preset, RETENTION_MAX, SIZE_MAX, key, later};

/// Known beginnings, and the prefix store.
pub(crate) static CACHE: &[Key] = &[
    key(
        "replay",
        Kind::Replay,
        Preset::Text("exact"),
        "Found tokens that a model with windows computes again: `exact`, `snapshot` (none where its state was kept, or else `exact`), `bounded` (one window), or `4 windows`.",
    ),
    key(
        "windows",
        Kind::Choice(crate::plan::Windows::WORDS),
        Preset::Text("blocks"),
        "Where Gemma 3 and gpt-oss keep what their sliding windows see: `blocks`, or `state`, which takes less memory for long sequences and has found tokens computed again.",
    ),
    key(
        "tiers",
        Kind::Tables(TIER),
        Preset::None,
        "Where blocks are kept beyond their group, from the fastest tier to the one that lasts.",
    ),
    key(
        "snapshots",
        Kind::Size { most: SIZE_MAX },
        Preset::Bytes(256 << 20),
        "Host memory for what stands behind the last full block of recent prompts and answers; used with tiers, or with replay = \"snapshot\".",
    ),
    key(
        "retention",
        Kind::Classes(CLASS),
        Preset::Found("`default` a day, `agent` three days, `chat` seven"),
        "How long each class of blocks is kept after it was used last, and how many bytes of it; requests name their class.",
    ),
    key(
        "tenants",
        Kind::Named(TENANT),
        Preset::None,
        "Clients whose blocks nobody else finds, by name; requests tell them by their API key.",
    ),
];

/// A class that says more than its time.
static CLASS: &[Key] = &[
    key(
        "for",
        Kind::Time { most: RETENTION_MAX },
        Preset::Required,
        "How long it is kept after its last use.",
    ),
    key("size", Kind::Size { most: SIZE_MAX }, Preset::None, "Bytes that its blocks may take."),
];

/// A tenant.
static TENANT: &[Key] = &[
    key(
        "key",
        Kind::Digest,
        Preset::Required,
        "SHA-256 of the API key that its clients send; never the key itself.",
    ),
    key("retention", Kind::Text, Preset::Text("default"), "Class of its requests that name none."),
    key("size", Kind::Size { most: SIZE_MAX }, Preset::None, "Bytes that its blocks may take."),
];

/// One tier: exactly one of the first four keys names it.
static TIER: &[Key] = &[
    later("device", Kind::Size { most: SIZE_MAX }, "Memory of the device.", "groups say it as `memory`"),
    key("host", Kind::Size { most: SIZE_MAX }, Preset::None, "Memory of the host."),
    key(
        "disk",
        Kind::Text,
        Preset::None,
        "A folder on a local disk; beside `shared`, for copies of what lies there.",
    ),
    key("shared", Kind::Text, Preset::None, "The URL of a store that all hosts reach."),
    key("size", Kind::Size { most: SIZE_MAX }, Preset::None, "Bytes that disk or shared may use."),
];
