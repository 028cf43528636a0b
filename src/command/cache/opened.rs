//! A store that was opened to be looked after: by a topology file, or by its place alone. A topology says its budgets and
//! the names of its tenants.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_actors::assemble::keeping;
use millstream_actors::store::{Stamp, Sum, Tenant, Tier, TierOptions, WriterId};
use millstream_runtime::blob::{Blob, BlobError, BlobErrorKind, Part};
use serde_json::Value;

use super::words::plain;
use crate::source::Refused;
use crate::{clock, lasting, source};

/// What a description of a layout may take.
const ABOUT_BYTES_MAX: u64 = 64 << 10;
/// The model of the topology that is taken where only a place is known: its classes are those that every file has.
const NO_MODEL: &str = "builtin";

/// See the module.
pub(super) struct Opened {
    /// As the person named it.
    pub(super) place: String,
    pub(super) blob: Arc<dyn Blob>,
    /// Of a tier of it.
    pub(super) options: TierOptions,
    /// Names of the tenants that the topology has.
    names: BTreeMap<Tenant, String>,
    pub(super) now: Stamp,
}

/// All that is in a store of one model in one layout.
pub(super) struct Layout {
    /// 32 hexadecimal digits.
    pub(super) name: String,
    model: String,
    /// What its servers say it is; `null` where that is missing or damaged.
    pub(super) about: Value,
    pub(super) tier: Tier,
}

impl Opened {
    /// Opens what a person names: a topology file, a folder, or a URL.
    pub(super) fn new(named: &str) -> Result<Self, Refused> {
        let refused = |why: String| Refused::Unreadable(format!("millstream: {named}: {why}"));
        let path = Path::new(named);
        if path.is_file() {
            return Self::of_topology(path, named);
        }
        if !named.contains("://") && !path.is_dir() {
            return Err(refused("there is no such folder or topology file".to_owned()));
        }
        let kind = if named.contains("://") { "shared" } else { "disk" };
        let blob =
            lasting::blob(kind, named, Path::new("")).map_err(|error| refused(format!("{error:#}")))?;
        Ok(Self::over(blob, &source::laptop(NO_MODEL)?, named))
    }

    fn of_topology(path: &Path, named: &str) -> Result<Self, Refused> {
        let refused = |why: String| Refused::Unreadable(format!("millstream: {named}: {why}"));
        let source = source::check(path)?;
        let Some(tier) = source.plan.cache.lasting() else {
            return Err(refused(
                "it has no tier that lasts: write [cache] tiers = [{ disk = \"kv\" }]".to_owned(),
            ));
        };
        let place = tier.place();
        let folder = source.beside().join(place);
        if tier.kind == "disk" && !folder.is_dir() {
            return Err(refused(format!("nothing was stored yet: there is no folder {}", folder.display())));
        }
        let blob = lasting::blob(&tier.kind, place, source.beside());
        let blob =
            blob.map_err(|error| refused(format!("cache.tiers, {} = \"{place}\": {error:#}", tier.kind)))?;
        Ok(Self::over(blob, &source, named))
    }

    fn over(blob: Arc<dyn Blob>, source: &source::Source, named: &str) -> Self {
        let cache = &source.plan.cache;
        let names = cache.tenants.keys().map(|name| (Tenant::of(Some(name), None), name.clone()));
        Self {
            place: named.to_owned(),
            blob,
            // Nobody else has this number.
            options: TierOptions { writer: WriterId(clock::fresh_seed()), ..keeping(cache) },
            names: names.collect(),
            now: Stamp(u32::try_from(clock::unix_seconds()).unwrap_or(u32::MAX)),
        }
    }

    /// All layouts, each with all that its packs say.
    pub(super) fn layouts(&self) -> anyhow::Result<Vec<Layout>> {
        let names = self.blob.folders()?;
        names.iter().filter_map(|name| Some(self.layout(name, id(name)?))).collect()
    }

    fn layout(&self, name: &str, layout: [u8; 16]) -> anyhow::Result<Layout> {
        let mut tier = Tier::new(TierOptions { layout, ..self.options.clone() });
        tier.refresh();
        if let Some(error) = self.settle(&mut tier) {
            anyhow::bail!("{}: not all of it can be read: {error}", self.place);
        }
        let about = self.about(name).unwrap_or_default();
        let model = plain(about["model"].as_str().unwrap_or("unknown"));
        Ok(Layout { name: name.to_owned(), model, about, tier })
    }

    fn about(&self, layout: &str) -> Option<Value> {
        let name = format!("{layout}/about.json");
        let bytes = self.blob.list(&name).ok()?.first().map(|object| object.bytes)?;
        let mut text = vec![0; usize::try_from(bytes).ok().filter(|_| bytes <= ABOUT_BYTES_MAX)?];
        self.blob.read(&name, &mut [Part { start: 0, into: &mut text }]).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// So long ago.
    pub(super) fn before(&self, time: Duration) -> Stamp {
        Stamp(self.now.0.saturating_sub(u32::try_from(time.as_secs()).unwrap_or(u32::MAX)))
    }

    /// Does all that a tier wishes, and says what failed first, but for what others have deleted meanwhile.
    pub(super) fn settle(&self, tier: &mut Tier) -> Option<BlobError> {
        let mut failed = None;
        while let Some(wish) = tier.wish() {
            let told = wish.carry_out(&*self.blob);
            let error = told.result.as_ref().err().filter(|error| error.kind != BlobErrorKind::Missing);
            failed = failed.or_else(|| error.cloned());
            tier.tell(told, self.now);
        }
        failed
    }

    /// A tenant as people know it.
    pub(super) fn tenant(&self, tenant: Tenant) -> String {
        let digest = || tenant.to_string()[..12].to_owned();
        if tenant == Tenant::default() {
            "-".to_owned()
        } else {
            self.names.get(&tenant).cloned().unwrap_or_else(digest)
        }
    }

    /// The tenants that a person may mean by a name, or by the first digits of a digest.
    pub(super) fn is_named(&self, tenant: Tenant, word: &str) -> bool {
        let digits = word.len() >= 6 && tenant.to_string().starts_with(&word.to_ascii_lowercase());
        self.tenant(tenant) == word || tenant == Tenant::of(Some(word), None) || digits
    }
}

impl Layout {
    /// The model's name, or what stands for it.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Everything that is found in it.
    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        self.tier.held().for_each(|held| sum.add(held.bytes));
        sum
    }
}

/// The layout that a folder of a store is named by.
fn id(name: &str) -> Option<[u8; 16]> {
    let plain = name.len() == 32 && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(name, 16).ok().filter(|_| plain).map(u128::to_be_bytes)
}
