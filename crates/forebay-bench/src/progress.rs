//! Progress of a phase on standard error: a line that renews itself on a terminal, else one every
//! ten seconds. Phases shorter than two seconds print nothing.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::prose::{clipped, columns_of_stderr};

const QUIET_FIRST: Duration = Duration::from_secs(2);
const ON_TERMINAL: Duration = Duration::from_millis(500);
const IN_A_LOG: Duration = Duration::from_secs(10);

/// The count that leads to a phase's end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    Bytes(u64),
    Ops(u64),
    Seconds(f64),
}

#[derive(Debug, Clone)]
pub struct Progress {
    name: String,
    goal: Goal,
    began: Instant,
    last: Instant,
    terminal: bool,
    shown: bool,
}

impl Progress {
    pub fn new(name: impl Into<String>, goal: Goal) -> Self {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        Self { name: name.into(), goal, began: now, last: now, terminal, shown: false }
    }

    /// Notes the progress; prints it only when that is due.
    pub fn tick(&mut self, bytes: u64, ops: u64) {
        let pause = if self.terminal { ON_TERMINAL } else { IN_A_LOG };
        if self.began.elapsed() < QUIET_FIRST || self.last.elapsed() < pause {
            return;
        }
        self.last = Instant::now();
        let line = self.line(self.began.elapsed().as_secs_f64(), bytes, ops);
        let mut out = std::io::stderr().lock();
        let _ = match self.terminal {
            // A line that reaches the edge would scroll.
            true => write!(out, "\r\x1b[K{}", clipped(&line, columns_of_stderr() - 1)),
            false => writeln!(out, "{line}"),
        };
        let _ = out.flush();
        self.shown = true;
    }

    /// Clears the line.
    pub fn finish(&mut self) {
        if self.shown && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        self.shown = false;
    }

    fn line(&self, elapsed: f64, bytes: u64, ops: u64) -> String {
        let share = match self.goal {
            Goal::Bytes(goal) => bytes as f64 / goal.max(1) as f64,
            Goal::Ops(goal) => ops as f64 / goal.max(1) as f64,
            Goal::Seconds(goal) => elapsed / goal.max(1e-9),
        }
        .min(1.0);
        let rate = match bytes {
            0 => format!("{} ops/s", crate::units::human_count(ops as f64 / elapsed)),
            _ => crate::units::human_rate(bytes as f64 / elapsed),
        };
        let left = match share {
            s if s > 0.0 => format!("{} left", clock_face(elapsed / s - elapsed)),
            _ => "no end in sight".to_owned(),
        };
        format!("{}: {:.0} %, {rate}, {left}", self.name, share * 100.0)
    }
}

fn clock_face(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_share_done() {
        let progress = Progress::new("write", Goal::Bytes(400 << 20));
        assert_eq!(progress.line(10.0, 100 << 20, 25), "write: 25 %, 10.0 MiB/s, 30 s left");
        let progress = Progress::new("stat", Goal::Ops(1000));
        assert_eq!(progress.line(50.0, 0, 100), "stat: 10 %, 2 ops/s, 7:30 min left");
        assert!(progress.line(5.0, 0, 0).ends_with("no end in sight"));
    }
}
