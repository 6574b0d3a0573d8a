//! A program that takes locks for a test: one command per line on its input, one line of answer each: `ok`, `errno
//! N`, or a result. SIGUSR1 interrupts its waits.
//!
//! `locker FILE`; commands:
//!
//! - `open ro|rw`, `close`: the open file that the other commands use (one at a time is used, others stay open).
//! - `flock sh|ex|un [nb]`
//! - `fcntl|ofd r|w|u START LEN [wait]`: LEN 0 reaches to the end, wherever that is.
//! - `test r|w START LEN`: the conflicting lock, as fcntl's F_GETLK reports it.
//! - `add COUNT flock|fcntl|ofd|none`: COUNT times reads the file's number, adds one and writes it, under a lock.
//! - `guard COUNT flock|fcntl|ofd MARK PAUSE`: COUNT times takes the lock, makes the file MARK, which must not exist,
//!   sleeps PAUSE ms, removes it and releases the lock. A call that fails because a node is away is repeated, on a
//!   new open file. Prints the number of failed calls, or `violated`.
//! - `read`

use std::fs::File;
use std::io::{BufRead, Error, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use forebay_tests::sys::{check, flock, open};

extern "C" fn interrupted(_: i32) {}

fn main() {
    // SAFETY: a handler that does nothing; without SA_RESTART a waiting call ends.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
    let path = std::env::args().nth(1).expect("locker FILE");
    let mut files = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = obey(Path::new(&path), &mut files, &words)
            .unwrap_or_else(|error| format!("errno {}", error.raw_os_error().expect("an errno")));
        println!("{answer}");
        std::io::stdout().flush().expect("somebody listens");
    }
}

fn obey(path: &Path, files: &mut Vec<File>, words: &[&str]) -> Result<String> {
    let ok = || Ok("ok".to_string());
    match words {
        ["open", how] => {
            let flags = if *how == "ro" { libc::O_RDONLY } else { libc::O_RDWR };
            files.push(open(path, flags, 0)?);
            return ok();
        }
        ["guard", count, how, mark, pause] => {
            let pause = Duration::from_millis(pause.parse().expect("PAUSE"));
            return guard(path, count.parse().expect("COUNT"), how, Path::new(mark), pause);
        }
        ["close"] => {
            drop(files.pop());
            return ok();
        }
        _ => {}
    }
    let file = files.last().ok_or(Error::from_raw_os_error(libc::EBADF))?;
    match words {
        ["flock", how, rest @ ..] => {
            let how = match *how {
                "sh" => libc::LOCK_SH,
                "ex" => libc::LOCK_EX,
                _ => libc::LOCK_UN,
            };
            flock(file, how | if rest.is_empty() { 0 } else { libc::LOCK_NB })?;
            ok()
        }
        [call @ ("fcntl" | "ofd"), kind, start, len, rest @ ..] => {
            let command = match (*call, rest.is_empty()) {
                ("fcntl", true) => libc::F_SETLK,
                ("fcntl", false) => libc::F_SETLKW,
                (_, true) => libc::F_OFD_SETLK,
                (_, false) => libc::F_OFD_SETLKW,
            };
            record(file, command, kind, start, len)?;
            ok()
        }
        ["test", kind, start, len] => {
            let lock = record(file, libc::F_GETLK, kind, start, len)?;
            let kind = match i32::from(lock.l_type) {
                libc::F_RDLCK => "r",
                libc::F_WRLCK => "w",
                _ => return Ok("free".into()),
            };
            Ok(format!("{kind} {} {} {}", lock.l_start, lock.l_len, lock.l_pid))
        }
        ["add", count, how] => {
            for _ in 0..count.parse().expect("COUNT") {
                lock(file, how, true)?;
                let number = number(file)?;
                file.write_all_at(format!("{:20}", number + 1).as_bytes(), 0)?;
                lock(file, how, false)?;
            }
            ok()
        }
        ["read"] => number(file).map(|number| number.to_string()),
        other => panic!("no command: {other:?}"),
    }
}

fn guard(path: &Path, count: u32, how: &str, mark: &Path, pause: Duration) -> Result<String> {
    let (mut done, mut failed) = (0, 0);
    while done < count {
        let locked = open(path, libc::O_RDWR, 0).and_then(|file| {
            lock(&file, how, true)?;
            Ok(file)
        });
        let Ok(file) = locked else {
            failed += 1;
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        if open(mark, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o644).is_err() {
            return Ok("violated".into());
        }
        std::thread::sleep(pause);
        std::fs::remove_file(mark)?;
        lock(&file, how, false)?;
        done += 1;
    }
    Ok(failed.to_string())
}

fn lock(file: &File, how: &str, takes: bool) -> Result<()> {
    let kind = if takes { "w" } else { "u" };
    match how {
        "none" => Ok(()),
        "flock" => flock(file, if takes { libc::LOCK_EX } else { libc::LOCK_UN }),
        "fcntl" => record(file, libc::F_SETLKW, kind, "0", "1").map(drop),
        _ => record(file, libc::F_OFD_SETLKW, kind, "0", "1").map(drop),
    }
}

fn number(file: &File) -> Result<u64> {
    let mut bytes = [0; 20];
    let len = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..len]);
    Ok(text.trim().parse().unwrap_or(0))
}

fn record(file: &File, command: i32, kind: &str, start: &str, len: &str) -> Result<libc::flock> {
    // SAFETY: flock is plain data for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind = match kind {
        "r" => libc::F_RDLCK,
        "w" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    lock.l_type = kind as i16;
    lock.l_start = start.parse().expect("START");
    lock.l_len = len.parse().expect("LEN");
    // SAFETY: the structure lives through the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}
