//! Processes that tests start, and their state in /proc.

use std::ffi::CString;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::wait::{PATIENCE, eventually, within};

/// A child that is killed and reaped when dropped.
pub struct Proc(Child);

impl Proc {
    /// Starts a program. A program that was written a moment ago may be "busy" for as long as
    /// another test's child, forked while the writer was open, has not exec'd.
    pub fn spawn(command: &mut Command) -> Proc {
        let mut child = None;
        eventually(PATIENCE, || match command.spawn() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => false,
            other => {
                child = Some(other.unwrap_or_else(|e| panic!("cannot start {command:?}: {e}")));
                true
            }
        });
        Proc(child.unwrap_or_else(|| panic!("{command:?} stays busy")))
    }

    /// Its input and output, which were piped.
    pub fn pipes(&mut self) -> (std::process::ChildStdin, std::process::ChildStdout) {
        let pipes = self.0.stdin.take().zip(self.0.stdout.take());
        pipes.expect("both are piped, and taken once")
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// The exit status, if the child ended within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        eventually(limit, || {
            status = self.0.try_wait().expect("waiting for our own child");
            status.is_some()
        });
        status
    }

    pub fn running(&mut self) -> bool {
        self.0.try_wait().expect("waiting for our own child").is_none()
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // A child stuck in an uninterruptible call must not hang the test that reports it.
        let _ = self.wait(Duration::from_secs(5));
    }
}

/// Sends a signal to one process.
pub fn kill(pid: i32, signal: i32) {
    assert!(pid > 1, "refusing to signal {pid}");
    // SAFETY: kill takes two integers.
    unsafe { libc::kill(pid, signal) };
}

/// Stops a process. A thread within a system call stops at the end of the call: when this returns,
/// all have stopped.
pub fn stop(pid: i32) {
    kill(pid, libc::SIGSTOP);
    within(PATIENCE, "every thread has stopped", || all_stopped(pid));
}

fn all_stopped(pid: i32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let stats = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("stat")));
    stats.flatten().all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
}

/// A zombie is dead: its files are closed and its threads are gone.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !matches!(stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()), Some('Z' | 'X'))
}

pub fn open_fds(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Memory that is resident and not shared with files, in KiB.
pub fn rss_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// User and group id of a named user.
pub fn user_ids(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    // SAFETY: getpwnam returns null or a pointer to a record that stays valid until the next call;
    // it is read at once, and tests that call this do so one at a time per process.
    let record = unsafe { libc::getpwnam(name.as_ptr()).as_ref() }?;
    Some((record.pw_uid, record.pw_gid))
}
