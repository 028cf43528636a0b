//! `cache gc` and `cache drop`: lets go of blocks. What is left of their packs is written anew first, and only then are
//! these deleted, as servers do it; so nothing else is lost, also when this is interrupted.

use std::cmp::Reverse;
use std::io::{BufRead, IsTerminal, Write};

use millstream_actors::kv::BlockHash;
use millstream_actors::store::{Held, RECORD_BYTES, Stamp, Sum};
use serde_json::{Value, json};

use super::opened::{Layout, Opened};
use super::which::Which;
use super::words::{count, size};
use super::{print, verify};
use crate::args::{CacheDropArgs, CacheGcArgs};
use crate::command::Done;
use crate::source::Refused;

/// `cache gc STORE`.
pub(super) fn gc(args: &CacheGcArgs) -> anyhow::Result<Done> {
    let mut opened = Opened::new(&args.look.store)?;
    let most = args.size.unwrap_or(opened.options.budget.total);
    // It is that of all layouts together.
    opened.options.budget.total = u64::MAX;
    let mut layouts = opened.layouts()?;
    let now = opened.now;
    let idle = args.ttl.map(|ttl| opened.before(ttl));
    // Classes and tenants first: what they give up counts no more, and neither does what is damaged.
    layouts.iter_mut().for_each(|layout| layout.tier.bound());
    let damage: Vec<usize> = layouts.iter_mut().map(|layout| lose(layout, &opened, args.quick)).collect();
    let over =
        |held: &Held<'_>| !held.kept || held.expires <= now || idle.is_some_and(|idle| held.used <= idle);
    let last = last_to_go(&layouts, most, over);
    let goes = |held: &Held<'_>| over(held) || last.is_some_and(|last| turn(held) <= last);
    let mut done = Changes::default();
    for (layout, damaged) in layouts.iter_mut().zip(damage) {
        let broken = layout.tier.clear();
        done.discard(&opened, layout, (&goes, damaged, broken), args.dry_run);
    }
    done.print(&args.look, &opened, args.dry_run)
}

/// Looks for damaged blocks, which are to go, unless it is to be `quick`. Says how many.
fn lose(layout: &mut Layout, opened: &Opened, quick: bool) -> usize {
    let damaged = if quick { Vec::new() } else { verify::damaged(layout, opened) };
    for (pack, blocks) in &damaged {
        layout.tier.lose(*pack, blocks);
    }
    damaged.iter().map(|(_, blocks)| blocks.len()).sum()
}

/// When it is a block's turn to go: what expires first goes first, and of a chain its end.
type Turn = (Stamp, Reverse<u32>, BlockHash);

fn turn(held: &Held<'_>) -> Turn {
    (held.expires, Reverse(held.depth), held.hash)
}

/// The last one of those that must go so that the others are within `most` bytes.
fn last_to_go(layouts: &[Layout], most: u64, over: impl Fn(&Held<'_>) -> bool) -> Option<Turn> {
    let held = layouts.iter().flat_map(|layout| layout.tier.held()).filter(|held| !over(held));
    let mut left: Vec<(Turn, u64)> =
        held.map(|held| (turn(&held), u64::from(held.bytes) + RECORD_BYTES as u64)).collect();
    left.sort_unstable();
    let mut bytes: u64 = left.iter().map(|(_, bytes)| bytes).sum();
    let mut last = None;
    for (turn, size) in left {
        if bytes <= most {
            break;
        }
        bytes -= size;
        last = Some(turn);
    }
    last
}

/// `cache drop STORE`.
pub(super) fn discard(args: &CacheDropArgs) -> anyhow::Result<Done> {
    let which = &args.which;
    let chosen =
        which.model.is_some() || which.tenant.is_some() || which.class.is_some() || which.older.is_some();
    if !chosen && !args.all {
        let why = "millstream: say which blocks, with --model, --tenant, --class or --older, or --all";
        return Err(Refused::Unreadable(why.to_owned()).into());
    }
    let mut opened = Opened::new(&args.look.store)?;
    // Nothing goes but what is said.
    opened.options.budget.total = u64::MAX;
    opened.options.budget.tenants.clear();
    opened.options.classes.iter_mut().for_each(|class| class.bytes = u64::MAX);
    let mut layouts = opened.layouts()?;
    let which = Which::new(which, &opened, &layouts)?;
    let meant = layouts.iter().filter(|layout| which.has(layout)).flat_map(|layout| layout.tier.held());
    let mut sum = Sum::default();
    meant.filter(|held| which.is(held)).for_each(|held| sum.add(held.bytes));
    if !args.yes && !agreed(&opened, sum)? {
        return Ok(Done::Differs);
    }
    let mut done = Changes::default();
    for layout in layouts.iter_mut().filter(|layout| which.has(layout)) {
        done.discard(&opened, layout, (|held: &Held<'_>| which.is(held), 0, Sum::default()), false);
        if args.all {
            clear(&opened, layout)?;
        }
    }
    done.print(&args.look, &opened, false)
}

/// Asks the person.
fn agreed(opened: &Opened, sum: Sum) -> anyhow::Result<bool> {
    let what = format!("{}, {} of {}", count(sum.blocks, "block"), size(sum.bytes), opened.place);
    if !std::io::stdin().is_terminal() {
        let why = format!("millstream: this would drop {what}: say --yes");
        return Err(Refused::Unreadable(why).into());
    }
    write!(std::io::stderr(), "Drop {what}? [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Deletes what a layout has beside blocks.
fn clear(opened: &Opened, layout: &Layout) -> anyhow::Result<()> {
    for object in opened.blob.list(&format!("{}/", layout.name))? {
        opened.blob.delete(&object.name)?;
    }
    Ok(())
}

/// What was let go, or would be.
#[derive(Default)]
struct Changes {
    rows: Vec<Value>,
    lines: Vec<String>,
    /// Calls of the store that failed.
    errors: u64,
}

impl Changes {
    /// Lets go of some blocks of a layout, beside so many that are damaged, and objects that are no packs.
    fn discard(
        &mut self,
        opened: &Opened,
        layout: &mut Layout,
        (goes, damaged, broken): (impl Fn(&Held<'_>) -> bool, usize, Sum),
        dry: bool,
    ) {
        let before = layout.tier.bytes();
        let sum = layout.tier.discard(goes);
        if !dry {
            opened.settle(&mut layout.tier);
            while layout.tier.is_discarding() {
                layout.tier.collect(opened.now);
                opened.settle(&mut layout.tier);
            }
        }
        let errors = layout.tier.counts().errors;
        self.errors += errors;
        let freed = if dry { sum.bytes } else { before.saturating_sub(layout.tier.bytes()) } + broken.bytes;
        let left = layout.sum();
        self.rows.push(json!({
            "model": layout.model(),
            "layout": layout.name,
            "blocks": sum.blocks,
            "bytes": sum.bytes,
            "freed_bytes": freed,
            "damaged": { "blocks": damaged, "objects": broken.blocks },
            "left": { "blocks": left.blocks, "bytes": left.bytes },
            "errors": errors,
        }));
        let (verb, will) = if dry { ("would go", "would be") } else { ("went", "were") };
        self.lines.push(format!(
            "{} ({}): {} {verb}, {} {will} freed; {}, {} left",
            layout.model(),
            &layout.name[..12],
            count(sum.blocks, "block"),
            size(freed),
            count(left.blocks, "block"),
            size(left.bytes),
        ));
        if damaged + broken.blocks > 0 {
            let (blocks, objects) = (count(damaged, "damaged block"), count(broken.blocks, "object"));
            self.lines.push(format!("  {blocks}, and {objects} that cannot be read, {verb} too"));
        }
    }

    fn print(self, args: &crate::args::CacheLookArgs, opened: &Opened, dry: bool) -> anyhow::Result<Done> {
        let mut lines = self.lines;
        if lines.is_empty() {
            lines.push(format!("{}: nothing is stored here", opened.place));
        }
        if self.errors > 0 {
            lines.push(format!(
                "{} of the store failed: not all of it may have gone",
                count(self.errors as usize, "call")
            ));
        }
        print(args, opened, (if dry { "would_go" } else { "went" }, self.rows), &lines)?;
        Ok(if self.errors == 0 { Done::Well } else { Done::Differs })
    }
}
