//! `cache verify`: reads every block of a store and compares it with the checksum that was written with it.

use indicatif::ProgressBar;
use millstream_actors::kv::BlockHash;
use millstream_actors::store::{Got, Inspection, PackName, Refused, Told, Wish, WishId};
use millstream_runtime::blob::{BlobError, BlobErrorKind};
use serde_json::{Value, json};

use super::opened::{Layout, Opened};
use super::print;
use super::words::{count, size};
use crate::args::CacheLookArgs;
use crate::command::Done;

/// What came of it.
#[derive(Default)]
struct Report {
    blocks: usize,
    bytes: u64,
    /// Rows for JSON, and lines for people.
    damaged: Vec<(Value, String)>,
    /// Packs that went while this looked.
    gone: usize,
    /// Packs that another version of this program wrote.
    strange: usize,
}

/// `cache verify STORE`.
pub(super) fn verify(args: &CacheLookArgs) -> anyhow::Result<Done> {
    let opened = Opened::new(&args.store)?;
    let layouts = opened.layouts()?;
    let all: u64 = layouts.iter().map(|layout| layout.tier.bytes()).sum();
    let (progress, mut report) = (ProgressBar::new(all), Report::default());
    for layout in &layouts {
        for (pack, bytes) in layout.tier.packs() {
            report.pack(layout, pack, &opened);
            progress.inc(bytes);
        }
        for (pack, bytes, why) in layout.tier.refused() {
            report.refused(layout, pack, (bytes, why));
        }
    }
    progress.finish_and_clear();
    let whole = report.damaged.is_empty();
    let (rows, mut lines): (Vec<Value>, Vec<String>) = report.damaged.into_iter().unzip();
    let read = format!("{}, {}", count(report.blocks, "block"), size(report.bytes));
    let told = if whole {
        "all as they were stored".to_owned()
    } else {
        format!("{} damaged; gc removes what is", count(rows.len(), "object"))
    };
    lines.push(format!("{}: {read} read; {told}", opened.place));
    if report.gone > 0 {
        lines.push(format!("{} went meanwhile, by the hand of others", count(report.gone, "pack")));
    }
    if report.strange > 0 {
        lines.push(format!("{} of another version of this program, not read", count(report.strange, "pack")));
    }
    print(args, &opened, ("damaged", rows), &lines)?;
    Ok(if whole { Done::Well } else { Done::Differs })
}

/// What came of reading a pack.
enum Looked {
    /// So many blocks of so many bytes, and those that are not what was stored.
    Read(usize, u64, Vec<BlockHash>),
    /// Others have deleted it meanwhile.
    Gone,
    Unreadable(BlobError),
}

/// Reads all of a pack.
fn look(layout: &Layout, pack: PackName, opened: &Opened) -> Looked {
    let (mut blocks, mut bytes, mut damaged) = (0, 0, Vec::new());
    for inspection in layout.tier.inspections(pack) {
        let got = match read(&inspection, opened) {
            Ok(Got::Bytes(got)) => got,
            Ok(Got::Listed(_) | Got::Done) => Vec::new(),
            Err(error) if error.kind == BlobErrorKind::Missing => return Looked::Gone,
            Err(error) => return Looked::Unreadable(error),
        };
        for (hash, length, whole) in inspection.judge(&got) {
            (blocks, bytes) = (blocks + 1, bytes + length);
            damaged.extend((!whole).then_some(hash));
        }
    }
    Looked::Read(blocks, bytes, damaged)
}

/// The blocks of a layout that are not what was stored, by pack. Reads all of it.
pub(super) fn damaged(layout: &Layout, opened: &Opened) -> Vec<(PackName, Vec<BlockHash>)> {
    let progress = ProgressBar::new(layout.tier.bytes());
    let look = |(pack, bytes)| {
        progress.inc(bytes);
        match look(layout, pack, opened) {
            Looked::Read(.., damaged) if !damaged.is_empty() => Some((pack, damaged)),
            Looked::Read(..) | Looked::Gone | Looked::Unreadable(_) => None,
        }
    };
    let damaged = layout.tier.packs().filter_map(look).collect();
    progress.finish_and_clear();
    damaged
}

impl Report {
    fn pack(&mut self, layout: &Layout, pack: PackName, opened: &Opened) {
        match look(layout, pack, opened) {
            Looked::Read(blocks, bytes, damaged) => {
                (self.blocks, self.bytes) = (self.blocks + blocks, self.bytes + bytes);
                let bad = damaged.len();
                if bad > 0 {
                    let what = format!("{bad} of {} are damaged", count(blocks, "block"));
                    self.damage(layout, pack, (&what, json!({ "blocks": bad, "of": blocks })));
                }
            }
            Looked::Gone => self.gone += 1,
            Looked::Unreadable(error) => {
                let row = json!({ "cause": error.to_string() });
                self.damage(layout, pack, ("cannot be read", row));
            }
        }
    }

    fn refused(&mut self, layout: &Layout, pack: PackName, (bytes, why): (u64, Refused)) {
        if why == Refused::Version {
            self.strange += 1;
        } else {
            let what = format!("is no whole pack: {why}");
            self.damage(layout, pack, (&what, json!({ "bytes": bytes })));
        }
    }

    fn damage(&mut self, layout: &Layout, pack: PackName, (what, mut row): (&str, Value)) {
        let object = format!("{}/pack-{pack}", layout.name);
        row["object"] = object.clone().into();
        row["model"] = layout.model().into();
        self.damaged.push((row, format!("{object} ({}): {what}", layout.model())));
    }
}

fn read(inspection: &Inspection, opened: &Opened) -> Result<Got, BlobError> {
    let Told { result, .. } = Wish { id: WishId(0), io: inspection.io() }.carry_out(&*opened.blob);
    result
}
