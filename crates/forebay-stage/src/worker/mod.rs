//! The process around one transfer: it reads its order from standard input, writes lines of JSON to
//! standard output, and acts with the rights with which it was started.
//!
//! SIGTERM stops it in an orderly way, and another run can go on; SIGUSR1 lifts the rate cap; SIGKILL
//! loses only what was not yet published.

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

/// The pause between two lines of progress, unless the order has another.
const EVERY: Duration = Duration::from_secs(1);

/// The longest order: a spec and an action.
const ORDER_MAX: u64 = 16 << 20;

static CONTROL: Control = Control::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Carries out the transfer, or goes on with it.
    Run,
    /// Removes the transfer's remains.
    Clean,
}

/// The order to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub action: Action,
    pub spec: Spec,
    /// Milliseconds between lines of progress.
    #[serde(default)]
    pub every_ms: Option<u64>,
}

/// The work of a worker: its transfer, the attempt, and the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// When the transfer was ordered, in seconds since 1970: another transfer may have had the id before.
    pub created: u64,
    pub attempt: u32,
    pub action: Action,
}

/// One line of a worker's status; the last is a report, `cleaned` or an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line, written by the process that starts workers: the work that the file is about.
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

/// Carries out the order on standard input; returns the exit code: 0 done, 1 not completely, 2 an order
/// that cannot be carried out.
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
    /// The line as text, with its end of line.
    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("numbers and text have a JSON form");
        text.push(b'\n');
        text
    }
}

/// Writes a line by one write, so that it is there as a whole or not at all.
fn say(line: &Line) {
    let text = line.text();
    // SAFETY: the descriptor stays open as long as the process.
    let mut out = ManuallyDrop::new(unsafe { File::from_raw_fd(1) });
    // A closed output is no reason to end the transfer.
    _ = out.write_all(&text);
}

/// Keeps other processes of the user from looking into this one (L4 of [`launch`]), and lets it gain no rights by
/// running programs. New files are closed to others until their mode is set.
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
