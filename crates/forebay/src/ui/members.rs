//! The screen of `forebay top --cluster`: a line for each member of a store.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::widgets::{Paragraph, Row, Table};
use serde_json::Value;

use super::top::Screen;
use crate::moment;
use crate::units::{human_rate, human_secs, human_size};

/// The newest answer of each member's daemon, by its name.
#[derive(Default)]
pub struct Members {
    screens: BTreeMap<String, Screen>,
    /// Why the newest answers are out of date.
    pub trouble: Option<String>,
}

const HEAD: [&str; 8] =
    ["MEMBER", "WRITTEN", "READ", "TO STORE", "FROM STORE", "DIRTY", "OLDEST", "UP"];

impl Members {
    /// Takes an answer of `GET /v1/cluster/top`.
    pub fn update(&mut self, answer: Value) {
        let Value::Object(members) = answer else { return };
        self.screens.retain(|name, _| members.contains_key(name));
        for (name, top) in members {
            let screen = self.screens.entry(name).or_default();
            match top["error"].as_str() {
                Some(error) => screen.trouble = Some(error.into()),
                None => screen.update(top),
            }
        }
        self.trouble = None;
    }

    pub fn draw(&self, frame: &mut Frame) {
        let parts = [Constraint::Length(1), Constraint::Min(2), Constraint::Length(1)];
        let [title, table, foot] = Layout::vertical(parts).areas(frame.area());
        let count = self.screens.len();
        let text = format!("forebay, {count} members  {}", moment::show(moment::unix_secs()));
        frame.render_widget(Paragraph::new(text).bold(), title);
        let widths = [Constraint::Fill(2)].into_iter().chain([Constraint::Fill(1); 7]);
        let rows = self.screens.iter().map(|(name, screen)| match &screen.trouble {
            Some(trouble) => Row::new([name.clone(), trouble.clone()]),
            None => Row::new(row(name, screen)),
        });
        let head = Row::new(HEAD).bold();
        frame.render_widget(Table::new(rows, widths).header(head), table);
        let foot_text = self.trouble.clone().unwrap_or_else(|| "q quits".into());
        frame.render_widget(Paragraph::new(foot_text), foot);
    }
}

fn row(name: &str, screen: &Screen) -> [String; 8] {
    let rates = screen.rates();
    let secs = |field: &str| screen.status(field).as_f64().unwrap_or(0.0);
    let oldest = secs("oldest_dirty_age_secs");
    [
        name.into(),
        human_rate(rates.written + rates.passed),
        human_rate(rates.read),
        human_rate(rates.to_backing),
        human_rate(rates.from_backing),
        human_size(screen.number("dirty_bytes")),
        if oldest > 0.0 { human_secs(oldest) } else { "-".into() },
        human_secs(secs("uptime_secs")),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_member_has_a_line_also_one_that_does_not_answer() {
        let top = |uptime: f64, written: u64| {
            let bytes = json!({ "from_programs": written });
            json!({
                "status": { "uptime_secs": uptime, "dirty_bytes": 3 << 20, "oldest_dirty_age_secs": 61.0 },
                "now": { "bytes": bytes }, "minute": { "bytes": bytes, "span_secs": 60.0 },
            })
        };
        let mut members = Members::default();
        members.update(json!({ "n1": top(10.0, 0), "n2": top(10.0, 0) }));
        members.update(json!({ "n1": top(12.0, 8 << 20), "n2": { "error": "no answer in 2s" } }));
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).unwrap();
        terminal.draw(|frame| members.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        assert!(shown.contains("4.0 MiB/s"), "{shown}");
        assert!(shown.contains("3.0 MiB") && shown.contains("1 min 01 s"), "{shown}");
        assert!(shown.contains("n2") && shown.contains("no answer"), "{shown}");
    }
}
