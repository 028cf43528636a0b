//! What a plan says of how groups are picked.

use super::{Plan, PrefillRule, Settings};

impl Plan {
    /// How the group for a prompt is picked.
    pub fn prefill_rule(&self) -> PrefillRule {
        let said = self.actors.iter().find_map(|actor| match &actor.settings {
            Settings::Router(settings) => Some(settings.prefill),
            _ => None,
        });
        said.unwrap_or(PrefillRule::CacheAware)
    }
}
