//! The screen of `forebay top`, drawn from the daemon's figures. It reads no input and owns no terminal:
//! it draws on any backend of ratatui, in tests on a buffer.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use crate::moment;
use crate::units::{human_rate, human_secs, human_size};

/// The gap between columns that stand side by side.
const GAP: u16 = 2;

/// The number of rates that a curve keeps.
const CURVE_MAX: usize = 200;

/// Bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub written: f64,
    pub read: f64,
    pub to_backing: f64,
    pub from_backing: f64,
    /// New bytes of files that are written past the daemon.
    pub passed: f64,
    pub device_written: f64,
    pub device_read: f64,
}

/// The byte counters from which the rates are computed.
const MOVED: [&str; 7] = [
    "from_programs",
    "to_programs",
    "to_backing",
    "from_backing",
    "passthrough_new",
    "tier_device_written",
    "tier_device_read",
];

/// The screen: the newest answer of the daemon, and the history that the curves show.
#[derive(Default)]
pub struct Screen {
    answer: Value,
    rates: Rates,
    written: VecDeque<u64>,
    flushed: VecDeque<u64>,
    /// The counters of the last answer, with the daemon's uptime then.
    last: Option<(f64, [u64; MOVED.len()])>,
    /// Why the newest answer is out of date.
    pub trouble: Option<String>,
}

impl Screen {
    /// Takes an answer of `GET /v1/top`.
    pub fn update(&mut self, answer: Value) {
        let read = |part: &Value| MOVED.map(|name| part["bytes"][name].as_u64().unwrap_or(0));
        let uptime = answer["status"]["uptime_secs"].as_f64().unwrap_or(0.0);
        let now = read(&answer["now"]);
        // Before the second answer the rates are those of the last minute, as the daemon has them.
        let (secs, moved) = match self.last {
            Some((then, before)) if uptime > then => {
                let moved = std::array::from_fn(|i| now[i].saturating_sub(before[i]));
                (uptime - then, moved)
            }
            _ => (answer["minute"]["span_secs"].as_f64().unwrap_or(0.0), read(&answer["minute"])),
        };
        let rate = |i: usize| if secs > 0.0 { moved[i] as f64 / secs } else { 0.0 };
        let [written, read, to_backing, from_backing, passed, device_written, device_read] =
            std::array::from_fn(rate);
        self.rates =
            Rates { written, read, to_backing, from_backing, passed, device_written, device_read };
        for (curve, rate) in
            [(&mut self.written, written + passed), (&mut self.flushed, to_backing)]
        {
            curve.push_back(rate as u64);
            curve.drain(..curve.len().saturating_sub(CURVE_MAX));
        }
        self.last = Some((uptime, now));
        self.answer = answer;
        self.trouble = None;
    }

    pub fn draw(&self, frame: &mut Frame) {
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(4),
            Constraint::Length(6),
            Constraint::Length(7),
            Constraint::Min(3),
            Constraint::Length(1),
        ]);
        let [title, flow, level, latency, busy, foot] = rows.areas(frame.area());
        self.draw_title(frame, title);
        self.draw_flow(frame, flow);
        self.draw_level(frame, level);
        self.draw_latency(frame, latency);
        self.draw_busy(frame, busy);
        self.draw_foot(frame, foot);
    }

    pub fn rates(&self) -> Rates {
        self.rates
    }

    pub fn status(&self, field: &str) -> &Value {
        &self.answer["status"][field]
    }

    pub fn number(&self, field: &str) -> u64 {
        self.status(field).as_u64().unwrap_or(0)
    }

    fn word(&self, field: &str) -> &str {
        self.status(field).as_str().unwrap_or("-")
    }

    fn draw_title(&self, frame: &mut Frame, area: Rect) {
        let up = human_secs(self.status("uptime_secs").as_f64().unwrap_or(0.0));
        let right = format!("up {up}  {}", moment::show(moment::unix_secs()));
        let room = (area.width as usize).saturating_sub(right.len() + 10);
        let left = format!("forebay {}", shortened(self.word("mountpoint"), room));
        frame.render_widget(Paragraph::new(left).bold(), area);
        frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), area);
    }

    fn draw_flow(&self, frame: &mut Frame, area: Rect) {
        let halves = Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]);
        let [left, right] = halves.spacing(GAP).areas(area);
        let r = self.rates;
        let both = |out: &str, out_rate: f64, back: &str, back_rate: f64| {
            format!("{out} {:>11}  {back} {:>11}", human_rate(out_rate), human_rate(back_rate))
        };
        let programs = vec![
            Line::raw(both("write", r.written, "read ", r.read)),
            Line::raw(format!("new {:>13}  past the daemon", human_rate(r.passed))),
        ];
        let store = vec![Line::raw(both("flush", r.to_backing, "fetch", r.from_backing))];
        let sides = [
            (left, "programs", programs, &self.written),
            (right, "backing store", store, &self.flushed),
        ];
        for (area, name, lines, curve) in sides {
            let block = Block::new().borders(Borders::TOP).title(format!(" {name} "));
            let inner = block.inner(area);
            frame.render_widget(block, area);
            let heights = [Constraint::Length(lines.len() as u16), Constraint::Min(1)];
            let [text, below] = Layout::vertical(heights).areas(inner);
            frame.render_widget(Paragraph::new(lines), text);
            // The newest rate is on the right.
            let skip = curve.len().saturating_sub(below.width as usize);
            let shown = curve.iter().skip(skip).copied();
            let pad = std::iter::repeat_n(0, (below.width as usize).saturating_sub(curve.len()));
            let data: Vec<u64> = pad.chain(shown).collect();
            frame.render_widget(Sparkline::default().data(data).fg(Color::Cyan), below);
        }
    }

    fn draw_level(&self, frame: &mut Frame, area: Rect) {
        let tier = self.number("tier_bytes");
        let title = match self.word("attachment") {
            "-" | "attached" => " fast tier ".into(),
            word => format!(" fast tier: {word} "),
        };
        let block = Block::new().borders(Borders::TOP).title(title);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let dirty = self.number("dirty_bytes");
        let mark = |name: &str| self.answer["marks"][name].as_u64().unwrap_or(0);
        let marks = [('l', mark("low")), ('h', mark("high")), ('H', mark("hard"))];
        let amount = format!(" {:>10} of {}", human_size(dirty), human_size(tier));
        let cells = (inner.width as usize).saturating_sub(8 + amount.len());
        let color = match dirty {
            bytes if bytes > mark("hard") => Color::Red,
            bytes if bytes > mark("high") => Color::Yellow,
            _ => Color::Green,
        };
        let bar = Line::from(vec![
            Span::raw("dirty ["),
            Span::styled(bar(dirty, tier, &marks, cells), Style::new().fg(color)),
            Span::raw("]"),
            Span::raw(amount),
        ]);
        let age = self.status("oldest_dirty_age_secs").as_f64().unwrap_or(0.0);
        let max_age = self.answer["max_age_secs"].as_f64().unwrap_or(0.0);
        let until = |field: &str| self.status(field).as_f64().map_or("-".into(), human_secs);
        let lines = vec![
            bar,
            Line::from(format!(
                "oldest dirty {} of at most {}   files {} dirty, {} open   used {}",
                human_secs(age),
                human_secs(max_age),
                self.number("dirty_files"),
                self.number("open_files"),
                human_size(self.number("used_bytes")),
            )),
            Line::from(vec![
                Span::raw("governor "),
                Span::styled(self.word("governor").to_string(), Modifier::BOLD),
                Span::raw(format!(", held by {}", self.word("limited_by"))),
            ]),
            Line::from(format!(
                "arriving {}/s, draining {}/s   full in {}, clean in {}",
                human_size(self.number("arrival_bytes_per_sec")),
                human_size(self.number("drain_bytes_per_sec")),
                until("full_in_secs"),
                until("clean_in_secs"),
            )),
            Line::from(self.device_line()),
        ];
        frame.render_widget(Paragraph::new(lines), inner);
    }

    /// The rates of the device, which include other users of it.
    fn device_line(&self) -> String {
        match self.answer["now"]["bytes"]["tier_device_written"].is_u64() {
            true => format!(
                "its device writes {}, reads {}, for whomever",
                human_rate(self.rates.device_written),
                human_rate(self.rates.device_read)
            ),
            false => "no block device is seen under it".into(),
        }
    }

    fn draw_latency(&self, frame: &mut Frame, area: Rect) {
        let shown = [
            ("programs", "fuse", [("read", "read"), ("write", "write"), ("fsync", "fsync")]),
            ("fast tier", "tier", [("read", "read"), ("write", "write"), ("sync", "sync")]),
            (
                "backing",
                "backing",
                [("read_at", "read"), ("write_at", "write"), ("sync_files", "sync")],
            ),
        ];
        let thirds = Layout::horizontal([Constraint::Ratio(1, 3); 3]);
        let columns = thirds.spacing(GAP).areas::<3>(area);
        for ((title, side, ops), column) in shown.into_iter().zip(columns) {
            let block = Block::new().borders(Borders::TOP).title(format!(" {title}: us, 1 min "));
            let cells = |label: String, numbers: [String; 3]| {
                let numbers = numbers.map(|number| Line::raw(number).right_aligned());
                Row::new(std::iter::once(Line::raw(label)).chain(numbers))
            };
            let quantiles = ["p50", "p99", "p99.9"].map(String::from);
            let head = cells(String::new(), quantiles).add_modifier(Modifier::DIM);
            let rows = ops.map(|(name, label)| {
                let op = &self.answer["minute"][side][name];
                let us = |field: &str| op[field].as_u64().map_or("-".into(), short);
                cells(label.to_string(), [us("p50_us"), us("p99_us"), us("p999_us")])
            });
            let requests = self.requests_line(side);
            let widths = [Constraint::Length(5); 4];
            let inner = block.inner(column);
            frame.render_widget(block, column);
            let [above, below] =
                Layout::vertical([Constraint::Length(4), Constraint::Min(0)]).areas(inner);
            frame.render_widget(Table::new(rows, widths).header(head), above);
            frame.render_widget(Paragraph::new(requests), below);
        }
    }

    /// The line below each table: how reads and writes were served in the last minute.
    fn requests_line(&self, side: &str) -> String {
        let share = |direction: &str| {
            let requests = &self.answer["minute"]["requests"][direction];
            let count = |what: &str| requests[what].as_u64().unwrap_or(0);
            let total = count("total");
            // A request for a new file or range cannot be a hit.
            match (total, total - count("new").min(total)) {
                (0, _) => format!("{direction}s: none"),
                (_, 0) => format!("{direction}s: {}, all new", short(total)),
                (_, old) => {
                    format!("{direction}s: {}, {} % hit", short(total), count("hits") * 100 / old)
                }
            }
        };
        match side {
            "fuse" => share("read"),
            "tier" => share("write"),
            _ => format!("jobs: {}", self.answer["jobs"].as_u64().unwrap_or(0)),
        }
    }

    fn draw_busy(&self, frame: &mut Frame, area: Rect) {
        let halves = Layout::horizontal([Constraint::Percentage(60), Constraint::Percentage(40)]);
        let [left, right] = halves.spacing(GAP).areas(area);
        let files = self.answer["busiest_files"].as_array().into_iter().flatten();
        let width = (left.width as usize).saturating_sub(14);
        let files = files.map(|file| {
            let path = shortened(file["path"].as_str().unwrap_or("?"), width);
            (path, file["bytes_per_sec"].as_f64().unwrap_or(0.0))
        });
        draw_list(frame, left, " busiest files ", files);
        let processes = self.answer["processes"].as_array().into_iter().flatten();
        let processes = processes.map(|process| {
            let name = process["name"].as_str().unwrap_or("?");
            let text = format!("{} {name}", process["pid"].as_u64().unwrap_or(0));
            (shortened(&text, 18), process["bytes_per_sec"].as_f64().unwrap_or(0.0))
        });
        draw_list(frame, right, " busiest processes ", processes);
    }

    fn draw_foot(&self, frame: &mut Frame, area: Rect) {
        let (text, style) = match &self.trouble {
            Some(why) => (why.clone(), Style::new().fg(Color::Red)),
            None => (
                "q quits.  Past the daemon only new bytes are seen, not what is read or replaced."
                    .into(),
                Style::new().add_modifier(Modifier::DIM),
            ),
        };
        frame.render_widget(Paragraph::new(text).style(style), area);
    }
}

fn draw_list(
    frame: &mut Frame,
    area: Rect,
    title: &'static str,
    items: impl Iterator<Item = (String, f64)>,
) {
    let block = Block::new().borders(Borders::TOP).title(title);
    let rows: Vec<Row> = items
        .take(area.height.saturating_sub(1).into())
        .map(|(name, rate)| {
            Row::new([Line::raw(name), Line::raw(human_rate(rate)).right_aligned()])
        })
        .collect();
    let widths = [Constraint::Min(1), Constraint::Length(12)];
    frame.render_widget(Table::new(rows, widths).block(block), area);
}

/// A bar with its marks: `#` up to the level, letters where the marks are.
fn bar(level: u64, full: u64, marks: &[(char, u64)], cells: usize) -> String {
    let at = |bytes: u64| (bytes as f64 / full.max(1) as f64 * cells as f64).round() as usize;
    let filled = at(level).min(cells);
    let mut bar: Vec<char> = (0..cells).map(|i| if i < filled { '#' } else { '-' }).collect();
    for (letter, bytes) in marks {
        if let Some(cell) = bar.get_mut(at(*bytes)) {
            *cell = *letter;
        }
    }
    bar.into_iter().collect()
}

/// The end of the text: the name says more than the first directory.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.into();
    }
    let kept: String = text.chars().skip(length + 2 - width.max(2)).collect();
    format!("..{kept}")
}

/// The number in at most five characters.
fn short(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}

/// The time for which a screen is shown before the next.
pub const REFRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
