//! What `forebay top` draws: one screen from the daemon's figures. No input, no terminal of its
//! own: it draws on whatever ratatui draws on, which in tests is a buffer.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use crate::moment;
use crate::units::{human_secs, human_size};

/// Rates shown as a curve.
const CURVE_MAX: usize = 200;

/// Bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub written: f64,
    pub read: f64,
    pub to_backing: f64,
    pub from_backing: f64,
}

/// What is drawn: the newest answer of the daemon, and how it came to be.
#[derive(Default)]
pub struct Screen {
    answer: Value,
    rates: Rates,
    written: VecDeque<u64>,
    flushed: VecDeque<u64>,
    /// Of what the rates were made, with the daemon's uptime then.
    last: Option<(f64, [u64; 4])>,
    /// Why the newest answer is old.
    pub trouble: Option<String>,
}

impl Screen {
    /// Takes an answer of `GET /v1/top`.
    pub fn update(&mut self, answer: Value) {
        let names = ["from_programs", "to_programs", "to_backing", "from_backing"];
        let read = |part: &Value| names.map(|name| part["bytes"][name].as_u64().unwrap_or(0));
        let uptime = answer["status"]["uptime_secs"].as_f64().unwrap_or(0.0);
        let now = read(&answer["now"]);
        // Before the second answer: what the daemon has seen in the last minute.
        let (secs, moved) = match self.last {
            Some((then, before)) if uptime > then => {
                let moved = std::array::from_fn(|i| now[i].saturating_sub(before[i]));
                (uptime - then, moved)
            }
            _ => (answer["minute"]["span_secs"].as_f64().unwrap_or(0.0), read(&answer["minute"])),
        };
        let rate = |i: usize| if secs > 0.0 { moved[i] as f64 / secs } else { 0.0 };
        self.rates =
            Rates { written: rate(0), read: rate(1), to_backing: rate(2), from_backing: rate(3) };
        for (curve, rate) in
            [(&mut self.written, self.rates.written), (&mut self.flushed, self.rates.to_backing)]
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
            Constraint::Length(5),
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

    fn status(&self, field: &str) -> &Value {
        &self.answer["status"][field]
    }

    fn number(&self, field: &str) -> u64 {
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
        let [left, right] = halves.areas(area);
        let r = self.rates;
        let sides = [
            (left, "programs", "write", r.written, "read", r.read, &self.written),
            (right, "backing store", "flush", r.to_backing, "fetch", r.from_backing, &self.flushed),
        ];
        for (area, name, out, out_rate, back, back_rate, curve) in sides {
            let block = Block::new().borders(Borders::TOP).title(format!(" {name} "));
            let inner = block.inner(area);
            frame.render_widget(block, area);
            let [text, below] =
                Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(inner);
            let line =
                format!("{out} {:>12}   {back} {:>12}", per_sec(out_rate), per_sec(back_rate));
            frame.render_widget(Paragraph::new(line), text);
            // The newest is on the right.
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
        ];
        frame.render_widget(Paragraph::new(lines), inner);
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
        let columns = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas::<3>(area);
        for ((title, side, ops), column) in shown.into_iter().zip(columns) {
            let block = Block::new().borders(Borders::TOP).title(format!(" {title}: us, 1 min "));
            let head = Row::new(["", "p50", "p99", "p99.9"]).add_modifier(Modifier::DIM);
            let rows = ops.map(|(name, label)| {
                let op = &self.answer["minute"][side][name];
                let us = |field: &str| op[field].as_u64().map_or("-".into(), short);
                Row::new([label.to_string(), us("p50_us"), us("p99_us"), us("p999_us")])
            });
            let requests = self.requests_line(side);
            let widths = [
                Constraint::Length(5),
                Constraint::Length(6),
                Constraint::Length(6),
                Constraint::Length(6),
            ];
            let inner = block.inner(column);
            frame.render_widget(block, column);
            let [above, below] =
                Layout::vertical([Constraint::Length(4), Constraint::Min(0)]).areas(inner);
            frame.render_widget(Table::new(rows, widths).header(head), above);
            frame.render_widget(Paragraph::new(requests), below);
        }
    }

    /// Below each table: how reads and writes were served in the last minute.
    fn requests_line(&self, side: &str) -> String {
        let share = |direction: &str| {
            let requests = &self.answer["minute"]["requests"][direction];
            let total = requests["total"].as_u64().unwrap_or(0);
            let hits = requests["hits"].as_u64().unwrap_or(0);
            match total {
                0 => format!("{direction}s: none"),
                _ => format!("{direction}s: {}, {} % hit", short(total), hits * 100 / total),
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
        let [left, right] = halves.areas(area);
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
                "q quits.  What is passed through to the tier is seen only as dirty bytes.".into(),
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
        .map(|(name, rate)| Row::new([Line::raw(name), Line::raw(per_sec(rate)).right_aligned()]))
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

/// Keeps the end: the name says more than the first directory.
fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.into();
    }
    let kept: String = text.chars().skip(length + 2 - width.max(2)).collect();
    format!("..{kept}")
}

fn per_sec(rate: f64) -> String {
    format!("{}/s", human_size(rate as u64))
}

/// At most five characters.
fn short(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}

/// How long a screen is shown before the next.
pub const REFRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn answer(uptime: f64, written: u64) -> Value {
        let bytes = json!({
            "from_programs": written, "to_programs": 0, "to_backing": written / 2, "from_backing": 0,
        });
        let op = json!({ "p50_us": 12, "p99_us": 345, "p999_us": 6789 });
        json!({
            "marks": { "low": 20, "high": 50, "hard": 80 },
            "max_age_secs": 30.0,
            "status": {
                "mountpoint": "/a/very/long/path/of/directories/that/does/not/fit/on/the/line/at/all/mnt",
                "uptime_secs": uptime, "tier_bytes": 100, "dirty_bytes": 60, "governor": "age",
                "limited_by": "rate-max", "oldest_dirty_age_secs": 12.0, "full_in_secs": null,
            },
            "now": { "bytes": bytes },
            "minute": {
                "span_secs": 10.0, "bytes": bytes, "fuse": { "write": op },
                "requests": { "write": { "total": 200, "hits": 50 } },
            },
            "busiest_files": [{ "path": "x/y.bin", "bytes_per_sec": 1048576 }],
            "processes": [{ "pid": 77, "name": "fio", "bytes_per_sec": 2097152 }],
            "jobs": 2,
        })
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_on_a_screen_of_80_by_24() {
        let mut screen = Screen::default();
        screen.update(answer(10.0, 10 << 20));
        screen.update(answer(12.0, 30 << 20));
        let text = drawn(&screen, 80, 24);
        for wanted in [
            "10.0 MiB/s",
            "5.0 MiB/s",
            "age",
            "rate-max",
            "12 s of at most 30 s",
            "345",
            "6789",
            "x/y.bin",
            "77 fio",
            "2.0 MiB/s",
            "25 % hit",
            "jobs: 2",
            "q quits",
            "full in -",
            "mnt",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is not in\n{text}");
        }
        let bar: String = text.lines().find(|line| line.contains("dirty [")).unwrap().into();
        let cells = bar.split(['[', ']']).nth(1).unwrap();
        assert!(cells.starts_with('#') && cells.contains("h#") && cells.contains("-H-"), "{bar}");
    }

    #[test]
    fn it_draws_on_any_screen_and_before_any_answer() {
        let mut screen = Screen::default();
        drawn(&screen, 80, 24);
        screen.update(answer(10.0, 1000));
        screen.trouble = Some("the daemon does not answer".into());
        for (width, height) in [(1, 1), (20, 5), (80, 10), (300, 100)] {
            drawn(&screen, width, height);
        }
        assert!(drawn(&screen, 80, 24).contains("does not answer"));
    }

    #[test]
    fn the_first_rates_are_the_minutes_and_a_restart_does_not_confuse() {
        let mut screen = Screen::default();
        screen.update(answer(10.0, 1000));
        assert_eq!(screen.rates.written, 100.0);
        screen.update(answer(11.0, 3000));
        assert_eq!(screen.rates.written, 2000.0);
        screen.update(answer(1.0, 500));
        assert_eq!(screen.rates.written, 50.0);
    }
}
