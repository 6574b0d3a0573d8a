//! A running worker, identified by its process id and start time: a restarted daemon finds it again, and
//! does not take another process for it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use forebay_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

#[derive(Debug)]
pub struct Worker {
    pid: u32,
    /// The start time, in clock ticks since the machine booted.
    began: u64,
    fd: OwnedFd,
}

impl Worker {
    /// A child that this process has just started and not waited for.
    pub(super) fn of_child(pid: u32) -> Result<Worker> {
        Worker::open(pid)?.ok_or_else(|| Error::os(libc::ESRCH, format!("process {pid}")))
    }

    /// The worker with this id, if that process still has this start time.
    pub fn find(pid: u32, began: u64) -> Result<Option<Worker>> {
        Ok(Worker::open(pid)?.filter(|worker| worker.began == began))
    }

    /// Opens the descriptor first: the start time read after that is surely this process's.
    fn open(pid: u32) -> Result<Option<Worker>> {
        let failed = |e: std::io::Error| Error::io(e, format!("process {pid}"));
        let Some(id) = Pid::from_raw(pid.cast_signed()) else { return Ok(None) };
        let fd = match process::pidfd_open(id, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            other => other.map_err(|e| failed(e.into()))?,
        };
        let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        let began = began(&stat);
        let began = began.ok_or_else(|| Error::os(libc::EIO, format!("/proc/{pid}/stat")))?;
        Ok(Some(Worker { pid, began, fd }))
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The start time, to be stored beside the id.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Asks the worker to stop in an orderly way.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    pub fn hurry(&self) -> Result<()> {
        self.signal(Signal::USR1)
    }

    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match process::pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(Error::io(e.into(), format!("signal to process {}", self.pid))),
        }
    }

    /// Whether the worker has ended, within at most `patience`.
    pub fn ended(&self, patience: Duration) -> Result<bool> {
        let failed = |e: Errno| Error::io(e.into(), format!("process {}", self.pid));
        let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let ended = match poll(&mut fds, Some(&patience)) {
            Err(Errno::INTR) => false,
            other => other.map_err(failed)? > 0,
        };
        if ended {
            self.bury();
        }
        Ok(ended)
    }

    /// Reaps the worker if it is a child of this process; otherwise this does nothing.
    fn bury(&self) {
        use std::os::fd::AsFd;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        _ = process::waitid(WaitId::PidFd(self.fd.as_fd()), options);
    }
}

/// The 22nd field; the second, a name in parentheses, may contain any characters.
fn began(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_confuse() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 2 3";
        assert_eq!(began(stat), Some(4242));
        assert_eq!(began("7 (a) S 1"), None);
    }

    #[test]
    fn another_process_of_the_same_id_is_not_taken_for_it() {
        let own = Worker::open(std::process::id()).unwrap().expect("it runs");
        assert!(Worker::find(own.pid(), own.began()).unwrap().is_some());
        assert!(Worker::find(own.pid(), own.began() + 1).unwrap().is_none());
        assert!(!own.ended(Duration::ZERO).unwrap());
    }
}
