//! Rules of the prefix store: classes and tenants.

use std::collections::BTreeMap;

use crate::error::Findings;
use crate::keys::{CLASSES_MAX, TENANTS_MAX};
use crate::plan::CLASSES;
use crate::read::Later;
use crate::section::Section;
use crate::spec::Spec;
use crate::suggest::{self, quote};

/// What the API calls the choice to keep nothing beyond memory: no class may have its name.
const WORDS: [&str; 2] = ["in_memory", "in-memory"];

/// What tiers ask for and is not built: buckets where this build opens none.
pub(crate) fn not_built(spec: &Spec, buckets: bool) -> Vec<Later> {
    let tiers = spec.root.section("cache").map_or(&[][..], |cache| cache.sections("tiers"));
    let bucket = |tier: &&Section| tier.text("shared").is_some_and(|url| !url.starts_with("file:"));
    let bucket = tiers.iter().filter(|_| !buckets).find(bucket).map(|tier| Later {
        span: tier.span_of("shared"),
        subject: "a bucket, in a build without the feature cloud,".to_owned(),
        message: "this build opens file:// URLs only: buckets want one with --features cloud".to_owned(),
    });
    bucket.into_iter().collect()
}

/// Classes are few, and none is called as something else is.
pub(super) fn classes_are_fit(spec: &Spec, findings: &mut Findings) {
    let classes = spec.root.section("cache").map_or(&[][..], |cache| cache.classes("retention"));
    for (name, _) in classes.iter().filter(|(name, _)| WORDS.contains(&name.get_ref().as_str())) {
        let message = format!("{} stands for blocks that are kept in memory alone", quote(name.get_ref()));
        findings.add(&name.span(), message, "give this class another name");
    }
    if let Some((name, _)) = classes.get(CLASSES_MAX) {
        let message = format!("{} classes are too many", classes.len());
        findings.add(&name.span(), message, format!("{CLASSES_MAX} are the most"));
    }
}

/// A tenant is known by its key alone, and names a class that there is.
pub(super) fn tenants_differ(spec: &Spec, findings: &mut Findings) {
    let Some(cache) = spec.root.section("cache") else { return };
    let tenants = cache.named("tenants");
    let mut keys: BTreeMap<String, &str> = BTreeMap::new();
    for (name, tenant) in tenants {
        let key = tenant.text("key").unwrap_or_default();
        match keys.get(&key).filter(|_| !key.is_empty()) {
            Some(first) => {
                let message = format!("the key is that of {} too", quote(first));
                findings.add(&tenant.span_of("key"), message, "give each tenant its own key");
            }
            None => _ = keys.insert(key, name.get_ref()),
        }
        class_is_known(cache, tenant, findings);
    }
    if let Some((name, _)) = tenants.get(TENANTS_MAX) {
        let message = format!("{} tenants are too many", tenants.len());
        findings.add(&name.span(), message, format!("{TENANTS_MAX} are the most"));
    }
}

fn class_is_known(cache: &Section, tenant: &Section, findings: &mut Findings) {
    let said = cache.classes("retention").iter().map(|(name, _)| name.get_ref().as_str());
    let known: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).chain(said).collect();
    if let Some(class) = tenant.text("retention").filter(|class| !known.contains(&class.as_str())) {
        let message = format!("unknown class {}", quote(&class));
        let mut known = known;
        known.sort_unstable();
        known.dedup();
        findings.add(&tenant.span_of("retention"), message, suggest::help(&class, "classes", known));
    }
}
