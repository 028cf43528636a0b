//! Drawings of a report, as SVG that needs nothing else: curves of times, and what happened when.

use std::fmt::Write as _;

use super::report::{Report, SpanLine, time};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
/// Room for what is written at the left, the top, the right and the bottom.
const ROOM: [f64; 4] = [64.0, 34.0, 16.0, 40.0];
const COLOURS: [&str; 5] = ["#1b6ca8", "#c2571a", "#2c8a57", "#8a3ea0", "#7a6a1e"];

/// One drawing.
pub struct Chart {
    /// Name of its file, without the ending.
    pub name: &'static str,
    /// What it shows.
    pub title: String,
    lines: Vec<(String, Vec<(f64, f64)>)>,
    across: Axis,
    up: Axis,
}

/// How a direction is measured.
#[derive(Clone, Copy)]
enum Axis {
    /// Times from their least to their most, by powers of ten.
    Times,
    /// Seconds from 0.
    Clock,
    /// Shares from 0 to 1.
    Shares,
    /// Numbers from 0.
    Numbers,
}

/// All drawings of a report.
pub fn charts(report: &Report) -> Vec<Chart> {
    let over_time = |name, title: &str, up, lines: Vec<(String, Vec<(f64, f64)>)>| Chart {
        name,
        title: title.to_owned(),
        lines,
        across: Axis::Clock,
        up,
    };
    let series = |label: &str, of: &dyn Fn(&SpanLine) -> Option<f64>| {
        (label.to_owned(), report.spans.iter().filter_map(|span| Some((span.at, of(span)?))).collect())
    };
    let busy =
        |actor: &super::report::ActorLine| series(&actor.name, &|span| span.busy.get(&actor.name).copied());
    let curves = vec![
        ("time to first token".to_owned(), report.curves.first_token.clone()),
        ("between tokens".to_owned(), report.curves.between_tokens.clone()),
    ];
    vec![
        Chart {
            name: "times",
            title: "Share of all that took no longer".to_owned(),
            lines: curves,
            across: Axis::Times,
            up: Axis::Shares,
        },
        over_time(
            "first_token",
            "Mean time to first token",
            Axis::Numbers,
            vec![series("seconds", &|span| span.first_token)],
        ),
        over_time(
            "tokens",
            "Tokens a second",
            Axis::Numbers,
            vec![
                series("prompts, computed", &|span| Some(span.prompt_tokens)),
                series("answers", &|span| Some(span.answer_tokens)),
            ],
        ),
        over_time(
            "busy",
            "Share of the time in which groups compute",
            Axis::Shares,
            report.actors.iter().map(busy).collect(),
        ),
        over_time(
            "hits",
            "Share of prompt tokens found",
            Axis::Shares,
            vec![series("found", &|span| span.hit_share)],
        ),
        over_time(
            "held",
            "Tokens held by sequences in steps",
            Axis::Numbers,
            vec![series("tokens", &|span| Some(span.held))],
        ),
    ]
}

impl Chart {
    /// The drawing.
    pub fn svg(&self) -> String {
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\
             <text x=\"{}\" y=\"16\" font-size=\"13\">{}</text>",
            ROOM[0],
            escaped(&self.title)
        );
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter().copied());
        let across = self.across.range(points().map(|(x, _)| x));
        let up = self.up.range(points().map(|(_, y)| y));
        self.grid((across, up), &mut out);
        for (number, (label, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let path: Vec<String> = points
                .iter()
                .map(|&(x, y)| {
                    format!("{:.1},{:.1}", left(self.across.part(x, across)), top(self.up.part(y, up)))
                })
                .collect();
            let (path, x) =
                (path.join(" "), WIDTH - ROOM[2] - 150.0 * (self.lines.len() - number) as f64 + 30.0);
            // Writing to a text does not fail.
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{path}\"/>\
                 <text x=\"{x}\" y=\"30\" fill=\"{colour}\">{}</text>",
                escaped(label)
            );
        }
        out + "</svg>"
    }

    fn grid(&self, (across, up): ((f64, f64), (f64, f64)), out: &mut String) {
        for value in self.up.marks(up) {
            let (y, label) = (top(self.up.part(value, up)), self.up.label(value));
            let _ = write!(
                out,
                "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                ROOM[0],
                WIDTH - ROOM[2],
                ROOM[0] - 6.0,
                y + 4.0
            );
        }
        for value in self.across.marks(across) {
            let (x, label) = (left(self.across.part(value, across)), self.across.label(value));
            let _ = write!(
                out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#eee\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                ROOM[1],
                HEIGHT - ROOM[3],
                HEIGHT - ROOM[3] + 16.0
            );
        }
    }
}

impl Axis {
    fn range(self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values {
            (least, most) = (least.min(value), most.max(value));
        }
        match self {
            Axis::Shares => (0.0, 1.0),
            Axis::Clock | Axis::Numbers => (0.0, if most > 0.0 { most } else { 1.0 }),
            Axis::Times => {
                let least = if least.is_finite() { least.max(1e-6) } else { 1e-3 };
                (10_f64.powf(least.log10().floor()), 10_f64.powf(most.max(least * 10.0).log10().ceil()))
            }
        }
    }

    /// Where a value lies, from 0 to 1.
    fn part(self, value: f64, (least, most): (f64, f64)) -> f64 {
        let part = match self {
            Axis::Times => (value.max(least) / least).log10() / (most / least).log10(),
            _ => (value - least) / (most - least),
        };
        part.clamp(0.0, 1.0)
    }

    fn marks(self, (least, most): (f64, f64)) -> Vec<f64> {
        if let Axis::Times = self {
            let decades = (most / least).log10().round() as i32;
            return (0..=decades).map(|decade| least * 10_f64.powi(decade)).collect();
        }
        (0..=4).map(|part| least + (most - least) * f64::from(part) / 4.0).collect()
    }

    fn label(self, value: f64) -> String {
        match self {
            Axis::Times | Axis::Clock => time(value),
            Axis::Shares => format!("{:.0} %", 100.0 * value),
            Axis::Numbers => match value {
                0.0 => "0".to_owned(),
                ..1.0 => format!("{value:.3}"),
                ..1e4 => format!("{value:.1}"),
                ..1e6 => format!("{:.1} k", value / 1e3),
                _ => format!("{:.1} M", value / 1e6),
            },
        }
    }
}

fn left(part: f64) -> f64 {
    ROOM[0] + part * (WIDTH - ROOM[0] - ROOM[2])
}

fn top(part: f64) -> f64 {
    HEIGHT - ROOM[3] - part * (HEIGHT - ROOM[1] - ROOM[3])
}

/// A text inside a document.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
