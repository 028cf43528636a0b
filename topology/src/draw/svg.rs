//! An SVG laid out by hand: actors one below the other in the order of a request's road, wires that go on down the
//! right side, wires that go back up the left side, each in its own track. It brings its colours for light and dark.

use std::fmt::Write as _;

use crate::plan::{ActorPlan, Plan, Wire};

/// Left edge and width of the boxes, before the tracks of the left side are added.
const BOX_WIDTH: usize = 560;
/// Height of one line of text.
const ROW: usize = 20;
/// Distance of two tracks.
const TRACK: usize = 14;
/// Space between two boxes, and around the drawing.
const GAP: usize = 26;

const STYLE: &str = "\
.ground{fill:#fff}.box{fill:#f6f8fa;stroke:#57606a}.name{font-weight:600}text{fill:#1f2328;font:13px ui-monospace,monospace}\
.fact,.manner{fill:#57606a}path{fill:none;stroke-width:1.5}.hold{stroke:#bc4c00}.offer{stroke:#0969da}.latest{stroke:#8250df}\
.reply{stroke:#1a7f37}.tip{stroke:none}.tip.hold{fill:#bc4c00}.tip.offer{fill:#0969da}.tip.latest{fill:#8250df}.tip.reply{fill:#1a7f37}\
@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.box{fill:#161b22;stroke:#8b949e}text{fill:#e6edf3}.fact,.manner{fill:#9198a1}\
.hold{stroke:#f0883e}.offer{stroke:#58a6ff}.latest{stroke:#bc8cff}.reply{stroke:#3fb950}.tip{stroke:none}.tip.hold{fill:#f0883e}\
.tip.offer{fill:#58a6ff}.tip.latest{fill:#bc8cff}.tip.reply{fill:#3fb950}}";

/// The plan as an SVG document.
pub fn draw_svg(plan: &Plan) -> String {
    let (down, up): (Vec<&Wire>, Vec<&Wire>) = plan.wires.iter().partition(|wire| goes_on(wire, plan));
    let boxes = boxes(plan, &down, &up);
    let down = Side::new(&down, &boxes);
    let up = Side::new(&up, &boxes);
    let left = GAP + up.tracks * TRACK + TRACK;
    let title = super::title(plan);
    let width = (BOX_WIDTH + down.tracks * TRACK + TRACK).max(title.chars().count() * 8) + left + GAP;
    let height = boxes.last().map_or(0, |last| last.top + last.height) + 2 * GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
        escaped(&title)
    );
    line(
        &mut out,
        format_args!("<text class=\"name\" x=\"{left}\" y=\"{}\">{}</text>", GAP + 4, escaped(&title)),
    );
    legend(&mut out, left, GAP + 4 + ROW);
    for shape in &boxes {
        draw_box(&mut out, shape, left);
    }
    down.draw(&mut out, left + BOX_WIDTH, true);
    up.draw(&mut out, left, false);
    out.push_str("</svg>\n");
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all text");
}

/// Whether a wire leads further down the road; one to its own actor leads back.
fn goes_on(wire: &Wire, plan: &Plan) -> bool {
    let at = |name: &crate::id::ActorName| plan.actors.iter().position(|actor| actor.name == *name);
    at(&wire.from.actor) < at(&wire.to.actor)
}

/// An actor's box: its lines of text in the middle, its ports at both sides.
struct Shape<'p> {
    actor: &'p ActorPlan,
    facts: Vec<String>,
    /// Ports at the left and at the right: wire ends in order, each with its text.
    left: Vec<(End<'p>, String)>,
    right: Vec<(End<'p>, String)>,
    top: usize,
    height: usize,
}

/// One end of a wire: the wire and whether it leaves here.
#[derive(Copy, Clone, PartialEq)]
struct End<'p> {
    wire: &'p Wire,
    leaves: bool,
}

fn boxes<'p>(plan: &'p Plan, down: &[&'p Wire], up: &[&'p Wire]) -> Vec<Shape<'p>> {
    let mut top = 2 * GAP + ROW;
    let mut shapes = Vec::new();
    for actor in &plan.actors {
        let facts = super::facts(actor, plan);
        let (left, right) = (ports(actor, up), ports(actor, down));
        let rows = facts.len().max(left.len()).max(right.len());
        let height = (rows + 1) * ROW + ROW / 2;
        shapes.push(Shape { actor, facts, left, right, top, height });
        top += height + GAP;
    }
    shapes
}

/// The ends of an actor at one side, each labelled; what arrives stands above what leaves.
fn ports<'p>(actor: &ActorPlan, wires: &[&'p Wire]) -> Vec<(End<'p>, String)> {
    let arriving = wires.iter().filter(|wire| wire.to.actor == actor.name);
    let leaving = wires.iter().filter(|wire| wire.from.actor == actor.name);
    let arriving = arriving.map(|wire| (End { wire, leaves: false }, wire.to.port.to_string()));
    let leaving = leaving
        .map(|wire| (End { wire, leaves: true }, format!("{} {}", wire.from.port, super::manner(wire))));
    arriving.chain(leaving).collect()
}

fn draw_box(out: &mut String, shape: &Shape<'_>, left: usize) {
    let (top, height) = (shape.top, shape.height);
    line(
        out,
        format_args!(
            "<rect class=\"box\" x=\"{left}\" y=\"{top}\" width=\"{BOX_WIDTH}\" height=\"{height}\" rx=\"6\"/>"
        ),
    );
    let middle = left + BOX_WIDTH / 2;
    let name = match shape.actor.name == *shape.actor.role.as_str() {
        true => shape.actor.name.to_string(),
        false => format!("{} ({})", shape.actor.name, shape.actor.role),
    };
    let mut text = |class: &str, x: usize, row: usize, anchor: &str, text: &str| {
        let y = top + (row + 1) * ROW - 4;
        let text = escaped(text);
        line(
            out,
            format_args!(
                "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
            ),
        );
    };
    text("name", middle, 0, "middle", &name);
    for (row, fact) in shape.facts.iter().enumerate() {
        text("fact", middle, row + 1, "middle", &shortened(fact));
    }
    for (row, (_, label)) in shape.left.iter().enumerate() {
        text("manner", left + 8, row + 1, "start", &shortened(label));
    }
    for (row, (_, label)) in shape.right.iter().enumerate() {
        text("manner", left + BOX_WIDTH - 8, row + 1, "end", &shortened(label));
    }
}

/// Facts keep clear of the ports beside them.
fn shortened(fact: &str) -> String {
    match fact.char_indices().nth(34) {
        Some((at, _)) => format!("{}…", &fact[..at]),
        None => fact.to_owned(),
    }
}

/// The wires of one side with their tracks.
struct Side<'p> {
    /// Wire, height of its start and of its end, number of its track.
    runs: Vec<(&'p Wire, usize, usize, usize)>,
    tracks: usize,
}

impl<'p> Side<'p> {
    /// Short wires take the inner tracks; two wires share a track where they do not meet.
    fn new(wires: &[&'p Wire], boxes: &[Shape<'p>]) -> Side<'p> {
        let mut runs: Vec<(&Wire, usize, usize)> =
            wires.iter().map(|wire| (*wire, height(wire, true, boxes), height(wire, false, boxes))).collect();
        runs.sort_by_key(|(_, start, end)| (start.abs_diff(*end), *start, *end));
        let mut taken: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut placed = Vec::new();
        for (wire, start, end) in runs {
            let (low, high) = (start.min(end), start.max(end));
            let free = |track: &Vec<(usize, usize)>| track.iter().all(|(from, to)| high < *from || *to < low);
            let track = taken.iter().position(free).unwrap_or(taken.len());
            if track == taken.len() {
                taken.push(Vec::new());
            }
            taken[track].push((low, high));
            placed.push((wire, start, end, track));
        }
        Side { runs: placed, tracks: taken.len() }
    }

    fn draw(&self, out: &mut String, edge: usize, right: bool) {
        let away = |distance: usize| if right { edge + distance } else { edge - distance };
        for (wire, start, end, track) in &self.runs {
            let (x, near) = (away((track + 1) * TRACK), away(7));
            let policy = wire.policy;
            line(
                out,
                format_args!(
                    "<path class=\"{policy}\" d=\"M{edge} {start}H{x}V{end}H{near}\"><title>{} → {} {}</title></path>",
                    escaped(&wire.from.to_string()),
                    escaped(&wire.to.to_string()),
                    super::manner(wire)
                ),
            );
            let (above, below) = (end - 4, end + 4);
            line(
                out,
                format_args!(
                    "<path class=\"tip {policy}\" d=\"M{edge} {end}L{} {above}V{below}Z\"/>",
                    away(8)
                ),
            );
        }
    }
}

/// The height at which a wire leaves or enters its actor.
fn height(wire: &Wire, leaves: bool, boxes: &[Shape<'_>]) -> usize {
    let end = End { wire, leaves };
    let row = |shape: &Shape<'_>| {
        let find = |ports: &[(End<'_>, String)]| ports.iter().position(|(other, _)| *other == end);
        let row = find(&shape.left).or_else(|| find(&shape.right))?;
        Some(shape.top + (row + 2) * ROW - 8)
    };
    boxes.iter().find_map(row).unwrap_or(0)
}

fn legend(out: &mut String, left: usize, y: usize) {
    let words = [("hold", "waits"), ("offer", "comes back"), ("latest", "overwrites"), ("reply", "answers")];
    let mut x = left;
    for (policy, meaning) in words {
        let label = format!("{policy}: {meaning}");
        line(out, format_args!("<path class=\"{policy}\" d=\"M{x} {}h18\"/>", y - 4));
        line(out, format_args!("<text class=\"fact\" x=\"{}\" y=\"{y}\">{label}</text>", x + 24));
        x += 44 + label.len() * 8;
    }
}

/// Text as XML takes it; characters that XML forbids become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{FFFE}' | '\u{FFFF}' => out.push(' '),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
