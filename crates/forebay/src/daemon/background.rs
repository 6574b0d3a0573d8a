//! Going into the background: one fork before any thread starts, and a pipe on which the daemon tells
//! the waiting parent that it serves, or why it does not.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use forebay_backing::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Which side of the fork this is.
pub enum Side {
    Parent(Child),
    Daemon(Ready),
}

/// The parent's connection to the daemon.
pub struct Child {
    news: PipeReader,
}

/// The daemon's connection to its parent, for one message.
pub struct Ready(Option<PipeWriter>);

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
            let ready = Ready(Some(writer));
            match detach() {
                Ok(()) => Ok(Side::Daemon(ready)),
                Err(e) => {
                    let error = failed(e);
                    ready.failed(&error);
                    Err(error)
                }
            }
        }
        _ => Ok(Side::Parent(Child { news: reader })),
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
    /// Waits until the daemon serves and returns its notes, or its error.
    pub fn wait_ready(mut self) -> Result<Vec<String>> {
        let mut text = String::new();
        self.news.read_to_string(&mut text).map_err(|e| Error::io(e, "news of the daemon"))?;
        let Ok(news) = serde_json::from_str::<News>(&text) else {
            let message = "the daemon died before it could serve; see its log and `dmesg`";
            return Err(Error::new(Kind::Unreachable, message));
        };
        match news.error {
            None => Ok(news.notes),
            Some(message) => Err(told(news.exit_code, message)),
        }
    }
}

impl Ready {
    /// For a daemon that stays in the foreground: no parent waits.
    pub fn nobody() -> Ready {
        Ready(None)
    }

    /// Whether a parent waits: the daemon is in the background.
    pub fn is_awaited(&self) -> bool {
        self.0.is_some()
    }

    pub fn serving(self, notes: Vec<String>) {
        self.send(&News { error: None, exit_code: 0, notes });
    }

    pub fn failed(self, error: &Error) {
        let exit_code = error.exit_code();
        self.send(&News { error: Some(error.to_string()), exit_code, notes: Vec::new() });
    }

    fn send(self, news: &News) {
        if let Some(mut pipe) = self.0 {
            let text = serde_json::to_string(news).expect("strings and numbers");
            // The parent may have been killed.
            let _ = pipe.write_all(text.as_bytes());
        }
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
