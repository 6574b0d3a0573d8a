//! The process around one transfer: an order comes in on its standard input, lines of JSON go out on
//! its standard output, and it acts with the rights it was started with.
//!
//! SIGTERM stops it in an orderly way, for another run to go on; SIGUSR1 lifts the rate cap; SIGKILL
//! costs what was not yet published.

mod identity;
mod launch;
mod running;
mod status;

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::time::Duration;

use forebay_base::{Error, Result};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::progress::{Control, Progress};
use crate::report::{Outcome, Report};
use crate::spec::{Spec, usage};

pub use identity::Identity;
pub use launch::{Launch, Program, refusal};
pub use running::Worker;
pub use status::{Ending, Status, read as read_status};

/// How often progress is told unless the order says otherwise.
const EVERY: Duration = Duration::from_secs(1);

/// An order is a spec and a word.
const ORDER_MAX: u64 = 16 << 20;

static CONTROL: Control = Control::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Carries the transfer out, or goes on with it.
    Run,
    /// Removes what it left.
    Clean,
}

/// What a worker is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub action: Action,
    pub spec: Spec,
    /// Milliseconds between lines of progress.
    #[serde(default)]
    pub every_ms: Option<u64>,
}

/// What a worker is started for: its transfer, which attempt of it, and what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// When its transfer was ordered, seconds since 1970: an id may have been another's before.
    pub created: u64,
    pub attempt: u32,
    pub action: Action,
}

/// One line of what a worker says; the last is a report, `cleaned` or an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line, written by who starts workers: what all that follows is about.
    Work(Work),
    Started {
        pid: u32,
    },
    Progress(Progress),
    Report(Report),
    Cleaned,
    /// The transfer could not begin.
    Error {
        exit_code: u8,
        text: String,
    },
}

/// Carries out the order on standard input; returns the exit code: 0 done, 1 not all of it, 2 an order
/// that cannot be.
pub fn main() -> u8 {
    if let Err(error) = shield() {
        say(&refusal(&Error::io(error, "the rights of a transfer")));
        return 1;
    }
    heed_signals();
    say(&Line::Started { pid: std::process::id() });
    match obey() {
        Ok(Outcome::Done) => 0,
        Ok(_) => 1,
        Err(error) => {
            let exit_code = error.exit_code();
            say(&Line::Error { exit_code, text: error.to_string() });
            exit_code
        }
    }
}

fn obey() -> Result<Outcome> {
    let order = read_order()?;
    if order.action == Action::Clean {
        crate::clean(&order.spec)?;
        say(&Line::Cleaned);
        return Ok(Outcome::Done);
    }
    let every = order.every_ms.map_or(EVERY, Duration::from_millis);
    let tell = |progress: &Progress| say(&Line::Progress(progress.clone()));
    let report = crate::run(&order.spec, &CONTROL, every, tell)?;
    let outcome = report.outcome;
    say(&Line::Report(report));
    Ok(outcome)
}

fn read_order() -> Result<Order> {
    let mut text = Vec::new();
    let read = std::io::stdin().take(ORDER_MAX).read_to_end(&mut text);
    read.map_err(|e| Error::io(e, "the order on standard input"))?;
    serde_json::from_slice(&text)
        .map_err(|e| usage(format!("the order on standard input is not one: {e}")))
}

impl Line {
    /// With the end of line.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("numbers and text have a JSON form");
        text.push(b'\n');
        text
    }
}

/// One write, so that a line is there as a whole or not at all.
fn say(line: &Line) {
    let text = line.text();
    // SAFETY: the descriptor stays open as long as the process.
    let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(1) });
    // Nobody who listens is no reason to end a transfer.
    _ = out.write_all(&text);
}

/// Other processes of the user must not look into this one (L4 of [`launch`]), and it gains no right by any program;
/// what it makes is closed to others until its mode is set.
fn shield() -> std::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let group = rustix::process::getegid().as_raw();
    // SAFETY: integers only. No other thread is there yet.
    if unsafe { libc::setresgid(group, group, group) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    _ = rustix::process::setrlimit(Resource::Core, no_core);
    let files = rustix::process::getrlimit(Resource::Nofile);
    let files = Rlimit { current: files.maximum, maximum: files.maximum };
    _ = rustix::process::setrlimit(Resource::Nofile, files);
    Ok(())
}

extern "C" fn on_signal(signal: libc::c_int) {
    match signal {
        libc::SIGUSR1 => CONTROL.hurry(),
        _ => CONTROL.stop(),
    }
}

fn heed_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1] {
        // SAFETY: the handler only stores to atomics.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}
