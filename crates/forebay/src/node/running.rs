//! A process that this node daemon or an earlier one has started: it is told to end, killed, and given up.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::{Error, Kind, Result};
use forebay_stage::worker::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

/// A killed process that does not end by then is in a system call that nothing interrupts.
const KILL_PATIENCE: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(100);

/// A running process.
pub struct Running {
    pid: u32,
    process: OwnedFd,
}

/// When a process was asked to end, and when it was killed.
#[derive(Debug, Default)]
pub struct Told {
    asked: Option<Instant>,
    killed: Option<Instant>,
}

impl Running {
    /// The worker of a status file: the last process that wrote there that it had begun.
    pub fn find(path: &Path) -> Result<Running> {
        let failed = |e| Error::io(e, path.display().to_string());
        let lines = BufReader::new(File::open(path).map_err(failed)?).lines();
        let started =
            lines.map_while(std::result::Result::ok).filter_map(|line| match serde_json::from_str(
                &line,
            ) {
                Ok(Line::Started { pid }) => Some(pid),
                _ => None,
            });
        let gone = || {
            let why = format!("{}: somebody holds its lock and is no worker", path.display());
            Error::new(Kind::Unavailable, why)
        };
        let pid = started.last().ok_or_else(gone)?;
        let running = Running::open(pid)?.ok_or_else(gone)?;
        // The number may be another process's by now; the descriptor was opened before this check.
        let out = std::fs::read_link(format!("/proc/{pid}/fd/1")).unwrap_or_default();
        if out == path { Ok(running) } else { Err(gone()) }
    }

    pub fn open(pid: u32) -> Result<Option<Running>> {
        let failed = |e: Errno| Error::os(e.raw_os_error(), format!("process {pid}"));
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(id, PidfdFlags::empty()) {
            Ok(process) => Ok(Some(Running { pid, process })),
            Err(Errno::SRCH) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    /// Takes one step towards the end of the process: asks it, and after `patience` kills it. Returns at once; with a
    /// text if the killed process does not end.
    pub fn end(&self, told: &mut Told, patience: Duration) -> Result<Option<String>> {
        match *told {
            Told { asked: None, .. } => {
                self.signal(Signal::TERM)?;
                told.asked = Some(Instant::now());
            }
            Told { asked: Some(asked), killed: None } if asked.elapsed() >= patience => {
                self.signal(Signal::KILL)?;
                told.killed = Some(Instant::now());
            }
            Told { killed: Some(killed), .. } if killed.elapsed() >= KILL_PATIENCE => {
                return Ok(Some(format!(
                    "its process {} was killed and does not end: a file system does not answer it",
                    self.pid
                )));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Ends the process and waits for it.
    pub fn end_now(&self, patience: Duration) -> Result<()> {
        let mut told = Told::default();
        while !self.ended(POLL)? {
            if let Some(why) = self.end(&mut told, patience)? {
                return Err(Error::new(Kind::Unavailable, why));
            }
        }
        Ok(())
    }

    /// Kills the process. It ends at once, unless it is in a system call that nothing interrupts.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.process, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(Error::os(e.raw_os_error(), format!("ending process {}", self.pid))),
        }
    }

    /// Whether the process has ended, within at most `patience`. If so, it is reaped.
    pub fn ended(&self, patience: Duration) -> Result<bool> {
        let ended = self.is_over(patience)?;
        if ended {
            // Only the parent of the process can reap it; otherwise this fails, and need not succeed.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = waitid(WaitId::PidFd(self.process.as_fd()), options);
        }
        Ok(ended)
    }

    /// Gives the process up: no thread waits for it. If it ends one day, a later call reaps it.
    pub fn leave(self) {
        static LEFT: Mutex<Vec<Running>> = Mutex::new(Rank::Late, Vec::new());
        let mut left = LEFT.lock();
        left.retain(|one| one.ended(Duration::ZERO).is_ok_and(|ended| !ended));
        left.push(self);
    }

    /// Whether the process has ended, within at most `patience`. It is not reaped.
    pub fn is_over(&self, patience: Duration) -> Result<bool> {
        let limit = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(Error::os(e.raw_os_error(), "waiting for a process")),
            Ok(ready) => Ok(ready > 0),
        }
    }
}
