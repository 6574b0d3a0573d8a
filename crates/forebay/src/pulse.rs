//! Whether the daemon of a mount is alive, according to the kernel: the tier may be unreadable and the
//! control socket gone, or full, while the daemon serves.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};
use forebay_base::lock::sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

/// For a dead daemon the kernel answers at once. A daemon that is busy or hangs does not answer in this
/// time, and is not dead.
const PATIENCE: Duration = Duration::from_secs(2);

/// A killed process stays until its memory and files are released.
const DYING: Duration = Duration::from_secs(3);

const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// The kernel has ended the connection: the daemon is gone.
    Dead,
    /// A daemon serves the mount, or the kernel does not tell.
    Alive,
}

/// Whether the daemon of a mount is dead. Waits a little for a daemon that is dying.
pub fn is_dead(mountpoint: &Path) -> Result<bool> {
    let deadline = Instant::now() + DYING;
    loop {
        match pulse(mountpoint)? {
            Pulse::Dead => return Ok(true),
            Pulse::Alive if Instant::now() >= deadline => return Ok(false),
            Pulse::Alive => sleep(LOOK_AGAIN),
        }
    }
}

/// Calls statfs on the mount, in a process of its own: the call may never return if the daemon
/// hangs.
fn pulse(mountpoint: &Path) -> Result<Pulse> {
    let failed = |e: io::Error| Error::io(e, "asking the mount whether it lives");
    let path = CString::new(mountpoint.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    let mut figures = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the child calls statfs and _exit alone, which are sound after a fork of a process with
    // any number of threads; the path and the room for the answer outlive both.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(failed(io::Error::last_os_error())),
        0 => unsafe {
            let ended = libc::statfs(path.as_ptr(), figures.as_mut_ptr());
            libc::_exit(if ended == 0 { 0 } else { *libc::__errno_location() })
        },
        pid => Pid::from_raw(pid).expect("a child has a number"),
    };
    match exit_code(child).map_err(|e| failed(e.into()))? {
        // ECONNABORTED: the connection ended during the call.
        Some(libc::ENOTCONN | libc::ECONNABORTED) => Ok(Pulse::Dead),
        _ => Ok(Pulse::Alive),
    }
}

/// The exit code of a child; `None` if the child does not end in time. Then it is killed and not waited for.
fn exit_code(child: Pid) -> rustix::io::Result<Option<i32>> {
    let ended = pidfd_open(child, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit))?;
    if ready == 0 {
        kill_process(child, Signal::KILL)?;
        return Ok(None);
    }
    let status = waitpid(Some(child), WaitOptions::empty())?;
    Ok(status.and_then(|(_, status)| status.exit_status()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_not_dead_and_what_is_not_there_neither() {
        for path in ["/", "/proc", "/no/such/place"] {
            assert_eq!(pulse(Path::new(path)).unwrap(), Pulse::Alive, "{path}");
        }
    }
}
