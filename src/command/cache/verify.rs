//! `cache verify`: reads every block of a store and compares it with the checksum that was written with it.

use indicatif::ProgressBar;
use millstream_actors::store::{Got, Inspection, PackName, Told, Wish, WishId};
use millstream_runtime::blob::BlobErrorKind;
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
        for (pack, bytes) in layout.tier.refused() {
            let what = "is no whole pack: damaged, or not written to its end";
            report.damage(layout, pack, (what, json!({ "bytes": bytes })));
        }
    }
    progress.finish_and_clear();
    let whole = report.damaged.is_empty();
    let (rows, mut lines): (Vec<Value>, Vec<String>) = report.damaged.into_iter().unzip();
    let read = format!("{}, {}", count(report.blocks, "block"), size(report.bytes));
    let told = if whole {
        "all as they were stored".to_owned()
    } else {
        format!("{} damaged", count(rows.len(), "object"))
    };
    lines.push(format!("{}: {read} read; {told}", opened.place));
    if report.gone > 0 {
        lines.push(format!("{} went meanwhile, by the hand of others", count(report.gone, "pack")));
    }
    print(args, &opened, ("damaged", rows), &lines)?;
    Ok(if whole { Done::Well } else { Done::Differs })
}

impl Report {
    fn pack(&mut self, layout: &Layout, pack: PackName, opened: &Opened) {
        let mut bad = 0;
        let mut blocks = 0;
        for inspection in layout.tier.inspections(pack) {
            let got = match read(&inspection, opened) {
                Ok(Got::Bytes(got)) => got,
                Err(error) if error.kind == BlobErrorKind::Missing => {
                    self.gone += 1;
                    return;
                }
                Err(error) => {
                    return self.damage(
                        layout,
                        pack,
                        ("cannot be read", json!({ "cause": error.to_string() })),
                    );
                }
                Ok(Got::Listed(_) | Got::Done) => Vec::new(),
            };
            for (_, bytes, whole) in inspection.judge(&got) {
                (self.blocks, self.bytes) = (self.blocks + 1, self.bytes + bytes);
                blocks += 1;
                bad += usize::from(!whole);
            }
        }
        if bad > 0 {
            let what = format!("{bad} of {} are damaged", count(blocks, "block"));
            self.damage(layout, pack, (&what, json!({ "blocks": bad, "of": blocks })));
        }
    }

    fn damage(&mut self, layout: &Layout, pack: PackName, (what, mut row): (&str, Value)) {
        let object = format!("{}/pack-{pack}", layout.name);
        row["object"] = object.clone().into();
        row["model"] = layout.model().into();
        self.damaged.push((row, format!("{object} ({}): {what}", layout.model())));
    }
}

fn read(inspection: &Inspection, opened: &Opened) -> Result<Got, millstream_runtime::blob::BlobError> {
    let Told { result, .. } = Wish { id: WishId(0), io: inspection.io() }.carry_out(&*opened.blob);
    result
}
