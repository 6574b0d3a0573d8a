//! Going into the background: one fork before any thread starts, and a pipe on which the daemon tells
//! the waiting parent that it serves, or why it does not. A parent that no longer waits ends the daemon.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use super::tether::Tether;
use crate::signals;

/// The parent looks for an interrupt this often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A daemon that is told to end before it serves gets this long.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// Which side of the fork this is.
pub enum Side {
    Parent(Child),
    Daemon(Ready),
}

/// The parent's connection to the daemon.
pub struct Child {
    news: PipeReader,
    pid: Pid,
}

/// The daemon's connection to its parent, for one message.
pub struct Ready {
    pipe: Option<PipeWriter>,
    pub tether: Tether,
}

#[derive(Serialize, Deserialize)]
struct News {
    /// Absent when the daemon serves.
    error: Option<String>,
    exit_code: u8,
    /// Notes for the person who mounted.
    notes: Vec<String>,
}

/// Forks. The daemon gets a session of its own, `/` as directory, /dev/null as its standard
/// descriptors, and none of the other descriptors that the mounting process has open.
///
/// Must be called while the process has one thread and no file open: the child of a fork has only the
/// calling thread, and locks that other threads hold would stay locked for ever.
pub fn fork() -> Result<Side> {
    let failed = |e: io::Error| Error::io(e, "going into the background");
    let (reader, writer) = io::pipe().map_err(failed)?;
    // SAFETY: the process is single-threaded by this function's contract.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            drop(reader);
            // The daemon would hold a lock or a pipe of the mounting shell for as long as the mount lives.
            close_all_but(&writer);
            let ready = Ready { pipe: Some(writer), tether: Tether::default() };
            match detach() {
                Ok(()) => Ok(Side::Daemon(ready)),
                Err(e) => {
                    let error = failed(e);
                    ready.failed(&error);
                    Err(error)
                }
            }
        }
        pid => {
            let pid = Pid::from_raw(pid).expect("fork returns the child's pid");
            Ok(Side::Parent(Child { news: reader, pid }))
        }
    }
}

fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    std::env::set_current_dir("/")?;
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null")?.into();
    for target in 0..3 {
        // SAFETY: both descriptors are open; the target is one of the three standard ones, which
        // no Rust value of ours owns.
        if unsafe { libc::dup2(null.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes every descriptor but the standard ones and `kept`.
fn close_all_but(kept: &PipeWriter) {
    let kept = kept.as_raw_fd() as u32;
    for (first, last) in [(3, kept - 1), (kept + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: no Rust value of ours owns any of them, by the contract of `fork`. A kernel
            // older than 5.9 refuses, and all stay open.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

impl Child {
    /// Waits until the daemon serves and returns its notes, or its error. An interrupt ends the daemon, and
    /// the error says `then`.
    pub fn wait_ready(self, then: &str) -> Result<Vec<String>> {
        signals::catch_interrupts();
        while !self.has_news()? {
            if signals::take_interrupt().is_some() {
                return Err(self.interrupted(then));
            }
        }
        let mut text = String::new();
        let read = BufReader::new(self.news).read_line(&mut text);
        read.map_err(|e| Error::io(e, "news of the daemon"))?;
        let Ok(news) = serde_json::from_str::<News>(&text) else {
            let message = "the daemon died before it could serve; see its log and `dmesg`";
            return Err(Error::new(Kind::Unreachable, message));
        };
        match news.error {
            None => Ok(news.notes),
            Some(message) => Err(told(news.exit_code, message)),
        }
    }

    /// Whether the daemon has said something, or has ended.
    fn has_news(&self) -> Result<bool> {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_AGAIN.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.news, PollFlags::IN)], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(Error::io(e.into(), "news of the daemon")),
        }
    }

    /// Has the daemon end. The end of the pipe ends one that has yet to mount, the signal one that has mounted.
    fn interrupted(self, then: &str) -> Error {
        let Child { news, pid } = self;
        drop(news);
        // A daemon that has ended meanwhile needs no signal.
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + END_PATIENCE;
        while matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
            if Instant::now() > deadline {
                let text = format!("interrupted: the daemon, process {pid}, has yet to end");
                return Error::new(Kind::Interrupted, text);
            }
            sleep(LOOK_AGAIN);
        }
        Error::new(Kind::Interrupted, format!("interrupted: {then}"))
    }
}

impl Ready {
    /// For a daemon that stays in the foreground: no parent waits.
    pub fn nobody() -> Ready {
        Ready { pipe: None, tether: Tether::default() }
    }

    /// Whether a parent waits: the daemon is in the background.
    pub fn is_awaited(&self) -> bool {
        self.pipe.is_some()
    }

    /// From now on until the tether is cut, the end of the parent ends this process, too.
    pub fn tie(&self) -> Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let pipe = pipe.try_clone().map_err(|e| Error::io(e, "going into the background"))?;
        self.tether.tie(pipe);
        Ok(())
    }

    /// Returns whether the parent, if there is one, still waits.
    pub fn serving(self, notes: Vec<String>) -> bool {
        self.send(&News { error: None, exit_code: 0, notes })
    }

    pub fn failed(self, error: &Error) {
        let exit_code = error.exit_code();
        // The parent may have been killed.
        self.send(&News { error: Some(error.to_string()), exit_code, notes: Vec::new() });
    }

    fn send(self, news: &News) -> bool {
        let Some(mut pipe) = self.pipe else { return true };
        let text = serde_json::to_string(news).expect("strings and numbers");
        pipe.write_all(format!("{text}\n").as_bytes()).is_ok()
    }
}

/// The daemon's error, with the same exit code.
fn told(exit_code: u8, message: String) -> Error {
    match exit_code {
        2 => Error::new(Kind::Usage, message),
        3 => Error::new(Kind::Unreachable, message),
        4 => Error::new(Kind::DirtyAtRisk, message),
        _ => Error::os(libc::EIO, "daemon").with_source(message),
    }
}
