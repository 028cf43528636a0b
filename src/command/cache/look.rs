//! `cache stat` and `cache list`: what is in a store, told from the footers of its packs.

use std::collections::BTreeMap;

use millstream_actors::store::{Held, Stamp, Sum};
use serde_json::{Value, json};

use super::opened::{Layout, Opened};
use super::print;
use super::which::Which;
use super::words::{age, count, plain, size};
use crate::args::{CacheListArgs, CacheLookArgs};
use crate::command::Done;

/// What one layout holds.
#[derive(Default)]
struct Stat {
    all: Sum,
    expired: Sum,
    classes: BTreeMap<String, Sum>,
    tenants: BTreeMap<String, Sum>,
    /// When the first was stored, and the last one used.
    stored: Option<Stamp>,
    used: Stamp,
}

impl Stat {
    fn of(layout: &Layout, opened: &Opened) -> Self {
        let mut stat = Self::default();
        for held in layout.tier.held() {
            stat.all.add(held.bytes);
            if held.expires <= opened.now {
                stat.expired.add(held.bytes);
            }
            stat.classes.entry(held.class.to_owned()).or_default().add(held.bytes);
            stat.tenants.entry(opened.tenant(held.tenant)).or_default().add(held.bytes);
            stat.stored = Some(stat.stored.map_or(held.stored, |first| first.min(held.stored)));
            stat.used = stat.used.max(held.used);
        }
        stat
    }
}

/// `cache stat STORE`.
pub(super) fn stat(args: &CacheLookArgs) -> anyhow::Result<Done> {
    let opened = Opened::new(&args.store)?;
    let layouts = opened.layouts()?;
    let stats: Vec<(&Layout, Stat)> =
        layouts.iter().map(|layout| (layout, Stat::of(layout, &opened))).collect();
    let rows = stats.iter().map(|(layout, stat)| row(layout, stat, opened.now)).collect();
    let packs: usize = layouts.iter().map(|layout| layout.tier.packs().count()).sum();
    let bytes: u64 = layouts.iter().map(|layout| layout.tier.bytes()).sum();
    let blocks: usize = stats.iter().map(|(_, stat)| stat.all.blocks).sum();
    let (packs, blocks) = (count(packs, "pack"), count(blocks, "block"));
    let mut lines = vec![format!("{}: {blocks} in {packs}, {} together", opened.place, size(bytes))];
    lines.extend(stats.iter().flat_map(|(layout, stat)| stat_lines(layout, stat, opened.now)));
    print(args, &opened, ("models", rows), &lines)?;
    Ok(Done::Well)
}

fn row(layout: &Layout, stat: &Stat, now: Stamp) -> Value {
    let sums = |sums: &BTreeMap<String, Sum>| -> BTreeMap<String, Value> {
        sums.iter().map(|(name, sum)| (name.clone(), sum_value(*sum))).collect()
    };
    json!({
        "model": layout.model(),
        "layout": layout.name,
        "about": layout.about,
        "packs": layout.tier.packs().count(),
        "object_bytes": layout.tier.bytes(),
        "blocks": stat.all.blocks,
        "bytes": stat.all.bytes,
        "expired": sum_value(stat.expired),
        "classes": sums(&stat.classes),
        "tenants": sums(&stat.tenants),
        "first_stored_s": stat.stored.map(|stored| now.0.saturating_sub(stored.0)),
        "last_used_s": stat.stored.map(|_| now.0.saturating_sub(stat.used.0)),
        "damaged_objects": layout.tier.refused().count(),
    })
}

fn sum_value(sum: Sum) -> Value {
    json!({ "blocks": sum.blocks, "bytes": sum.bytes })
}

fn stat_lines(layout: &Layout, stat: &Stat, now: Stamp) -> Vec<String> {
    let told = |sum: Sum| format!("{}, {}", count(sum.blocks, "block"), size(sum.bytes));
    let mut lines = vec![String::new(), format!("{} ({})", layout.model(), &layout.name[..12])];
    if let (Some(kv), Some(tokens)) = (layout.about["kv"].as_str(), layout.about["block_tokens"].as_u64()) {
        lines.push(format!("  keys and values in {}, blocks of {tokens} tokens", plain(kv)));
    }
    lines.push(format!("  {} in {}", told(stat.all), count(layout.tier.packs().count(), "pack")));
    if let Some(stored) = stat.stored {
        let ago = |stamp: Stamp| age(now.0.saturating_sub(stamp.0));
        lines.push(format!("  first stored {} ago, last used {} ago", ago(stored), ago(stat.used)));
    }
    if stat.expired.blocks > 0 {
        lines.push(format!("  expired: {}", told(stat.expired)));
    }
    lines.extend(stat.classes.iter().map(|(class, sum)| format!("  class {}: {}", plain(class), told(*sum))));
    lines.extend(stat.tenants.iter().map(|(tenant, sum)| format!("  tenant {tenant}: {}", told(*sum))));
    let damaged = layout.tier.refused().count();
    if damaged > 0 {
        lines.push(format!(
            "  {} that cannot be read: damaged, or not written to their end",
            count(damaged, "object")
        ));
    }
    lines
}

/// Blocks that follow one on another in a pack.
struct Chain<'a> {
    layout: &'a Layout,
    first: Held<'a>,
    last: Held<'a>,
    sum: Sum,
}

/// `cache list STORE`.
pub(super) fn list(args: &CacheListArgs) -> anyhow::Result<Done> {
    let opened = Opened::new(&args.look.store)?;
    let layouts = opened.layouts()?;
    let which = Which::new(&args.which, &opened, &layouts)?;
    let mut chains: Vec<Chain<'_>> = Vec::new();
    for layout in layouts.iter().filter(|layout| which.has(layout)) {
        for held in layout.tier.held().filter(|held| which.is(held)) {
            let follows =
                |chain: &&mut Chain<'_>| chain.layout.name == layout.name && chain.last.leads_to(&held);
            match chains.last_mut().filter(follows) {
                Some(chain) => chain.last = held,
                None => chains.push(Chain { layout, first: held, last: held, sum: Sum::default() }),
            }
            chains.last_mut().expect("one was pushed").sum.add(held.bytes);
        }
    }
    chains.retain(|chain| chain.sum.bytes >= args.larger.unwrap_or(0));
    chains.sort_by_key(|chain| std::cmp::Reverse((chain.first.used, chain.sum.bytes)));
    let left = chains.len().saturating_sub(args.limit);
    chains.truncate(args.limit);
    let rows = chains.iter().map(|chain| chain.row(&opened)).collect();
    let mut lines: Vec<String> = chains.iter().map(|chain| chain.line(&opened)).collect();
    lines.extend((left > 0).then(|| format!("and {left} more (--limit)")));
    print(&args.look, &opened, ("chains", rows), &lines)?;
    Ok(Done::Well)
}

impl Chain<'_> {
    fn row(&self, opened: &Opened) -> Value {
        let ago = |stamp: Stamp| opened.now.0.saturating_sub(stamp.0);
        json!({
            "model": self.layout.model(),
            "layout": self.layout.name,
            "pack": self.first.pack.to_string(),
            "first": format!("{:?}", self.first.hash),
            "depth": self.first.depth,
            "blocks": self.sum.blocks,
            "bytes": self.sum.bytes,
            "class": self.first.class,
            "tenant": opened.tenant(self.first.tenant),
            "stored_s": ago(self.first.stored),
            "used_s": ago(self.first.used),
            "expires_in_s": i64::from(self.first.expires.0) - i64::from(opened.now.0),
        })
    }

    fn line(&self, opened: &Opened) -> String {
        let Held { expires, used, .. } = self.first;
        let left = match expires.0.checked_sub(opened.now.0) {
            None | Some(0) => "expired".to_owned(),
            Some(left) => format!("{} left", age(left)),
        };
        let name = format!("{:?}", self.first.hash);
        let ends = u64::from(self.first.depth) + self.sum.blocks as u64;
        format!(
            "{:.8}  {}  blocks {}..{ends}, {}  {}  tenant {}  used {} ago, {left}",
            name,
            self.layout.model(),
            self.first.depth,
            size(self.sum.bytes),
            plain(self.first.class),
            opened.tenant(self.first.tenant),
            age(opened.now.0.saturating_sub(used.0)),
        )
    }
}
