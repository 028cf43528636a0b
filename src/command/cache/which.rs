//! Which blocks of a store a person means.

use millstream_actors::store::{Held, Stamp};

use super::opened::{Layout, Opened};
use super::words::plain;
use crate::args::CacheWhichArgs;
use crate::source::Refused;

/// Blocks of a store that a person means.
pub(super) struct Which<'a> {
    args: &'a CacheWhichArgs,
    opened: &'a Opened,
    /// Those used later are not meant.
    used_by: Option<Stamp>,
}

impl<'a> Which<'a> {
    /// What `args` say of `layouts`.
    ///
    /// # Errors
    /// There is no such model, class or tenant in the store.
    pub(super) fn new(
        args: &'a CacheWhichArgs,
        opened: &'a Opened,
        layouts: &[Layout],
    ) -> Result<Self, Refused> {
        let which = Self { args, opened, used_by: args.older.map(|older| opened.before(older)) };
        if layouts.is_empty() {
            return Ok(which);
        }
        let models =
            || layouts.iter().map(|layout| format!("{} ({})", layout.model(), &layout.name[..12])).collect();
        which.known("model", &args.model, layouts.iter().any(|layout| which.has(layout)), models)?;
        let held = || layouts.iter().flat_map(|layout| layout.tier.held());
        let mut classes: Vec<String> = held().map(|held| held.class.to_owned()).collect();
        let mut tenants: Vec<String> = held().map(|held| opened.tenant(held.tenant)).collect();
        for names in [&mut classes, &mut tenants] {
            names.sort_unstable();
            names.dedup();
        }
        which.known("class", &args.class, held().any(|held| which.is_of_class(&held)), || classes)?;
        which.known("tenant", &args.tenant, held().any(|held| which.is_of_tenant(&held)), || tenants)?;
        Ok(which)
    }

    fn known(
        &self,
        what: &str,
        word: &Option<String>,
        found: bool,
        all: impl FnOnce() -> Vec<String>,
    ) -> Result<(), Refused> {
        let Some(word) = word.as_ref().filter(|_| !found) else { return Ok(()) };
        let (place, all) = (&self.opened.place, all());
        let others = if all.is_empty() {
            "the store is empty".to_owned()
        } else {
            format!("there is: {}", plain(&all.join(", ")))
        };
        Err(Refused::Unreadable(format!(
            "millstream: {place}: there is nothing of the {what} {word:?}; {others}"
        )))
    }

    /// Whether blocks of a layout may be meant.
    pub(super) fn has(&self, layout: &Layout) -> bool {
        let digits = |word: &String| word.len() >= 6 && layout.name.starts_with(&word.to_ascii_lowercase());
        self.args.model.as_ref().is_none_or(|word| layout.model() == word || digits(word))
    }

    fn is_of_class(&self, held: &Held<'_>) -> bool {
        self.args.class.as_ref().is_none_or(|class| held.class == class)
    }

    fn is_of_tenant(&self, held: &Held<'_>) -> bool {
        self.args.tenant.as_ref().is_none_or(|word| self.opened.is_named(held.tenant, word))
    }

    /// Whether a block of such a layout is meant.
    pub(super) fn is(&self, held: &Held<'_>) -> bool {
        self.used_by.is_none_or(|by| held.used <= by) && self.is_of_class(held) && self.is_of_tenant(held)
    }
}
