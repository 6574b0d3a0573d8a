//! One page for one or more runs. It loads nothing: style, tables and pictures are all inside, and
//! a policy in its head forbids the rest.

use std::fmt::Write;

use super::figures::{self, Figure};
use super::svg::{self, escape};
use super::table::{self, Table};
use crate::record::Record;

/// A run and its name.
pub struct Run {
    pub name: String,
    pub record: Record,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#f4f6f8;--card:#fff;--text:#1c232b;--faint:#56606b;\
--line:#dde2e7;--warn:#8a4b00;--warn-paper:#fff4e0}\
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--card:#161b22;--text:#e4e9ef;\
--faint:#9da7b3;--line:#333b45;--warn:#f0c674;--warn-paper:#2b2415}}\
*{box-sizing:border-box}\
body{margin:0 auto;padding:16px;max-width:1120px;background:var(--paper);color:var(--text);\
font:15px/1.5 system-ui,sans-serif}\
h1{font-size:22px;margin:8px 0}h2{font-size:19px;margin:32px 0 8px}h3{font-size:15px;margin:20px 0 6px}\
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;min-width:0}\
.grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr))}\
.grid svg{display:block;width:100%;height:auto}\
.wide{overflow-x:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}\
th,td{padding:4px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}\
th{color:var(--faint);font-weight:600}th:first-child,td:first-child{text-align:left}\
tr:last-child td{border-bottom:0}\
.facts td{white-space:normal;text-align:left;overflow-wrap:anywhere;vertical-align:top}\
.facts td:first-child{color:var(--faint);white-space:nowrap}\
.found{font-size:17px;margin:6px 0}\
.warn{background:var(--warn-paper);color:var(--warn);border-radius:8px;padding:8px 12px;margin:8px 0}\
summary{cursor:pointer;margin:14px 0 8px;color:var(--faint)}footer{color:var(--faint);margin:32px 0 8px}";

/// The whole page.
pub fn page(runs: &[Run]) -> String {
    let title = match runs {
        [run] => format!("forebay bench {}: {}", run.record.header.workload, run.name),
        _ => format!("forebay bench: {} runs", runs.len()),
    };
    let title = escape(&title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n<title>{title}</title>\n\
         <style>{STYLE}{}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        svg::style()
    );
    if runs.len() > 1 {
        overview(&mut out, runs);
    }
    for (index, run) in runs.iter().enumerate() {
        section(&mut out, index, run, runs.len());
    }
    out.push_str(
        "<footer>A figure holds under the conditions listed with it. \"cached\" is the share of \
         the bytes read that was in the page cache before the phase began, as measured.</footer>\n\
         </body>\n</html>\n",
    );
    out
}

/// The findings of each run, with a link to it.
fn overview(out: &mut String, runs: &[Run]) {
    out.push_str("<div class=\"card wide\"><table><tr><th>run</th><th style=\"text-align:left\">workload</th><th style=\"text-align:left\">found</th></tr>\n");
    for (index, run) in runs.iter().enumerate() {
        let found = match run.record.findings.first() {
            Some(finding) => finding.text.clone(),
            None => table::best(&run.record),
        };
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#run{index}\">{}</a></td>\
             <td style=\"text-align:left\">{}</td><td style=\"text-align:left;white-space:normal\">{}</td></tr>",
            escape(&run.name),
            escape(&run.record.header.workload),
            escape(&found)
        );
    }
    out.push_str("</table></div>\n");
}

fn section(out: &mut String, index: usize, run: &Run, count: usize) {
    let record = &run.record;
    let _ = writeln!(out, "<section id=\"run{index}\">");
    if count > 1 {
        let _ =
            writeln!(out, "<h2>{}: {}</h2>", escape(&record.header.workload), escape(&run.name));
    }
    for finding in &record.findings {
        let _ = writeln!(out, "<p class=\"found\">{}</p>", escape(&finding.text));
    }
    for warning in table::warnings(record) {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(&warning));
    }
    charts(out, &figures::of(record));
    for table in table::of(record) {
        put_table(out, &table);
    }
    conditions(out, record);
    out.push_str("</section>\n");
}

fn charts(out: &mut String, figures: &[Figure]) {
    if figures.is_empty() {
        return;
    }
    out.push_str("<div class=\"grid\">\n");
    for figure in figures {
        let _ = writeln!(out, "<div class=\"card\">{}</div>", svg::inline(&figure.scene));
    }
    out.push_str("</div>\n");
}

fn put_table(out: &mut String, table: &Table) {
    let _ = write!(out, "<h3>{}</h3>\n<div class=\"card wide\"><table><tr>", escape(table.title));
    for head in &table.head {
        let _ = write!(out, "<th>{}</th>", escape(head));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</table></div>\n");
}

fn conditions(out: &mut String, record: &Record) {
    let settings = record.header.settings.iter().map(|(k, v)| (k.clone(), v.clone()));
    out.push_str("<h3>Conditions</h3>\n<div class=\"card\"><table class=\"facts\">\n");
    rows(out, table::facts(record).into_iter());
    out.push_str("</table>\n<details><summary>All settings</summary><table class=\"facts\">\n");
    rows(out, settings);
    out.push_str("</table></details></div>\n");
}

fn rows(out: &mut String, facts: impl Iterator<Item = (String, String)>) {
    for (name, value) in facts {
        let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(&name), escape(&value));
    }
}
