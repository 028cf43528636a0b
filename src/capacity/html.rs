//! A report as one page for a browser: it loads nothing.

use super::charts::{charts, escaped};
use super::report::Report;
use super::table;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}\
pre{background:#f6f6f4;padding:1rem;overflow-x:auto;font-size:12px}figure{margin:1.5rem 0}svg{width:100%;height:auto}";

/// The page.
pub fn html(report: &Report) -> String {
    let title = format!("{}: what it can do", escaped(&report.topology));
    let drawings: String =
        charts(report).iter().map(|chart| format!("<figure>{}</figure>\n", chart.svg())).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n<pre>{}</pre>\n{drawings}<details><summary>All numbers</summary><pre>{}</pre></details>\n\
         </body></html>\n",
        escaped(&table::text(report)),
        escaped(&report.json())
    )
}
